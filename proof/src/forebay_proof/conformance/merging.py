"""Merging (`LatestWins`): a job that still waits takes over newer work; the newest is always run, and run last."""

from typing import Any

from forebay.core.errors import KeyConflict
from forebay.core.instant import Duration
from forebay.core.job import State
from forebay.core.outcome import EXPIRED, Release, Retry, Verdict
from forebay.core.policy import LatestWins
from forebay.store.protocol import CancelAnswer
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import ERROR, SECOND, Harness


def _merging(h: Harness, **axes: Any) -> None:
    h.spec(**{"merge": LatestWins(), **axes})


def _payloads(h: Harness, pause: Duration = 0) -> list[object]:
    """What runs from now on, in order."""
    payloads: list[object] = []
    h.advance(pause)
    while leases := h.claim(10):
        payloads += [lease.job.payload for lease in leases]
        for lease in leases:
            h.ack(lease)
    return payloads


@case
def a_waiting_job_takes_over_the_newer_payload(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1)
    (second,) = h.send(h.draft(subject="s", payload=2))
    assert (second.id, second.merged, second.duplicate) == (first, True, False)
    assert h.backlog().depth == 1
    assert _payloads(h) == [2]
    h.nothing_left()


@case
def drafts_of_one_batch_merge_too(h: Harness) -> None:
    _merging(h)
    receipts = h.send(*[h.draft(subject="s", payload=number) for number in range(4)])
    assert len({receipt.id for receipt in receipts}) == 1
    assert [receipt.merged for receipt in receipts] == [False, True, True, True]
    assert _payloads(h) == [3]


@case
def other_subjects_and_none_do_not_merge(h: Harness) -> None:
    _merging(h)
    receipts = h.send(h.draft(subject="a"), h.draft(subject="b"), h.draft(), h.draft())
    assert len({receipt.id for receipt in receipts}) == 4
    assert not any(receipt.merged for receipt in receipts)


@case
def queues_merge_each_on_its_own(h: Harness) -> None:
    _merging(h)
    _merging(h, name="other")
    receipts = h.send(h.draft(subject="s"), h.draft(subject="s", queue="other"), h.draft(subject="s", queue="plain"))
    assert len({receipt.id for receipt in receipts}) == 3


@case
def another_kind_merges_like_another_payload(h: Harness) -> None:
    _merging(h)
    h.one(subject="s", kind="create", payload=1)
    h.one(subject="s", kind="delete", payload=2)
    lease = h.take()
    assert (lease.job.kind, lease.job.payload) == ("delete", 2)
    assert h.claim() == []


@case
def a_merged_job_keeps_its_rank(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1)
    h.advance(1_000)
    other = h.one(subject="t")
    h.advance(1_000)
    h.one(subject="s", payload=2)
    assert h.drain() == [first, other]


@case
def work_that_comes_while_its_subject_runs_is_run_afterwards(h: Harness) -> None:
    _merging(h)
    h.one(subject="s", payload=1)
    lease = h.take()
    (newer,) = h.send(h.draft(subject="s", payload=2))
    assert (newer.id == lease.job.id, newer.merged) == (False, False)
    assert lease.job.payload == 1
    assert h.claim() == []
    h.ack(lease)
    assert _payloads(h) == [2]
    h.nothing_left()


@case
def all_that_comes_while_a_subject_runs_becomes_one_more_run(h: Harness) -> None:
    _merging(h)
    h.one(subject="s", payload=0)
    lease = h.take()
    receipts = [h.send(h.draft(subject="s", payload=number))[0] for number in (1, 2, 3)]
    assert [receipt.merged for receipt in receipts] == [False, True, True]
    h.ack(lease)
    assert _payloads(h) == [3]


@case
def a_retry_of_older_work_does_not_undo_newer_work(h: Harness) -> None:
    """Whether the older run is repeated first or taken over is the store's affair; the newest runs last, once."""
    verdicts: list[Verdict] = [Retry(0, ERROR), Retry(h.short, ERROR), Release(), Release(h.short)]
    for number, verdict in enumerate(verdicts):
        _merging(h, name=f"q{number}")
        h.one(queue=f"q{number}", subject="s", payload="old")
        lease = h.take(f"q{number}")
        h.one(queue=f"q{number}", subject="s", payload="new")
        h.settle(lease, verdict)
        ran = []
        for _ in range(4):
            for again in h.claim(5, f"q{number}"):
                ran.append(again.job.payload)
                h.ack(again)
            h.advance(h.short)
        assert ran in (["old", "new"], ["new"]), (verdict, ran)


@case
def newer_work_that_comes_during_a_backoff_is_run_last(h: Harness) -> None:
    _merging(h)
    h.one(subject="s", payload="old")
    h.fail(h.take(), after=h.short)
    h.one(subject="s", payload="new")
    ran = _payloads(h, pause=h.short)
    assert ran in (["old", "new"], ["new"]), ran
    h.nothing_left()


@case
def after_the_work_is_done_the_next_draft_is_a_new_job(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s")
    h.drain()
    (second,) = h.send(h.draft(subject="s"))
    assert second.id > first
    assert not second.merged
    assert h.drain() == [second.id]


@case
def a_cancelled_job_takes_nothing_over(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1)
    assert h.store.cancel([first]) == [CancelAnswer.CANCELLED]
    (second,) = h.send(h.draft(subject="s", payload=2))
    assert not second.merged
    assert _payloads(h) == [2]


@case
def a_dead_job_takes_nothing_over(h: Harness) -> None:
    _merging(h)
    dead = h.dead(subject="s", payload=1)
    (second,) = h.send(h.draft(subject="s", payload=2))
    assert not second.merged
    assert _payloads(h) == [2]
    assert h.get(dead).payload == 1


@case
def an_expired_job_takes_nothing_over(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1, expires_at=h.now() + h.short)
    h.advance(h.short + 1)
    h.one(subject="s", payload=2)
    assert [payload for _ in range(2) for payload in _payloads(h)] == [2]
    h.advance(SECOND)
    assert h.state(first) is State.DEAD
    assert h.get(first).errors[-1].kind == EXPIRED


@case
def a_redriven_older_job_does_not_undo_newer_work(h: Harness) -> None:
    _merging(h)
    dead = h.dead(subject="s", payload="old")
    h.one(subject="s", payload="new")
    h.store.redrive([dead])
    leases = h.claim(5)
    assert len(leases) == 1
    h.ack(leases[0])
    assert [leases[0].job.payload, *_payloads(h)] in (["old", "new"], ["new", "old"])
    h.nothing_left()


@case
def a_key_of_merged_work_points_at_the_job_that_took_it_over(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1, key="k1")
    merged = h.send(h.draft(subject="s", payload=2, key="k2"))[0]
    again = h.send(h.draft(subject="s", payload=2, key="k2"))[0]
    assert (merged.id, merged.merged) == (first, True)
    assert (again.id, again.duplicate) == (first, True)
    assert _payloads(h) == [2]


@case
def a_repeated_older_key_does_not_bring_the_older_payload_back(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1, key="k1")
    h.one(subject="s", payload=2, key="k2")
    (again,) = h.send(h.draft(subject="s", payload=1, key="k1"))
    assert (again.id, again.duplicate) == (first, True)
    assert _payloads(h) == [2]


@case
def a_key_conflict_merges_nothing(h: Harness) -> None:
    _merging(h)
    h.one(subject="s", payload=1, key="k")
    with h.unchanged():
        refused(KeyConflict, lambda: h.one(subject="s", payload=2, key="k"))


@case
def one_subject_runs_one_at_a_time(h: Harness) -> None:
    _merging(h)
    for number in range(5):
        h.one(subject="s", payload=number)
        leases = h.claim(5)
        assert len(leases) == (1 if number == 0 else 0)
    assert h.backlog().depth == 2


@case_if(Need.DURABLE)
def merging_goes_on_after_a_reopening(h: Harness) -> None:
    _merging(h)
    first = h.one(subject="s", payload=1)
    h.one(subject="s", payload=2)
    h.reopen()
    assert h.get(first).payload == 2
    (third,) = h.send(h.draft(subject="s", payload=3))
    assert (third.id, third.merged) == (first, True)
    assert _payloads(h) == [3]


@case_if(Need.DURABLE)
def a_reopening_does_not_change_which_job_is_merged_into(h: Harness) -> None:
    """The same draft gets the same answer, whether the store was opened anew in between or not."""
    answers = []
    for queue in ("stays", "reopened"):
        _merging(h, name=queue)
        h.one(queue=queue, subject="s", payload=1)
        h.fail(h.take(queue), after=h.short)
        if queue == "reopened":
            h.reopen()
        answers.append(h.send(h.draft(queue=queue, subject="s", payload=2))[0].merged)
    assert answers[0] == answers[1]
