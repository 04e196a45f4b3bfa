"""Authorisation: every route × no key and each role × an own and a foreign queue; absent looks like forbidden.

The routes are read from the router, the expectations are written here by hand: a route that has no row fails, and so
does a role that a route lost or won. What a caller may not see answers exactly as what never was.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from msgspec import Struct

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import Retained, Until
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.security.auth import RequireRole
from forebay.serve.security.sessions import RequireSession
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay_proof.evidence import happened
from tests.serve.site import Site

VIEW: Final = {Role.VIEWER, Role.OPERATOR, Role.ADMIN}
PRODUCE: Final = {Role.PRODUCER, Role.ADMIN}
WORK: Final = {Role.WORKER, Role.ADMIN}
OPERATE: Final = {Role.OPERATOR, Role.ADMIN}
RULE: Final = {Role.ADMIN}
ANY_ROLE: Final = set(Role)
OWN, FAR, NONE = "own", "far", "far.none"


class Row(Struct, frozen=True, kw_only=True):
    """What is expected of one route. `roles` None: open without a key.

    own      the status for permitted roles, on their own queue
    foreign  the same on a foreign one: 404, unless the route is about no queue
    thing    what its path names;  json, form: what it is sent
    """

    roles: set[Role] | None
    own: int = 200
    foreign: int = 404
    thing: str = ""
    json: Any = None
    form: dict[str, str] | None = None
    query: str = ""


PUT_SPEC: Final = {"retention": {"type": "remove-on-ack"}}
CRON: Final = {"rule": "30 1 * * *", "kind": "k", "queue": "{queue}"}
MAY_NOT_EXIST: Final = {"PUT /queues/{name}", "POST /queues/{name}/pause", "POST /queues/{name}/resume"}
TABLE: Final = {
    "GET /openapi.json": Row(roles=None, foreign=200),
    "HEAD /openapi.json": Row(roles=None, foreign=200),
    "GET /health": Row(roles=None, foreign=200),
    "GET /ready": Row(roles=None, foreign=200),
    "GET /metrics": Row(roles=VIEW, foreign=200),
    "POST /jobs": Row(roles=PRODUCE, own=202, json={"kind": "k", "queue": "{queue}"}),
    "POST /jobs/batch": Row(roles=PRODUCE, foreign=200, json={"kind": "k", "queue": "{queue}"}),
    "GET /jobs": Row(roles=VIEW, foreign=200, query="?queue={queue}"),
    "GET /jobs/{job_id}": Row(roles=VIEW | PRODUCE, thing="job"),
    "GET /jobs/{job_id}/explain": Row(roles=VIEW | PRODUCE, thing="job"),
    "POST /jobs/cancel": Row(roles=OPERATE, foreign=200, json={"queue": "{queue}"}),
    "POST /jobs/{job_id}/cancel": Row(roles=PRODUCE | OPERATE, thing="job"),
    "POST /claim": Row(roles=WORK, json={"wants": [{"queue": "{queue}"}]}),
    "POST /settle": Row(roles=WORK, own=404, json={"settlements": [{"lease": "x", "outcome": "ack"}]}),
    "POST /extend": Row(roles=WORK, own=404, json={"leases": ["x"]}),
    "POST /progress": Row(roles=WORK, own=404, json={"reports": [{"lease": "x", "portion": 0.5}]}),
    "GET /events": Row(roles=VIEW, own=409, query="?queue={queue}&follow=false"),
    "GET /dlq": Row(roles=VIEW, foreign=200, query="?queue={queue}"),
    "GET /dlq/causes": Row(roles=VIEW, foreign=200, query="?queue={queue}"),
    "GET /dlq/{job_id}": Row(roles=VIEW, thing="dead"),
    "POST /dlq/{job_id}/retry": Row(roles=OPERATE, thing="dead"),
    "POST /dlq/{job_id}/requeue": Row(roles=OPERATE, thing="dead"),
    "DELETE /dlq/{job_id}": Row(roles=OPERATE, own=204, thing="dead"),
    "POST /dlq/purge": Row(roles=OPERATE, foreign=200, json={"queue": "{queue}"}),
    "POST /dlq/redrive": Row(roles=OPERATE, foreign=200, json={"queue": "{queue}"}),
    "GET /queues": Row(roles=VIEW, foreign=200),
    "GET /queues/{name}": Row(roles=VIEW, thing="queue"),
    "PUT /queues/{name}": Row(roles=RULE, thing="queue", json=PUT_SPEC),
    "POST /queues/{name}/pause": Row(roles=OPERATE, thing="queue"),
    "POST /queues/{name}/resume": Row(roles=OPERATE, thing="queue"),
    "GET /gates": Row(roles=VIEW, query="?queue={queue}"),
    "POST /gates/{name:path}": Row(roles=OPERATE, thing="gate", json={"slots": 2}),
    "POST /conditions/{name}/release": Row(roles=OPERATE, thing="condition", json={}),
    "GET /cron": Row(roles=VIEW, foreign=200),
    "GET /cron/{name}": Row(roles=VIEW, thing="cron"),
    "PUT /cron/{name}": Row(roles=OPERATE, thing="cron", json=CRON),
    "DELETE /cron/{name}": Row(roles=OPERATE, own=204, thing="cron"),
    "POST /cron/{name}/pause": Row(roles=OPERATE, thing="cron"),
    "POST /cron/{name}/run": Row(roles=OPERATE, own=202, thing="cron"),
    "POST /cron/{name}/resume": Row(roles=OPERATE, thing="cron"),
    "GET /stats": Row(roles=VIEW, query="?queue={queue}"),
    "GET /scale": Row(roles=VIEW, query="?queue={queue}"),
    "GET /logs": Row(roles=VIEW, foreign=200),
    "POST /logs/{name}": Row(roles=PRODUCE, own=201, thing="log", json={"entries": [{"body": 1}]}),
    "GET /logs/{name}/groups": Row(roles=VIEW | WORK, thing="log"),
    "POST /logs/{name}/own": Row(roles=WORK, thing="log", json={"group": "g", "member": "m"}),
    "POST /logs/{name}/disown": Row(roles=WORK, thing="log", json={"group": "g", "member": "m"}),
    "GET /logs/{name}/{partition}": Row(roles=VIEW | WORK, thing="log"),
    "POST /logs/{name}/{partition}/commit": Row(roles=WORK, thing="log", json={"group": "g", "offset": -1}),
    "GET /": Row(roles=None, own=303, foreign=303),
    "GET /ui": Row(roles=None, own=303, foreign=303),
    "GET /ui/static/{name}": Row(roles=None, own=404),
    "GET /ui/{rest:path}": Row(roles=ANY_ROLE, own=404),
    "GET /ui/login": Row(roles=None, own=200, foreign=200),
    "POST /ui/login": Row(roles=None, own=401, foreign=401, form={"key": "fb_wrong"}),
    "POST /ui/logout": Row(roles=ANY_ROLE, own=303, foreign=303, form={}),
    "GET /ui/": Row(roles=VIEW, foreign=200),
    "GET /ui/queues/{name}": Row(roles=VIEW, thing="queue"),
    "POST /ui/queues/{name}/pause": Row(roles=OPERATE, own=303, thing="queue", form={}),
    "POST /ui/queues/{name}/resume": Row(roles=OPERATE, own=303, thing="queue", form={}),
    "POST /ui/queues/{name}/gate": Row(
        roles=OPERATE, own=303, thing="queue", form={"gate": "cap/{queue}", "slots": "2"}
    ),
    "GET /ui/jobs": Row(roles=VIEW, foreign=200, query="?queue={queue}"),
    "GET /ui/jobs/{job_id}": Row(roles=VIEW, thing="job"),
    "POST /ui/jobs/{job_id}/purge": Row(roles=OPERATE, own=303, thing="job", form={}),
    "POST /ui/jobs/{job_id}/cancel": Row(roles=OPERATE, own=303, thing="job", form={}),
    "POST /ui/jobs/{job_id}/redrive": Row(roles=OPERATE, own=303, thing="dead", form={}),
    "GET /ui/dead": Row(roles=VIEW, foreign=200, query="?queue={queue}"),
    "GET /ui/bulk/new": Row(roles=OPERATE, foreign=200),
    "POST /ui/bulk": Row(roles=OPERATE, own=303, foreign=303, form={"act": "cancel", "queue": "{queue}"}),
    "GET /ui/bulk/{action_id}": Row(roles=OPERATE, thing="move"),
    "POST /ui/bulk/{action_id}/start": Row(roles=OPERATE, own=303, thing="move", form={}),
    "POST /ui/bulk/{action_id}/stop": Row(roles=OPERATE, own=303, thing="move", form={}),
    "GET /ui/schedules": Row(roles=VIEW, foreign=200),
    "GET /ui/schedules/{name}": Row(roles=VIEW, thing="cron"),
    "POST /ui/schedules/{name}/edit": Row(roles=OPERATE, own=303, thing="cron", form={"rule": "@daily", "zone": "UTC"}),
    "POST /ui/schedules/{name}/pause": Row(roles=OPERATE, own=303, thing="cron", form={}),
    "POST /ui/schedules/{name}/run": Row(roles=OPERATE, own=303, thing="cron", form={}),
    "POST /ui/schedules/{name}/resume": Row(roles=OPERATE, own=303, thing="cron", form={}),
    "GET /ui/workers": Row(roles=VIEW, foreign=200),
    "GET /ui/logs": Row(roles=VIEW, foreign=200),
    "GET /ui/logs/{name}": Row(roles=VIEW, thing="log"),
    "POST /ui/logs/{name}/rewind": Row(
        roles=OPERATE, own=303, thing="log", form={"group": "g", "partition": "0", "offset": "0"}
    ),
    "GET /ui/operators": Row(roles=RULE, foreign=200),
    "GET /ui/keys": Row(roles=RULE, foreign=200),
    "POST /ui/keys/{key_id}/revoke": Row(roles=RULE, own=303, foreign=303, thing="key", form={}),
}


def routes() -> Iterator[tuple[str, tuple[Role, ...] | None, bool]]:
    """Every route of the app: its name, the roles its dependency requires, and whether it is a page's."""
    app = create_app(open_store("memory://"))
    for route in iter_route_contexts(app.routes):
        needs = list(_needs(getattr(route, "dependant", None)))
        assert len(needs) <= 1, f"{route.path} has two dependencies"
        for method in sorted(route.methods or ()):
            yield (
                f"{method} {route.path}",
                needs[0].roles if needs else None,
                bool(needs) and isinstance(needs[0], RequireSession),
            )


def _needs(dependant: Any) -> Iterator[RequireRole]:
    for each in dependant.dependencies if dependant is not None else ():
        if isinstance(each.call, RequireRole):
            yield each.call
        yield from _needs(each)


ROUTES: Final = {name: (roles, is_page) for name, roles, is_page in routes()}


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert set(ROUTES) == set(TABLE)


def test_open_routes_are_few_and_known() -> None:
    assert {name for name, (roles, _) in ROUTES.items() if roles is None} == {
        name for name, row in TABLE.items() if row.roles is None
    }


def test_the_matrix_is_large() -> None:
    assert len(TABLE) * (1 + len(Role)) * 2 >= 300


class World:
    """One server, a key and a session of every role for the queues `own*`, and things in `own` and in `far`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.store: Store = site.store
        self._numbers = count(1)
        self.callers: dict[Role | None, httpx.Client] = {None: site.with_key(None)}
        self.visitors: dict[Role | None, httpx.Client] = {None: site.with_key(None)}
        for role in Role:
            self.callers[role] = site.client(role, queues=("own*",))
            self.visitors[role] = self.logged_in(role, ("own*",))
        self._stranger = self.logged_in(Role.OPERATOR, ("far*",))

    def logged_in(self, role: Role, queues: tuple[str, ...]) -> httpx.Client:
        client = self.site.with_key(None, {"Origin": self.site.url})
        answer = client.post("/ui/login", data={"key": self.site.key(role, queues=queues)})
        assert answer.status_code == 303
        (cookie,) = answer.cookies.values()
        client.headers["X-CSRF-Token"] = self.site.context.authenticator.sessions.find(cookie).csrf
        return client

    def make(self, thing: str, queue: str, role: Role | None) -> str:
        """A new thing of a queue; of `NONE` only its name."""
        name = f"{queue}.{next(self._numbers)}"
        match thing:
            case "":
                return "none"
            case "queue":
                return queue
            case "key":
                return self.site.key(Role.VIEWER).split("_")[1]
            case "gate":
                return f"cap/{queue}"
            case "condition":
                return f"{queue}.room"
            case "move":
                return self._move(queue, role)
            case _ if queue == NONE:
                return str(10**15 + next(self._numbers)) if thing in ("job", "dead") else name
            case "cron":
                self.store.put_schedule(Schedule(name, "@daily", self.store.now() + 10**12, Draft("k", queue=queue)))
            case "log":
                return f"{queue}.log"
            case "job":
                return str(self.store.enqueue([Draft("k", queue=queue, delay=10**12)])[0].id)
            case _:
                return self._dead(queue)
        return name

    def _dead(self, queue: str) -> str:
        number = self.store.enqueue([Draft("k", queue=queue, priority=1)])[0].id
        while lease := self.store.claim([Want(queue, 1)], "matrix", seconds(600)):
            self.store.settle([(lease[0], DeadLetter(Failure("E", "broken")))])
            if lease[0].job.id == number:
                break
        return str(number)

    def _move(self, queue: str, role: Role | None) -> str:
        """A bulk action belongs to the actor that began it."""
        if queue == NONE:
            return "move-none"
        self.make("job", queue, role)
        mover = self.visitors[role if role in OPERATE else Role.OPERATOR] if queue == OWN else self._stranger
        page = mover.post("/ui/bulk", data={"act": "cancel", "queue": queue}).headers["location"]
        for _ in range(1_000):
            if f"{page}/start" in mover.get(page).text:
                return str(page.rsplit("/", 1)[1])
        raise AssertionError("the dry run does not end")

    def request(self, name: str, role: Role | None, queue: str) -> tuple[httpx.Response, str]:
        """The answer, and what the path names."""
        row, (_, is_page) = TABLE[name], ROUTES[name]
        method, _, path = name.partition(" ")
        thing = self.make(row.thing, queue, role)
        requested = path.replace("{job_id}", thing).replace("{name}", thing).replace("{partition}", "0")
        requested = requested.replace("{name:path}", thing).replace("{action_id}", thing).replace(
            "{key_id}", thing
        ) + row.query.replace("{queue}", queue)
        client = (self.visitors if is_page else self.callers)[role]
        sent: dict[str, Any] = {}
        if row.json is not None:
            sent["json"] = _filled(row.json, queue)
            if name.endswith("/batch"):
                sent = {"content": b'{"kind": "k", "queue": "%s"}\n' % queue.encode()}
                sent["headers"] = {"Content-Type": "application/x-ndjson"}
        if row.form is not None:
            sent["data"] = _filled(row.form, queue)
            sent["headers"] = {"Origin": self.site.url, "Content-Type": "application/x-www-form-urlencoded"}
        happened("requests")
        return client.request(method, requested, **sent), thing


def _filled(value: Any, queue: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(item, queue) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, queue) for item in value]
    return value.replace("{queue}", queue) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    store = open_store("memory://")
    for queue in (OWN, FAR):
        store.put_spec(QueueSpec(name=queue))
        store.enqueue([Draft("k", queue=queue, delay=10**12)])
        store.put_spec(QueueSpec(name=f"{queue}.log", retention=Retained()))
        store.append(f"{queue}.log", [b"1"])
        store.put_spec(QueueSpec(name=f"{queue}.waitlist", eligibility=Until(f"{queue}.room")))
    site = Site(store).start()
    try:
        yield World(site)
    finally:
        site.stop()
        store.close()


@pytest.mark.parametrize("queue", [OWN, FAR])
@pytest.mark.parametrize("name", sorted(TABLE))
def test_each_role_on_its_own_and_on_a_foreign_queue(world: World, name: str, queue: str) -> None:
    row = TABLE[name]
    wrong = []
    for role in (None, *Role):
        answer, _ = world.request(name, role, queue)
        if name == "POST /ui/logout" and role is not None:
            world.visitors[role] = world.logged_in(role, ("own*",))
        if row.roles is None:
            expected = row.own if queue == OWN else row.foreign
        elif role is None:
            expected = 303 if ROUTES[name][1] and name.startswith("GET") else 401
        elif role not in row.roles:
            expected = 403
        else:
            expected = row.own if queue == OWN else row.foreign
        if answer.status_code != expected:
            wrong.append((str(role), answer.status_code, f"not {expected}", answer.text[:200]))
        if role is None and expected == 303 and row.roles is not None:
            assert answer.headers["location"] == "/ui/login"
    assert not wrong


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.thing and row.foreign == 404))
def test_what_is_foreign_looks_like_what_never_was(world: World, name: str) -> None:
    """Only the name of what never was is written over: a job's number may be on a page by chance."""
    for role in sorted(TABLE[name].roles or ()):
        foreign, known = world.request(name, role, FAR)
        never, unknown = world.request(name, role, NONE)
        assert foreign.status_code == never.status_code
        assert _telling(foreign) == _telling(never)
        assert foreign.text == never.text.replace(unknown, known).replace(NONE, FAR)


def _telling(answer: httpx.Response) -> dict[str, str]:
    return {key: value for key, value in answer.headers.items() if key not in ("date", "content-length")}


@pytest.mark.parametrize(
    "name", sorted(name for name, (_, is_page) in ROUTES.items() if is_page and not name.startswith("GET"))
)
def test_no_page_changes_anything_without_its_token_or_from_elsewhere(world: World, name: str) -> None:
    """S5: for every route of a page that changes something."""
    role = min(TABLE[name].roles or ())
    client = world.visitors[role]
    path = name.partition(" ")[2].replace("{name}", OWN).replace("{job_id}", "1")
    path = path.replace("{action_id}", "m").replace("{key_id}", "k")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in (
        {"Origin": world.site.url, "X-CSRF-Token": "wrong"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": world.site.url.replace("127.0.0.1", "127.0.0.1.evil.example")},
        {"Origin": "https://" + world.site.url.removeprefix("http://") + ".evil.example"},
        {"Origin": ""},
        {"Origin": world.site.url, "X-CSRF-Token": world.visitors[Role.WORKER].headers["X-CSRF-Token"] + "x"},
    ):
        assert client.post(path, headers={**form, **headers}).status_code == 403
    bare = httpx.Client(base_url=world.site.url, cookies=client.cookies, trust_env=False)
    with bare:
        assert bare.post(path, headers=form).status_code == 403
        assert bare.post(path, headers={**form, "Origin": world.site.url}).status_code == 403


def test_a_cookie_opens_no_route_of_the_api(world: World) -> None:
    for name, (roles, is_page) in ROUTES.items():
        if roles is None or is_page:
            continue
        method, _, path = name.partition(" ")
        requested = path.replace("{job_id}", "1").replace("{name}", OWN).replace("{partition}", "0")
        assert world.visitors[Role.ADMIN].request(method, requested).status_code == 401
