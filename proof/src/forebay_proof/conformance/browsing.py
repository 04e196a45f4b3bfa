"""Pages: they lead through everything that matches, in the order of the ids, over any gap, to an end."""

from forebay.core.instant import hours
from forebay.core.job import State
from forebay.core.limits import CONTENT_SCAN
from forebay.core.policy import KeepFor
from forebay.store.protocol import Query
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import LONG, SECOND, Harness


@case
def pages_lead_through_everything_in_the_order_of_the_ids(h: Harness) -> None:
    ids = h.enqueue(11)
    for limit in (1, 3, 11, 50):
        pages = list(h.pages(Query(), limit))
        assert [job.id for page in pages for job in page.jobs] == ids
        assert all(len(page.jobs) <= limit for page in pages)


@case
def pages_lead_over_gaps(h: Harness) -> None:
    ids = h.enqueue(30)
    h.store.cancel(ids[:5] + ids[8:27])
    assert [job.id for page in h.pages(Query(), 2) for job in page.jobs] == ids[5:8] + ids[27:]


@case
def pages_lead_over_a_very_large_gap(h: Harness) -> None:
    first = h.one(delay=3_600 * SECOND)
    for _ in range(7):
        h.enqueue(1_000)
        h.drain(batch=1_000)
    last = h.one()
    assert [job.id for job in h.jobs()] == [first, last]
    h.store.cancel([first])
    assert [job.id for job in h.jobs()] == [last]


@case
def pages_lead_through_jobs_that_run_together_with_leases_of_their_own(h: Harness) -> None:
    """Both those that came together and those that did not."""
    ids = [*h.enqueue(5), *(h.one(priority=place % 3 - 1) for place in range(5))]
    leases = {lease.job.id: lease for lease in h.claim(10)}
    assert sorted(leases) == ids
    for own in (ids[0], ids[6]):
        assert h.store.extend([leases[own]], LONG * 2)[0] is not None
        for limit in (1, 2, 3, 50):
            for query in (Query(), Query(state=State.RUNNING), Query(queue="q")):
                assert [job.id for page in h.pages(query, limit) for job in page.jobs] == ids


@case
def an_empty_store_has_one_empty_page(h: Harness) -> None:
    page = h.store.browse(Query(), 0, 10)
    assert (page.jobs, page.next) == ([], None)


@case
def a_page_after_the_end_is_empty_and_the_last(h: Harness) -> None:
    (job_id,) = h.enqueue(1)
    page = h.store.browse(Query(), job_id + 1_000, 10)
    assert (page.jobs, page.next) == ([], None)


@case
def browsing_shows_what_matches_every_field(h: Harness) -> None:
    h.spec("kept", retention=KeepFor(hours(1)))
    one = h.one(kind="a", tenant="t1", subject="s1")
    two = h.one(kind="b", tenant="t1", subject="s2")
    three = h.one(kind="a", tenant="t2", subject="s1", queue="kept")
    h.ack(h.take("kept"))
    shown = {
        "queue": [job.id for job in h.jobs(queue="q")],
        "state": [job.id for job in h.jobs(state=State.DONE)],
        "kind": [job.id for job in h.jobs(kind="a")],
        "tenant": [job.id for job in h.jobs(tenant="t1")],
        "subject": [job.id for job in h.jobs(subject="s1")],
        "several": [job.id for job in h.jobs(kind="a", tenant="t1", subject="s1", queue="q")],
        "none": [job.id for job in h.jobs(kind="a", tenant="unknown")],
    }
    assert shown == {
        "queue": [one, two],
        "state": [three],
        "kind": [one, three],
        "tenant": [one, two],
        "subject": [one, three],
        "several": [one],
        "none": [],
    }


@case
def browsing_finds_what_jobs_carry(h: Harness) -> None:
    one = h.one(payload={"customer": {"id": 7}, "items": [{"sku": "A1"}], "paid": True}, meta={"trace": "t1"})
    two = h.one(payload={"customer": {"id": "7"}, "items": [], "paid": None}, meta={"trace": "t2"}, kind="other")
    h.one(payload=[7])
    h.one(payload=None)

    def found(**query: object) -> list[int]:
        return [job.id for job in h.jobs(**query)]

    assert found(payload=(("customer.id", "7"),)) == [one, two]
    assert found(payload=(("customer.id", "8"),)) == []
    assert found(payload=(("customer", "7"),)) == []
    assert found(payload=(("items.0.sku", "A1"),)) == [one]
    assert found(payload=(("paid", "true"),)) == [one]
    assert found(payload=(("paid", "null"),)) == [two]
    assert found(payload=(("0", "7"),)) != []
    assert found(meta=(("trace", "t1"),)) == [one]
    assert found(meta=(("trace", "t1"),), payload=(("paid", "null"),)) == []
    assert found(payload=(("customer.id", "7"),), kind="other") == [two]
    h.ack(h.take())
    assert found(payload=(("customer.id", "7"),), state=State.READY) == [two]


@case
def a_search_by_content_continues_where_it_stopped(h: Harness) -> None:
    ids = h.enqueue(CONTENT_SCAN + 1)
    wanted = [h.one(payload={"rare": n}) for n in range(3)]
    query = Query(meta=(), payload=(("rare", "1"),))
    first = h.store.browse(query, 0, 10)
    assert first.jobs == []
    assert first.next is not None
    assert ids[0] <= first.next < wanted[0]
    assert [job.id for page in h.pages(query, 1) for job in page.jobs] == [wanted[1]]
    every = Query(payload=(("common", "x"),))
    same = [h.one(payload={"common": "x"}) for _ in range(5)]
    for limit in (1, 2, 5, 9):
        pages = list(h.pages(every, limit))
        assert [job.id for page in pages for job in page.jobs] == same
        assert all(len(page.jobs) <= limit for page in pages)


@case
def jobs_that_came_together_are_found_one_by_one_in_every_state(h: Harness) -> None:
    h.spec("kept", retention=KeepFor(hours(1)))
    drafts = [h.draft(kind="ab"[n % 2], tenant="tu"[n % 3 == 0], queue="kept") for n in range(30)]
    ids = [receipt.id for receipt in h.send(*drafts)]
    for lease in h.claim(10, "kept"):
        h.ack(lease)
    held = [lease.job.id for lease in h.claim(9, "kept")]
    h.store.cancel(ids[-3:])
    states = {
        State.DONE: ids[:10],
        State.RUNNING: held,
        State.READY: ids[19:-3],
        State.CANCELLED: ids[-3:],
        State.WAITING: [],
        None: ids,
    }
    for state, wanted in states.items():
        for kind in (None, "a", "b"):
            found = [job_id for n, job_id in enumerate(ids) if job_id in wanted and kind in (None, "ab"[n % 2])]
            for limit in (1, 4, 1_000):
                pages = list(h.pages(Query("kept", state, kind), limit))
                assert [job.id for page in pages for job in page.jobs] == found, (state, kind, limit)
                assert all(len(page.jobs) <= limit for page in pages)
        both = [job.id for page in h.pages(Query(None, state, "a", "u"), 2) for job in page.jobs]
        assert both == [job_id for n, job_id in enumerate(ids) if job_id in wanted and n % 6 == 0], state
