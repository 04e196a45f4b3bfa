"""Reading: jobs, counts in every state, ages, pauses and configurations."""

from msgspec.structs import replace

from forebay.core.errors import WrongQueueKind
from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.lease import Settled
from forebay.core.policy import Aging, AtMost, Bounded, Fair, InOrder, KeepFor, Priority, Retained, Routing
from forebay.core.spec import QueueSpec
from forebay_proof.conformance.case import Need, case, case_if
from forebay_proof.conformance.harness import SECOND, Harness


@case
def get_returns_jobs_in_the_order_of_the_ids_given(h: Harness) -> None:
    first, second = h.enqueue(2)
    jobs = h.store.get([second, first + 1_000, first, second])
    assert [job and job.id for job in jobs] == [second, None, first, second]
    assert h.store.get([]) == []


@case
def changing_a_returned_job_does_not_change_the_store(h: Harness) -> None:
    job_id = h.one(payload={"a": [1]}, meta={"trace": "1"})
    picture = h.get(job_id)
    picture.payload["a"].append(2)
    assert picture.meta is not None
    picture.meta["trace"] = "2"
    h.take().job.payload["a"].clear()
    assert (h.get(job_id).payload, h.get(job_id).meta) == ({"a": [1]}, {"trace": "1"})


@case
def a_returned_job_does_not_change_later(h: Harness) -> None:
    job_id = h.one()
    before = h.get(job_id)
    h.take()
    assert (before.state, before.attempt) == (State.READY, 0)


@case
def the_backlog_counts_every_state(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)))
    h.dead()
    h.enqueue(2)
    for lease in h.claim(2):
        h.ack(lease)
    h.store.cancel(h.enqueue(3))
    h.enqueue(4)
    h.claim(4)
    h.enqueue(5)
    h.enqueue(6, delay=3_600 * SECOND)
    backlog = h.backlog()
    counts = (backlog.dead, backlog.done, backlog.cancelled, backlog.running, backlog.ready, backlog.waiting)
    assert counts == (1, 2, 3, 4, 5, 6)
    assert (backlog.depth, backlog.queue, backlog.paused_until) == (15, "q", None)


@case
def the_backlog_follows_a_job_through_its_life(h: Harness) -> None:
    h.spec(eligibility=AtMost(1))
    seen = []

    def observe() -> None:
        backlog = h.backlog()
        seen.append((backlog.waiting, backlog.ready, backlog.running, backlog.dead))

    h.enqueue(2)
    observe()
    lease = h.take()
    observe()
    h.fail(lease, after=h.short)
    observe()
    h.dead_letter(h.take())
    observe()
    h.advance(h.short)
    h.drain()
    observe()
    assert seen == [(0, 2, 0, 0), (0, 1, 1, 0), (1, 1, 0, 0), (1, 0, 0, 1), (0, 0, 0, 1)]


@case
def a_new_job_is_ready_without_any_promotion(h: Harness) -> None:
    h.one()
    assert h.store.backlog(["q"])[0].ready == 1


@case
def the_backlog_of_an_unknown_queue_is_empty(h: Harness) -> None:
    (backlog,) = h.store.backlog(["unknown"])
    assert (backlog.queue, backlog.depth, backlog.dead, backlog.keys, backlog.oldest_age) == (
        "unknown",
        0,
        0,
        0,
        0,
    )


@case
def the_backlog_of_all_queues_names_each_once(h: Harness) -> None:
    for queue in ("a", "b"):
        h.enqueue(2, queue=queue)
    h.spec("configured")
    backlogs = {backlog.queue: backlog.ready for backlog in h.store.backlog()}
    assert backlogs == {"a": 2, "b": 2, "configured": 0}
    assert [backlog.queue for backlog in h.store.backlog(["b", "a"])] == ["b", "a"]


@case
def the_oldest_age_is_that_of_the_longest_ready_job(h: Harness) -> None:
    h.one()
    h.advance(2 * h.short)
    h.one()
    age = h.backlog().oldest_age
    assert 2 * h.short <= age < 3 * h.short
    h.ack(h.take())
    assert h.backlog().oldest_age < h.short


@case
def the_oldest_age_does_not_follow_priorities(h: Harness) -> None:
    h.spec(selection=Priority())
    h.one(priority=1)
    h.advance(2 * h.short)
    h.one(priority=9)
    assert 2 * h.short <= h.backlog().oldest_age < 3 * h.short
    h.take()
    assert h.backlog().oldest_age >= 2 * h.short


@case
def the_oldest_age_covers_every_class(h: Harness) -> None:
    h.spec(share=Fair())
    for tenant in ("a", "b"):
        h.one(tenant=tenant)
        h.advance(h.short)
    h.one(tenant="c")
    assert 2 * h.short <= h.backlog().oldest_age < 3 * h.short
    h.claim(1, cls="a")
    assert h.short <= h.backlog().oldest_age < 2 * h.short


@case
def the_oldest_age_counts_from_the_due_time(h: Harness) -> None:
    h.one(delay=h.short)
    assert h.backlog().oldest_age == 0
    h.advance(2 * h.short)
    assert h.short <= h.backlog().oldest_age < 2 * h.short


@case
def a_snoozed_job_does_not_hide_an_older_one(h: Harness) -> None:
    """A release keeps the rank, so the first in line is not the one that has been claimable longest."""
    h.enqueue(2)
    h.release(h.take(), after=2 * h.short)
    h.advance(3 * h.short)
    assert 3 * h.short <= h.backlog().oldest_age < 4 * h.short


@case
def a_job_that_goes_first_does_not_hide_an_older_one(h: Harness) -> None:
    h.one()
    h.enqueue(2, delay=h.short)
    h.advance(3 * h.short)
    assert 3 * h.short <= h.backlog().oldest_age < 4 * h.short
    h.take()
    assert 3 * h.short <= h.backlog().oldest_age < 4 * h.short


@case
def a_job_that_goes_first_may_be_the_oldest(h: Harness) -> None:
    led = h.one(delay=h.short)
    h.advance(3 * h.short)
    h.one()
    assert 2 * h.short <= h.backlog().oldest_age < 3 * h.short
    h.store.cancel([led])
    assert h.backlog().oldest_age < h.short


@case
def a_cancelled_job_has_no_age(h: Harness) -> None:
    h.spec(selection=Priority())
    old = h.one()
    h.advance(2 * h.short)
    h.one()
    h.store.cancel([old])
    assert h.backlog().oldest_age < h.short


@case
def running_jobs_have_no_age(h: Harness) -> None:
    h.one()
    h.take()
    h.advance(h.short)
    assert h.backlog().oldest_age == 0


@case
def a_paused_queue_hands_out_nothing(h: Harness) -> None:
    h.store.pause("q")
    ids = [h.one(), h.one()]
    other = h.one(queue="other")
    assert h.claim(1) == []
    assert h.claim(2) == []
    assert h.drain("other") == [other]
    assert h.backlog().paused_until is not None
    assert h.backlog().ready == 2
    h.store.resume("q")
    assert h.backlog().paused_until is None
    assert h.drain() == ids


@case
def what_runs_in_a_paused_queue_may_end(h: Harness) -> None:
    h.enqueue(2)
    acked, retried = h.claim(2)
    h.store.pause("q")
    assert len(h.store.extend([acked], hours(1))) == 1
    assert (h.ack(acked), h.fail(retried)) == (Settled.APPLIED, Settled.APPLIED)
    assert h.claim() == []
    h.store.resume("q")
    assert h.drain() == [retried.job.id]


@case
def a_pause_ends_at_its_instant(h: Harness) -> None:
    job_id = h.one()
    until = h.now() + 2 * h.short
    h.store.pause("q", until)
    assert h.backlog().paused_until == until
    h.advance(h.short)
    assert h.claim() == []
    h.advance(h.short)
    assert h.backlog().paused_until is None
    assert h.drain() == [job_id]


@case
def the_last_pause_counts(h: Harness) -> None:
    h.one()
    h.store.pause("q")
    h.store.pause("q", h.now() + h.short)
    h.advance(h.short + 1)
    assert len(h.claim()) == 1


@case
def resuming_a_queue_that_runs_is_harmless(h: Harness) -> None:
    job_id = h.one()
    h.store.resume("q")
    assert h.drain() == [job_id]


@case
def a_configuration_reads_back_as_it_was_put(h: Harness) -> None:
    spec = QueueSpec(
        name="q",
        retention=KeepFor(hours(1)),
        selection=Aging(step=hours(1)),
        share=Fair(weights={"a": 2}),
        eligibility=AtMost(3) & InOrder(per="tenant"),
        routing=Routing(max_attempts=3),
        capacity=Bounded(10),
        key_window=hours(2),
    )
    h.store.put_spec(spec)
    assert h.store.specs() == [spec]
    h.store.put_spec(QueueSpec(name="q"))
    assert h.store.specs() == [QueueSpec(name="q")]


@case
def a_refused_configuration_changes_nothing(h: Harness) -> None:
    h.spec("log", retention=Retained())
    with h.unchanged():
        try:
            h.spec("log", retention=KeepFor(hours(1)))
        except WrongQueueKind:
            return
    raise AssertionError("a log became a queue")


@case
def the_clock_never_runs_backwards(h: Harness) -> None:
    instants = [h.now() for _ in range(100)]
    h.advance(h.short)
    assert instants == sorted(instants)
    assert h.now() >= instants[-1] + h.short


@case
def a_store_describes_its_capabilities(h: Harness) -> None:
    claims = h.store.capabilities
    assert claims.name
    assert 0 <= claims.lease_grain <= 0.02
    assert claims.settle_memory >= 1_000
    assert claims == h.store.capabilities


@case_if(Need.DURABLE)
def configurations_and_pauses_outlive_a_reopening(h: Harness) -> None:
    h.spec(selection=Priority(), capacity=Bounded(5), retention=KeepFor(hours(1)))
    h.store.pause("q")
    h.one()
    specs = h.store.specs()
    h.reopen()
    assert h.store.specs() == specs
    assert h.claim() == []
    h.store.resume("q")
    h.reopen()
    assert len(h.claim()) == 1


@case_if(Need.DURABLE)
def counts_outlive_a_reopening(h: Harness) -> None:
    h.spec(retention=KeepFor(hours(1)), eligibility=AtMost(2))
    h.dead()
    h.enqueue(6, key=None)
    h.one(key="k", delay=3_600 * SECOND)
    h.ack(h.take())
    h.take()
    before = replace(h.backlog(), oldest_age=0)
    h.reopen()
    assert replace(h.backlog(), oldest_age=0) == before
