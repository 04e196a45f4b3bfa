"""The reference model: what a store does, by lists, dicts and linear scans. It is slow and obviously right.

Most verbs here return what a store must answer, or raise what it must raise. Where the contract leaves a choice, the
model adopts the store's, once it has checked that the choice is legal:

    ready       exact where a job is due when it is accepted, goes back, or becomes the head of its line; what falls due
                later becomes ready by the next full `promote`, or by a claim
    expired     a job may die of it from `expires_at` on, must be dead a second later, and is never claimed in between
    kept        a finished job may be forgotten from the end of its time on, not before; the dead: `dead_letters`;
                a key counts for at most a second after its window
    claim       `claims`: exact, but for classes with equal turns
    leases      the end is the store's, within [asked, asked · 1.01 + 1 ms]; `overdue` is free among equal ends
    purge, trim which ones, if `limit` cuts; how many is exact.  `append` without a key: which partition

Everything else is exact. A settle is remembered for ever here: a store's `settle_memory` must cover the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from forebay.core.errors import ForebayError
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.limits import MAX_INSTANT
from forebay.core.outcome import OUT_OF_TIME, Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.core.stamp import Stamper
from forebay.engine.settle import outlived
from forebay.store.protocol import (
    Backlog,
    CancelAnswer,
    Checkpoint,
    ProgressReport,
    Promotion,
    Receipt,
    Tally,
    Want,
)
from forebay_proof.model.claims import ClaimModel
from forebay_proof.model.dead_letters import UNHELD, DeadLetterModel, errors_of
from forebay_proof.model.gates import GateModel
from forebay_proof.model.intake import IntakeModel, rank_of, with_released_rank
from forebay_proof.model.jobs import OPEN, SECOND, Item, JobTable, require
from forebay_proof.model.logs import LogModel


class Model:
    """All that a store has, in parts. Verbs return what the store must answer; `check_…` judges what it answered.

    `now` is the store's.
    """

    def __init__(self, durable: bool = False) -> None:
        self.jobs = JobTable()
        self.gates = GateModel(self.jobs)
        self.claims = ClaimModel(self.jobs, self.gates)
        self.dead_letters = DeadLetterModel(self.jobs)
        self.intake = IntakeModel(self.jobs, self.dead_letters, durable)
        self.logs = LogModel(self.jobs.specs)
        self.schedules: dict[str, Schedule] = {}
        self.ticks: dict[str, Instant] = {}
        self.sources: dict[str, Checkpoint] = {}
        self._settled: dict[int, tuple[int, type[Verdict]]] = {}
        self._later: set[int] = set()
        self._just: set[int] = set()

    def observe(self, now: Instant, shown_jobs: Mapping[int, Job | None]) -> list[int]:
        """Compare all accepted jobs with what the store shows; returns those that became ready since the last call."""
        self.end_by_themselves(now, shown_jobs)
        ready = []
        for job_id, shown in shown_jobs.items():
            item = self.jobs.items.get(job_id)
            if item and shown and (shown.state, item.job.state) == (State.READY, State.WAITING):
                require(item.job.due_at <= now, f"job {job_id} is ready before it is due", item.job.due_at, now)
                require(self.jobs.exposed(item), f"job {job_id} is ready behind", self.jobs.line(item)[0].job.id)
                self.jobs.change(item, state=State.READY)
                ready.append(job_id)
        for job_id, shown in shown_jobs.items():
            item = self.jobs.items.get(job_id)
            require(shown == (item and item.job), f"job {job_id} is", item and item.job, shown)
        self._check_waiting(now)
        self.claims.lift_classes()
        self.claims.uncovered.clear()
        return ready

    def end_by_themselves(self, now: Instant, shown_jobs: Mapping[int, Job | None]) -> None:
        """Jobs that expired, or whose retention is over, and that the store therefore ended or dropped."""
        for job_id, shown in shown_jobs.items():
            item = self.jobs.items.get(job_id)
            if item is None or not (shown is None or shown.state is State.DEAD):
                continue
            if item.job.state in OPEN[:2] and item.expired(now):
                self.claims.uncovered |= {item.entry.line} if item.entry.line else set()
                self.dead_letters.dead_letter(item, OUT_OF_TIME, now)
        gone = [item for job_id, shown in shown_jobs.items() if shown is None and (item := self.jobs.items.get(job_id))]
        for item in gone:
            if self.dead_letters.forgettable(now, item, shown_jobs):
                self.claims.uncovered |= {item.entry.line} if item.entry.line else set()
                del self.jobs.items[item.job.id]

    def check_promotion(self, now: Instant, limit: int, ready: Sequence[int], answer: Promotion) -> None:
        """Called after `observe`, with what it returned."""
        require(answer.ready == len(ready) <= limit, "the answer of promote: how many became ready", len(ready), answer)
        waiting = self.jobs.in_state(State.WAITING)
        if len(waiting) + len(ready) < limit:
            due = [i for i in waiting if i.job.due_at <= now and not i.expired(now) and i.job.id not in self._just]
            late = [item.job.id for item in due if self.jobs.exposed(item)]
            require(not late, "promote left behind what could be ready", late)
            self.gates.check_next_due(now, answer.next_due)
            if len(self.jobs.items) < limit:
                stale = [item.job.id for item in self.jobs.in_state(*OPEN[:2]) if item.expired(now - SECOND)]
                require(not stale, "expired a second ago and not dead", stale)
                require(
                    not self.dead_letters.over_dead_limit(),
                    "promote left more dead than these queues keep",
                    self.dead_letters.over_dead_limit(),
                )

    def check_claim(
        self, now: Instant, wants: Sequence[Want], owner: str, duration: Duration, leases: Sequence[Lease]
    ) -> None:
        """What was handed out, in the order of the wants, is what had to be. Called after `end_by_themselves`."""
        rest = list(leases)
        for want in wants:
            self.claims.begin(now, want.queue)
            count = 0
            while rest and count < want.count and _wanted(self.jobs.items.get(rest[0].job.id), want):
                self._hand_out(now, want, owner, duration, rest.pop(0))
                count += 1
            if count < want.count and self.jobs.paused.get(want.queue, 0) <= now:
                self.claims.check_exhausted(now, want)
        require(not rest, "more was handed out than wanted, or in another order", wants, [one.job.id for one in rest])

    def _hand_out(self, now: Instant, want: Want, owner: str, lease_for: Duration, lease: Lease) -> None:
        item = self.jobs.items[lease.job.id]
        job = item.job
        require(self.jobs.paused.get(job.queue, 0) <= now, f"{job.queue} is paused and gave job {job.id}")
        require(job.state in OPEN[:2], f"claimed job {job.id}, which is {job.state}")
        require(job.due_at <= now, f"claimed job {job.id} before it was due", job.due_at, now)
        require(not item.expired(now), f"claimed job {job.id} after it had expired", job.expires_at, now)
        require(self.jobs.exposed(item), f"claimed job {job.id} before", self.jobs.line(item)[0].job.id)
        self.claims.check_next(now, want, item)
        self._check_until(now, lease_for, lease.until)
        self.gates.pay(item, now)
        self.jobs.change(
            replace(item, fresh=False),
            state=State.RUNNING,
            attempt=job.attempt + 1,
            delivery=job.delivery + 1,
            owner=owner,
            claimed_at=now,
            lease_until=lease.until,
        )
        self.claims.started(now, want, item)
        self._check_lease(lease)

    def check_extension(
        self, now: Instant, leases: Sequence[Lease], duration: Duration, survivors: Sequence[Lease]
    ) -> None:
        held = list(dict.fromkeys(lease.job.id for lease in leases if self._held(lease.fence)))
        require([lease.job.id for lease in survivors] == held, "extend answers the survivors", held, survivors)
        for lease in survivors:
            self._check_until(now, duration, lease.until)
            self.jobs.change(self.jobs.items[lease.job.id], lease_until=lease.until)
            self._check_lease(lease)

    def put_spec(self, spec: QueueSpec) -> None:
        self.logs.put_spec(spec)
        self.claims.restart_turns(spec.name)

    def reopened(self) -> None:
        self.claims.reopened()

    def settle(self, now: Instant, settlements: Sequence[Settlement]) -> list[Settled]:
        return [self._settle(now, lease, verdict) for lease, verdict in settlements]

    def check_overdue(self, now: Instant, limit: int, leases: Sequence[Lease]) -> None:
        late = [
            i.job
            for i in self.jobs.in_state(State.RUNNING)
            if i.job.lease_until is not None and i.job.lease_until <= now
        ]
        ends = sorted(job.lease_until or 0 for job in late)[:limit]
        require([lease.until for lease in leases] == ends, "overdue: all of them, oldest first", ends, leases)
        require(len({lease.fence for lease in leases}) == len(leases), "overdue returns each lease once", leases)
        for lease in leases:
            self._check_lease(lease)

    def cancel(self, now: Instant, ids: Sequence[int]) -> list[CancelAnswer]:
        return [self._cancel(now, self.jobs.items.get(job_id)) for job_id in ids]

    def redrive(self, now: Instant, ids: Sequence[int]) -> list[int]:
        dead = {
            job_id: item for job_id in ids if (item := self.jobs.items.get(job_id)) and item.job.state is State.DEAD
        }
        self.intake.check_room([item.job.home or item.job.queue for item in dead.values()])
        for item in dead.values():
            fresh = {"attempt": 0, "cancel_requested": False, "finished_at": None, "expires_at": None}
            home = {"queue": item.job.home or item.job.queue, "home": None}
            self._wait(replace(item, rank=rank_of(item.entry, now, now), kept_until=0), now, **fresh, **home)
        for item in self.jobs.in_state(State.READY):
            if not self.jobs.exposed(item):
                self.jobs.change(item, state=State.WAITING)
        return list(dead)

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        dead = [job_id for job_id in dict.fromkeys(ids) if self._is_dead(job_id)]
        for job_id in dead:
            del self.jobs.items[job_id]
        return dead

    def replace_dead(
        self, now: Instant, pairs: Sequence[tuple[int, Draft]], fresh: Iterable[int] | None
    ) -> list[Receipt | None]:
        """Only the first pair with a dead job counts."""
        drafts: dict[int, Draft] = {}
        for job_id, draft in pairs:
            if self._is_dead(job_id):
                drafts.setdefault(job_id, draft)
        dead = {job_id: self.jobs.items.pop(job_id) for job_id in drafts}
        try:
            receipts = self.intake.enqueue(now, list(drafts.values()), fresh)
        except ForebayError:
            self.jobs.items.update(dead)
            raise
        answers: dict[int, Receipt] = dict(zip(drafts, receipts, strict=True))
        return [answers.pop(job_id, None) for job_id, _ in pairs]

    def ingest(
        self,
        now: Instant,
        source: str,
        before: Checkpoint | None,
        after: Checkpoint,
        drafts: Sequence[Draft],
        fresh: Iterable[int] | None,
    ) -> Tally | None:
        if self.sources.get(source) != before:
            return None
        tally = Tally.of(self.intake.enqueue(now, drafts, fresh))
        self.sources[source] = after
        return tally

    def report_progress(self, now: Instant, reports: Sequence[ProgressReport]) -> list[Settled]:
        current = [self._held(fence) is not None for fence, _ in reports]
        for (fence, progress), is_current in zip(reports, current, strict=True):
            if is_current:
                self.jobs.change(self.jobs.items[fence[0]], progress=replace(progress, at=now))
        return [Settled.APPLIED if each else Settled.STALE for each in current]

    def forget_progress(self, shown_jobs: Mapping[int, Job | None]) -> None:
        """A crash may lose what was reported."""
        for job_id, shown in shown_jobs.items():
            if shown is not None and shown.progress is None and (item := self.jobs.items.get(job_id)):
                self.jobs.change(item, progress=None)

    def _is_dead(self, job_id: int) -> bool:
        item = self.jobs.items.get(job_id)
        return item is not None and item.job.state is State.DEAD

    def check_purge(
        self,
        now: Instant,
        state: State,
        before: Instant,
        limit: int,
        answer: int,
        gone: set[int],
        queue: str | None = None,
    ) -> None:
        """`gone`: accepted jobs that the store no longer shows. It may count those whose retention was over, or not."""
        finished = self.jobs.in_state(state, queue=queue)
        old = {item.job.id for item in finished if (item.job.finished_at or 0) < before}
        over_dead_limit = self.dead_letters.over_dead_limit() if state is State.DEAD else []
        dropped = {
            i.job.id
            for i in self.jobs.in_state(state)
            if i.job.queue in over_dead_limit or (i.kept_until and i.kept_until <= now)
        }
        least, most = min(limit, len(old - dropped)), min(limit, len(old))
        require(
            least <= answer <= most,
            "the answer of purge, how many were old: at least, at most, shown",
            least,
            most,
            answer,
        )
        require(len(old & gone - dropped) <= answer <= len(old & gone), "purge removes them", old & gone)
        for job_id in old & gone:
            del self.jobs.items[job_id]

    def check_backlog(self, now: Instant, shown: Backlog) -> None:
        queue, until = shown.queue, self.jobs.paused.get(shown.queue, 0)
        states = [item.job.state for item in self.jobs.in_state(*State, queue=queue)]
        due = [item.job.due_at for item in self.jobs.in_state(State.READY, queue=queue)]
        facts = [fact for name, fact in self.intake.keys.items() if name[0] == queue]
        live, recent = (len([f for f in facts if self.intake.key_counts(queue, f, at)]) for at in (now, now - SECOND))
        require(live <= shown.keys <= recent, f"keys of {queue}: live, at most, shown", live, recent, shown.keys)
        least, most = self.gates.held_bounds(now, queue)
        require(least <= shown.held <= most, f"held in {queue}: at least, at most, shown", least, most, shown.held)
        expected = Backlog(
            queue=queue,
            **{state.value: states.count(state) for state in State},
            oldest_age=now - min(due, default=now),
            paused_until=until if until > now else None,
            keys=shown.keys,
            held=shown.held,
            blocked=len(self.jobs.blocked(queue)),
        )
        require(shown == expected, "backlog: expected and shown", expected, shown)

    def edges(self, now: Instant) -> list[Instant]:
        """The instants ahead at which something falls due, ends or is dropped."""
        jobs = [item.job for item in self.jobs.items.values()]
        instants = [at for job in jobs for at in (job.due_at, job.lease_until, job.expires_at) if at is not None]
        instants += [item.kept_until for item in self.jobs.items.values()] + [
            fact[2] for fact in self.intake.keys.values()
        ]
        instants += self.gates.openings(now)
        return sorted({at for at in [*instants, *self.jobs.paused.values()] if now < at < MAX_INSTANT})

    def pause(self, queue: str, until: Instant | None) -> None:
        self.jobs.paused[queue] = MAX_INSTANT if until is None else until

    def resume(self, queue: str) -> None:
        self.jobs.paused.pop(queue, None)

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
        receipts = self.intake.enqueue(now, [draft], fresh) if draft else []
        became = next((receipt.id for receipt in receipts if receipt.id and not receipt.duplicate), known.last_job)
        self.ticks[name] = tick
        self.schedules[name] = replace(known, next_at=next_at, last_at=tick, last_job=became)
        return True

    def _check_waiting(self, now: Instant) -> None:
        """A job that is due and first in its line is ready, unless it fell due, or became the first, just now."""
        later = set()
        for item in self.jobs.in_state(State.WAITING):
            if self.jobs.exposed(item) and not item.expired(now):
                unseen = item.job.due_at > now or item.job.id in self._later or item.entry.line in self.claims.uncovered
                require(unseen, f"job {item.job.id} is due and first in its line, and waits", item.job)
                later.add(item.job.id)
        self._later = later
        self._just = {job_id for job_id in later if self.jobs.items[job_id].entry.line in self.claims.uncovered}

    def _held(self, fence: tuple[int, int]) -> Item | None:
        item = self.jobs.items.get(fence[0])
        return item if item and item.job.state is State.RUNNING and item.job.delivery == fence[1] else None

    def _check_until(self, now: Instant, lease_for: Duration, until: Instant) -> None:
        require(
            lease_for <= until - now <= lease_for * 1.01 + 1_000,
            "a lease lasts as long as asked",
            lease_for,
            until - now,
        )

    def _check_lease(self, lease: Lease) -> None:
        job = self.jobs.items[lease.job.id].job
        job = replace(job, progress=None)
        shown = (replace(lease.job, progress=None), lease.owner, lease.until)
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
                again = (
                    with_released_rank(item) if keep_rank else replace(item, rank=rank_of(item.entry, now + after, now))
                )
                self._wait(again, now + after, errors=errors_of(item.job, error, now))
            case DeadLetter(error):
                self.dead_letters.dead_letter(item, error, now)
            case Release(after, error):
                errors = item.job.errors if error is None else errors_of(item.job, error, now)
                self._wait(with_released_rank(item), now + after, attempt=item.job.attempt - 1, errors=errors)
            case Cancel(keep_for):
                self._end(item, State.CANCELLED, now, None, keep_for)
        return Settled.APPLIED

    def _cancel(self, now: Instant, item: Item | None) -> CancelAnswer:
        if item is None or item.job.state.terminal:
            return CancelAnswer.GONE
        if item.job.state is State.RUNNING:
            self.jobs.change(item, cancel_requested=True)
            return CancelAnswer.REQUESTED
        self._end(item, State.CANCELLED, now)
        return CancelAnswer.CANCELLED

    def _wait(self, item: Item, due_at: Instant, **changes: Any) -> None:
        self.jobs.change(item, state=State.WAITING, due_at=due_at, **UNHELD, **changes)

    def _end(self, item: Item, state: State, now: Instant, result: bytes | None = None, keep_for: Duration = 0) -> None:
        kept_until = Stamper(self.jobs.spec(item.job.queue)).kept_until(now, keep_for)
        if kept_until:
            kept = replace(item, fresh=False, kept_until=kept_until)
            self.jobs.change(kept, state=state, finished_at=now, result_body=result, **UNHELD)
        else:
            del self.jobs.items[item.job.id]


def _wanted(item: Item | None, want: Want) -> bool:
    return item is not None and item.job.queue == want.queue and want.cls in (None, item.entry.cls)
