"""Gates over HTTP: shown, set and released; and a gate that other queues share is not changed."""

from collections.abc import Iterator

import httpx
import pytest

from forebay.core.instant import seconds
from forebay.core.job import Draft, State
from forebay.core.policy import AtMost, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.security.operator_log import read_actions
from forebay.store.open import open_store
from forebay.store.protocol import Want
from tests.serve.site import Site
from tests.serve.visitor import visitor


@pytest.fixture(params=["memory", "redis"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    store = open_store("memory://" if request.param == "memory" else request.getfixturevalue("redis_url"))
    store.put_spec(
        QueueSpec(name="own", eligibility=AtMost(1) & Rate(5, every=seconds(600), shared="api") & Until("mine"))
    )
    store.put_spec(QueueSpec(name="own.b", eligibility=Until("ours") & Until("mine", per="tenant")))
    store.put_spec(
        QueueSpec(
            name="far", eligibility=AtMost(1, per="subject", shared="gpu") & Rate(5, every=seconds(600), shared="api")
        )
    )
    store.put_spec(QueueSpec(name="far.b", eligibility=AtMost(2, shared="gpu") & Until("ours")))
    store.enqueue([Draft("k", queue=queue, subject="s") for queue in ("own", "own.b", "far") for _ in range(2)])
    assert len(store.claim([Want(queue, 2) for queue in ("own", "own.b", "far")], "w", seconds(60))) == 1
    store.set_gate("until/mine", 0)
    site = Site(store).start()
    yield site
    site.stop()
    store.close()


def test_gates_are_shown_page_by_page(site: Site) -> None:
    client = site.client(Role.VIEWER)
    whole = client.get("/gates").json()
    assert whole["next"] is None
    assert [gate["name"] for gate in whole["gates"]] == sorted(gate["name"] for gate in whole["gates"])
    named = {gate.pop("name"): gate for gate in whole["gates"]}
    assert named["until/mine"].pop("parked") in (0, 2), "the lane waits here, or at the other condition"
    assert named["until/mine"] == {"slots": 0, "used": 0, "given": 0}
    pages: list[str] = []
    after: str | None = ""
    while after is not None:
        page = client.get("/gates", params={"limit": 2, "after": after}).json()
        pages += [gate["name"] for gate in page["gates"]]
        after = page["next"]
    assert pages == list(named)
    own = client.get("/gates", params={"queue": "own"}).json()["gates"]
    assert {gate["name"] for gate in own} <= {"cap/own", "rate/@api", "until/mine"}
    assert client.get("/gates", params={"queue": "nobody"}).json() == {"gates": [], "next": None}


def test_the_page_of_a_queue_shows_its_gates(site: Site) -> None:
    with visitor(site, Role.VIEWER) as viewer:
        text = viewer.get("/ui/queues/own").text
        assert "until/mine" in text
        assert "cap/@gpu" not in text


def test_a_number_is_given_and_taken_back_and_written_down(site: Site) -> None:
    client = site.client(Role.OPERATOR)
    assert client.post("/gates/until/mine", json={"slots": 2}).json() == {"name": "until/mine", "slots": 2}
    (shown,) = [gate for gate in client.get("/gates").json()["gates"] if gate["name"] == "until/mine"]
    assert (shown["slots"], shown["given"]) == (2, 2)
    assert client.post("/gates/until/mine", json={"slots": None}).json()["slots"] is None
    (act, before) = read_actions(site.store)[0][:2]
    assert (act.action, act.target, act.details) == ("gates set", "until/mine", {"slots": None})
    assert before.details == {"slots": 2}


def test_a_condition_lets_some_pass(site: Site) -> None:
    client = site.client(Role.OPERATOR)
    answer = client.post("/conditions/ours/release", json={"count": 1})
    assert answer.json() == {"condition": "ours", "value": None, "released": 1}
    assert client.post("/conditions/ours/release", json={"value": "x"}).json()["released"] == 0
    assert site.store.backlog(["own.b"])[0].held == 1, "the other one"
    assert read_actions(site.store)[0][1].details == {"passed": 1}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/gates/mail", {"slots": 1}, "gate"),
        ("/gates/cap/own", {}, "body"),
        ("/gates/cap/own", {"slots": -1}, "slots"),
        ("/gates/cap/own", {"slots": 1, "more": 1}, "body"),
        ("/conditions/ours/release", {"count": 0}, "count"),
        ("/conditions/ours/release", {"count": 1_001}, "count"),
    ],
)
def test_what_is_no_number_and_no_gate_is_refused(site: Site, path: str, body: dict[str, object], field: str) -> None:
    answer = site.client(Role.OPERATOR).post(path, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_key_for_some_queues_moves_nothing_that_others_wait_at(site: Site) -> None:
    client = site.client(Role.OPERATOR, queues=("own*",))
    assert {gate["name"] for gate in client.get("/gates").json()["gates"]} <= {"cap/own", "until/mine", "until/mine/t"}
    for name in ("cap/own", "until/mine", "until/mine/t"):
        assert client.post(f"/gates/{name}", json={"slots": 1}).status_code == 200, name
    for name in ("until/ours", "rate/@api", "cap/@gpu", "cap/far", "until/nobody", "cap/@nobody"):
        assert client.post(f"/gates/{name}", json={"slots": 1}).status_code == 404, name
    assert client.post("/conditions/ours/release", json={}).status_code == 404
    assert client.post("/conditions/mine/release", json={}).status_code == 200
    for name in ("rate/@api", "until/ours", "until/nobody"):
        assert site.client(Role.OPERATOR).post(f"/gates/{name}", json={"slots": 1}).status_code == 200, name


def _all(client: httpx.Client, **wanted: int | str) -> list[str]:
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page = client.get("/gates", params={**wanted, "after": after}).json()
        assert page["next"] is None or page["next"] > after
        names += [gate["name"] for gate in page["gates"]]
        after = page["next"]
    return names


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_a_key_for_some_queues_reaches_every_page_of_its_gates(site: Site, limit: int) -> None:
    subjects = [f"s{number:02}" for number in range(20)]
    for queue in ("own.c", "own.d", "far.c"):
        site.store.put_spec(QueueSpec(name=queue, eligibility=AtMost(1, per="subject") & Until("ours")))
        site.store.enqueue([Draft("k", queue=queue, subject=subject) for subject in subjects for _ in range(2)])
    site.store.set_gate("until/ours", 1_000)
    for queue in ("own.c", "own.d", "far.c"):
        assert len(site.store.claim([Want(queue, 100)], "w", seconds(60))) == 20
    mine = site.client(Role.VIEWER, queues=("own*",))
    wanted = [f"cap/own.{name}/subject/{subject}" for name in "cd" for subject in subjects]
    seen = _all(mine, limit=limit)
    assert [name for name in seen if name.startswith("cap/own.")] == wanted
    assert seen == sorted(seen)
    assert not [name for name in seen if "far" in name or "ours" in name]
    assert [name for name in _all(mine, limit=limit, queue="own.d") if name != "until/ours"] == wanted[20:]


def test_a_key_of_a_tenant_sees_no_gate(site: Site) -> None:
    client = site.client(Role.OPERATOR, tenant="t")
    assert client.get("/gates").json()["gates"] == []
    assert client.get("/gates", params={"queue": "own"}).status_code == 404
    assert client.post("/gates/cap/own", json={"slots": 1}).status_code == 404
    assert all(job is None or job.state is State.READY for job in site.store.get([1, 2]))
