"""Real threads: under races a job has one holder, a key one job, a slot one winner, and nothing is left behind."""

from threading import Lock

from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, Release, Retry, Verdict
from forebay.core.policy import AtMost, Fair, InOrder
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import ERROR, Harness
from forebay_proof.conformance.racing import RacingCall, answers, race


def _claim_all(h: Harness, batch: int) -> list[Lease]:
    """What one thread gets until nothing more comes."""
    leases: list[Lease] = []
    while more := h.claim(batch):
        leases += more
    return leases


@case
def racing_claims_hand_out_every_job_once(h: Harness) -> None:
    ids = h.enqueue(400)
    claimed = answers(race(8, lambda number: _claim_all(h, 1 + number)))
    assert sorted(lease.job.id for leases in claimed for lease in leases) == ids
    assert {lease.job.delivery for leases in claimed for lease in leases} == {1}
    assert h.backlog().running == 400


@case
def racing_claims_of_fair_classes_hand_out_every_job_once(h: Harness) -> None:
    h.spec(share=Fair())
    ids = [job_id for tenant in "abcd" for job_id in h.enqueue(60, tenant=tenant)]
    claimed = answers(race(8, lambda number: _claim_all(h, 1 + number)))
    assert sorted(lease.job.id for leases in claimed for lease in leases) == ids


@case
def racing_producers_get_ids_of_their_own(h: Harness) -> None:
    accepted = answers(race(32, lambda _: h.enqueue(5)))
    ids = [job_id for batch in accepted for job_id in batch]
    assert len(set(ids)) == 160
    assert all(batch == sorted(batch) for batch in accepted)
    assert sorted(h.drain(batch=50)) == sorted(ids)


@case
def sixty_four_producers_of_one_key_make_one_job(h: Harness) -> None:
    receipts = [receipt for batch in answers(race(64, lambda _: h.send(h.draft(key="k")))) for receipt in batch]
    assert len({receipt.id for receipt in receipts}) == 1
    assert [receipt.duplicate for receipt in receipts].count(False) == 1
    assert h.backlog().depth == 1


@case
def sixty_four_producers_of_shared_keys_make_one_job_a_key(h: Harness) -> None:
    batches = answers(race(64, lambda number: h.send(*[h.draft(key=f"k{(number + i) % 16}") for i in range(16)])))
    receipts = [receipt for batch in batches for receipt in batch]
    assert len({receipt.id for receipt in receipts}) == 16
    assert sum(not receipt.duplicate for receipt in receipts) == 16
    assert len(h.drain()) == 16
    h.nothing_left()


@case
def racing_workers_finish_every_job_once(h: Harness) -> None:
    """Some fail, some release, all come back, and each is acknowledged exactly once."""
    ids = h.enqueue(200)

    def work(number: int) -> list[int]:
        done = []
        while leases := h.claim(1 + number % 3):
            for lease in leases:
                first = lease.job.delivery == 1
                verdict: Verdict = Retry(0, ERROR) if first and lease.job.id % 3 == 0 else Ack()
                verdict = Release() if first and lease.job.id % 5 == 0 else verdict
                assert h.settle(lease, verdict) is Settled.APPLIED
                done += [lease.job.id] if isinstance(verdict, Ack) else []
        return done

    done = [job_id for batch in answers(race(8, work)) for job_id in batch] + h.drain()
    assert sorted(done) == ids
    h.nothing_left()


@case
def racing_settles_of_one_lease_have_one_winner(h: Harness) -> None:
    for _ in range(20):
        job_id = h.one()
        lease = h.take()
        settled = answers(
            race(
                6,
                lambda number, lease=lease: h.ack(lease) if number % 2 else h.fail(lease),  # type: ignore[misc]
            )
        )
        acks, retries = set(settled[1::2]), set(settled[0::2])
        assert {frozenset(acks), frozenset(retries)} == {frozenset({Settled.APPLIED}), frozenset({Settled.STALE})}
        done = Settled.APPLIED in set(settled[1::2])
        assert h.drain() == ([] if done else [job_id])
    h.nothing_left()


@case
def a_holder_and_a_reaper_that_race_have_one_winner(h: Harness) -> None:
    for _ in range(10):
        job_id = h.one()
        lease = h.take(lease_for=h.short_delta)
        h.lapse(lease)
        held, reaped = answers(
            race(2, lambda number, lease=lease: h.fail(lease) if number else h.ack(lease))  # type: ignore[misc]
        )
        assert {held, reaped} == {Settled.APPLIED, Settled.STALE}
        assert h.drain() == ([] if held is Settled.APPLIED else [job_id])
    h.nothing_left()


@case
def a_cap_holds_under_racing_workers(h: Harness) -> None:
    h.spec(eligibility=AtMost(3))
    ids = h.enqueue(120)
    guard = Lock()
    running: set[int] = set()
    most: list[int] = []
    done: list[int] = []

    def work(_: int) -> None:
        while len(done) < len(ids):
            leases = h.claim(2)
            with guard:
                running.update(lease.job.id for lease in leases)
                most.append(len(running))
            for lease in leases:
                with guard:
                    running.discard(lease.job.id)
                    done.append(lease.job.id)
                h.ack(lease)

    answers(race(8, work))
    assert sorted(done) == ids
    assert max(most) <= 3
    h.nothing_left()


@case
def lines_keep_their_order_under_racing_workers(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    subjects = [f"s{number}" for number in range(6)]
    lines = {subject: h.enqueue(15, subject=subject) for subject in subjects}
    guard = Lock()
    started: list[Lease] = []
    left = [90]

    def work(_: int) -> None:
        while left[0] > 0:
            for lease in h.claim(2):
                with guard:
                    started.append(lease)
                failed = lease.job.attempt == 1 and lease.job.id % 4 == 0
                assert (h.fail(lease) if failed else h.ack(lease)) is Settled.APPLIED
                with guard:
                    left[0] -= 0 if failed else 1

    answers(race(6, work))
    for subject, ids in lines.items():
        ran = [lease.job.id for lease in started if lease.job.subject == subject]
        assert ran == sorted(ran)
        assert sorted(set(ran)) == ids
    h.nothing_left()


@case
def waiting_workers_miss_no_job(h: Harness) -> None:
    """A hint may be missed, so time passes meanwhile; every job is done all the same, and every worker ends."""

    def work() -> list[int]:
        done: list[int] = []
        while True:
            h.store.wait(["q"], h.short_delta)
            for lease in h.claim(1):
                h.ack(lease)
                if lease.job.kind == "stop":
                    return done
                done.append(lease.job.id)

    workers = [RacingCall(work) for _ in range(8)]
    ids = [job_id for batch in answers(race(8, lambda _: [h.one() for _ in range(8)])) for job_id in batch]
    h.enqueue(8, kind="stop")
    for _ in range(1_000):
        h.advance(h.short // 10)
        if all(worker.ends_within(0.005) for worker in workers):
            break
    done = [job_id for worker in workers for job_id in worker.result()]
    assert sorted(done) == sorted(ids)
    h.nothing_left()
