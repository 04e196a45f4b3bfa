"""Through a bad connection: a client that repeats keyed enqueues and settles loses nothing and doubles nothing."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest

from forebay.core.decide import decide
from forebay.core.errors import QueueFull
from forebay.core.instant import minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Abandoned, Ack
from forebay.core.policy import Bounded, Fixed, Retained, Routing
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Checkpoint, Query, Store, Want
from forebay.testing.clock import ManualClock
from forebay_proof.faulty import ConnectionLost, Fault, FaultyStore, Plan, ReplyLost, scripted, seeded

T = TypeVar("T")

MINUTE = 60_000_000
JOBS = 40


def faulty(plan: Plan, clock: ManualClock | None = None) -> FaultyStore:
    clock = clock or ManualClock()
    return FaultyStore(MemoryStore(clock=clock), plan, delay=lambda: clock.advance(MINUTE))


def persist(action: Callable[[], T]) -> T:
    """Call until a reply arrives, as every client of a store does."""
    for _ in range(1_000):
        try:
            return action()
        except ConnectionError:
            continue
    raise AssertionError("no reply ever arrived")


def depth(store: FaultyStore) -> int:
    return store.inner.backlog(["q"])[0].depth


def accepts(store: Store) -> Store:
    """The type checker proves that it is one."""
    return store


class Worker:
    """Claims, does its work, acknowledges until it is answered, and reaps what lost claims left behind."""

    def __init__(self, store: Store, inner: Store, clock: ManualClock) -> None:
        self.store = store
        self.inner = inner
        self.clock = clock
        self.applied: Counter[int] = Counter()
        self.effects: Counter[int] = Counter()

    def drain(self) -> None:
        for _ in range(1_000):
            if self.inner.backlog(["q"])[0].depth == 0:
                return
            leases = persist(lambda: self.store.claim([Want("q", 3)], "worker", seconds(30)))
            for lease in leases:
                self.effects[lease.job.id] += 1
                answer = persist(lambda lease=lease: self.store.settle([(lease, Ack())]))  # type: ignore[misc]
                self.applied[lease.job.id] += answer == [Settled.APPLIED]
            if not leases:
                self.clock.advance(MINUTE)
                self.reap()
        raise AssertionError("the queue never ran dry")

    def reap(self) -> None:
        overdue = persist(lambda: self.store.overdue(100))
        verdicts = [
            (lease, decide(lease.job, Abandoned(expired=True), Routing(backoff=Fixed()), 0.0)) for lease in overdue
        ]
        persist(lambda: self.store.settle(verdicts))


def test_it_is_a_store() -> None:
    assert accepts(faulty(scripted())).capabilities.name == "memory"


def test_without_faults_it_is_transparent() -> None:
    store = faulty(scripted())
    (receipt,) = store.enqueue([Draft("k", queue="q")])
    (lease,) = store.claim([Want("q", 1)], "w", minutes(1))
    assert store.settle([(lease, Ack())]) == [Settled.APPLIED]
    assert store.get([receipt.id]) == [None]
    assert [verb for verb, _ in store.history] == ["enqueue", "claim", "settle", "get"]
    assert store.faults == []


def test_a_refused_call_has_no_effect() -> None:
    store = faulty(scripted(("enqueue", Fault.REFUSED)))
    with pytest.raises(ConnectionLost, match="no effect"):
        store.enqueue([Draft("k", queue="q")])
    assert depth(store) == 0
    assert len(store.enqueue([Draft("k", queue="q")])) == 1


def test_a_lost_reply_leaves_its_effect() -> None:
    store = faulty(scripted(("enqueue", Fault.REPLY_LOST)))
    with pytest.raises(ReplyLost):
        store.enqueue([Draft("k", queue="q")])
    assert depth(store) == 1


def test_a_delayed_call_comes_late() -> None:
    clock = ManualClock()
    store = faulty(scripted(("enqueue", Fault.DELAYED)), clock)
    before = clock.now()
    (receipt,) = store.enqueue([Draft("k", queue="q")])
    (job,) = store.get([receipt.id])
    assert job is not None
    assert job.enqueued_at == before + MINUTE


def test_a_duplicated_call_is_performed_twice() -> None:
    store = faulty(scripted(("enqueue", Fault.DUPLICATED)))
    (receipt,) = store.enqueue([Draft("k", queue="q")])
    assert (receipt.id, depth(store)) == (2, 2)


def test_a_duplicated_call_with_a_key_is_one_job() -> None:
    store = faulty(scripted(("enqueue", Fault.DUPLICATED)))
    (receipt,) = store.enqueue([Draft("k", queue="q", key="k")])
    assert (receipt.id, receipt.duplicate, depth(store)) == (1, True, 1)


def test_after_a_crash_nothing_is_reached_any_more() -> None:
    store = faulty(scripted(("enqueue", Fault.CRASHED)))
    with pytest.raises(ReplyLost):
        store.enqueue([Draft("k", queue="q")])
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="after the crash"):
            store.enqueue([Draft("k", queue="q")])
        with pytest.raises(ConnectionLost):
            store.specs()
    assert depth(store) == 1
    assert store.history == [("enqueue", Fault.CRASHED)]
    store.close()


def test_a_refusal_of_the_store_comes_through_every_fault() -> None:
    for fault in Fault:
        store = faulty(scripted(("enqueue", fault)))
        store.put_spec(QueueSpec(name="q", capacity=Bounded(1)))
        with pytest.raises(ConnectionLost if fault is Fault.REFUSED else QueueFull):
            store.enqueue([Draft("k", queue="q")] * 2)
        assert depth(store) == 0


def test_scripts_are_followed_verb_by_verb() -> None:
    plan = scripted(("claim", Fault.REFUSED), ("enqueue", Fault.REPLY_LOST), ("claim", Fault.DELAYED))
    assert [plan(verb) for verb in ("enqueue", "enqueue", "claim", "claim", "claim")] == [
        Fault.REPLY_LOST,
        Fault.NONE,
        Fault.REFUSED,
        Fault.DELAYED,
        Fault.NONE,
    ]


def test_a_seed_is_a_full_account() -> None:
    first, second, other = (
        [plan(verb) for _ in range(50) for verb in ("enqueue", "claim", "settle")]
        for plan in (seeded(7), seeded(7), seeded(8))
    )
    assert first == second != other
    assert {Fault.NONE, Fault.REFUSED, Fault.REPLY_LOST, Fault.DELAYED, Fault.DUPLICATED} == set(first)


def test_a_seed_may_spare_verbs() -> None:
    plan = seeded(1, rate=1.0, verbs={"settle"})
    assert {plan("enqueue") for _ in range(20)} == {Fault.NONE}
    assert Fault.NONE not in {plan("settle") for _ in range(20)}


DRAFT = Draft("k", queue="q")
CALLS: list[Callable[[Store], object]] = [
    lambda store: store.enqueue([DRAFT]),
    lambda store: store.promote(1),
    lambda store: store.claim([Want("q", 1)], "w", minutes(1)),
    lambda store: store.extend([], minutes(1)),
    lambda store: store.settle([]),
    lambda store: store.overdue(1),
    lambda store: store.cancel([1]),
    lambda store: store.redrive([1]),
    lambda store: store.purge_dead([1]),
    lambda store: store.purge(State.DEAD, 0, 1),
    lambda store: store.get([1]),
    lambda store: store.browse(Query(), 0, 1),
    lambda store: store.backlog(),
    lambda store: store.queues("", 1),
    lambda store: store.totals(1),
    lambda store: store.put_spec(QueueSpec(name="log", retention=Retained())),
    lambda store: store.specs(),
    lambda store: store.pause("q"),
    lambda store: store.resume("q"),
    lambda store: store.set_gate("g", 1),
    lambda store: store.release("paid", 1),
    lambda store: store.hold(1),
    lambda store: store.ahead(1),
    lambda store: store.put_schedule(Schedule("s", "r", 1, DRAFT)),
    lambda store: store.drop_schedule("s"),
    lambda store: store.schedules(),
    lambda store: store.fire("s", 1, 2, DRAFT),
    lambda store: store.announce(Presence("me", "host", 1, ("q",)), seconds(1)),
    lambda store: store.withdraw("me"),
    lambda store: store.workers("", 1),
    lambda store: store.wait(["q"], seconds(1)),
    lambda store: store.report_progress([]),
    lambda store: store.wait_ended([1], seconds(1)),
    lambda store: store.wait_cancel_requests("me", seconds(1)),
    lambda store: store.append("log", [b"1"]),
    lambda store: store.read("log", 0, -1, 1),
    lambda store: store.commit("log", "g", 0, -1),
    lambda store: store.position("log", "g", 0),
    lambda store: store.extent("log"),
    lambda store: store.trim("log", 0, 1),
    lambda store: store.offset_at("log", 0, 1),
    lambda store: store.own("log", "g", "me", seconds(1)),
    lambda store: store.disown("log", "g", "me"),
    lambda store: store.groups("log", "", 1),
    lambda store: store.gates("", 1),
    lambda store: store.ingested("lake"),
    lambda store: store.ingest("lake", None, Checkpoint(1, 1, b""), [DRAFT]),
    lambda store: store.replace_dead([(1, DRAFT)]),
    lambda store: store.ledger(-1, 1),
    lambda store: store.ledger_extent(),
    lambda store: store.ledger_rule(),
    lambda store: store.put_ledger_rule(LedgerRule()),
    lambda store: store.trim_ledger(1),
]
"""Every verb of the contract, once."""


def test_every_verb_can_fail() -> None:
    store = FaultyStore(MemoryStore(clock=ManualClock()), lambda _: Fault.REFUSED)
    for call in CALLS:
        with pytest.raises(ConnectionLost):
            call(store)
    spared = {"capabilities", "now", "close"}
    verbs = {name for name in dir(Store) if not name.startswith("_")} - spared
    assert {verb for verb, _ in store.history} == verbs


@pytest.mark.parametrize("seed", range(25))
def test_a_client_that_repeats_itself_loses_nothing_and_doubles_nothing(seed: int) -> None:
    clock = ManualClock()
    store = faulty(seeded(seed, rate=0.4), clock)
    persist(lambda: store.put_spec(QueueSpec(name="q", key_window=minutes(600_000))))
    drafts = [Draft("k", number, queue="q", key=f"key-{number}") for number in range(JOBS)]
    ids = [persist(lambda draft=draft: store.enqueue([draft]))[0].id for draft in drafts]  # type: ignore[misc]
    assert len(set(ids)) == JOBS
    worker = Worker(store, store.inner, clock)
    worker.drain()
    assert worker.applied == Counter(ids)
    assert set(worker.effects) == set(ids)
    (left,) = store.inner.backlog(["q"])
    assert (left.depth, left.dead) == (0, 0)
    assert len(store.faults) > JOBS // 4


@pytest.mark.parametrize("seed", range(10))
def test_a_tick_is_fired_once_however_often_it_is_tried(seed: int) -> None:
    clock = ManualClock()
    store = faulty(seeded(seed, rate=0.5), clock)
    start = clock.now()
    draft = Draft("k", queue="q")
    persist(lambda: store.put_schedule(Schedule("s", "* * * * *", start, draft)))
    for number in range(20):
        tick = start + number * MINUTE
        persist(lambda tick=tick: store.fire("s", tick, tick + MINUTE, draft))  # type: ignore[misc]
    assert depth(store) == 20


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_that_repeats_its_commits_skips_nothing(seed: int) -> None:
    store = faulty(seeded(seed, rate=0.4, verbs={"read", "commit", "position"}))
    store.put_spec(QueueSpec(name="log", retention=Retained()))
    store.append("log", [b"%d" % number for number in range(30)])
    seen: list[bytes] = []
    while entries := persist(lambda: store.read("log", 0, persist(lambda: store.position("log", "g", 0)), 4)):
        seen += [entry.body for entry in entries]
        persist(lambda entries=entries: store.commit("log", "g", 0, entries[-1].offset))  # type: ignore[misc]
    assert seen == [b"%d" % number for number in range(30)]


def test_a_worker_that_crashes_in_mid_settle_harms_no_other() -> None:
    clock = ManualClock()
    inner = MemoryStore(clock=clock)
    inner.enqueue([Draft("k", number, queue="q") for number in range(5)])
    dying = FaultyStore(inner, scripted(("settle", Fault.CRASHED)))
    leases: list[Lease] = dying.claim([Want("q", 3)], "dying", seconds(30))
    with pytest.raises(ReplyLost):
        dying.settle([(leases[0], Ack())])
    successor = Worker(inner, inner, clock)
    successor.drain()
    assert successor.applied == Counter([2, 3, 4, 5])
    assert inner.backlog(["q"])[0].depth == 0
