"""The model-based test: random histories of every verb, a store against the reference model, faults included.

    TestMine = StoreMachine.for_store(open_mine).TestCase

`open_mine(clock)` opens an empty store on that clock and has a way to crash it (`lockstep.OpenedStore`). Answers and
every visible field are compared after every step, queues after most; at the end the store is healed, drained and must
be empty, and the checkers read its ledger.

A failure prints the shortest history found as Python calls, and a blob. To replay it, put the printed decorator on the
machine and run the test again: `reproduce_failure("6.…", b"…")(Machine)`. A whole run is replayed by its seed:
`pytest --hypothesis-seed=N`, with the N that pytest printed.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Self

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from forebay.core.decide import decide
from forebay.core.instant import seconds
from forebay.core.job import Draft, Progress, State
from forebay.core.lease import Lease, Settlement
from forebay.core.ledger import Change, LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Checkpoint, Query, Want
from forebay.testing.clock import ManualClock
from forebay_proof.checkers import check_all, ledger
from forebay_proof.evidence import happened
from forebay_proof.model.lockstep import Lockstep, OpenedStore
from forebay_proof.model.log_rules import LogRules, plays
from forebay_proof.model.strategies import (
    COST,
    DELAY,
    FEW,
    GATED,
    GATES,
    GAVE_UP,
    HOLDING,
    JOBS,
    KEY,
    LASTS,
    LEASE_LENGTHS,
    LOG,
    NAME,
    OUTCOME,
    OUTCOMES,
    PAYLOAD,
    PICK,
    QUEUES,
    SCHEDULES,
    SECOND,
    SPECS,
    START,
    SUBJECT,
    TENANT,
    VARIANTS,
    drafts,
)

_COMPANY = (QUEUES, QUEUES, HOLDING)
MachineOpener = Callable[[ManualClock], OpenedStore]
_OWNER = st.sampled_from(["one", "many"])


class StoreMachine(LogRules):
    """A store, its model and a clock. A history has one theme and few queues, so that its steps meet."""

    opener: ClassVar[MachineOpener]

    @classmethod
    def for_store(cls, opener: MachineOpener) -> type[Self]:
        return type("Machine", (cls,), {"opener": staticmethod(opener), "__module__": cls.__module__})

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.lockstep = Lockstep(type(self).opener(self.clock), self.clock)
        self.queues: list[str] = []
        self.plays: set[str] = set()
        self.specs: list[QueueSpec] = []
        self.last: list[Settlement] = []
        self._compared = True
        self._untended = False

    @initialize(
        queues=st.one_of([st.lists(st.sampled_from(some), min_size=1, max_size=3, unique=True) for some in _COMPANY]),
        theme=st.sampled_from([JOBS, JOBS, JOBS, JOBS, LOG, SCHEDULES]),
    )
    def configure(self, queues: list[str], theme: str) -> None:
        self.queues = queues if theme == JOBS else queues[:1]
        self.plays = {theme, *self.queues}
        self.specs = [spec for spec in SPECS if spec.name in self.plays]
        for spec in self.specs:
            self.lockstep.put_spec(spec)

    def _begin(self) -> Lockstep:
        self._compared = False
        self._untended = False
        return self.lockstep

    @invariant()
    def queues_are_alike(self) -> None:
        # A backlog may promote what is due. After the clock has moved, the next verb must find it undone.
        if not self._untended:
            self.lockstep.backlog()
        self._compared = True

    def teardown(self) -> None:
        """The last checks are not made after a failure: what comes after it would hide it."""
        try:
            if self._compared:
                self._judge_whole()
        finally:
            self.lockstep.store.close()

    def _judge_whole(self) -> None:
        self._judge_ledger()
        self.lockstep.drain()
        changes = self.lockstep.opened.changes
        found = check_all(changes(), drained=True, dropped=[GAVE_UP]) if changes else []
        assert not found, "\n".join(map(str, found))
        happened("histories")

    def _judge_ledger(self) -> None:
        """The ledger of the store has legal histories, of exactly the jobs that the model has."""
        store = self.lockstep.store
        if not store.ledger_rule().on:
            return
        first, following = store.ledger_extent()
        entries: list[LedgerEntry] = []
        while first + len(entries) < following:
            entries += store.ledger(first + len(entries) - 1, MAX_BATCH)
        found = ledger(entries, dropped=[GAVE_UP])
        assert not found, "\n".join(map(str, found))
        if first:
            return
        last = {
            job_range.first + place: job_range.change
            for entry in entries
            for job_range in entry.record.ranges
            for place in range(job_range.n)
        }
        accepted = self.lockstep.model.intake.accepted
        assert sorted(last) == accepted, f"the ledger has {sorted(last)}, accepted were {accepted}"
        running = {
            job_id
            for job_id, change in last.items()
            if change in (Change.CLAIMED, Change.EXTENDED, Change.CANCEL_REQUESTED)
        }
        held = {item.job.id for item in self.lockstep.model.jobs.in_state(State.RUNNING)}
        assert running == held, f"by the ledger {sorted(running)} run, by the model {sorted(held)}"

    def _advance(self, duration: int) -> None:
        self._begin()
        self.clock.advance(duration)
        self.lockstep.overdue(1000)
        self._untended = True

    def _queue(self, pick: int, *names: str) -> str:
        queues = [queue for queue in self.queues if queue in (names or self.queues)]
        return queues[pick % len(queues)]

    def _leases(self, pick: int) -> list[Lease]:
        newest = self.lockstep.leases[::-1]
        return newest[pick % len(newest) :]

    def _id(self, pick: int) -> int:
        newest = self.lockstep.model.intake.accepted[::-1] or [1]
        return newest[pick % len(newest)]

    def _known(self, pick: int) -> bool:
        """Whether the pick is a job that is kept, and not a dead one."""
        item = self.lockstep.model.jobs.items.get(self._id(pick))
        return item is not None and item.job.state is not State.DEAD

    def _settle(self, wishes: list[tuple[Lease, str]]) -> None:
        self._decide(wishes)
        self._begin().settle(self.last)

    def _decide(self, wishes: list[tuple[Lease, str]]) -> None:
        self.last = [
            (lease, decide(lease.job, OUTCOMES[name], self.lockstep.routing(lease), 0.5)) for lease, name in wishes
        ]

    @plays(JOBS)
    @rule(payload=PAYLOAD, pick=PICK, attempts=st.sampled_from([None, 1, 2]))
    def enqueue_plain(self, payload: int, pick: int, attempts: int | None) -> None:
        self._begin().enqueue([Draft("k", payload, queue=self._queue(pick), max_attempts=attempts)])

    @plays(JOBS)
    @rule(pick=PICK, count=st.integers(2, 6), delay=DELAY)
    def enqueue_alike(self, pick: int, count: int, delay: int) -> None:
        """A store may keep them in one row until a verb splits them."""
        queue = self._queue(pick)
        self._begin().enqueue([Draft("k", number, queue=queue, delay=delay) for number in range(count)])

    @plays(JOBS)
    @rule(key=KEY, pick=PICK, subject=SUBJECT)
    def enqueue_keyed(self, key: str, pick: int, subject: str) -> None:
        self._begin().enqueue([Draft("k", 0, queue=self._queue(pick), key=key, subject=subject)])

    @plays(JOBS)
    @rule(key=KEY, pick=PICK, payload=PAYLOAD)
    def enqueue_conflicting(self, key: str, pick: int, payload: int) -> None:
        """All or nothing: what comes before a conflict in its batch is not kept either."""
        queue = self._queue(pick)
        self._begin().enqueue([Draft("k", 7, queue=queue), Draft("other", payload, queue=queue, key=key)])

    @plays(JOBS)
    @rule(pick=PICK, delay=DELAY, subject=SUBJECT)
    def enqueue_delayed(self, pick: int, delay: int, subject: str) -> None:
        self._begin().enqueue([Draft("k", 1, queue=self._queue(pick), delay=delay, subject=subject)])

    @plays(JOBS)
    @rule(pick=PICK, ahead=st.sampled_from([-SECOND, SECOND, 90 * SECOND]))
    def enqueue_for_an_instant(self, pick: int, ahead: int) -> None:
        self._begin().enqueue([Draft("k", 2, queue=self._queue(pick), run_at=self.clock.now() + ahead)])

    @plays(JOBS)
    @rule(batch=st.lists(st.tuples(PICK, st.one_of(st.none(), LASTS), drafts()), max_size=6))
    def enqueue_batch(self, batch: list[tuple[int, int | None, Draft]]) -> None:
        now = self.clock.now()
        ends = [None if lasts is None else now + lasts for _, lasts, _ in batch]
        placed = [replace(draft, queue=self._queue(pick)) for pick, _, draft in batch]
        self._begin().enqueue([replace(draft, expires_at=end) for draft, end in zip(placed, ends, strict=True)])

    @plays("merge")
    @rule(subject=SUBJECT, count=FEW, delay=DELAY, attempts=st.sampled_from([1, 3]))
    def enqueue_merging(self, subject: str, count: int, delay: int, attempts: int) -> None:
        draft = Draft("k", queue="merge", subject=subject, delay=delay, max_attempts=attempts)
        self._begin().enqueue([replace(draft, body=b"%d" % number) for number in range(count)])

    @plays("tight")
    @rule(count=FEW)
    def enqueue_bounded(self, count: int) -> None:
        self._begin().enqueue([Draft("k", 1, queue="tight")] * count)

    @plays("tight")
    @rule()
    def redrive_into_a_full_queue(self) -> None:
        leases = self._begin().claim([Want("tight", 1)], "drop", seconds(5))
        self._settle([(lease, "drop") for lease in leases])
        for _ in range(3):
            self.lockstep.enqueue([Draft("k", 1, queue="tight")])
        self.lockstep.redrive([lease.job.id for lease in leases])

    @plays("prio", "aging", "deadline")
    @rule(pick=PICK, priority=st.integers(-2, 2), deadline=PAYLOAD)
    def enqueue_ranked(self, pick: int, priority: int, deadline: int) -> None:
        queue, now = self._queue(pick, "prio", "aging", "deadline"), self.clock.now()
        due = now + deadline * SECOND if deadline else None
        self._begin().enqueue([Draft("k", 1, queue=queue, priority=priority, deadline=due)])

    @plays("fair")
    @rule(tenant=TENANT, count=FEW)
    def enqueue_shared(self, tenant: str | None, count: int) -> None:
        self._begin().enqueue([Draft("k", 1, queue="fair", tenant=tenant)] * count)

    @plays(JOBS)
    @rule(pick=PICK, lasts=LASTS, subject=SUBJECT, delay=DELAY)
    def enqueue_expiring(self, pick: int, lasts: int, subject: str, delay: int) -> None:
        expires_at = self.clock.now() + lasts
        draft = Draft("k", 1, queue=self._queue(pick), subject=subject, delay=delay, expires_at=expires_at)
        self._begin().enqueue([draft])

    @plays(JOBS, LOG)
    @rule(limit=st.sampled_from([1, 2, 1000]))
    def promote(self, limit: int) -> None:
        self._begin().promote(limit)

    @plays(JOBS)
    @rule(pick=PICK, lease_for=LEASE_LENGTHS)
    def claim_one(self, pick: int, lease_for: timedelta) -> None:
        self._begin().claim([Want(self._queue(pick), 1)], "one", lease_for)

    @plays(JOBS)
    @rule(count=st.integers(1, 9))
    def claim_many(self, count: int) -> None:
        self._begin().claim([Want(queue, count) for queue in self.queues], "many", seconds(5))

    @plays("fair")
    @rule(classes=st.permutations(["a", "b", ""]), count=FEW)
    def claim_by_class(self, classes: list[str], count: int) -> None:
        self._begin().claim([Want("fair", count, cls) for cls in classes[:2]], "picky", seconds(5))

    @plays(JOBS, SCHEDULES)
    @rule(names=st.lists(OUTCOME, min_size=1, max_size=5))
    def work(self, names: list[str]) -> None:
        """What a worker does: claim, then settle one after the other."""
        wants = [Want(queue, len(names)) for queue in self.queues]
        leases = self._begin().claim(wants, "worker", seconds(5))
        for lease, name in zip(leases, names, strict=False):
            self._settle([(lease, name)])

    @plays(JOBS)
    @precondition(lambda self: self.lockstep.leases)
    @rule(
        pick=PICK, settled=FEW, names=st.lists(OUTCOME, min_size=4, max_size=4), count=st.integers(1, 5), owner=_OWNER
    )
    def work_without_a_pause(self, pick: int, settled: int, names: list[str], count: int, owner: str) -> None:
        """What a busy worker does: verdicts and the next claim in one call."""
        leases = self._leases(pick)[:settled]
        self._decide(list(zip(leases, names, strict=False)))
        wants = [Want(queue, count) for queue in self.queues]
        self._begin().settle_and_claim(self.last, wants, owner, seconds(5))

    @precondition(lambda self: self.lockstep.leases)
    @rule(pick=PICK, count=FEW, portion=st.sampled_from([0.0, 0.5]))
    def report_progress(self, pick: int, count: int, portion: float) -> None:
        leases = self._leases(pick)[:count]
        self._begin().report_progress([(lease.fence, Progress(portion, f"{lease.job.id}")) for lease in leases])

    @plays(JOBS)
    @rule(source=NAME, on=st.sampled_from([True, True, False]), placed=st.lists(st.tuples(PICK, drafts()), max_size=4))
    def ingest(self, source: str, on: bool, placed: list[tuple[int, Draft]]) -> None:
        """From where the source is, or once more from where it was."""
        known = self.lockstep.model.sources.get(source)
        batch = known.batch if known else 0
        before = known if on else Checkpoint(batch + 1, 1, b"")
        batch_of = [replace(draft, queue=self._queue(pick)) for pick, draft in placed]
        self._begin().ingest(source, before, Checkpoint(batch + 1, len(placed), b"d"), batch_of)

    @plays(JOBS)
    @rule(pick=PICK)
    def fail_again_and_again(self, pick: int) -> None:
        """Past the last life, or past as many errors as a job carries."""
        for _ in range(7):
            leases = self._begin().claim([Want(self._queue(pick), 1)], "clumsy", seconds(5))
            self._settle([(lease, "fail, again at once") for lease in leases])

    @plays(JOBS)
    @rule(pick=PICK, name=OUTCOME)
    def hand_over(self, pick: int, name: str) -> None:
        """One worker releases a job, another claims it, and the first one settles it again."""
        want = [Want(self._queue(pick), 1)]
        for lease in self._begin().claim(want, "first", seconds(5)):
            self._settle([(lease, "release")])
            self.lockstep.claim(want, "second", seconds(5))
            self.lockstep.extend([lease], seconds(5))
            self._settle([(lease, name)])

    @precondition(lambda self: self.lockstep.leases)
    @rule(pick=PICK, count=FEW, name=OUTCOME)
    def settle(self, pick: int, count: int, name: str) -> None:
        """Some leases, current or not: the fence decides."""
        self._settle([(lease, name) for lease in self._leases(pick)[:count]])

    @precondition(lambda self: self.lockstep.leases)
    @rule(name=OUTCOME)
    def settle_all(self, name: str) -> None:
        self._settle([(lease, name) for lease in self.lockstep.leases])

    @precondition(lambda self: self.lockstep.leases)
    @rule(first=OUTCOME, second=OUTCOME, pick=PICK)
    def settle_twice_in_a_call(self, first: str, second: str, pick: int) -> None:
        lease = self._leases(pick)[0]
        self._settle([(lease, first), (lease, second)])

    @precondition(lambda self: self.last)
    @rule()
    def repeat_the_last_settle(self) -> None:
        """Its reply was lost."""
        self._begin().settle(self.last)

    @precondition(lambda self: self.lockstep.leases)
    @rule(pick=PICK, count=FEW, lease_for=LEASE_LENGTHS)
    def extend(self, pick: int, count: int, lease_for: timedelta) -> None:
        leases = self._leases(pick)[:count]
        self._begin().extend([*leases, leases[0]], lease_for)

    @plays(JOBS)
    @rule(limit=st.sampled_from([1, 2, 1000]))
    def reap(self, limit: int) -> None:
        self.last = self._begin().reap(limit) or self.last

    @rule(duration=st.sampled_from([1, 1_000, 700_000, SECOND, 3 * SECOND]))
    def time_passes(self, duration: int) -> None:
        self._advance(duration)

    @rule(pick=st.integers(0, 3), off=st.sampled_from([0, -1]))
    def time_comes(self, pick: int, off: int) -> None:
        """To the very microsecond at which something falls due or ends, or the one before."""
        edges = self.lockstep.model.edges(self.clock.now())
        self._advance(edges[min(pick, len(edges) - 1)] + off - self.clock.now() if edges else 0)

    @rule()
    def leases_run_out(self) -> None:
        self._advance(61 * SECOND)

    @rule()
    def windows_pass(self) -> None:
        self._advance(3_600 * SECOND)

    @plays(JOBS)
    @rule(ids=st.lists(PICK, min_size=1, max_size=3))
    def cancel(self, ids: list[int]) -> None:
        self._begin().cancel([*map(self._id, ids), 10**9])

    @plays(JOBS)
    @rule(ids=st.lists(PICK, min_size=1, max_size=3))
    def redrive(self, ids: list[int]) -> None:
        self._begin().redrive([*map(self._id, ids), 10**9])

    @plays(JOBS)
    @rule(ids=st.lists(PICK, min_size=1, max_size=3))
    def purge_dead(self, ids: list[int]) -> None:
        self._begin().purge_dead([*map(self._id, ids), 10**9])

    @plays(JOBS)
    @rule(order=st.permutations([0, 1, 2]), payload=PAYLOAD, cost=COST, pick=PICK)
    def replace_the_dead(self, order: list[int], payload: int, cost: int, pick: int) -> None:
        """Some of the newest dead in any order, one of them twice, and a job that may be in any state."""
        dead = [item.job for item in self.lockstep.model.jobs.in_state(State.DEAD)][::-1]
        jobs = [dead[place] for place in order if place < len(dead)]
        pairs = [
            (
                job.id,
                Draft("k", payload, queue=job.home or job.queue, subject=job.subject, tenant=job.tenant, cost=cost),
            )
            for job in jobs + jobs[:1]
        ]
        other = Draft("k", payload, queue=self.queues[0])
        self._begin().replace_dead([*pairs, *([(self._id(pick), other)] if self._known(pick) else [])])

    @plays(JOBS)
    @rule(limit=st.sampled_from([1, 1000]))
    def redrive_the_dead(self, limit: int) -> None:
        dead = [item.job.id for item in self.lockstep.model.jobs.in_state(State.DEAD)]
        self._begin().redrive(dead[:limit])

    @plays(JOBS)
    @rule(
        state=st.sampled_from([State.DONE, State.DEAD, State.CANCELLED]),
        age=st.sampled_from([-1, 0, 1_000, SECOND]),
        limit=st.sampled_from([1, 2, 1000]),
        pick=st.one_of(st.none(), PICK),
    )
    def purge(self, state: State, age: int, limit: int, pick: int | None) -> None:
        queue = None if pick is None else self._queue(pick)
        self._begin().purge(state, self.clock.now() - age, limit, queue)

    @plays(JOBS)
    @rule(pick=PICK, duration=st.sampled_from([None, SECOND, SECOND, 90 * SECOND]))
    def pause(self, pick: int, duration: int | None) -> None:
        self._begin().pause(self._queue(pick), None if duration is None else self.clock.now() + duration)

    @precondition(lambda self: self.lockstep.model.jobs.paused)
    @rule()
    def resume(self) -> None:
        self._begin().resume(next(iter(self.lockstep.model.jobs.paused)))

    @rule(pick=PICK)
    def put_spec(self, pick: int) -> None:
        specs = [*self.specs, *(spec for spec in VARIANTS if spec.name in self.plays)] or VARIANTS
        self._begin().put_spec(specs[pick % len(specs)])

    @plays(SCHEDULES)
    @rule(
        name=NAME,
        ahead=st.sampled_from([0, 0, -1, 1]),
        paused=st.sampled_from([False, False, True]),
        timing=st.sampled_from(["@hourly", "@hourly", "@daily"]),
    )
    def put_schedule(self, name: str, ahead: int, paused: bool, timing: str) -> None:
        """Also back to a tick that has been: it must not fire again."""
        draft = Draft("tick", queue=self.queues[0])
        next_at = self.lockstep.model.ticks.get(name, self.clock.now()) + ahead * SECOND
        self._begin().put_schedule(Schedule(name, timing, next_at, draft, paused=paused))

    @precondition(lambda self: self.lockstep.model.ticks)
    @rule()
    def fire_a_past_tick(self) -> None:
        """An edit moves the schedule back; its ticks are taken all the same."""
        name, tick = next(iter(self.lockstep.model.ticks.items()))
        draft = Draft("tick", queue=self.queues[0])
        known = self.lockstep.model.schedules.get(name)
        timing = "@daily" if known is not None and known.rule == "@hourly" else "@hourly"
        self._begin().put_schedule(Schedule(name, timing, tick, draft))
        self.lockstep.fire(name, tick, tick + SECOND, draft)

    @plays(SCHEDULES)
    @rule(name=NAME)
    def drop_schedule(self, name: str) -> None:
        self._begin().drop_schedule(name)

    @plays(SCHEDULES)
    @rule(name=NAME, off=st.sampled_from([0, 0, 0, -SECOND, SECOND]), draft=st.one_of(st.none(), drafts()), pick=PICK)
    def fire(self, name: str, off: int, draft: Draft | None, pick: int) -> None:
        """The right tick, the one before, or one that is not due; without a draft the slot is given up."""
        known = self.lockstep.model.schedules.get(name)
        tick = (known.next_at if known else self.clock.now()) + off
        job = draft and replace(draft, queue=self._queue(pick))
        self._begin().fire(name, tick, tick + SECOND, job)

    @plays(JOBS)
    @rule(
        pick=st.one_of(st.none(), PICK),
        state=st.one_of(st.none(), st.sampled_from(State)),
        kind=st.sampled_from([None, None, "k", "l"]),
        tenant=st.sampled_from([None, None, "a"]),
        subject=st.sampled_from([None, None, "s"]),
        suspect=st.sampled_from([None, None, True, False]),
        limit=FEW,
    )
    def browse(self, pick: int | None, limit: int, **fields: Any) -> None:
        queue = None if pick is None else self._queue(pick)
        self._begin().browse(Query(queue=queue, **fields), limit)

    @rule()
    def crash_and_reopen(self) -> None:
        self._begin().reopen()

    @plays("order", "block", "until")
    @rule(pick=PICK, subject=SUBJECT, attempts=st.sampled_from([1, 2]), count=FEW)
    def enqueue_ordered(self, pick: int, subject: str, attempts: int, count: int) -> None:
        queue = self._queue(pick, "order", "block", "until")
        draft = Draft("k", count, queue=queue, subject=subject, max_attempts=attempts)
        self._begin().enqueue([draft] * count)

    @plays("cap", "until")
    @rule(pick=PICK, subject=SUBJECT, tenant=TENANT, count=FEW)
    def enqueue_gated(self, pick: int, subject: str, tenant: str | None, count: int) -> None:
        queue = self._queue(pick, "cap", "until")
        self._begin().enqueue([Draft("k", count, queue=queue, subject=subject, tenant=tenant)] * count)

    @plays("dear", "pace", "paces", "stock", "turns")
    @rule(pick=PICK, tenant=TENANT, costs=st.lists(COST, min_size=1, max_size=4), priority=st.integers(-1, 1))
    def enqueue_costly(self, pick: int, tenant: str | None, costs: list[int], priority: int) -> None:
        queue = self._queue(pick, "dear", "pace", "paces", "stock", "turns")
        batch = [Draft("k", queue=queue, tenant=tenant, cost=cost, priority=priority) for cost in costs]
        self._begin().enqueue(batch)

    @plays("dear", "pace", "paces", "stock", "turns")
    @rule(count=FEW)
    def start(self, count: int) -> None:
        """Claims on all queues that share a cap or a rate, in one call."""
        queues = [queue for queue in self.queues if queue in ("dear", "pace", "paces", "stock", "turns")]
        self._begin().claim([Want(queue, count) for queue in queues], "starter", seconds(5))

    @plays(*GATED)
    @rule(name=st.sampled_from(GATES), limit=st.sampled_from([None, 0, 1, 2]))
    def set_gate(self, name: str, limit: int | None) -> None:
        self._begin().set_gate(name, limit)

    @plays("until", "stock")
    @rule(to=st.sampled_from([("go", None), ("ok", "a"), ("ok", "b")]), count=FEW)
    def release(self, to: tuple[str, str | None], count: int) -> None:
        self._begin().release(to[0], count, to[1])

    @plays(*GATED)
    @rule()
    def look_at_what_holds_them(self) -> None:
        self._begin().holds()
