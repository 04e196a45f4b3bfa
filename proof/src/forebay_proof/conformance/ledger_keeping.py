"""Keeping the ledger: dense offsets, reading from an offset, switching it off, trimming, and histories that replay."""

from msgspec.structs import replace

from forebay.core.errors import Invalid, OffsetGone
from forebay.core.job import State
from forebay.core.lease import Settled
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Ack, DeadLetter, Release, Retry, Verdict
from forebay_proof.checkers import ledger as violations
from forebay_proof.conformance.case import Need, case_if, refused
from forebay_proof.conformance.harness import ERROR, Harness
from forebay_proof.conformance.ledger import entries, written
from forebay_proof.conformance.racing import answers, race

_ALWAYS = LedgerRule(keep=86_400_000_000, keep_bytes=2**40)


@case_if(Need.DURABLE)
def offsets_are_dense_from_the_first_call_on(h: Harness) -> None:
    for _ in range(5):
        h.one()
        h.ack(h.take())
        h.claim()
    offsets = [entry.offset for entry in entries(h)]
    assert offsets == list(range(15))
    assert h.store.ledger_extent() == (0, 15)


@case_if(Need.DURABLE)
def reading_goes_on_where_it_ended(h: Harness) -> None:
    for _ in range(7):
        h.one()
    every = entries(h)
    for limit in (1, 3, 7, 1_000):
        read, after = [], -1
        while page := h.store.ledger(after, limit):
            assert len(page) <= limit
            read += page
            after = page[-1].offset
        assert read == every
    assert h.store.ledger(6, 10) == h.store.ledger(10**6, 10) == []
    for bad in ((-2, 1), (None, 1), (-1, 0), (-1, 10**9)):
        refused(Invalid, lambda bad=bad: h.store.ledger(*bad))  # type: ignore[misc]


@case_if(Need.DURABLE)
def the_ledger_outlives_a_reopening_and_its_offsets_go_on(h: Harness) -> None:
    h.enqueue(3)
    h.ack(h.take())
    before = entries(h)
    h.reopen()
    assert entries(h) == before
    h.one()
    assert [entry.offset for entry in entries(h)] == [0, 1, 2, 3]


@case_if(Need.DURABLE)
def switching_the_ledger_off_is_recorded_as_a_gap(h: Harness) -> None:
    h.one()
    h.store.put_ledger_rule(LedgerRule(on=False))
    assert h.store.ledger_rule() == LedgerRule(on=False)
    assert written(h, lambda: [h.one(), h.ack(h.take()), h.store.cancel([h.one()])]) == []
    h.reopen()
    assert written(h, h.one) == []
    h.store.put_ledger_rule(LedgerRule())
    h.one()
    found = [(entry.offset, entry.record.verb, entry.record.name) for entry in entries(h)]
    assert found == [
        (0, "enqueue", None),
        (1, "put_ledger_rule", "off"),
        (2, "put_ledger_rule", "on"),
        (3, "enqueue", None),
    ]
    assert violations(entries(h)) == []


@case_if(Need.DURABLE)
def a_rule_is_kept_and_one_that_makes_no_sense_is_refused(h: Harness) -> None:
    rule = LedgerRule(keep=5_000_000, keep_bytes=4_096)
    assert h.store.ledger_rule() == LedgerRule()
    assert written(h, lambda: h.store.put_ledger_rule(rule)) == []
    h.reopen()
    assert h.store.ledger_rule() == rule
    refused(Invalid, lambda: h.store.put_ledger_rule({"on": True}))  # type: ignore[arg-type]
    for bad in ({"on": 1}, {"keep": -1}, {"keep": 2**63}, {"keep_bytes": -1}, {"keep_bytes": 1.5}):
        refused(Invalid, lambda bad=bad: LedgerRule(**bad))  # type: ignore[misc]


@case_if(Need.DURABLE)
def what_is_too_old_is_trimmed_oldest_first(h: Harness) -> None:
    for _ in range(4):
        h.one()
    h.advance(2 * h.short)
    h.one()
    assert h.store.trim_ledger(1_000) == 0
    h.store.put_ledger_rule(replace(_ALWAYS, keep=h.short))
    assert h.store.trim_ledger(3) == 3
    assert h.store.ledger_extent() == (3, 5)
    assert h.store.trim_ledger(1_000) == 1
    assert h.store.trim_ledger(1_000) == 0
    error = refused(OffsetGone, lambda: h.store.ledger(2, 10))
    assert (error.log, error.partition, error.requested, error.first) == ("ledger", 0, 3, 4)
    refused(OffsetGone, lambda: h.store.ledger(-1, 10))
    assert [entry.offset for entry in entries(h, 3)] == [4]
    h.reopen()
    assert h.store.ledger_extent() == (4, 5)
    assert [entry.offset for entry in entries(h, 3)] == [4]


@case_if(Need.DURABLE)
def what_is_too_much_is_trimmed_oldest_first(h: Harness) -> None:
    for number in range(40):
        h.one(subject=f"{number:0200}")
    h.store.put_ledger_rule(replace(_ALWAYS, keep_bytes=4_000))
    dropped = 0
    while some := h.store.trim_ledger(5):
        assert some <= 5
        dropped += some
    first, following = h.store.ledger_extent()
    assert (first, following) == (dropped, 40)
    assert 20 <= first < 39, f"{40 - first} records of about 250 bytes are kept in 4,000"
    h.store.put_ledger_rule(replace(_ALWAYS, keep_bytes=0))
    assert h.store.trim_ledger(1_000) == 40 - first
    assert h.store.ledger_extent() == (40, 40)
    assert h.store.ledger(39, 10) == []
    h.one()
    assert [entry.offset for entry in entries(h, 39)] == [40]


@case_if(Need.DURABLE)
def maintenance_trims_the_ledger(h: Harness) -> None:
    for _ in range(5):
        h.one()
    h.store.put_ledger_rule(replace(_ALWAYS, keep=h.short))
    h.advance(2 * h.short)
    for _ in range(100):
        h.store.promote(1_000)
        if h.store.ledger_extent()[0]:
            break
        h.advance(h.short)
    assert h.store.ledger_extent() == (5, 5)


@case_if(Need.DURABLE)
def threads_that_mix_all_verbs_leave_lives_that_replay(h: Harness) -> None:
    """Accepted, claimed, settled, in this order, fence by fence; and every answer that was given is in it."""
    accepted: list[int] = []
    acked: list[int] = []

    def work(number: int) -> None:
        for turn in range(4):
            accepted.extend(h.enqueue(2, kind=f"k{number % 3}"))
            leases = h.claim(2, owner=f"w{number}")
            if number % 5 == 0:
                h.store.extend(leases, h.short_delta)
            if number % 7 == 0:
                h.store.cancel([lease.job.id for lease in leases[:1]])
            verdicts: list[Verdict] = [Ack(), Ack(), Retry(0, ERROR), Release(), DeadLetter(ERROR)]
            chosen = [verdicts[(number + turn + place) % 5] for place in range(len(leases))]
            settled = h.store.settle(list(zip(leases, chosen, strict=True)))
            for lease, verdict, answer in zip(leases, chosen, settled, strict=True):
                assert answer is Settled.APPLIED
                acked.extend([lease.job.id] if isinstance(verdict, Ack) else [])
            if number % 11 == 0:
                h.store.redrive([job.id for job in h.jobs(state=State.DEAD)[:2]])

    answers(race(64, work))
    acked += h.drain(batch=100)
    every = entries(h)
    assert [entry.offset for entry in every] == list(range(len(every)))
    found = violations(every)
    assert found == [], found[:5]
    jobs = [
        (job_range.change, job_range.first + place)
        for one in every
        for job_range in one.record.ranges
        for place in range(job_range.n)
    ]
    assert sorted(job_id for change, job_id in jobs if change == "accepted") == sorted(accepted)
    assert sorted(job_id for change, job_id in jobs if change == "acked") == sorted(acked)
