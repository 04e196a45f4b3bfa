"""Jobs watched from another process, on every store that several processes share: results arrive by notification."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import Forebay, JobFailed, QueueSpec, State
from forebay.core.instant import seconds
from forebay.store.protocol import CancelAnswer
from tests.process.site import Site
from tests.waiting import PATIENCE

APP = "tests.process.watched_app"


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    site = Site(tmp_path, url)
    site.store.put_spec(QueueSpec(name="default"))
    try:
        yield site
    finally:
        site.close()


@pytest.fixture
def fb(site: Site) -> Iterator[Forebay]:
    """The app of a producer: without the handlers."""
    fb = Forebay(site.url)
    try:
        yield fb
    finally:
        fb.close()


def test_a_result_reaches_another_process_on_a_queue_that_keeps_nothing(site: Site, fb: Forebay) -> None:
    site.worker(APP)
    receipts = [fb.enqueue("moments", {"seq": seq}) for seq in range(1, 6)]
    expected = [{"at": f"2026-01-{seq:02d}T00:00:00Z"} for seq in range(1, 6)]
    assert [receipt.result(PATIENCE) for receipt in receipts] == expected
    assert {job.state for job in site.jobs()} == {State.DONE}


def test_a_result_that_cannot_be_kept_fails_its_job_at_once(site: Site, fb: Forebay) -> None:
    site.worker(APP)
    with pytest.raises(JobFailed, match=r"after attempt 1: .*result of opaque at \$\.found: set is not a JSON type"):
        fb.enqueue("opaque", {"seq": 1}).result(PATIENCE)


# Cancellation


CANCELLED_WITHIN = 5.0
"""Seconds, on a machine under load; the heartbeat, which used to bring the request, comes every 20."""


@pytest.mark.parametrize("kind", ["waits", "looks", "blocks"])
def test_a_running_job_is_cancelled_long_before_the_next_heartbeat(site: Site, fb: Forebay, kind: str) -> None:
    site.worker(APP, lease_for=seconds(60))
    first, second = (fb.enqueue(kind, {"seq": seq}).id for seq in (1, 2))
    site.started(1)
    site.started(2)
    for job_id in (first, second):
        asked_at = time.monotonic()
        assert fb.cancel(job_id) is CancelAnswer.REQUESTED
        fb.wait_for(job_id, PATIENCE)
        assert time.monotonic() - asked_at < CANCELLED_WITHIN
        assert fb.get(job_id) is None, "cancelled jobs of this queue go at once"
    assert len(site.lines("stopped")) == (0 if kind == "blocks" else 2)
    assert site.jobs() == []


def test_a_job_that_was_to_end_is_not_begun_again_after_its_holder_died(site: Site, fb: Forebay) -> None:
    first = site.worker(APP, lease_for=seconds(2))
    job_id = fb.enqueue("ignores", {"seq": 1}).id
    site.started(1)
    fb.cancel(job_id)
    first.kill()
    site.worker(APP, lease_for=seconds(2))
    assert fb.wait_for(job_id, PATIENCE) is None
    assert len(site.lines("start", 1)) == 1


# Progress


@pytest.mark.parametrize("kind", ["counts", "counts_apart"])
def test_the_newest_progress_of_a_running_job_is_seen_by_others(site: Site, fb: Forebay, kind: str) -> None:
    site.worker(APP)
    job_id = fb.enqueue(kind, {"seq": 1}).id

    def shown() -> bool:
        job = fb.get(job_id)
        progress = None if job is None else job.progress
        return progress is not None and (progress.portion, progress.note) == (0.5, "step 9999 of many")

    site.until(shown, "its last word is shown")
    fb.cancel(job_id)
    assert fb.wait_for(job_id, PATIENCE) is None
