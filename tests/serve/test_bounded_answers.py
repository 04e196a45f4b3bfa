"""However many names there are, an answer is a page, and figures are of all queues: none is as large as the store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.core.instant import hours
from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve import recent_runs
from forebay.serve.actor import Role
from forebay.serve.recent_runs import RecentRuns
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from tests.serve.site import Serving, Site

NAMES = 2_300
DEEP = "q0007"


@pytest.fixture(params=["memory", "sqlite"])
def crowded(request: pytest.FixtureRequest, tmp_path: Path, serve_on: Serving) -> Site:
    """A server on a store with many names, one queue of which is deeper than the others."""
    store = open_store("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db")
    names = [f"q{number:04}" for number in range(NAMES)]
    for start in range(0, NAMES, 1_000):
        store.enqueue([Draft("k", queue=name) for name in names[start : start + 1_000]])
    store.enqueue([Draft("k", queue=DEEP)] * 4)
    store.put_spec(QueueSpec(name="log", retention=Retained(1, hours(1))))
    return serve_on(store)


def pages(client: httpx.Client, path: str, field: str) -> Iterator[list[Any]]:
    after: str | None = ""
    while after is not None:
        response = client.get(path, params={"after": after} if after else {}).json()
        yield response[field]
        after = response["next"]


def test_queues_come_in_pages(crowded: Site) -> None:
    client = crowded.client(Role.VIEWER)
    for limit in (100, 999, 1_000):
        found = list(pages(client, f"/queues?limit={limit}", "queues"))
        assert all(len(page) <= limit for page in found)
        names = [each["name"] for page in found for each in page]
        assert names == [f"q{number:04}" for number in range(NAMES)]
    assert len(client.get("/queues").json()["queues"]) <= 100
    assert client.get("/queues?limit=1001").status_code == 422
    assert client.get("/queues/q0003").json()["backlog"]["ready"] == 1
    assert client.get("/queues/q000").status_code == 404


def test_a_key_for_some_queues_gets_the_pages_of_these(crowded: Site) -> None:
    some = crowded.client(Role.VIEWER, queues=("q22*", "q0007", "nothing"))
    found = [each["name"] for page in pages(some, "/queues?limit=30", "queues") for each in page]
    assert found == [DEEP, *(f"q{number}" for number in range(2_200, 2_300))]
    response = some.get("/stats?limit=3").json()
    assert (response["ready"], response["queues_total"], response["complete"]) == (105, 101, True)
    assert [each["queue"] for each in response["queues"]] == [DEEP, "q2200", "q2201"]


def test_stats_are_totals_and_the_deepest(crowded: Site) -> None:
    client = crowded.client(Role.VIEWER)
    response = client.get("/stats").json()
    assert (response["ready"], response["depth"], response["queues_total"]) == (NAMES + 4, NAMES + 4, NAMES)
    assert len(response["queues"]) == 100
    assert response["queues"][0] | {"queue": DEEP, "ready": 5} == response["queues"][0]
    assert len(client.get("/stats?limit=7").json()["queues"]) == 7
    assert client.get("/stats?limit=1001").status_code == 422


def test_metrics_count_every_job_in_few_series(crowded: Site) -> None:
    client = crowded.client(Role.VIEWER)
    crowded.context.metrics.poller.poll(slowly=True)
    text = client.get("/metrics").text
    ready = [line for line in text.splitlines() if line.startswith("forebay_queue_jobs{") and 'state="ready"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in ready) == NAMES + 4
    assert len(ready) <= 101
    assert f"forebay_queues {NAMES + len(crowded.store.specs())}" in text.replace(".0\n", "\n")


def test_the_overview_shows_the_deepest_and_says_how_many_there_are(crowded: Site) -> None:
    visitor = crowded.with_key(None, {"Origin": crowded.url})
    visitor.post("/ui/login", data={"key": crowded.key(Role.VIEWER)})
    crowded.context.metrics.poller.poll(slowly=False)
    page = visitor.get("/ui/").text
    assert f"/ui/queues/{DEEP}" in page
    assert page.count("/ui/queues/") <= 110
    assert f"and {NAMES - 100:,} queues more" in page
    assert f"{NAMES + 4:,}" in page
    assert visitor.get("/ui/queues/q2299").status_code == 200
    assert visitor.get("/ui/queues/q9999").status_code == 404


def test_schedules_and_logs_come_in_pages(site: Site, store: Store) -> None:
    names = [f"s{number:03}" for number in range(130)]
    for name in names:
        store.put_schedule(Schedule(name, "@every 90s", store.now() + 10**12, Draft("k")))
        store.put_spec(QueueSpec(name=name, retention=Retained(1, hours(1))))
    client = site.client(Role.VIEWER)
    for path, field in (("/cron", "schedules"), ("/logs", "logs")):
        assert len(client.get(path).json()[field]) == 100
        assert [each["name"] for page in pages(client, f"{path}?limit=50", field) for each in page] == names
        assert client.get(f"{path}?limit=1001").status_code == 422


def test_what_happened_recently_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    for _ in range(120):
        store.enqueue([Draft("k")])
    assert RecentRuns().refresh(store).source == "the last 1000 records of the ledger"
    monkeypatch.setattr(recent_runs, "MAX_RANGES", 60)
    assert RecentRuns().refresh(store).source == "the last 100 records of the ledger"
    store.close()


def test_causes_are_the_most_frequent_ones(site: Site, store: Store) -> None:
    for _ in range(3):
        store.enqueue([Draft("k")] * 100)
    for number, lease in enumerate(store.claim([Want("default", 300)], "w", hours(1))):
        store.settle([(lease, DeadLetter(Failure(f"E{chr(97 + number % 260 // 26)}{chr(97 + number % 26)}")))])
    response = site.client(Role.VIEWER).get("/dlq/causes").json()
    assert (len(response["causes"]), response["more"], response["scanned"]) == (200, 60, 300)
    assert {each["count"] for each in response["causes"][:40]} == {2}
