"""Secrets are searched on the threads of the store, not on the event loop, wherever that may take long."""

from threading import current_thread
from typing import Any

import pytest

from forebay.core.instant import days
from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.api import cron, jobs, logs
from forebay.store.protocol import Want
from tests.serve.site import Site

LARGE = {"items": [f"item {n}" for n in range(2_000)], "password": "hunter2-and-more"}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where secrets were searched, by the names of threads."""
    found: list[str] = []

    def spy(module: Any, name: str) -> None:
        real = getattr(module, name)

        def seen(*given: Any) -> Any:
            found.append(current_thread().name)
            return real(*given)

        monkeypatch.setattr(module, name, seen)

    spy(jobs, "redact_job")
    spy(logs, "redact")
    spy(cron, "redact")
    return found


def test_whatever_is_large_or_many_is_redacted_aside(site: Site, threads: list[str]) -> None:
    store = site.store
    dead, alive = (receipt.id for receipt in store.enqueue([Draft("k", LARGE, "a"), Draft("k", LARGE, "b")]))
    leases = store.claim([Want("a", 1)], "w", days(1))
    store.settle([(leases[0], DeadLetter(Failure("Oops")))])
    store.put_spec(QueueSpec(name="news", retention=Retained(partitions=1, window=days(1))))
    store.append("news", [b'{"password": "hunter2-and-more"}'])
    store.put_schedule(Schedule("daily", "@daily", 4 * 10**15, Draft("k", LARGE)))
    client = site.client(Role.VIEWER)
    for path in ("/jobs", f"/jobs/{alive}", "/dlq", f"/dlq/{dead}", "/logs/news/0", "/cron"):
        threads.clear()
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "hunter2" not in answer.text, path
        assert threads, path
        assert all(name.startswith("forebay-http") for name in threads), path


def test_what_is_small_is_redacted_where_it_is(site: Site, threads: list[str]) -> None:
    job_id = site.store.enqueue([Draft("k", {"password": "hunter2-and-more"})])[0].id
    assert "hunter2" not in site.client(Role.VIEWER).get(f"/jobs/{job_id}").text
    assert threads == ["test-server"]
