"""Search by meta and payload over HTTP and on the dashboard; a secret cannot be found out by searching for it."""

import pytest

from forebay.core.job import Draft
from forebay.core.limits import CONTENT_SCAN
from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.views.search import Filter, find
from forebay.store.protocol import Store
from tests.serve.site import Serving, Site
from tests.serve.test_api_jobs import problem
from tests.serve.visitor import visitor

ANYBODY = Actor("any", frozenset({Role.ADMIN}))


def filled(store: Store) -> None:
    store.enqueue(
        [
            Draft("charge", {"customer": {"id": n % 3}, "password": f"hunter{n}"}, meta={"trace": f"t{n}"})
            for n in range(6)
        ]
    )


def test_jobs_are_found_by_what_they_carry(store: Store, serve_on: Serving) -> None:
    filled(store)
    client = serve_on(store).client(Role.VIEWER)

    def found(*conditions: tuple[str, str], **more: str) -> list[int]:
        answer = client.get("/jobs", params=[*conditions, *more.items()])
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["jobs"]]

    assert found(("payload", "customer.id=1")) == [2, 5]
    assert found(("payload", "customer.id=1"), ("meta", "trace=t4")) == [5]
    assert found(("payload", "customer.id=1"), limit="1") == [2]
    assert found(("payload", "customer.id=1"), limit="1", after="2") == [5]
    assert found(("payload", "customer.id=9")) == []
    for wrong in ("x", "=x", "a=" + "b" * 600):
        problem(client.get("/jobs", params={"payload": wrong}), 422, "invalid")
    problem(client.get("/jobs", params={"meta": "a=" + "b" * 300}), 422, "invalid")
    problem(client.get("/jobs", params=[("meta", "a=b")] * 9), 422, "invalid")


def test_a_secret_is_not_found_out_by_searching_for_it(store: Store, serve_on: Serving) -> None:
    filled(store)
    site = serve_on(store)
    for value in ("hunter1", "***"):
        assert site.client(Role.VIEWER).get("/jobs", params={"payload": f"password={value}"}).json()["jobs"] == []
    (job,) = site.client(Role.ADMIN).get("/jobs", params={"payload": "password=hunter1"}).json()["jobs"]
    assert job["id"] == 2


def test_a_search_ends_and_says_where_to_go_on(
    store: Store, serve_on: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.serve.security.visibility.MAX_SCANNED", CONTENT_SCAN)
    for start in range(0, 1_200, 400):
        store.enqueue([Draft("a", {"n": n}) for n in range(start, start + 400)])
    client = serve_on(store).client(Role.VIEWER)
    seen, pages = list[int](), 0
    after: int | None = 0
    while after is not None:
        page = client.get("/jobs", params={"payload": "n=1199", "after": after}).json()
        seen, after, pages = [*seen, *(job["id"] for job in page["jobs"])], page["next"], pages + 1
    assert (seen, pages) == ([1_200], 3)


def test_the_dashboard_searches_too(store: Store, site: Site) -> None:
    filled(store)
    wanted = Filter(payload="customer.id=1", meta="trace=t4")
    assert [job.id for job in find(store, ANYBODY, wanted).jobs] == [5]
    assert [job.id for job in find(store, ANYBODY, Filter(payload="customer.id=1"), limit=1).jobs] == [2]
    with visitor(site, Role.VIEWER) as seen:
        page = seen.client.get("/ui/jobs", params={"payload": "customer.id=1"}).text
        assert 'value="customer.id=1"' in page
        assert 'href="/ui/jobs/5"' in page
        assert 'href="/ui/jobs/1"' not in page
        secret = seen.client.get("/ui/jobs", params={"payload": "password=hunter1"}).text
        assert 'href="/ui/jobs/2"' not in secret
        assert seen.client.get("/ui/jobs", params={"payload": "customer"}).status_code == 422
