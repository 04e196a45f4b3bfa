"""Lines: jobs of one subject one at a time, in the order of acceptance, through retries, crashes and redrives."""

from datetime import timedelta
from random import Random
from typing import Any

from msgspec.json import encode

from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, Cancel, Release, Retry, Verdict
from forebay.core.policy import AtMost, InOrder, LatestWins, Priority, Until
from forebay.core.spec import QueueSpec
from forebay.store.protocol import CancelAnswer
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import ERROR, SECOND, Harness


def _line(h: Harness, count: int = 3, subject: str = "s", **axes: Any) -> list[int]:
    h.spec(**{"eligibility": InOrder(), **axes})
    return h.enqueue(count, subject=subject)


def _head(h: Harness) -> Lease:
    """The only job of the line that may run."""
    leases = h.claim(10)
    assert len(leases) == 1
    return leases[0]


def _end(h: Harness, head: int, way: str) -> None:
    """End the head of a line, the only job that is ready, in one of the ways there are."""
    queue = h.get(head).queue
    match way:
        case "cancel":
            assert h.store.cancel([head]) == [CancelAnswer.CANCELLED]
        case "expire":
            h.advance(h.short + SECOND)
            assert h.state(head) is State.DEAD
        case "dead letter":
            h.dead_letter(h.take(queue))
        case "purge_dead":
            h.dead_letter(h.take(queue))
            assert h.store.purge_dead([head]) == [head]
        case _:
            h.dead_letter(h.take(queue))
            h.advance(1_000)
            assert h.store.purge(State.DEAD, h.now(), 10, queue) == 1


@case
def a_line_runs_one_at_a_time_in_the_order_of_acceptance(h: Harness) -> None:
    ids = _line(h)
    for job_id in ids:
        lease = _head(h)
        assert lease.job.id == job_id
        assert h.backlog().ready == 0
        h.ack(lease)
    h.nothing_left()


@case
def lines_do_not_hold_each_other(h: Harness) -> None:
    first, second = _line(h, 2, "a"), h.enqueue(2, subject="b")
    assert sorted(lease.job.id for lease in h.claim(4)) == [first[0], second[0]]


@case
def a_job_without_a_subject_is_in_no_line(h: Harness) -> None:
    _line(h, 2)
    h.enqueue(3)
    assert len(h.claim(9)) == 4


@case
def a_line_may_go_by_tenant_or_by_kind(h: Harness) -> None:
    h.spec("tenants", eligibility=InOrder(per="tenant"))
    h.spec("kinds", eligibility=InOrder(per="kind"))
    for queue, field in (("tenants", "tenant"), ("kinds", "kind")):
        first = [h.one(queue=queue, **{field: value}) for value in ("a", "b", "a")][:2]
        assert sorted(lease.job.id for lease in h.claim(3, queue)) == first


@case
def a_retried_head_stays_the_head(h: Harness) -> None:
    ids = _line(h)
    h.fail(_head(h), after=h.short)
    assert h.claim(10) == []
    h.advance(h.short + 1)
    assert h.drain() == ids
    h.nothing_left()


@case
def a_released_head_stays_the_head(h: Harness) -> None:
    ids = _line(h)
    h.release(_head(h), after=h.short)
    assert h.claim(10) == []
    h.advance(h.short + 1)
    assert h.drain() == ids


@case
def a_head_whose_worker_died_stays_the_head(h: Harness) -> None:
    ids = _line(h)
    lease = h.take(lease_for=h.short_delta)
    h.lapse(lease)
    assert h.claim(10) == []
    h.reap()
    assert _head(h).job.id == ids[0]


@case
def a_delayed_head_holds_its_line(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    head = h.one(subject="s", delay=h.short)
    second = h.one(subject="s")
    assert h.claim(2) == []
    h.advance(h.short)
    assert h.drain() == [head, second]


@case
def a_priority_does_not_pass_within_a_line(h: Harness) -> None:
    h.spec(eligibility=InOrder(), selection=Priority())
    low, high = h.one(subject="s", priority=0), h.one(subject="s", priority=9)
    assert h.drain() == [low, high]


@case
def a_dead_head_is_skipped_where_the_queue_says_so(h: Harness) -> None:
    ids = _line(h, eligibility=InOrder(dead_head="skip"))
    h.dead_letter(_head(h))
    assert h.drain() == ids[1:]
    assert h.state(ids[0]) is State.DEAD
    h.nothing_left()


@case
def a_dead_head_blocks_where_the_queue_says_so(h: Harness) -> None:
    ids = _line(h, eligibility=InOrder(dead_head="block"))
    h.dead_letter(_head(h))
    assert h.claim(10) == []
    assert h.backlog().waiting == 2
    assert h.store.redrive(ids[:1]) == ids[:1]
    assert h.drain() == ids
    h.nothing_left()


@case
def a_dead_head_skips_or_blocks_as_it_was_stamped(h: Harness) -> None:
    (first,) = _line(h, 1, eligibility=InOrder(dead_head="skip"))
    second, third = _line(h, 2, eligibility=InOrder(dead_head="block"))
    lease = _head(h)
    assert (lease.job.id, h.ack(lease)) == (first, Settled.APPLIED)
    h.dead_letter(_head(h))
    assert h.claim(10) == []
    h.store.redrive([second])
    assert h.drain() == [second, third]


@case
def a_blocked_line_does_not_hold_the_others(h: Harness) -> None:
    _line(h, eligibility=InOrder(dead_head="block"))
    h.dead_letter(_head(h))
    other = h.enqueue(2, subject="other")
    assert h.drain() == other


@case
def purging_a_dead_head_opens_its_line(h: Harness) -> None:
    ids = _line(h, eligibility=InOrder(dead_head="block"))
    h.dead_letter(_head(h))
    h.advance(1)
    assert h.store.purge(State.DEAD, h.now(), 10) == 1
    assert h.drain() == ids[1:]
    h.nothing_left()


@case
def a_blocked_line_holds_jobs_that_come_later(h: Harness) -> None:
    (head,) = _line(h, 1, eligibility=InOrder(dead_head="block"))
    h.dead_letter(_head(h))
    later = h.one(subject="s")
    assert h.claim(10) == []
    h.store.redrive([head])
    assert h.drain() == [head, later]


@case
def a_redriven_job_is_the_head_of_its_line(h: Harness) -> None:
    first, second, third = _line(h, 3)
    h.dead_letter(_head(h))
    lease = _head(h)
    assert lease.job.id == second
    h.store.redrive([first])
    assert h.claim(10) == []
    h.ack(lease)
    assert h.drain() == [first, third]
    h.nothing_left()


@case
def a_redriven_head_withdraws_the_one_that_was_exposed(h: Harness) -> None:
    first, second = _line(h, 2)
    h.dead_letter(_head(h))
    assert h.state(second) is State.READY
    h.store.redrive([first])
    assert (h.state(first), h.state(second)) == (State.READY, State.WAITING)
    assert h.drain() == [first, second]
    h.nothing_left()


@case
def a_withdrawn_job_is_exposed_again_when_the_head_dies_again(h: Harness) -> None:
    first, second, third = _line(h)
    h.dead_letter(_head(h))
    h.store.redrive([first])
    h.dead_letter(_head(h))
    assert (h.state(second), h.state(third)) == (State.READY, State.WAITING)
    assert h.drain() == [second, third]


@case
def a_line_is_not_a_gate_and_has_no_slots(h: Harness) -> None:
    _line(h)
    h.spec("merging", merge=LatestWins())
    h.one(queue="merging", subject="s")
    _head(h)
    assert h.store.gates("", 9) == []
    with h.unchanged():
        for name in ("order/q/subject/s", "merge/merging/s"):
            for number in (5, 0, None):
                refused(Invalid, lambda name=name, number=number: h.store.set_gate(name, number))  # type: ignore[misc]


@case
def only_the_head_of_a_line_is_ready(h: Harness) -> None:
    ids = _line(h)
    assert [h.get(job_id).state for job_id in ids] == [State.READY, State.WAITING, State.WAITING]
    lease = _head(h)
    assert [h.state(job_id) for job_id in ids[1:]] == [State.WAITING, State.WAITING]
    h.ack(lease)
    assert [h.get(job_id).state for job_id in ids[1:]] == [State.READY, State.WAITING]


@case
def a_line_behind_a_head_that_is_not_due_is_due_when_the_head_is(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    head = h.one(subject="s", delay=3 * h.short)
    second = h.one(subject="s", delay=h.short)
    h.advance(2 * h.short)
    assert (h.state(head), h.state(second)) == (State.WAITING, State.WAITING)
    assert h.store.promote(10).next_due == h.get(head).due_at, "what is behind the head does not fall due"
    h.advance(h.short)
    assert h.drain() == [head, second]


@case
def a_retrying_head_keeps_its_line_shut_until_it_is_due(h: Harness) -> None:
    ids = _line(h)
    h.fail(_head(h), after=2 * h.short)
    assert [h.state(job_id) for job_id in ids] == [State.WAITING] * 3
    assert h.claim(10) == []
    assert h.store.wait(["q"], timedelta(0)) is False
    assert h.store.promote(10).next_due == h.get(ids[0]).due_at
    h.advance(2 * h.short + 1)
    assert [h.state(job_id) for job_id in ids] == [State.READY, State.WAITING, State.WAITING]
    assert h.drain() == ids


@case
def a_head_that_ends_without_a_run_exposes_the_next_where_dead_heads_are_skipped(h: Harness) -> None:
    for number, end in enumerate(("cancel", "expire", "dead letter", "purge", "purge_dead")):
        queue = f"q{number}"
        h.spec(queue, eligibility=InOrder(dead_head="skip"))
        expires = h.now() + h.short if end == "expire" else None
        head = h.one(queue=queue, subject="s", expires_at=expires)
        second = h.one(queue=queue, subject="s")
        _end(h, head, end)
        assert h.drain(queue) == [second], end


@case
def a_head_that_dies_without_a_run_blocks_where_dead_heads_block(h: Harness) -> None:
    for number, (end, blocked) in enumerate(
        (("cancel", False), ("expire", True), ("dead letter", True), ("purge", False), ("purge_dead", False))
    ):
        queue = f"q{number}"
        h.spec(queue, eligibility=InOrder(dead_head="block"))
        expires = h.now() + h.short if end == "expire" else None
        head = h.one(queue=queue, subject="s", expires_at=expires)
        second = h.one(queue=queue, subject="s")
        _end(h, head, end)
        assert h.drain(queue) == ([] if blocked else [second]), end
        if blocked:
            assert (h.state(second), h.backlog(queue).blocked) == (State.WAITING, 1), end
            h.store.redrive([head])
            assert h.drain(queue) == [head, second], end


@case
def several_jobs_of_a_line_that_are_redriven_together_run_in_their_order(h: Harness) -> None:
    (head,) = _line(h, 1, eligibility=InOrder(dead_head="block"))
    lease = _head(h)
    late, last = h.one(subject="s", expires_at=h.now() + h.short), h.one(subject="s")
    h.advance(h.short + SECOND)
    assert h.state(late) is State.DEAD
    h.dead_letter(lease)
    assert h.store.redrive([late, head]) == [late, head]
    assert [h.state(job_id) for job_id in (head, late, last)] == [State.READY, State.WAITING, State.WAITING]
    backlog = h.backlog()
    assert (backlog.ready, backlog.waiting) == (1, 2)
    assert h.drain() == [head, late, last]
    h.nothing_left()


@case
def several_dead_jobs_of_a_line_that_are_purged_together_expose_the_next(h: Harness) -> None:
    for number, forget in enumerate((_purge, _purge_dead)):
        queue = f"q{number}"
        h.spec(queue, eligibility=InOrder(dead_head="block"))
        head = h.one(queue=queue, subject="s")
        lease = h.take(queue)
        late = h.one(queue=queue, subject="s", expires_at=h.now() + h.short)
        last = h.one(queue=queue, subject="s")
        h.advance(h.short + SECOND)
        assert h.state(late) is State.DEAD
        h.dead_letter(lease)
        assert h.claim(10, queue) == []
        forget(h, [late, head])
        assert h.drain(queue) == [last]
    h.nothing_left("q0", "q1")


def _purge(h: Harness, ids: list[int]) -> None:
    assert h.store.purge(State.DEAD, h.now() + SECOND, 10) == len(ids)


def _purge_dead(h: Harness, ids: list[int]) -> None:
    assert h.store.purge_dead(ids) == ids


@case
def a_line_of_which_all_end_at_once_leaves_nothing_behind(h: Harness) -> None:
    ids = _line(h, 6)
    h.store.cancel([ids[0], ids[1], ids[3]])
    assert [h.state(job_id) for job_id in (ids[2], ids[4])] == [State.READY, State.WAITING]
    h.store.cancel([ids[4], ids[2]])
    assert h.drain() == ids[5:]
    h.nothing_left()


@case
def a_line_keeps_its_order_when_the_queue_has_none_any_more(h: Harness) -> None:
    ids = _line(h)
    h.spec()
    free = h.one(subject="s")
    leases = {lease.job.id: lease for lease in h.claim(9)}
    assert sorted(leases) == [ids[0], free]
    h.ack(leases[ids[0]])
    assert [lease.job.id for lease in h.claim(9)] == [ids[1]]


@case
def cancelling_a_waiting_head_exposes_the_next_job(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    head = h.one(subject="s", delay=3_600 * SECOND)
    second = h.one(subject="s")
    assert h.claim() == []
    assert h.store.cancel([head]) == [CancelAnswer.CANCELLED]
    assert h.drain() == [second]
    h.nothing_left()


@case
def cancelling_a_ready_head_exposes_the_next_job(h: Harness) -> None:
    ids = _line(h)
    assert h.state(ids[0]) is State.READY
    h.store.cancel(ids[:1])
    assert h.drain() == ids[1:]


@case
def cancelling_a_running_head_exposes_the_next_job_when_it_has_ended(h: Harness) -> None:
    ids = _line(h)
    lease = _head(h)
    assert h.store.cancel(ids[:1]) == [CancelAnswer.REQUESTED]
    assert h.claim(10) == []
    h.settle(lease, Cancel())
    assert h.drain() == ids[1:]


@case
def cancelling_a_job_in_the_middle_closes_the_gap(h: Harness) -> None:
    ids = _line(h)
    h.store.cancel([ids[1]])
    assert h.drain() == [ids[0], ids[2]]
    h.nothing_left()


@case
def an_expired_head_exposes_the_next_job(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    h.one(subject="s", delay=3_600 * SECOND, expires_at=h.now() + h.short)
    second = h.one(subject="s")
    h.advance(h.short + SECOND)
    h.store.promote(10)
    assert h.drain() == [second]


@case
def a_head_at_a_closed_condition_holds_its_line(h: Harness) -> None:
    ids = _line(h, 2, eligibility=InOrder() & Until("go"))
    assert h.claim(10) == []
    h.store.set_gate("until/go", 5)
    assert h.drain() == ids


@case
def a_line_and_a_cap_hold_together(h: Harness) -> None:
    h.spec(eligibility=InOrder() & AtMost(2))
    lines = {subject: h.enqueue(2, subject=subject) for subject in "abc"}
    leases = h.claim(9)
    assert len(leases) == 2
    assert len({lease.job.subject for lease in leases}) == 2
    h.store.settle([(lease, Ack()) for lease in leases])
    ran = [lease.job.id for lease in leases] + h.drain()
    for ids in lines.values():
        assert [job_id for job_id in ran if job_id in ids] == ids
    h.nothing_left()


@case
def a_stale_settle_of_a_head_does_not_open_its_line(h: Harness) -> None:
    _line(h)
    old = h.take(lease_for=h.short_delta)
    h.lapse(old)
    h.reap()
    new = _head(h)
    assert h.ack(old) is Settled.STALE
    assert h.claim(10) == []
    h.ack(new)
    assert len(h.claim(10)) == 1


@case
def many_lines_keep_their_order_through_random_endings(h: Harness) -> None:
    h.spec(eligibility=InOrder())
    draw = Random(7)
    subjects = ["a", "b", "c", "d"]
    lines: dict[str, list[int]] = {subject: [] for subject in subjects}
    for _ in range(60):
        subject = draw.choice(subjects)
        lines[subject].append(h.one(subject=subject))
    done: list[int] = []
    endings: list[Verdict] = [Ack(), Ack(), Retry(0, ERROR), Release(), Retry(1_000, ERROR)]
    while len(done) < 60:
        leases = h.claim(draw.randint(1, 6))
        assert len({lease.job.subject for lease in leases}) == len(leases)
        for lease in draw.sample(leases, len(leases)):
            verdict = draw.choice(endings)
            h.settle(lease, verdict)
            done += [lease.job.id] if isinstance(verdict, Ack) else []
        h.advance(1_000)
    for ids in lines.values():
        assert [job_id for job_id in done if job_id in ids] == ids
    h.nothing_left()


@case_if(Need.DURABLE)
def a_line_outlives_a_reopening(h: Harness) -> None:
    ids = _line(h)
    h.fail(_head(h), after=h.short)
    h.reopen()
    assert h.claim(10) == []
    h.advance(h.short)
    lease = _head(h)
    h.reopen()
    assert h.claim(10) == []
    h.ack(lease)
    assert [lease.job.id, *h.drain()] == ids
    h.nothing_left()


@case_if(Need.DURABLE)
def a_dead_head_blocks_over_a_reopening(h: Harness) -> None:
    ids = _line(h, eligibility=InOrder(dead_head="block"))
    h.dead_letter(_head(h))
    h.reopen()
    assert h.claim(10) == []
    h.store.redrive(ids[:1])
    assert h.drain() == ids


@case
def two_orders_in_one_queue_are_refused_by_name_and_change_nothing(h: Harness) -> None:
    """Two jobs, each the head of one line and behind the other's head in another, would wait for one another."""
    jobs = _line(h)
    refusal = refused(Invalid, lambda: h.spec(eligibility=InOrder(per="subject") & InOrder(per="tenant")))
    assert str(refusal) == "eligibility: two InOrder terms can deadlock; keep one of the two"
    lines = [{"type": "in-order", "per": field} for field in ("subject", "tenant")]
    text = encode({"name": "q", "eligibility": {"type": "all", "terms": lines}})
    assert "two InOrder terms" in str(refused(Invalid, lambda: h.store.put_spec(QueueSpec.from_json(text))))
    assert h.drain() == jobs
