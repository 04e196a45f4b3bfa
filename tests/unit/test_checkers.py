"""Every checker finds the violation planted for it and is silent about clean histories, one of them a real store's."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from forebay.core.changeset import PASSED, PROMOTED, WITHDRAWN, ChangeSet, JobChange, LogChange, TableChanges
from forebay.core.entries import Entry
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.ledger import Change
from forebay.core.outcome import Ack, Failure
from forebay.core.policy import AtMost, Eligibility, Fair, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Want
from forebay.testing.clock import ManualClock
from forebay_proof.checkers import (
    Violation,
    attempts,
    caps,
    check_all,
    conservation,
    early,
    key_order,
    owners,
    rates,
    readers,
    shares,
)
from forebay_proof.history import RunHistory

Checker = Callable[[Sequence[ChangeSet]], list[Violation]]

BOOM = Failure("Boom")
LINE = "order/q/subject/s"


def entry(job_id: int, *, due_at: int = 0, attempts: int = 2, expires_at: int | None = None, cls: str = "") -> Entry:
    return Entry(job_id, "q", "k", b"1", due_at, due_at == 0, attempts, expires_at=expires_at, cls=cls)


def costly(job_id: int, cost: int = 1, gates: tuple[str, ...] = ()) -> Entry:
    return Entry(job_id, "q", "k", b"1", 0, True, 2, cost=cost, gates=gates)


def put(spec: QueueSpec) -> ChangeSet:
    return ChangeSet(0, tables=TableChanges(specs={spec.name: spec}))


def paced(burst: int = 2, step: int = 100) -> ChangeSet:
    """A rate of the whole queue; costs are counted as jobs come."""
    return put(QueueSpec(name="q", eligibility=Rate(10, timedelta(microseconds=10 * step), burst=burst)))


def capped(eligibility: Eligibility) -> ChangeSet:
    return put(QueueSpec(name="q", eligibility=eligibility))


def given_slots(gate: str, limit: int) -> ChangeSet:
    return ChangeSet(0, tables=TableChanges(gate_limits={gate: limit}))


def lined(job_id: int, *, blocks: bool = False) -> Entry:
    return Entry(job_id, "q", "k", b"1", 0, False, 2, line=LINE, blocks=blocks)


def own(member: str, until: int, epochs: dict[int, int], at: int = 0) -> ChangeSet:
    return ChangeSet(at, log=LogChange("log", group="g", member=member, until=until, owned=epochs))


def jobs(at: int, change: str, *ids: int, delivery: int = 0, until: int = 0, error: Failure | None = None) -> ChangeSet:
    deliveries = [delivery] * len(ids) if delivery else ()
    return ChangeSet(at, jobs=[JobChange(change, ids, deliveries, until, error)], owner="w")


def accept(*entries: Entry, at: int = 0) -> ChangeSet:
    return ChangeSet(at, entries=entries)


def claim(job_id: int, delivery: int = 1, at: int = 0) -> ChangeSet:
    return jobs(at, Change.CLAIMED, job_id, delivery=delivery, until=at + 10)


def ack(job_id: int, delivery: int = 1, kept_until: int = 0) -> ChangeSet:
    return jobs(0, Change.ACKED, job_id, delivery=delivery, until=kept_until)


def retry(job_id: int, delivery: int = 1, due_at: int = 0) -> ChangeSet:
    return jobs(0, Change.RETRIED, job_id, delivery=delivery, until=due_at, error=BOOM)


def die(job_id: int, delivery: int = 1, error: Failure = BOOM) -> ChangeSet:
    return jobs(0, Change.DIED, job_id, delivery=delivery, error=error)


def release(job_id: int, delivery: int = 1) -> ChangeSet:
    return jobs(0, Change.RELEASED, job_id, delivery=delivery)


def redrive(job_id: int, at: int = 0) -> ChangeSet:
    return jobs(at, Change.REDRIVEN, job_id, until=at)


THREE = [costly(1), costly(2), costly(3)]
COSTLY = [costly(1, 2), costly(2, 2)]
PER_KIND = AtMost(1, per="kind")
KIND = ("cap/q/kind/k",)
LET_PASS = ChangeSet(0, name="until/x", jobs=[JobChange(PASSED, [1])])

LIFE: list[ChangeSet] = [
    accept(entry(1), entry(2, due_at=5), entry(3)),
    claim(1),
    jobs(0, Change.EXTENDED, 1, until=20),
    retry(1),
    jobs(5, PROMOTED, 1, 2),
    claim(1, 2, at=5),
    die(1, 2),
    redrive(1, at=6),
    claim(2, at=6),
    release(2),
    claim(2, 2, at=6),
    ack(2, 2, kept_until=9),
    jobs(9, Change.PURGED, 2),
    jobs(9, Change.CANCELLED, 3),
    claim(1, 3, at=9),
    ack(1, 3),
]

PLANTED: list[tuple[Checker, list[ChangeSet], str]] = [
    (conservation, [accept(entry(1)), accept(entry(1), at=1)], "accepted twice"),
    (conservation, [claim(1)], "never accepted"),
    (conservation, [accept(entry(1)), claim(1), ack(1), ack(1)], "finds it gone"),
    (conservation, [accept(entry(1)), claim(1), ack(1, kept_until=9), claim(1, 2)], "finds it done"),
    (conservation, [accept(entry(1)), jobs(0, Change.CANCELLED, 1), jobs(1, PROMOTED, 1)], "finds it gone"),
    (conservation, [accept(entry(1)), jobs(0, Change.PURGED, 1)], "finds it ready"),
    (conservation, [accept(entry(1)), claim(1), retry(1), redrive(1)], "finds it waiting"),
    (conservation, [accept(entry(1)), jobs(0, Change.CLAIMED, 1, 1, delivery=1, until=9)], "finds it running"),
    (lambda events: conservation(events, drained=True), [accept(entry(1)), claim(1)], "still running"),
    (owners, [claim(1), claim(1, 2)], "while delivery 1 is out"),
    (owners, [claim(1), retry(1), claim(1, 1)], "delivery 1 after 1"),
    (owners, [claim(1), retry(1), claim(1, 2), ack(1, 1)], "the holder is 2"),
    (owners, [claim(1), ack(1), ack(1)], "the holder is None"),
    (owners, [claim(1), retry(1), jobs(0, Change.EXTENDED, 1, until=9)], "it has no holder"),
    (owners, [claim(1), jobs(0, Change.CANCELLED, 1)], "cancelled while delivery 1"),
    (owners, [claim(1), jobs(0, Change.EXPIRED, 1)], "expired while delivery 1"),
    (attempts, [accept(entry(1, attempts=1)), claim(1), retry(1), claim(1, 2)], "attempt 2 of 1"),
    (attempts, [accept(entry(1)), claim(1), die(1)], "died after 1 of 2"),
    (attempts, [accept(entry(1)), claim(1), release(1), claim(1, 2), die(1, 2)], "died after 1 of 2"),
    (key_order, [accept(lined(1), lined(2)), jobs(0, PROMOTED, 2)], "before 1"),
    (key_order, [accept(lined(1), lined(2)), claim(1), claim(2)], "while [1] runs"),
    (key_order, [accept(lined(1), lined(2)), claim(1), retry(1), claim(2)], "before 1"),
    (key_order, [accept(lined(1, blocks=True), lined(2, blocks=True)), claim(1), die(1), claim(2)], "before 1"),
    (key_order, [accept(lined(1), lined(2)), claim(1), die(1), redrive(1), claim(2)], "before 1"),
    (
        key_order,
        [accept(lined(1), lined(2)), claim(1), die(1), claim(2), redrive(1), claim(1, 2)],
        "[2] runs",
    ),
    (conservation, [accept(lined(1)), claim(1), jobs(0, WITHDRAWN, 1)], "finds it running"),
    (caps, [capped(AtMost(1)), accept(costly(1), costly(2)), claim(1), claim(2)], "cap/q has 1 slots"),
    (caps, [accept(costly(1), costly(2)), claim(1), capped(AtMost(1)), claim(2)], "cap/q has 1 slots"),
    (caps, [capped(AtMost(4)), accept(costly(1, 3), costly(2, 2)), claim(1), claim(2)], "costs {1: 3, 2: 2}"),
    (caps, [capped(PER_KIND), accept(*(costly(n, 1, KIND) for n in (1, 2))), claim(1), claim(2)], "cap/q/kind/k"),
    (caps, [capped(Until("x")), accept(costly(1, 1, ("until/x",))), claim(1)], "until/x has 0 slots"),
    (
        caps,
        [given_slots("cap/q", 1), capped(AtMost(9)), accept(costly(1), costly(2)), claim(1), claim(2)],
        "1 slots",
    ),
    (early, [accept(entry(1, due_at=5)), claim(1, at=4)], "claimed 1 µs before"),
    (early, [accept(entry(1, due_at=5)), jobs(3, PROMOTED, 1)], "promoted 2 µs before"),
    (early, [accept(entry(1)), claim(1), retry(1, due_at=7), claim(1, 2, at=6)], "claimed 1 µs before"),
    (early, [accept(entry(1, expires_at=5)), claim(1, at=5)], "claimed 0 µs after it expired"),
    (rates, [paced(), accept(*THREE), claim(1), claim(2), claim(3, at=99)], "3 started within 99 µs"),
    (
        rates,
        [paced(), accept(costly(1, 2), costly(2)), claim(1), claim(2, at=99)],
        "rate/q: 3 started within 99 µs",
    ),
    (rates, [paced(), accept(*THREE), claim(1), claim(1, 2), claim(1, 3)], "3 started within 0 µs, 2 may"),
    (rates, [given_slots("rate/q", 3), paced(), accept(*COSTLY), claim(1), claim(2)], "4 started"),
    (readers, [own("a", 9, {0: 1}), own("b", 15, {0: 2}, at=5)], "b takes it while a owns it for 4 µs more"),
    (readers, [own("a", 9, {0: 1}), own("b", 19, {0: 1}, at=9)], "changes hands in epoch 1 after 1"),
    (readers, [own("a", 9, {0: 1}), own("a", 12, {0: 2}, at=3)], "a keeps it in epoch 2, not 1"),
    (readers, [own("a", 9, {0: 1}), own("a", 0, {}, at=1), own("a", 9, {0: 1}, at=2)], "epoch 1 after 1"),
]

CLEAN: list[tuple[Checker, list[ChangeSet]]] = [
    (lambda events: check_all(events, drained=True), LIFE),
    (attempts, [accept(entry(1)), claim(1), release(1), claim(1, 2), retry(1, 2), claim(1, 3), die(1, 3)]),
    (lambda events: attempts(events, dropped=["Boom"]), [accept(entry(1)), claim(1), die(1)]),
    (key_order, [accept(lined(1), lined(2)), claim(1), die(1), claim(2)]),
    (key_order, [accept(lined(1), lined(2)), claim(1), die(1), claim(2), redrive(1), ack(2), claim(1, 2)]),
    (
        conservation,
        [accept(lined(1), lined(2)), claim(1), die(1), jobs(0, PROMOTED, 2), redrive(1), jobs(0, WITHDRAWN, 2)],
    ),
    (key_order, [accept(lined(1, blocks=True), lined(2)), claim(1), die(1), jobs(0, Change.PURGED, 1), claim(2)]),
    (key_order, [accept(lined(1), lined(2)), jobs(0, Change.CANCELLED, 1), claim(2)]),
    (early, [accept(entry(1, due_at=5)), claim(1, at=5)]),
    (rates, [paced(), accept(*THREE), claim(1), claim(2), claim(3, at=100)]),
    (rates, [paced(), accept(*COSTLY), claim(1), claim(2, at=200)]),
    (rates, [given_slots("rate/q", 4), paced(), accept(*COSTLY), claim(1), claim(2)]),
    (rates, [paced(), accept(costly(1, 5), costly(2)), claim(1), claim(2, at=400)]),
    (rates, [paced(), accept(*COSTLY), claim(1), paced(burst=4), claim(2)]),
    (rates, [paced(), accept(*COSTLY), claim(1), paced(step=900), claim(2)]),
    (rates, [paced(), accept(*THREE), claim(1), put(QueueSpec(name="q")), claim(2), claim(3)]),
    (caps, [capped(AtMost(2)), accept(costly(1), costly(2), costly(3)), claim(1), claim(2), ack(1), claim(3)]),
    (caps, [capped(AtMost(2)), accept(*COSTLY), claim(1), capped(AtMost(1)), ack(1), claim(2)]),
    (
        caps,
        [capped(PER_KIND), accept(*(costly(n, 1, KIND) for n in (1, 2))), claim(1), capped(AtMost(2)), claim(2)],
    ),
    (caps, [capped(Until("x")), accept(costly(1, 1, ("until/x",))), LET_PASS, claim(1)]),
    (readers, [own("a", 9, {0: 1, 1: 1}), own("a", 12, {0: 1}, at=3), own("b", 15, {1: 2}, at=3)]),
    (readers, [own("a", 9, {0: 1}), own("b", 19, {0: 2}, at=9), own("b", 0, {}, at=10), own("a", 30, {0: 3}, at=11)]),
    (early, [accept(entry(1, expires_at=5)), jobs(6, Change.EXPIRED, 1), redrive(1, at=7), claim(1, at=8)]),
]


@pytest.mark.parametrize(("checker", "events", "message"), PLANTED)
def test_a_planted_violation_is_found(checker: Checker, events: list[ChangeSet], message: str) -> None:
    found = checker(events)
    assert message in "\n".join(map(str, found)), found


@pytest.mark.parametrize(("checker", "events"), CLEAN)
def test_a_clean_history_is_left_alone(checker: Checker, events: list[ChangeSet]) -> None:
    assert checker(events) == []


def test_a_violation_says_where_and_about_what() -> None:
    assert str(owners([claim(7), claim(7, 2)])[0]) == "owners: event 1, job 7: claimed by w while delivery 1 is out"


def served(pattern: str, weights: dict[str, int], rounds: int) -> list[ChangeSet]:
    """Classes `a` and `b` with far too many jobs, claimed one by one as the pattern says, over and over."""
    classes = {"a": range(1, 2_000), "b": range(2_000, 4_000)}
    entries = [entry(job_id, cls=cls) for cls, ids in classes.items() for job_id in ids]
    left = {cls: iter(ids) for cls, ids in classes.items()}
    spec = QueueSpec(name="q", share=Fair(weights=weights))
    return [put(spec), accept(*entries), *(claim(next(left[cls])) for cls in pattern * rounds)]


@pytest.mark.parametrize(
    ("pattern", "weights", "fair"),
    [
        ("ab", {}, True),
        ("aaab", {"a": 3}, True),
        ("aab", {"a": 3}, False),
        ("a", {}, False),
        ("abba", {}, True),
        ("a" * 11 + "b" * 10, {}, False),
    ],
)
def test_shares_are_judged_by_weight(pattern: str, weights: dict[str, int], fair: bool) -> None:
    assert (shares(served(pattern, weights, 400 // len(pattern))) == []) is fair


def test_a_short_stretch_is_not_judged() -> None:
    assert shares(served("a", {}, 79)) == []
    assert shares(served("a", {}, 80)) != []


def test_a_stretch_ends_when_a_class_runs_dry() -> None:
    events: list[ChangeSet] = [
        put(QueueSpec(name="q", share=Fair())),
        accept(*(entry(n, cls="a") for n in range(1, 500)), entry(900, cls="b")),
        claim(900),
        *(claim(n) for n in range(1, 400)),
    ]
    assert shares(events) == []


def test_the_in_process_store_is_fair_by_its_own_ledger() -> None:
    history = RunHistory()
    store = MemoryStore(clock=ManualClock(), recorder=history)
    store.put_spec(QueueSpec(name="q", share=Fair(weights={"a": 5, "b": 2})))
    for tenant in "abc":
        store.enqueue([Draft("k", queue="q", tenant=tenant)] * 1_000)
    tenants = []
    for size in [1, 3, 7, 10] * 40:
        leases = store.claim([Want("q", size)], "w", seconds(5))
        tenants += [lease.job.tenant for lease in leases]
        store.settle([(lease, Ack()) for lease in leases])
    assert len(tenants) == 840
    assert check_all(history.changes) == []
    assert [tenants.count(tenant) for tenant in "abc"] == [525, 210, 105]
