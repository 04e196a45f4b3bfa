"""Two tenants on one queue: neither reads nor changes the other's jobs, and absent is the same as forbidden (S3)."""

from pathlib import Path
from statistics import median
from time import perf_counter

import httpx
import pytest

from forebay.core.instant import seconds
from forebay.core.outcome import ABANDONED, DeadLetter, Failure
from forebay.core.policy import Fixed, Routing
from forebay.serve.actor import Role
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query, Want
from forebay.testing.clock import ManualClock
from forebay.work.reaper import Reaper
from tests.serve.site import Serving, Site

NEVER = 10**15
EVERYTHING = (Role.PRODUCER, Role.OPERATOR)


class Tenant:
    """One tenant's client, with one job that waits and one that is dead."""

    def __init__(self, site: Site, name: str) -> None:
        self.name = name
        self.client = site.client(*EVERYTHING, tenant=name)
        self.dead = self.post("dead")
        (lease,) = site.store.claim([Want("default", 1)], "test", seconds(60))
        site.store.settle([(lease, DeadLetter(Failure("E", f"of {name}")))])
        self.job = self.post("waits", delay=3_600)

    def post(self, kind: str, **more: object) -> int:
        answer = self.client.post("/jobs", json={"kind": kind, "payload": {"of": self.name}, **more})
        assert answer.status_code == 202
        return int(answer.json()["job_id"])


@pytest.fixture
def tenants(site: Site) -> tuple[Tenant, Tenant]:
    return Tenant(site, "acme"), Tenant(site, "umbrella")


def same(answer: httpx.Response, number: int) -> tuple[int, str]:
    return answer.status_code, answer.text.replace(f"job {number} ", "job # ")


def test_what_a_producer_sends_is_stamped_with_its_tenant(site: Site, tenants: tuple[Tenant, Tenant]) -> None:
    acme, _ = tenants
    (job,) = site.store.get([acme.job])
    assert job is not None
    assert job.tenant == "acme"
    own = acme.client.post("/jobs", json={"kind": "k", "tenant": "acme"})
    assert own.status_code == 202
    foreign = acme.client.post("/jobs", json={"kind": "k", "tenant": "umbrella"})
    assert foreign.status_code == 422
    lines = b'{"kind": "k"}\n{"kind": "k", "tenant": "umbrella"}\n'
    acme.client.post("/jobs/batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert {job.tenant for job in site.store.browse(Query(kind="k"), 0, 100).jobs} == {"acme"}


def test_jobs_of_another_tenant_do_not_exist(tenants: tuple[Tenant, Tenant]) -> None:
    acme, umbrella = tenants
    for method, path, thing in (
        ("GET", "/jobs/{}", umbrella.job),
        ("GET", "/jobs/{}/explain", umbrella.job),
        ("POST", "/jobs/{}/cancel", umbrella.job),
        ("GET", "/dlq/{}", umbrella.dead),
        ("POST", "/dlq/{}/retry", umbrella.dead),
        ("POST", "/dlq/{}/requeue", umbrella.dead),
    ):
        foreign = acme.client.request(method, path.format(thing))
        not_found = acme.client.request(method, path.format(NEVER))
        assert foreign.status_code == 404, path
        assert same(foreign, thing) == same(not_found, NEVER)
    assert umbrella.client.get(f"/jobs/{umbrella.job}").json()["state"] == "waiting"
    assert umbrella.client.get(f"/dlq/{umbrella.dead}").status_code == 200


def test_lists_and_moves_hold_only_ones_own(tenants: tuple[Tenant, Tenant]) -> None:
    acme, umbrella = tenants
    for path in ("/jobs", "/dlq", "/jobs?tenant=umbrella", "/dlq?tenant=umbrella", "/jobs?queue=default"):
        text = acme.client.get(path).text
        assert "umbrella" not in text, path
    moved = acme.client.post("/dlq/redrive", json={}).json()
    assert moved["ids"] == [acme.dead]
    assert umbrella.client.get(f"/dlq/{umbrella.dead}").status_code == 200
    for path in ("/queues/default", "/stats?queue=default"):
        assert acme.client.get(path).status_code == 404
    for path in ("/queues/default/pause", "/queues/default/resume"):
        assert acme.client.post(path).status_code == 404


def test_a_purge_of_own_and_foreign_ids_is_refused_whole(site: Site, tenants: tuple[Tenant, Tenant]) -> None:
    acme, umbrella = tenants
    before = site.store.get([acme.dead, umbrella.dead])
    for other in (umbrella.dead, umbrella.job, NEVER):
        for ids in ([acme.dead, other], [other, acme.dead]):
            refused = acme.client.post("/dlq/purge", json={"ids": ids})
            assert same(refused, other) == same(acme.client.get(f"/jobs/{NEVER}"), NEVER)
    assert site.store.get([acme.dead, umbrella.dead]) == before
    assert acme.client.post("/dlq/purge", json={"ids": [acme.dead, acme.job]}).json()["ids"] == [acme.dead]


def test_idempotency_keys_of_tenants_do_not_meet(tenants: tuple[Tenant, Tenant]) -> None:
    acme, umbrella = tenants
    answers = [
        each.client.post("/jobs", json={"kind": "k", "payload": each.name, "key": "order-7"}) for each in tenants
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    again = acme.client.post("/jobs", json={"kind": "k", "payload": "acme", "key": "order-7"})
    assert again.status_code == 409
    assert "umbrella" not in again.text
    assert umbrella.name not in acme.client.get("/jobs").text


def test_a_tenant_learns_nothing_of_the_workers_that_run_its_jobs(tmp_path: Path, serve_on: Serving) -> None:
    clock = ManualClock()
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    site = serve_on(store, ServeSettings(port=0, drain=1, maintain=False))
    acme = site.client(*EVERYTHING, tenant="acme")
    number = acme.post("/jobs", json={"kind": "k", "max_attempts": 2}).json()["job_id"]
    key = site.key(Role.WORKER)
    worker, key_id = site.with_key(key), key.split("_")[1]
    for _ in range(10):
        worker.post("/claim", json={"wants": [{"queue": "default"}], "owner": "web-3", "lease": 10})
        assert site.client(Role.OPERATOR).get(f"/jobs/{number}").json()["owner"] == f"web-3@key:{key_id}:test"
        look_around(site, acme, number, key_id)
        clock.advance(11_000_000)
        Reaper(store, lambda _: Routing(backoff=Fixed())).step()
        if acme.get(f"/dlq/{number}").status_code == 200:
            break
    look_around(site, acme, number, key_id)
    assert acme.get(f"/dlq/{number}").json()["errors"][0]["kind"] == ABANDONED
    assert f"web-3@key:{key_id}" in _visitor(site, None).get(f"/ui/jobs/{number}").text


def look_around(site: Site, tenant: httpx.Client, number: int, key_id: str) -> None:
    """Wherever a tenant sees a job of its own."""
    paths = (f"/jobs/{number}", f"/jobs/{number}/explain", "/jobs", "/dlq", "/dlq/causes", f"/dlq/{number}")
    visitor = _visitor(site, "acme")
    pages = ("/ui/jobs", f"/ui/jobs/{number}", "/ui/dead")
    for response in (*(tenant.get(path) for path in paths), *(visitor.get(page) for page in pages)):
        assert "web-3" not in response.text, response.url
        assert key_id not in response.text, response.url


def _visitor(site: Site, tenant: str | None) -> httpx.Client:
    visitor = site.with_key(None, {"Origin": site.url})
    visitor.post("/ui/login", data={"key": site.key(Role.OPERATOR, tenant=tenant)})
    return visitor


@pytest.mark.nightly
def test_absent_and_forbidden_take_as_long(tenants: tuple[Tenant, Tenant]) -> None:
    """S3: medians of 1,000 within 5 ms."""
    acme, umbrella = tenants
    took: dict[int, list[float]] = {umbrella.job: [], NEVER: []}
    for _ in range(1_000):
        for number, times in took.items():
            began = perf_counter()
            assert acme.client.get(f"/jobs/{number}").status_code == 404
            times.append(perf_counter() - began)
    foreign, not_found = (median(times) for times in took.values())
    assert abs(foreign - not_found) < 0.005
