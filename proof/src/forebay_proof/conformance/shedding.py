"""Shedding (`Shed`): a full queue makes room for new jobs. A shed job is a dead letter; a running job is never shed."""

from typing import Any, Literal

from forebay.core.errors import QueueFull
from forebay.core.job import State
from forebay.core.ledger import Change
from forebay.core.outcome import SHED
from forebay.core.policy import AtMost, Bounded, Deadline, Fair, InOrder, LatestWins, Priority, Shed
from forebay.core.schedule import Schedule
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import SECOND, Harness
from forebay_proof.conformance.racing import race


def _shedding(h: Harness, limit: int = 3, which: Literal["oldest", "lowest"] = "oldest", **axes: Any) -> None:
    h.spec(capacity=Bounded(limit, Shed(which)), **axes)


def _shed(h: Harness) -> list[int]:
    """The ids of jobs that were shed so far."""
    dead = h.jobs(state=State.DEAD)
    assert {job.errors[-1].kind for job in dead} <= {SHED}
    return [job.id for job in dead]


@case
def the_oldest_job_is_shed_for_the_newest(h: Harness) -> None:
    _shedding(h)
    ids = [h.one(payload=number) for number in range(5)]
    assert _shed(h) == ids[:2]
    backlog = h.backlog()
    assert (backlog.depth, backlog.dead) == (3, 2)
    assert h.drain() == ids[2:]
    h.nothing_left()


@case
def a_shed_job_is_a_dead_letter_with_its_reason(h: Harness) -> None:
    _shedding(h, 1)
    first, second = h.one(payload=1), h.one(payload=2)
    job = h.get(first)
    assert (job.state, job.attempt, job.payload, len(job.errors)) == (State.DEAD, 0, 1, 1)
    assert (job.errors[0].kind, job.errors[0].at, job.finished_at) == (SHED, job.finished_at, job.finished_at)
    h.ack(h.take())
    assert h.store.redrive([first]) == [first]
    assert h.drain() == [first]
    assert h.state(second) is None


@case
def a_redrive_sheds_no_job(h: Harness) -> None:
    _shedding(h, 1)
    first, _ = h.one(), h.one()
    with h.unchanged():
        refused(QueueFull, lambda: h.store.redrive([first]))


@case
def a_running_job_is_never_shed(h: Harness) -> None:
    _shedding(h)
    running = h.enqueue(2)
    leases = h.claim(2)
    waiting = h.one(delay=3_600 * SECOND)
    newest = h.one()
    assert _shed(h) == [waiting]
    h.claim()
    with h.unchanged():
        error = refused(QueueFull, h.one)
    assert (error.depth, error.limit, error.requested) == (3, 3, 1)
    assert [lease.job.id for lease in leases] == running
    assert h.state(newest) is State.RUNNING


@case
def a_batch_makes_room_for_all_of_itself_or_none(h: Harness) -> None:
    _shedding(h, 4)
    h.enqueue(4)
    lease = h.take()
    with h.unchanged():
        refused(QueueFull, lambda: h.enqueue(4))
    ids = h.enqueue(3)
    assert [job.id for job in h.jobs() if job.state is not State.DEAD] == [lease.job.id, *ids]


@case
def a_batch_that_never_fits_is_refused(h: Harness) -> None:
    _shedding(h, 2)
    h.enqueue(2)
    with h.unchanged():
        refused(QueueFull, lambda: h.enqueue(3))


@case
def a_batch_that_is_refused_elsewhere_sheds_no_job(h: Harness) -> None:
    _shedding(h, 1)
    h.spec("full", capacity=Bounded(1))
    h.one(queue="full")
    h.one()
    with h.unchanged():
        refused(QueueFull, lambda: h.send(h.draft(), h.draft(queue="full")))


@case
def the_last_job_in_rank_is_shed(h: Harness) -> None:
    _shedding(h, 3, "lowest", selection=Priority())
    low, high, middle = (h.one(priority=priority) for priority in (1, 9, 5))
    newcomer = h.one(priority=2)
    assert _shed(h) == [low]
    assert h.drain() == [high, middle, newcomer]


@case
def among_equal_ranks_the_new_job_is_shed(h: Harness) -> None:
    _shedding(h, 2, "lowest", selection=Priority())
    first, second = h.one(priority=1), h.one(priority=1)
    with h.unchanged():
        refused(QueueFull, lambda: h.one(priority=1))
        refused(QueueFull, lambda: h.one(priority=0))
    assert h.one(priority=2)
    assert _shed(h) == [second]
    assert h.state(first) is State.READY


@case
def a_batch_with_one_that_is_the_lowest_is_refused(h: Harness) -> None:
    _shedding(h, 3, "lowest", selection=Priority())
    h.enqueue(3, priority=3)
    with h.unchanged():
        refused(QueueFull, lambda: h.send(h.draft(priority=9), h.draft(priority=1)))


@case
def jobs_that_are_not_due_are_shed_by_their_rank(h: Harness) -> None:
    at = h.now() + 3_600 * SECOND
    _shedding(h, 3, "lowest", selection=Deadline())
    ready = h.one(deadline=at + 2)
    waits, last = h.one(deadline=at + 1, delay=h.short), h.one(deadline=at + 3, delay=h.short)
    h.one(deadline=at)
    assert _shed(h) == [last]
    h.one(deadline=at)
    assert _shed(h) == [ready, last]
    assert h.state(waits) is State.WAITING


@case
def a_retried_job_can_be_shed(h: Harness) -> None:
    _shedding(h, 2)
    first, _ = h.enqueue(2)
    h.fail(h.take(), after=3_600 * SECOND)
    h.one()
    job = h.get(first)
    assert (job.state, [error.kind for error in job.errors][1:]) == (State.DEAD, [SHED])


@case
def held_jobs_are_shed_and_running_ones_keep_their_slots(h: Harness) -> None:
    _shedding(h, 2, eligibility=AtMost(1))
    _, held = h.enqueue(2)
    lease = h.take()
    newest = h.one()
    assert _shed(h) == [held]
    assert (h.state(newest), h.claim()) == (State.READY, [])
    h.ack(lease)
    assert h.drain() == [newest]
    h.nothing_left()


@case
def a_line_continues_after_a_shed_job(h: Harness) -> None:
    _shedding(h, 2, eligibility=InOrder("subject"))
    first, second, third = (h.one(subject="s") for _ in range(3))
    assert _shed(h) == [first]
    assert h.drain() == [second, third]


@case
def a_shed_job_leaves_its_class(h: Harness) -> None:
    _shedding(h, 3, share=Fair("tenant"))
    ids = [h.one(tenant=tenant) for tenant in "aabb"]
    assert _shed(h) == ids[:1]
    assert sorted(h.drain(batch=3)) == ids[1:]
    assert h.claim(5) == []


@case
def a_job_that_a_draft_merged_into_is_not_shed_in_the_same_call(h: Harness) -> None:
    _shedding(h, 2, merge=LatestWins())
    first, second = h.one(subject="a", payload=1), h.one(subject="b", payload=1)
    merged, new = h.send(h.draft(subject="a", payload=2), h.draft(subject="c", payload=2))
    assert (merged.id, merged.merged) == (first, True)
    assert _shed(h) == [second]
    assert h.drain(batch=5) == [first, new.id]


@case
def duplicates_and_merges_shed_no_job(h: Harness) -> None:
    _shedding(h, 1, merge=LatestWins())
    first = h.one(subject="s", key="k")
    with h.unchanged():
        assert h.send(h.draft(subject="s", key="k"))[0].duplicate
    assert h.one(subject="s", payload=2) == first
    assert _shed(h) == []


@case
def a_schedule_makes_room_as_well(h: Harness) -> None:
    _shedding(h, 1)
    first, tick = h.one(), h.now()
    h.store.put_schedule(Schedule("s", "every hour", tick, h.draft()))
    assert h.store.fire("s", tick, tick + SECOND, h.draft())
    assert _shed(h) == [first]


@case
def jobs_accepted_before_the_rule_are_shed_as_well(h: Harness) -> None:
    ids = h.enqueue(4)
    _shedding(h, 4)
    h.enqueue(2)
    assert _shed(h) == ids[:2]
    h.spec(capacity=Bounded(4, Shed("lowest")), selection=Priority())
    h.one(priority=1)
    assert _shed(h) == [*ids[:2], max(h.jobs(state=State.DEAD), key=lambda job: job.id).id]
    assert h.backlog().depth == 4


@case
def a_smaller_bound_sheds_as_many_as_it_takes(h: Harness) -> None:
    ids = h.enqueue(5)
    _shedding(h, 2)
    newest = h.one()
    assert h.drain() == [ids[4], newest]


@case_if(Need.DURABLE)
def the_ledger_records_shed_jobs(h: Harness) -> None:
    _shedding(h, 1)
    first = h.one()
    h.one()
    ranges = [job_range for entry in h.store.ledger(-1, 100) for job_range in entry.record.ranges]
    assert [
        (job_range.first, job_range.n, job_range.queue) for job_range in ranges if job_range.change == Change.SHED
    ] == [(first, 1, "q")]


@case
def sixty_four_racing_producers_never_overfill_a_queue_that_sheds(h: Harness) -> None:
    _shedding(h, 8)
    outcome = race(64, lambda number: h.one(payload=number))
    ids = [answer for answer in outcome if isinstance(answer, int)]
    assert len(ids) == 64
    backlog = h.backlog()
    assert (backlog.depth, backlog.dead) == (8, 56)
    assert sorted([*_shed(h), *h.drain(batch=8)]) == sorted(ids)


@case
def racing_producers_and_workers_lose_nothing(h: Harness) -> None:
    _shedding(h, 4)

    def act(number: int) -> int:
        if number % 2:
            return sum(len(h.drain(batch=2)) for _ in range(3))
        return -len(h.enqueue(2))

    outcome = [answer for answer in race(16, act) if isinstance(answer, int)]
    accepted, acked = -sum(min(each, 0) for each in outcome), sum(max(each, 0) for each in outcome)
    left = h.backlog()
    assert left.depth <= 4
    assert acked + left.dead + left.depth == accepted
