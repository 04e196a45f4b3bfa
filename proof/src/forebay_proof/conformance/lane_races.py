"""Racing claimers and producers at gates: never more runs than a gate has, nothing sticks, shares and order hold."""

from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from zlib import crc32

from forebay.core.job import Draft
from forebay.core.lease import Lease, Settled
from forebay.core.ledger import Change
from forebay.core.outcome import Ack, Retry, Verdict
from forebay.core.policy import AtMost, Eligibility, Fair, InOrder, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Store, Want
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import ERROR, LONG, QUEUE, Harness
from forebay_proof.conformance.ledger import entries
from forebay_proof.conformance.racing import answers, race
from forebay_proof.conformance.turns import within_a_quantum

CLAIMERS = 8
ROUNDS = 50_000
"""Of one claimer, most of them empty: a race that needs more is stuck."""


class _Race:
    """Eight claimers and some others at one queue, each with a store of its own; one job in ten is retried once."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done: list[int] = []
        self.starts: list[Lease] = []
        self.most: Counter[tuple[str, str | None]] = Counter()
        self._running: Counter[tuple[str, str | None]] = Counter()
        self._guard = Lock()

    def run(self, h: Harness, others: Sequence[Callable[[Store], object]], gates: Sequence[str] = ()) -> None:
        """`gates`: those that have an operator's number at the end; no others are left."""

        def act(number: int, store: Store) -> None:
            if number < len(others):
                others[number](store)
            else:
                self._claim_all(store, number)

        with h.handles(len(others) + CLAIMERS) as handles:
            answers(race(len(handles), lambda number: act(number, handles[number])))
        assert sorted(self.done) == sorted(set(self.done))
        assert len(self.done) == self.total, f"{self.total - len(self.done)} of {self.total} are stuck: {h.backlog()}"
        assert [(gate.name, gate.used) for gate in h.store.gates("", 9)] == [(name, 0) for name in gates]
        h.nothing_left()

    def _claim_all(self, store: Store, number: int) -> None:
        for _ in range(ROUNDS):
            if len(self.done) == self.total:
                return
            leases = store.claim([Want(QUEUE, 1 + number % 3)], f"claimer-{number}", LONG)
            for lease in leases:
                self._note(lease, 1)
            for lease in leases:
                verdict = _verdict(lease)
                self._note(lease, -1)
                assert store.settle([(lease, verdict)]) == [Settled.APPLIED]
                self.done += [lease.job.id] if isinstance(verdict, Ack) else []

    def _note(self, lease: Lease, change: int) -> None:
        """Noted after the claim and before the settle, so that what is counted did run."""
        job = lease.job
        with self._guard:
            self.starts += [lease] if change > 0 else []
            for key in (("tenant", job.tenant), ("subject", job.subject), ("kind", job.kind), ("queue", job.queue)):
                self._running[key] += change * job.cost
                self.most[key] = max(self.most[key], self._running[key])

    def most_per(self, field: str) -> int:
        return max(count for (name, value), count in self.most.items() if name == field and value is not None)


def _is_retried(job_id: int) -> bool:
    """One in ten; of single enqueues some stores give ids that are a thousand apart."""
    return crc32(str(job_id).encode()) % 10 == 0


def _verdict(lease: Lease) -> Ack | Retry:
    return Retry(0, ERROR) if _is_retried(lease.job.id) and lease.job.attempt == 1 else Ack()


def _producer(count: int, fields: Callable[[int], dict[str, Any]]) -> Callable[[Store], None]:
    def produce(store: Store) -> None:
        for number in range(count):
            store.enqueue([Draft("work", queue=QUEUE, **fields(number))])

    return produce


@case
def caps_per_key_hold_under_eight_claimers_and_two_producers(h: Harness) -> None:
    h.spec(eligibility=AtMost(2, per="tenant"))
    racing = _Race(160)
    racing.run(h, [_producer(80, lambda number: {"tenant": f"t{number * number % 5}"})] * 2)
    assert racing.most_per("tenant") <= 2


@case
def two_caps_per_key_hold_and_never_stick_under_eight_claimers(h: Harness) -> None:
    h.spec(eligibility=AtMost(2, per="tenant") & AtMost(1, per="subject") & AtMost(5))
    racing = _Race(160)
    producers = [
        _producer(80, lambda number: {"tenant": f"t{number % 3}", "subject": f"s{number % 5}"}),
        _producer(80, lambda number: {"tenant": f"t{number % 4}", "subject": f"s{number % 7}"}),
    ]
    racing.run(h, producers)
    assert (racing.most_per("tenant") <= 2, racing.most_per("subject"), racing.most_per("queue") <= 5) == (
        True,
        1,
        True,
    )


@case
def a_gate_of_one_slot_that_many_lanes_share_loses_no_lane(h: Harness) -> None:
    """Lanes park while others are opened: the one slot is given back some hundred times."""
    h.spec(eligibility=AtMost(1, per="kind") & AtMost(9, per="subject"))
    racing = _Race(120)
    racing.run(h, [_producer(60, lambda number: {"subject": f"s{number % 12}"})] * 2)
    assert racing.most_per("kind") == 1


@case
def costly_jobs_at_a_gate_of_many_lanes_run_under_eight_claimers(h: Harness) -> None:
    h.spec(eligibility=AtMost(4, per="kind") & AtMost(9, per="subject"))
    racing = _Race(120)
    racing.run(h, [_producer(60, lambda number: {"subject": f"s{number % 6}", "cost": 1 + number % 4})] * 2)
    assert racing.most_per("kind") <= 4


@case
def a_lane_that_becomes_empty_during_an_enqueue_keeps_the_job(h: Harness) -> None:
    """Few lanes and claimers that are quicker than the producers: lanes are emptied and filled again all the time."""
    h.spec(share=Fair(), eligibility=AtMost(3, per="subject"))
    racing = _Race(200)
    racing.run(h, [_producer(100, lambda number: {"subject": f"s{number % 2}", "tenant": "ab"[number % 2]})] * 2)
    assert racing.most_per("subject") <= 3


@case
def a_gate_that_is_opened_and_closed_while_jobs_are_claimed_loses_no_lane(h: Harness) -> None:
    h.spec(eligibility=Until("go") & AtMost(2, per="tenant"))
    racing = _Race(80)

    def toggle(store: Store) -> None:
        for number in range(60):
            store.set_gate("until/go", number % 3)
        store.set_gate("until/go", 2)

    producer = _producer(80, lambda number: {"tenant": f"t{number % 4}"})
    racing.run(h, [toggle, producer], gates=["until/go"])
    assert racing.most_per("kind") <= 2


@case
def numbers_that_change_while_jobs_are_claimed_leave_no_slot_behind(h: Harness) -> None:
    h.spec(eligibility=AtMost(3) & AtMost(2, per="tenant"))
    racing = _Race(120)

    def change(store: Store) -> None:
        terms: list[Eligibility] = [
            AtMost(1) & AtMost(2, per="tenant"),
            AtMost(2, per="tenant"),
            AtMost(3) & AtMost(1, per="tenant"),
        ]
        for number in range(20):
            store.put_spec(QueueSpec(name=QUEUE, eligibility=terms[number % 3]))
        store.put_spec(QueueSpec(name=QUEUE, eligibility=AtMost(3) & AtMost(2, per="tenant")))

    racing.run(h, [change, _producer(120, lambda number: {"tenant": f"t{number % 4}"})])
    assert racing.most_per("tenant") <= 2


@case
def shares_are_exact_under_eight_racing_claimers(h: Harness) -> None:
    """Claims of a queue with shares are serial: in the order of their records, which a store with a ledger has, any
    stretch of starts is within one quantum; beside a cap and a rate that hold the claimers up, too.
    """
    thirds, odd = {"a": 5, "b": 3, "c": 2}, {"a": 17, "b": 19}
    terms: list[tuple[dict[str, int], int, Eligibility]] = [
        (thirds, 120, AtMost(1_000)),
        (thirds, 120, AtMost(1_000, per="kind")),
        (odd, 144, AtMost(4) & Rate(9, h.short_delta)),
        (odd, 144, AtMost(4, per="kind") & Rate(9, h.short_delta, per="kind")),
    ]
    for number, (weights, total, eligibility) in enumerate(terms):
        queue = f"q{number}"
        h.spec(queue, share=Fair(weights=weights), eligibility=eligibility)
        for tenant in weights:
            h.enqueue(total, queue=queue, tenant=tenant)
        claims = _racing_claims(h, queue, total)
        starts = [lease.job.tenant for leases in claims for lease in leases]
        assert Counter(starts) == {name: total * weight // sum(weights.values()) for name, weight in weights.items()}
        if h.store.ledger_extent()[1]:
            within_a_quantum(starts, weights)


@case
def shares_beside_a_cap_per_tenant_are_exact_through_retries(h: Harness) -> None:
    """While no cap is full; a job that is retried starts in a turn of its tenant like any other."""
    weights = {"a": 5, "b": 3, "c": 2}
    h.spec(share=Fair(weights=weights), eligibility=AtMost(1_000, per="tenant"))
    for tenant in weights:
        h.enqueue(120, tenant=tenant)
    starts = [lease.job for leases in _racing_claims(h, QUEUE, 120, _verdict) for lease in leases]
    assert any(job.attempt == 2 for job in starts)
    assert Counter(job.tenant for job in starts) == {"a": 60, "b": 36, "c": 24}
    if h.store.ledger_extent()[1]:
        within_a_quantum([job.tenant for job in starts], weights)


@case
def a_cap_per_tenant_beside_shares_and_retries_holds_and_starves_none(h: Harness) -> None:
    h.spec(share=Fair(weights={"t0": 4, "t1": 2}), eligibility=AtMost(2, per="tenant"))
    racing = _Race(180)
    racing.run(h, [_producer(90, lambda number: {"tenant": f"t{number % 3}"})] * 2)
    assert racing.most_per("tenant") <= 2
    retried = sum(map(_is_retried, racing.done))
    assert Counter(lease.job.attempt for lease in racing.starts) == {1: 180, 2: retried}


def _racing_claims(
    h: Harness, queue: str, total: int, verdict: Callable[[Lease], Verdict] = lambda _: Ack()
) -> list[list[Lease]]:
    """What eight claimers claim, `total` starts together, in the order in which the store recorded it."""
    claims: list[list[Lease]] = []
    left, guard = [total], Lock()

    def act(number: int, store: Store) -> None:
        for _ in range(ROUNDS):
            with guard:
                count = min(1 + number % 3, left[0])
                left[0] -= count
            leases = store.claim([Want(queue, count)], f"claimer-{number}", LONG) if count else []
            with guard:
                left[0] += count - len(leases)
                claims.extend([leases] if leases else [])
                done = sum(map(len, claims)) == total
            if leases:
                assert set(store.settle([(lease, verdict(lease)) for lease in leases])) == {Settled.APPLIED}
            elif done:
                return
            else:
                h.advance(h.short // 9)

    with h.handles(CLAIMERS) as handles:
        answers(race(CLAIMERS, lambda number: act(number, handles[number])))
    recorded = {
        (job_range.first + i, job_range.delivery): entry.offset
        for entry in entries(h)
        for job_range in entry.record.ranges
        if job_range.change == Change.CLAIMED
        for i in range(job_range.n)
    }
    return sorted(claims, key=lambda leases: recorded.get(leases[0].fence, 0))


@case
def lines_keep_their_order_under_eight_claimers_and_two_producers(h: Harness) -> None:
    h.spec(eligibility=InOrder(per="subject") & AtMost(4, per="tenant"))
    racing = _Race(120)
    producers = [
        _producer(60, lambda number: {"subject": f"s{number % 3}", "tenant": "t"}),
        _producer(60, lambda number: {"subject": f"s{3 + number % 3}", "tenant": "u"}),
    ]
    racing.run(h, producers)
    assert racing.most_per("subject") == 1
    for subject in (f"s{number}" for number in range(6)):
        ran = [lease.job.id for lease in racing.starts if lease.job.subject == subject]
        assert ran == sorted(ran), f"line {subject} ran in the order {ran}"
