"""A store and the reference model in lockstep: every verb is called on both, and the answers are compared.

After each verb of `Lockstep`, every job ever accepted is compared field by field, so a difference shows at the step
that made it. `backlog` compares the queues; it is a verb of its own because a store may promote jobs when it is called.
`drain` reopens all gates, runs the store empty and asserts that nothing is left. An `AssertionError` means that the
store is wrong, or the model.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.changeset import ChangeSet
from forebay.core.decide import decide
from forebay.core.entries import LogEntry
from forebay.core.errors import (
    ForebayError,
    KeyConflict,
    OffsetGone,
    PartitionLost,
    PartlyDone,
    QueueFull,
    WrongQueueKind,
)
from forebay.core.gate import condition_gate, whole_gates
from forebay.core.instant import Instant, days, micros, minutes, seconds
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Abandoned, Ack
from forebay.core.policy import Routing
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.cells.ids import cell_of
from forebay.store.protocol import (
    CancelAnswer,
    Checkpoint,
    Pipelining,
    ProgressReport,
    Query,
    Receipt,
    Store,
    Tally,
    Want,
)
from forebay.testing.clock import ManualClock
from forebay_proof.model.jobs import require
from forebay_proof.model.model import Model

_FIELDS: dict[type, tuple[str, ...]] = {
    QueueFull: ("queue", "depth", "limit", "requested"),
    KeyConflict: ("queue", "key", "job_id"),
    WrongQueueKind: ("name", "is_log"),
    OffsetGone: ("log", "partition", "requested", "first"),
    PartitionLost: ("log", "group", "partition", "epoch"),
}
_ROUNDS = 40

I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


class OpenedStore(Struct, frozen=True):
    """A store under test, on the clock that it was opened with.

    reopen   crash, recover and hand back the store; without it nothing survives a restart
    changes  all of them so far, for the checkers
    residue  what is left inside by name; all of it must be 0 once the store is empty
    home     of several stores as one, the number of the cell of a draft
    """

    store: Store
    reopen: Callable[[], Store] | None = None
    changes: Callable[[], Sequence[ChangeSet]] | None = None
    residue: Callable[[], Mapping[str, int]] | None = None
    home: Callable[[Draft], int] = lambda _: 0


class Lockstep:
    """One store, one model, one clock."""

    def __init__(self, opened: OpenedStore, clock: ManualClock) -> None:
        self.opened = opened
        self.store = opened.store
        self.clock = clock
        self.model = Model(self.store.capabilities.durable)
        self.leases: list[Lease] = []

    @property
    def now(self) -> Instant:
        return self.clock.now()

    def compare_jobs(self) -> list[int]:
        """Every job that the store shows is as the model has it; returns the ids that became ready."""
        return self.model.observe(self.now, self._shown_jobs())

    def backlog(self) -> None:
        shown = {backlog.queue: backlog for backlog in self.store.backlog()}
        self.compare_jobs()
        live = {item.job.queue for item in self.model.jobs.items.values()}
        missing = {*self.model.jobs.specs, *live} - shown.keys() - self.model.logs.partitions.keys()
        require(not missing, "backlog() leaves out queues that exist", missing)
        for backlog in shown.values():
            self.model.check_backlog(self.now, backlog)
        names = self.store.queues("", MAX_BATCH)
        require(names == sorted(shown), "queues() and backlog() know other names", names, sorted(shown))
        totals = self.store.totals(1)
        sums = {state.value: sum(getattr(each, state.value) for each in shown.values()) for state in State}
        summed = {state.value: getattr(totals, state.value) for state in State}
        require((totals.queues, summed) == (len(shown), sums), "totals() is not the sum of backlog()", totals, sums)

    def browse(self, query: Query, limit: int) -> None:
        jobs, after = list[Job](), 0
        while True:
            page = self.store.browse(query, after, limit)
            jobs += page.jobs
            if page.next is None:
                break
            require(page.next > after, "pages go forward", page.next)
            after = page.next
        wanted = {name: value for name in query.__struct_fields__ if (value := getattr(query, name)) not in (None, ())}
        items = [replace(item.job, progress=None) for item in self.model.jobs.in_state(*State)]
        expected = [job for job in items if all(getattr(job, name) == value for name, value in wanted.items())]
        require(jobs == expected, "browse", expected, jobs)

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt] | ForebayError:
        answer = _outcome(lambda: self.store.enqueue(drafts))
        fresh = self._fresh(answer)
        self._same(answer, self._by_cell(drafts, self.opened.home, fresh, self._model_enqueue))
        return answer

    def _model_enqueue(self, drafts: Sequence[Draft], fresh: Sequence[int]) -> list[Receipt]:
        return self.model.intake.enqueue(self.now, drafts, fresh or None)

    def _by_cell(
        self,
        items: Sequence[I],
        home: Callable[[I], int],
        fresh: Sequence[int],
        call: Callable[[Sequence[I], Sequence[int]], Sequence[T]],
    ) -> list[T] | ForebayError:
        """All or nothing in each cell; a refusal after another cell has done its part is `PartlyDone`."""
        parts: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            parts.setdefault(home(item), []).append(place)
        answers: list[T | None] = [None] * len(items)
        causes: list[ForebayError | None] = [None] * len(items)
        done = False
        for number, places in parts.items():
            ids = [job_id for job_id in fresh if cell_of(job_id) == number]
            try:
                found = call([items[place] for place in places], ids)
            except ForebayError as error:
                if not done:
                    return error
                for place in places:
                    causes[place] = error
                continue
            done = True
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        failed = next((cause for cause in causes if cause is not None), None)
        return cast(list[T], answers) if failed is None else PartlyDone(answers, failed, causes)

    def _fresh(self, answer: object) -> list[int]:
        """Ids of new jobs, in their order."""
        shown = answer.answers if isinstance(answer, PartlyDone) else answer if isinstance(answer, list) else []
        known = {0, *self.model.intake.accepted}
        receipts = [each for each in shown if isinstance(each, Receipt)]
        return sorted({job_id for each in receipts for job_id in each.copies or (each.id,)} - known)

    def promote(self, limit: int = MAX_BATCH) -> None:
        answer = self.store.promote(limit)
        self.model.check_promotion(self.now, limit, self.compare_jobs(), answer)
        for log in self.model.logs.partitions:
            self.model.logs.check_window(self.now, log, limit, self.store.extent(log))

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        return self._handed_out(wants, owner, lease_for, self.store.claim(wants, owner, lease_for))

    def settle_and_claim(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, lease_for: timedelta
    ) -> None:
        """In one call, where the store can."""
        if not isinstance(self.store, Pipelining):
            self.settle(settlements)
            self.claim(wants, owner, lease_for)
            return
        answer, leases = self.store.settle_and_claim(settlements, wants, owner, lease_for)
        _equal("answer", answer, self.model.settle(self.now, settlements))
        self._handed_out(wants, owner, lease_for, leases)

    def _handed_out(self, wants: Sequence[Want], owner: str, lease_for: timedelta, leases: list[Lease]) -> list[Lease]:
        self.model.end_by_themselves(self.now, self._shown_jobs())
        self.model.check_claim(self.now, wants, owner, micros(lease_for), leases)
        self.compare_jobs()
        self.leases += leases
        return leases

    def extend(self, leases: Sequence[Lease], lease_for: timedelta) -> None:
        survivors = self.store.extend(leases, lease_for)
        self.model.check_extension(self.now, leases, micros(lease_for), survivors)
        self.compare_jobs()

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        answer = self.store.settle(settlements)
        self._same(answer, self.model.settle(self.now, settlements))
        return answer

    def overdue(self, limit: int) -> list[Lease]:
        leases = self.store.overdue(limit)
        self.compare_jobs()
        self.model.check_overdue(self.now, limit, leases)
        return leases

    def reap(self, limit: int = MAX_BATCH) -> list[Settlement]:
        """What the reaper does: overdue, decide, settle."""
        lost = [
            (lease, decide(lease.job, Abandoned(expired=True), self.routing(lease), 0)) for lease in self.overdue(limit)
        ]
        self.settle(lost)
        return lost

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        answer = self.store.cancel(ids)
        self._same(answer, self.model.cancel(self.now, ids))
        return answer

    def redrive(self, ids: Sequence[int]) -> None:
        answer = _outcome(lambda: self.store.redrive(ids))
        unique = list(dict.fromkeys(ids))
        expected = self._by_cell(unique, cell_of, (), lambda some, _: self._model_redrive(some))
        if not isinstance(expected, ForebayError):
            moved = [job_id for job_id, done in zip(unique, expected, strict=True) if done]
            self._same(answer, moved)
        else:
            self._same(answer, expected)

    def _model_redrive(self, ids: Sequence[int]) -> list[bool]:
        moved = set(self.model.redrive(self.now, ids))
        return [job_id in moved for job_id in ids]

    def purge_dead(self, ids: Sequence[int]) -> None:
        self._same(self.store.purge_dead(ids), self.model.purge_dead(ids))

    def replace_dead(self, pairs: Sequence[tuple[int, Draft]]) -> None:
        answer = _outcome(lambda: self.store.replace_dead(pairs))
        fresh = self._fresh(answer)
        replaced = self._by_cell(pairs, lambda pair: cell_of(pair[0]), fresh, self._model_replace)
        self._same(answer, replaced)

    def _model_replace(self, pairs: Sequence[tuple[int, Draft]], fresh: Sequence[int]) -> list[Receipt | None]:
        return self.model.replace_dead(self.now, pairs, fresh)

    def ingest(self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]) -> None:
        """A batch of several cells is not tried if one of them would refuse its part: it would be finished later."""
        several = len({self.opened.home(draft) for draft in drafts}) > 1
        if several and isinstance(self._accepted_by(deepcopy(self.model), drafts, []), ForebayError):
            return
        answer = _outcome(lambda: self.store.ingest(source, before, after, drafts))
        fresh = [] if isinstance(answer, ForebayError) else self._new_ids()
        if several and self.model.sources.get(source) == before:
            receipts = self._accepted_by(self.model, drafts, fresh)
            assert not isinstance(receipts, ForebayError)
            self.model.sources[source] = after
            self._same(answer, Tally.of(receipts))
        else:
            refused = isinstance(answer, ForebayError)
            ids = None if refused else fresh
            self._same(answer, _outcome(lambda: self.model.ingest(self.now, source, before, after, drafts, ids)))
        _equal(f"position of {source}", self.store.ingested(source), self.model.sources.get(source))

    def report_progress(self, reports: Sequence[ProgressReport]) -> None:
        self._same(self.store.report_progress(reports), self.model.report_progress(self.now, reports))

    def purge(self, state: State, before: Instant, limit: int = MAX_BATCH, queue: str | None = None) -> None:
        answer = self.store.purge(state, before, limit, queue)
        gone = {job_id for job_id, job in self._shown_jobs().items() if job is None}
        self.model.check_purge(self.now, state, before, limit, answer, gone, queue)
        self.compare_jobs()

    def put_spec(self, spec: QueueSpec) -> None:
        answer = _outcome(lambda: self.store.put_spec(spec))
        self._same(answer, _outcome(lambda: self.model.put_spec(spec)))

    def pause(self, queue: str, until: Instant | None) -> None:
        self.store.pause(queue, until)
        self.model.pause(queue, until)
        self.compare_jobs()

    def resume(self, queue: str) -> None:
        self.store.resume(queue)
        self.model.resume(queue)
        self.compare_jobs()

    def set_gate(self, name: str, limit: int | None) -> None:
        self.store.set_gate(name, limit)
        self.model.gates.set_gate(name, limit)
        self.compare_jobs()

    def holds(self) -> None:
        """What holds each job, how many go before it, and the gates, once everything that can be ready is."""
        self.promote()
        self.model.gates.check_holds(
            self.now, {job_id: self.store.hold(job_id) for job_id in self.model.intake.accepted}
        )
        self.model.gates.check_ahead(
            self.now, {job_id: self.store.ahead(job_id) for job_id in self.model.intake.accepted}
        )
        self.model.gates.check_uses(self.now, self.store.gates("", MAX_BATCH))
        self.compare_jobs()

    def release(self, condition: str, count: int, value: str | None) -> None:
        """The ready jobs are known before, so those that pass are known, too."""
        self.holds()
        answer = self.store.release(condition, count, value)
        self.model.gates.check_release(self.now, condition_gate(condition, value), count, answer)
        self.compare_jobs()

    def _new_ids(self) -> list[int]:
        """Of jobs that the model does not know yet."""
        known, after = set(self.model.intake.accepted), 0
        found: list[int] = []
        while True:
            page = self.store.browse(Query(), after, MAX_BATCH)
            found += [job.id for job in page.jobs if job.id not in known]
            if page.next is None:
                return found
            after = page.next

    def _accepted_by(self, model: Model, drafts: Sequence[Draft], fresh: Sequence[int]) -> list[Receipt] | ForebayError:
        return self._by_cell(
            drafts, self.opened.home, fresh, lambda some, ids: model.intake.enqueue(self.now, some, ids or None)
        )

    def put_schedule(self, schedule: Schedule) -> None:
        self.store.put_schedule(schedule)
        self.model.put_schedule(schedule)
        self.configuration()

    def drop_schedule(self, name: str) -> None:
        self._same(self.store.drop_schedule(name), self.model.drop_schedule(name))

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> None:
        answer = _outcome(lambda: self.store.fire(name, tick, next_at, draft))
        new = self._new_ids()
        fresh = None if isinstance(answer, ForebayError) else new
        self._same(answer, _outcome(lambda: self.model.fire(self.now, name, tick, next_at, draft, fresh)))
        require(all(job_id in self.model.intake.accepted for job_id in new), "jobs that were never enqueued", new)
        self.configuration()

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None]) -> list[LogEntry]:
        entries = self.store.append(log, bodies, keys)
        self.model.logs.check_append(self.now, log, bodies, keys, entries)
        return entries

    def read(self, log: str, partition: int, after: int, limit: int) -> None:
        answer = _outcome(lambda: self.store.read(log, partition, after, limit))
        self._same(answer, _outcome(lambda: self.model.logs.read(log, partition, after, limit)))

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool, epoch: int | None = None
    ) -> None:
        place = (log, group, partition, offset)
        answer = _outcome(lambda: self.store.commit(*place, rewind=rewind, epoch=epoch))
        self._same(answer, _outcome(lambda: self.model.logs.commit(self.now, *place, rewind=rewind, epoch=epoch)))

    def own(self, log: str, group: str, member: str, lease_for: timedelta) -> None:
        answer = self.store.own(log, group, member, lease_for)
        _equal("answer", answer, self.model.logs.own(self.now, log, group, member, micros(lease_for)))

    def disown(self, log: str, group: str, member: str) -> None:
        answer = self.store.disown(log, group, member)
        _equal("answer", answer, self.model.logs.disown(self.now, log, group, member))

    def offset_at(self, log: str, partition: int, instant: Instant) -> None:
        answer = self.store.offset_at(log, partition, instant)
        _equal("answer", answer, self.model.logs.offset_at(log, partition, instant))

    def trim(self, log: str, before: Instant, limit: int) -> None:
        answer = self.store.trim(log, before, limit)
        self.model.logs.check_trim(log, before, limit, answer, self.store.extent(log))

    def configuration(self) -> None:
        """Specs, schedules, and the logs with the positions of their groups."""
        _equal("specs", {spec.name: spec for spec in self.store.specs()}, self.model.jobs.specs)
        _equal("schedules", {one.name: one for one in self.store.schedules()}, self.model.schedules)
        for log in self.model.logs.partitions:
            _equal(f"extent of {log}", self.store.extent(log), self.model.logs.extent(log))
            for number, (first, _) in enumerate(self.model.logs.extent(log)):
                self.read(log, number, first - 1, MAX_BATCH)
            _equal(f"groups of {log}", self.store.groups(log, "", MAX_BATCH), self.model.logs.groups(log))
        for place, offset in self.model.logs.positions.items():
            _equal(f"position of {place}", self.store.position(*place), offset)

    def reopen(self) -> None:
        """A crash and a recovery change nothing that a caller can see."""
        if self.opened.reopen is not None:
            self.store = self.opened.reopen()
            self.model.reopened()
            self.model.forget_progress(self._shown_jobs())
            self.compare_jobs()
            self.configuration()

    def drain(self) -> None:
        """Open everything, run the store empty, and check that nothing is left: no job, no lease, no key, no slot."""
        for queue in list(self.model.jobs.paused):
            self.resume(queue)
        whole = {gate.name for spec in self.model.jobs.specs.values() for gate in whole_gates(spec)}
        stamped = {name for item in self.model.jobs.items.values() for name in item.entry.gates}
        for name in whole | stamped | self.model.gates.given.keys():
            self.set_gate(name, MAX_BATCH if name.startswith(("until/", "rate/")) else None)
        for _ in range(_ROUNDS):
            self.clock.advance(micros(minutes(10)))
            self.reap()
            self.purge(State.DEAD, self.now + 1)
            self.promote()
            while self._work():
                pass
            if not self.model.jobs.in_state(State.WAITING, State.READY, State.RUNNING):
                break
        for name in list(self.model.gates.given):
            self.set_gate(name, None)
        self.clock.advance(micros(days(365)))
        for state in (State.DONE, State.DEAD, State.CANCELLED):
            self.purge(state, self.now + 1)
        self.backlog()
        require(
            not self.model.jobs.items, "left after the drain", [item.job for item in self.model.jobs.items.values()]
        )
        residue = self.opened.residue() if self.opened.residue else {}
        require(not any(residue.values()), "left in an empty store", residue)

    def routing(self, lease: Lease) -> Routing:
        return self.model.jobs.spec(lease.job.queue).routing

    def _work(self) -> bool:
        queues = dict.fromkeys(item.job.queue for item in self.model.jobs.items.values())
        wants = [Want(queue, 20) for queue in queues]
        leases = self.claim(wants, "drain", seconds(30)) if wants else []
        self.settle([(lease, Ack()) for lease in leases])
        return bool(leases)

    def _shown_jobs(self) -> dict[int, Job | None]:
        ids = self.model.intake.accepted
        batches = [ids[start : start + MAX_BATCH] for start in range(0, len(ids), MAX_BATCH)]
        return dict(zip(ids, (job for batch in batches for job in self.store.get(batch)), strict=True))

    def _same(self, answer: object, expected: object) -> None:
        _equal("answer", self._comparable(answer), self._comparable(expected))
        self.compare_jobs()

    def _comparable(self, answer: object) -> object:
        """Errors are equal when their type and their fields are; the text may differ.

        A key conflict within one batch names an id that was never accepted.
        """
        if isinstance(answer, KeyConflict) and answer.job_id not in self.model.intake.accepted:
            return KeyConflict, answer.queue, answer.key
        if isinstance(answer, PartlyDone):
            return PartlyDone, list(answer.answers), [each and self._comparable(each) for each in answer.causes]
        if isinstance(answer, ForebayError):
            return type(answer), [getattr(answer, name) for name in _FIELDS.get(type(answer), ())]
        return answer


def _outcome(call: Callable[[], T]) -> T | ForebayError:
    try:
        return call()
    except ForebayError as error:
        return error


def _equal(what: str, shown: object, expected: object) -> None:
    require(shown == expected, f"{what}: expected and shown", expected, shown)
