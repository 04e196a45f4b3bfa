"""The reference model: what a store does, told with lists, dicts and linear scans. It is slow and obviously right.

Most verbs here return what a store must answer, or raise what it must raise. Where the contract leaves a choice, the
model takes over the store's, once it has checked that the choice is a legal one:

    ready       `observe`: a job may become ready whenever it is due, its gates have room and, at an ordered gate, it is
                the smallest unfinished id. After a full `promote` none that could be ready may still wait. Who gets
                the last slot of a cap is free; so is the number of slots while its jobs bear stamps of two specs.
    expired     a job may die of it from `expires_at` on, must be dead a second later, and is never claimed in between
    kept        a finished job may be forgotten from the end of its time on, not before; `model_graves` for the dead;
                a key counts for at most a second after its window
    claim       within a class exact: smallest (rank, id) first, nothing that was claimable left out. Shares are free.
    leases      the end is the store's, within [asked, asked · 1.01 + 1 ms]; `overdue` is free among equal ends
    purge, trim which ones, if `limit` cuts; how many is exact.  `append` without a key: which partition

Everything else is exact. A settle is remembered for ever here: a store's `settle_memory` must cover the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from forebay.core.instant import Instant, Span
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled, Settlement, outlived
from forebay.core.limits import INSTANT_MOST
from forebay.core.outcome import OUT_OF_TIME, Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.schedule import Schedule
from forebay.core.stamp import Stamper
from forebay.store.protocol import Backlog, CancelAnswer, Promotion, Want
from forebay.testing.model_door import DoorModel, rank_of, went_back
from forebay.testing.model_gates import OPEN, Item
from forebay.testing.model_graves import UNHELD, errors_of
from forebay.testing.model_logs import require

_SECOND = 1_000_000


class Model(DoorModel):
    """All that a store knows. `now` is the store's, passed by whoever drives the two."""

    def __init__(self, durable: bool = False) -> None:
        super().__init__(durable)
        self.paused: dict[str, Instant] = {}
        self.schedules: dict[str, Schedule] = {}
        self.ticks: dict[str, Instant] = {}
        self._settled: dict[int, tuple[int, type[Verdict]]] = {}
        self._admitted: set[int] = set()

    def observe(self, now: Instant, pictures: Mapping[int, Job | None]) -> list[int]:
        """All accepted jobs as the store shows them; returns those that became ready since the last look."""
        ready = []
        for job_id, shown in pictures.items():
            item = self.items.get(job_id)
            if item is None:
                continue
            was = item.job.state
            if shown and shown.state is State.READY and was is State.WAITING and item.job.due_at <= now:
                self._start(item, now)
                self._change(item, state=State.READY)
                ready.append(job_id)
            elif (shown is None or shown.state is State.DEAD) and was in OPEN[:2] and item.expired(now):
                self._die(item, OUT_OF_TIME, now)
        gone = [item for job_id, shown in pictures.items() if shown is None and (item := self.items.get(job_id))]
        for item in gone:
            if self._forgotten(now, item, pictures):
                del self.items[item.job.id]
        for job_id, shown in pictures.items():
            item = self.items.get(job_id)
            require(shown == (item and item.job), f"job {job_id} is", item and item.job, shown)
        for job_id in {*ready, *self._admitted} & self.items.keys():
            self._check_admission(self.items[job_id], now)
        self._admitted.clear()
        return ready

    def promoted(self, now: Instant, limit: int, ready: Sequence[int], answer: Promotion) -> None:
        """Called after `observe`, with what it returned."""
        require(answer.ready == len(ready) <= limit, "promote says how many became ready", len(ready), answer)
        waiting = self.jobs(State.WAITING)
        if len(waiting) + len(ready) < limit:
            late = [i.job.id for i in waiting if not i.expired(now) and self._surely_let_in(i, now)]
            require(not late, "promote left behind what could be ready", late)
            self.next_due(now, answer.next_due)
            if len(self.items) < limit:
                stale = [item.job.id for item in self.jobs(*OPEN[:2]) if item.expired(now - _SECOND)]
                require(not stale, "expired a second ago and not dead", stale)
                require(not self.crowded(), "promote left more dead than these queues keep", self.crowded())

    def claimed(self, now: Instant, wants: Sequence[Want], owner: str, span: Span, leases: Sequence[Lease]) -> None:
        """What was handed out was there to be had. The wants name different queues or different classes."""
        self.claiming = True
        for lease in leases:
            item = self.items.get(lease.job.id)
            assert item is not None, f"claimed {lease.job.id}, which is not there"
            job = item.job
            require(any(_wanted(item, want) for want in wants), f"nobody asked for job {job.id}", wants, job)
            require(self.paused.get(job.queue, 0) <= now, f"{job.queue} is paused and gave job {job.id}")
            require(job.state in OPEN[:2], f"claimed job {job.id}, which is {job.state}")
            require(job.due_at <= now, f"claimed job {job.id} before it was due", job.due_at, now)
            require(not item.expired(now), f"claimed job {job.id} after it had expired", job.expires_at, now)
            if job.state is State.WAITING:
                self._admitted.add(job.id)
                self._start(item, now)
            self._check_until(now, span, lease.until)
            self._change(
                replace(item, fresh=False),
                state=State.RUNNING,
                attempt=job.attempt + 1,
                delivery=job.delivery + 1,
                owner=owner,
                claimed_at=now,
                lease_until=lease.until,
            )
            self._check_lease(lease)

    def claimed_in_order(self, now: Instant, wants: Sequence[Want], leases: Sequence[Lease]) -> None:
        """Called after `observe`: nothing that could be had was passed over.

        Where a claim of several queues started a job at its rate, room may have come for another queue, whose part of
        the claim was over.
        """
        paused = [queue for queue, until in self.paused.items() if until > now]
        self.claiming = False
        for want in wants:
            got = [item for lease in leases if _wanted(item := self.items[lease.job.id], want)]
            items = [] if want.queue in paused else self.jobs(*OPEN[:2], queue=want.queue)
            others = [item for lease in leases if (item := self.items[lease.job.id]).job.queue != want.queue]
            made_way = {gate.name for item in others if item.paced for gate in item.entry.gates if not gate.step}
            left = [i for i in items if _wanted(i, want) and self._claimable(i, now) and not i.at(made_way)]
            require(len(got) <= want.count, "more than was asked for", want, len(got))
            require(len(got) == want.count or not left, "jobs were there, fewer came", want, [i.job.id for i in left])
            for cls in {item.entry.cls for item in got}:
                places = [item.place for item in got if item.entry.cls == cls]
                require(places == sorted(places), "claims follow (rank, id)", sorted(places), places)
                last = {
                    False: places[-1],
                    True: max((i.place for i in got if i.entry.cls == cls and i.paced), default=()),
                }
                passed = [i.job.id for i in left if i.entry.cls == cls and i.place < last[i.paced]]
                require(not passed, f"jobs were passed over by {places[-1]}", passed)

    def extended(self, now: Instant, leases: Sequence[Lease], span: Span, survivors: Sequence[Lease]) -> None:
        held = list(dict.fromkeys(lease.job.id for lease in leases if self._held(lease.fence)))
        require([lease.job.id for lease in survivors] == held, "extend answers the survivors", held, survivors)
        for lease in survivors:
            self._check_until(now, span, lease.until)
            self._change(self.items[lease.job.id], lease_until=lease.until)
            self._check_lease(lease)

    def settle(self, now: Instant, settlements: Sequence[Settlement]) -> list[Settled]:
        return [self._settle(now, lease, verdict) for lease, verdict in settlements]

    def overdue(self, now: Instant, limit: int, leases: Sequence[Lease]) -> None:
        late = [i.job for i in self.jobs(State.RUNNING) if i.job.lease_until is not None and i.job.lease_until <= now]
        ends = sorted(job.lease_until or 0 for job in late)[:limit]
        require([lease.until for lease in leases] == ends, "overdue: all of them, oldest first", ends, leases)
        require(len({lease.fence for lease in leases}) == len(leases), "overdue tells each lease once", leases)
        for lease in leases:
            self._check_lease(lease)

    def cancel(self, now: Instant, ids: Sequence[int]) -> list[CancelAnswer]:
        return [self._cancel(now, self.items.get(job_id)) for job_id in ids]

    def redrive(self, now: Instant, ids: Sequence[int]) -> list[int]:
        dead = {job_id: item for job_id in ids if (item := self.items.get(job_id)) and item.job.state is State.DEAD}
        self._check_room([item.job.home or item.job.queue for item in dead.values()])
        for item in dead.values():
            lives = {"attempt": 0, "cancel_requested": False, "finished_at": None, "expires_at": None}
            home = {"queue": item.job.home or item.job.queue, "home": None}
            self._wait(replace(item, rank=rank_of(item.entry, now, now), kept_until=0), now, **lives, **home)
        return list(dead)

    def purged(self, now: Instant, state: State, before: Instant, limit: int, answer: int, gone: set[int]) -> None:
        """`gone` are the accepted jobs that the store no longer shows. Those that left by themselves may be counted."""
        old = {item.job.id for item in self.jobs(state) if (item.job.finished_at or 0) < before}
        crowded = self.crowded() if state is State.DEAD else []
        left_by_themselves = {
            i.job.id for i in self.jobs(state) if i.job.queue in crowded or (i.kept_until and i.kept_until <= now)
        }
        least, most = min(limit, len(old - left_by_themselves)), min(limit, len(old))
        require(least <= answer <= most, "purge says how many were old: at least, at most, shown", least, most, answer)
        require(len(old & gone - left_by_themselves) <= answer <= len(old & gone), "purge removes them", old & gone)
        for job_id in old & gone:
            del self.items[job_id]

    def backlog(self, now: Instant, shown: Backlog) -> None:
        queue, until = shown.queue, self.paused.get(shown.queue, 0)
        states = [item.job.state for item in self.jobs(*State, queue=queue)]
        due = [item.job.due_at for item in self.jobs(State.READY, queue=queue)]
        facts = [fact for name, fact in self.keys.items() if name[0] == queue]
        live, lately = (len([f for f in facts if self.key_counts(queue, f, at)]) for at in (now, now - _SECOND))
        require(live <= shown.keys <= lately, f"keys of {queue}: live, at most, shown", live, lately, shown.keys)
        parked = {0} | {now - i.job.due_at for i in self.jobs(State.WAITING, queue=queue) if i.job.due_at <= now}
        require(shown.oldest_parked in parked, f"parked in {queue}: ages, shown", parked, shown.oldest_parked)
        expected = Backlog(
            queue=queue,
            **{state.value: states.count(state) for state in State},
            oldest_age=now - min(due, default=now),
            paused_until=until if until > now else None,
            keys=shown.keys,
            oldest_parked=shown.oldest_parked,
            blocked=len(self.blocked(queue)),
        )
        require(shown == expected, "backlog: expected and shown", expected, shown)

    def edges(self, now: Instant) -> list[Instant]:
        """The instants ahead at which something falls due, runs out or is forgotten."""
        jobs = [item.job for item in self.items.values()]
        instants = [at for job in jobs for at in (job.due_at, job.lease_until, job.expires_at) if at is not None]
        instants += [item.kept_until for item in self.items.values()] + [fact[2] for fact in self.keys.values()]
        instants += [least for least, _ in self.openings(now)]
        return sorted({at for at in [*instants, *self.paused.values()] if now < at < INSTANT_MOST})

    def pause(self, queue: str, until: Instant | None) -> None:
        self.paused[queue] = INSTANT_MOST if until is None else until

    def resume(self, queue: str) -> None:
        self.paused.pop(queue, None)

    def set_gate(self, name: str, limit: int | None) -> None:
        self.gate_limits.pop(name, None)
        if limit is not None:
            self.gate_limits[name] = limit

    def put_schedule(self, schedule: Schedule) -> None:
        known = self.schedules.get(schedule.name)
        last_at = self.ticks.get(schedule.name)
        next_at, last_job = schedule.next_at, None
        if known is not None:
            last_job = known.last_job
            moves = known.rule != schedule.rule or known.zone != schedule.zone or known.paused > schedule.paused
            if not moves and known.next_at > (-1 if last_at is None else last_at):
                next_at = known.next_at
        self.schedules[schedule.name] = replace(schedule, next_at=next_at, last_at=last_at, last_job=last_job)

    def drop_schedule(self, name: str) -> bool:
        return self.schedules.pop(name, None) is not None

    def fire(
        self,
        now: Instant,
        name: str,
        tick: Instant,
        next_at: Instant,
        draft: Draft | None,
        fresh: Iterable[int] | None = None,
    ) -> bool:
        known = self.schedules.get(name)
        if known is None or known.paused or known.next_at != tick or tick <= self.ticks.get(name, -1):
            return False
        receipts = self.enqueue(now, [draft], fresh) if draft else []
        became = next((receipt.id for receipt in receipts if receipt.id and not receipt.duplicate), known.last_job)
        self.ticks[name] = tick
        self.schedules[name] = replace(known, next_at=next_at, last_at=tick, last_job=became)
        return True

    def _claimable(self, item: Item, now: Instant) -> bool:
        return not item.expired(now) and (item.job.state is State.READY or self._surely_started(item, now))

    def _held(self, fence: tuple[int, int]) -> Item | None:
        item = self.items.get(fence[0])
        return item if item and item.job.state is State.RUNNING and item.job.delivery == fence[1] else None

    def _check_until(self, now: Instant, span: Span, until: Instant) -> None:
        require(span <= until - now <= span * 1.01 + 1_000, "a lease lasts as long as asked", span, until - now)

    def _check_lease(self, lease: Lease) -> None:
        job = self.items[lease.job.id].job
        shown = (lease.job, lease.owner, lease.until)
        require(shown == (job, job.owner or "", job.lease_until or 0), "the lease shows its job", job, lease)

    def _settle(self, now: Instant, lease: Lease, verdict: Verdict) -> Settled:
        job_id, item = lease.job.id, self._held(lease.fence)
        mark = (lease.job.delivery, type(verdict))
        if item is None or outlived(lease, verdict, item.job.lease_until or 0):
            return Settled.APPLIED if self._settled.get(job_id) == mark else Settled.STALE
        self._settled[job_id] = mark
        match verdict:
            case Ack(result, keep_for):
                self._end(item, State.DONE, now, result, keep_for)
            case Retry(after, error, keep_rank):
                again = went_back(item) if keep_rank else replace(item, rank=rank_of(item.entry, now + after, now))
                self._wait(again, now + after, errors=errors_of(item.job, error, now))
            case DeadLetter(error):
                self._die(item, error, now)
            case Release(after, error):
                errors = item.job.errors if error is None else errors_of(item.job, error, now)
                self._wait(went_back(item), now + after, attempt=item.job.attempt - 1, errors=errors)
            case Cancel(keep_for):
                self._end(item, State.CANCELLED, now, None, keep_for)
        return Settled.APPLIED

    def _cancel(self, now: Instant, item: Item | None) -> CancelAnswer:
        if item is None or item.job.state.terminal:
            return CancelAnswer.GONE
        if item.job.state is State.RUNNING:
            self._change(item, cancel_requested=True)
            return CancelAnswer.REQUESTED
        self._end(item, State.CANCELLED, now)
        return CancelAnswer.CANCELLED

    def _wait(self, item: Item, due_at: Instant, **changes: Any) -> None:
        self._change(item, state=State.WAITING, due_at=due_at, **UNHELD, **changes)

    def _end(self, item: Item, state: State, now: Instant, result: bytes | None = None, keep_for: Span = 0) -> None:
        kept_until = Stamper(self.spec(item.job.queue)).kept_until(now, keep_for)
        if kept_until:
            kept = replace(item, fresh=False, kept_until=kept_until)
            self._change(kept, state=state, finished_at=now, result_body=result, **UNHELD)
        else:
            del self.items[item.job.id]


def _wanted(item: Item, want: Want) -> bool:
    return item.job.queue == want.queue and want.cls in (None, item.entry.cls)
