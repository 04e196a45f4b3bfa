"""Progress: what the holder of a running job reports is shown, and never that of another delivery."""

from functools import partial

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.job import Progress
from forebay.core.lease import Settled
from forebay.core.limits import MAX_BATCH, MAX_NOTE
from forebay.core.outcome import Ack
from forebay.store.protocol import Query
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import Harness

APPLIED, STALE = Settled.APPLIED, Settled.STALE


def _said(h: Harness, job_id: int) -> tuple[float, str] | None:
    progress = h.get(job_id).progress
    return None if progress is None else (progress.portion, progress.note)


@case
def the_progress_that_a_holder_reports_is_shown(h: Harness) -> None:
    first, second = h.enqueue(2)
    one, other = h.claim(2)
    assert one.job.progress is None
    began = h.now()
    assert h.store.report_progress([(one.fence, Progress(0.25, "a quarter"))]) == [APPLIED]
    assert _said(h, first) == (0.25, "a quarter")
    progress = h.get(first).progress
    assert progress is not None
    assert began <= progress.at <= h.now()
    assert _said(h, second) is None
    reports = [(other.fence, Progress(1, "ünï ☃")), (one.fence, Progress(0.5)), (one.fence, Progress(0.75, "newest"))]
    assert h.store.report_progress(reports) == [APPLIED] * 3
    assert [_said(h, job_id) for job_id in (first, second)] == [(0.75, "newest"), (1.0, "ünï ☃")]


@case
def a_report_of_another_delivery_is_stale_and_not_shown(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    job, delivery = lease.fence
    assert h.store.report_progress([((job, delivery + 1), Progress(0.5))]) == [STALE]
    assert h.store.report_progress([((10**17, 1), Progress(0.5))]) == [STALE]
    assert _said(h, job_id) is None
    h.fail(lease)
    assert h.store.report_progress([(lease.fence, Progress(0.5))]) == [STALE]
    again = h.take()
    assert h.store.report_progress([(lease.fence, Progress(0.9)), (again.fence, Progress(0.1))]) == [STALE, APPLIED]
    assert _said(h, job_id) == (0.1, "")


@case
def progress_ends_with_the_delivery(h: Harness) -> None:
    job_id = h.one()
    lease = h.take()
    h.store.report_progress([(lease.fence, Progress(0.5, "half"))])
    h.store.extend([lease], h.short_delta * 100)
    assert _said(h, job_id) == (0.5, "half")
    h.fail(lease)
    assert _said(h, job_id) is None
    again = h.take()
    assert again.job.progress is None
    assert _said(h, job_id) is None, "of the delivery before"
    h.store.report_progress([(again.fence, Progress(0.1))])
    h.dead_letter(again)
    assert _said(h, job_id) is None


@case
def reports_change_nothing_else(h: Harness) -> None:
    h.one()
    lease = h.take()
    with h.unchanged():
        h.store.report_progress([(lease.fence, Progress(0.5))])
        assert h.store.report_progress([]) == []
    assert [job.progress for job in h.jobs()] == [None], "a page does not show it"
    assert h.store.browse(Query(), 0, 1).jobs[0].id == lease.job.id
    h.ack(lease)
    h.nothing_left()


@case
def many_jobs_are_reported_in_one_call(h: Harness) -> None:
    h.enqueue(300)
    leases = h.claim(300)
    reports = [(lease.fence, Progress(place / 300, f"{place}")) for place, lease in enumerate(leases)]
    assert set(h.store.report_progress(reports)) == {APPLIED}
    jobs = h.store.get([lease.job.id for lease in leases])
    assert [job.progress.note for job in jobs if job is not None and job.progress is not None] == [
        f"{place}" for place in range(300)
    ]
    h.store.settle([(lease, Ack()) for lease in leases])
    h.nothing_left()


@case
def an_invalid_report_is_refused(h: Harness) -> None:
    for portion in (-0.1, 1.1, float("nan"), "half", None, True):
        refused(Invalid, partial(Progress, portion))  # type: ignore[arg-type]
    assert len(Progress(0, "x" * 10_000).note) == MAX_NOTE
    refused(Invalid, lambda: h.store.report_progress([((1, 1), 0.5)]))  # type: ignore[list-item]
    refused(Invalid, lambda: h.store.report_progress([(("1", 1), Progress(0.5))]))  # type: ignore[list-item]
    refused(BatchTooLarge, lambda: h.store.report_progress([((1, 1), Progress(0.5))] * (MAX_BATCH + 1)))
