"""Jobs watched from another process, on every store that several processes share: results arrive by notification."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import Forebay, JobFailed, QueueSpec, State
from tests.process.site import Site

APP = "tests.process.watched_app"
PATIENCE = 30.0


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
    """The app as its producer sees it: without the handlers."""
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
