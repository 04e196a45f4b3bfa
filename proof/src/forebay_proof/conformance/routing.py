"""Brokers (`FanOut`): one draft becomes a job in each queue that a route leads to, in one step or not at all."""

from forebay.core.errors import BatchTooLarge, Invalid, KeyConflict, QueueFull
from forebay.core.instant import hours
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import AtMost, Block, Bounded, FanOut, InOrder, LatestWins, Route
from forebay.core.schedule import Schedule
from forebay.store.streams import enqueue_stream
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import SECOND, Harness
from forebay_proof.conformance.racing import RacingCall, race

_ROUTES = (Route("order.**", "mail"), Route("order.paid", "ship"), Route("*.paid", "books"))


def _broker(h: Harness, *routes: Route, drop: bool = False) -> None:
    h.spec(fan_out=FanOut(routes or _ROUTES, "drop" if drop else "refuse"))


def _kinds(h: Harness) -> dict[str, list[str]]:
    """The kinds of the jobs, queue by queue."""
    found: dict[str, list[str]] = {}
    for job in h.jobs():
        found.setdefault(job.queue, []).append(job.kind)
    return found


@case
def a_draft_becomes_a_job_in_each_queue_whose_route_matches(h: Harness) -> None:
    _broker(h)
    (receipt,) = h.send(h.draft(kind="order.paid", payload=7, tenant="t", priority=3))
    assert len(receipt.copies) == 3
    assert receipt.id == receipt.copies[0]
    jobs = [h.get(job_id) for job_id in receipt.copies]
    assert [job.queue for job in jobs] == ["mail", "ship", "books"]
    assert {(job.kind, job.payload, job.tenant, job.priority) for job in jobs} == {("order.paid", 7, "t", 3)}
    assert h.backlog().depth == 0


@case
def a_draft_goes_only_where_a_route_leads(h: Harness) -> None:
    _broker(h)
    receipts = h.send(h.draft(kind="order"), h.draft(kind="invoice.paid"), h.draft(kind="order.new"))
    assert [len(receipt.copies) for receipt in receipts] == [1, 1, 1]
    assert _kinds(h) == {"mail": ["order", "order.new"], "books": ["invoice.paid"]}


@case
def two_routes_to_one_queue_make_one_copy(h: Harness) -> None:
    _broker(h, Route("a.*", "mail"), Route("*.b", "mail"))
    (receipt,) = h.send(h.draft(kind="a.b"))
    assert len(receipt.copies) == 1
    assert h.drain("mail") == [receipt.id]


@case
def a_draft_without_a_route_is_refused_with_its_batch(h: Harness) -> None:
    _broker(h)
    with h.unchanged():
        refused(Invalid, lambda: h.send(h.draft(kind="order.paid"), h.draft(kind="else"), h.draft(queue="plain")))


@case
def a_draft_without_a_route_is_dropped_where_the_broker_says_so(h: Harness) -> None:
    _broker(h, drop=True)
    with h.unchanged():
        (receipt,) = h.send(h.draft(kind="else"))
    assert (receipt.id, receipt.copies, receipt.duplicate, receipt.merged) == (0, (), False, False)


@case
def other_drafts_of_the_batch_go_their_own_way(h: Harness) -> None:
    _broker(h)
    plain, routed, last = h.send(h.draft(queue="plain"), h.draft(kind="order.paid"), h.draft(queue="plain"))
    assert (plain.copies, last.copies) == ((), ())
    assert len({plain.id, last.id, *routed.copies}) == 5
    assert h.drain("plain") == [plain.id, last.id]


@case
def all_copies_or_none(h: Harness) -> None:
    _broker(h)
    h.spec("books", capacity=Bounded(1))
    h.one(queue="books")
    with h.unchanged():
        error = refused(QueueFull, lambda: h.send(h.draft(queue="plain"), h.draft(kind="order.paid", key="k")))
    assert error.queue == "books"
    h.drain("books")
    (receipt,) = h.send(h.draft(kind="order.paid", key="k"))
    assert not receipt.duplicate


@case
def a_broker_waits_for_the_queue_that_lets_it_wait(h: Harness) -> None:
    _broker(h)
    h.spec("ship", capacity=Bounded(1, when_full=Block(hours(1))))
    h.one(queue="ship")
    waiting = RacingCall(lambda: h.send(h.draft(kind="order.paid")))
    h.until_asleep(1)
    assert waiting.running
    h.ack(h.take("ship"))
    assert len(waiting.result()[0].copies) == 3


@case
def a_key_counts_in_each_queue_on_its_own(h: Harness) -> None:
    _broker(h)
    first = h.one(queue="ship", kind="order.paid", key="k")
    (receipt,) = h.send(h.draft(kind="order.paid", key="k"))
    assert not receipt.duplicate
    assert receipt.copies[1] == first
    assert len(set(receipt.copies)) == 3
    (again,) = h.send(h.draft(kind="order.paid", key="k"))
    assert again.duplicate
    assert again.copies == receipt.copies
    with h.unchanged():
        refused(KeyConflict, lambda: h.one(kind="order.paid", key="k", payload=2))


@case
def copies_keep_the_rules_of_their_queues(h: Harness) -> None:
    _broker(h)
    h.spec("mail", merge=LatestWins())
    h.spec("ship", eligibility=AtMost(1))
    h.spec("books", eligibility=InOrder("subject"))
    for number in range(2):
        h.one(kind="order.paid", subject="s", payload=number)
    assert [lease.job.payload for lease in h.claim(5, "mail")] == [1]
    assert [lease.job.payload for lease in h.claim(5, "ship")] == [0]
    assert [lease.job.payload for lease in h.claim(5, "books")] == [0]


@case
def all_copies_merged_is_merged(h: Harness) -> None:
    _broker(h, Route("**", "a"), Route("**", "b"))
    for queue in ("a", "b"):
        h.spec(queue, merge=LatestWins())
    (first,), (second,) = (h.send(h.draft(subject="s", payload=number)) for number in range(2))
    assert (first.merged, second.merged, second.copies) == (False, True, first.copies)


@case
def copies_count_against_what_one_call_takes(h: Harness) -> None:
    _broker(h, Route("**", "a"), Route("**", "b"))
    with h.unchanged():
        refused(BatchTooLarge, lambda: h.enqueue(MAX_BATCH // 2 + 1))
    assert len(h.send(*[h.draft()] * (MAX_BATCH // 2))) == MAX_BATCH // 2


@case
def a_stream_goes_through_a_broker_whatever_its_length(h: Harness) -> None:
    _broker(h, Route("**", "a"), Route("**", "b"))
    tally = enqueue_stream(h.store, (h.draft(payload=number) for number in range(MAX_BATCH + 1)))
    assert (tally.taken, tally.duplicates) == (MAX_BATCH + 1, 0)
    assert [h.backlog(queue).ready for queue in ("a", "b")] == [MAX_BATCH + 1] * 2


@case
def a_schedule_fires_into_a_broker(h: Harness) -> None:
    _broker(h)
    tick = h.now()
    h.store.put_schedule(Schedule("s", "every hour", tick, h.draft(kind="order.paid")))
    assert h.store.fire("s", tick, tick + SECOND, h.draft(kind="order.paid"))
    assert {job.queue for job in h.jobs()} == {"mail", "ship", "books"}
    (schedule,) = h.store.schedules()
    assert schedule.last_job == h.jobs(queue="mail")[0].id


@case
def an_edge_leads_to_queues_that_hold_jobs(h: Harness) -> None:
    _broker(h)
    for edge in (lambda: h.spec("other", fan_out=FanOut((Route("**", "q"),))), lambda: _broker_of(h, "mail")):
        with h.unchanged():
            refused(Invalid, edge)


def _broker_of(h: Harness, name: str) -> None:
    h.spec(name, fan_out=FanOut((Route("**", "elsewhere"),)))


@case
def what_a_queue_held_before_it_became_a_broker_can_still_be_done(h: Harness) -> None:
    before = h.enqueue(2, kind="order.paid")
    _broker(h)
    h.one(kind="order.paid")
    assert h.drain() == before
    h.spec()
    assert h.drain() == []
    assert h.one(kind="order.paid") in h.drain()


@case
def new_routes_hold_for_the_next_draft(h: Harness) -> None:
    _broker(h, Route("**", "a"))
    h.one()
    _broker(h, Route("**", "b"))
    h.one()
    assert [len(h.drain(queue)) for queue in ("a", "b")] == [1, 1]


@case
def racing_drafts_leave_all_their_copies_or_none(h: Harness) -> None:
    _broker(h, Route("**", "a"), Route("**", "b"))
    h.spec("a", capacity=Bounded(10))
    outcome = race(16, lambda number: h.one(payload=number))
    assert sum(isinstance(answer, int) for answer in outcome) == 10
    payloads = [sorted(str(job.payload) for job in h.jobs(queue=queue)) for queue in ("a", "b")]
    assert payloads[0] == payloads[1]
    assert len(payloads[0]) == 10
