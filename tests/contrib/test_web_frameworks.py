"""The examples run as they are, on SQLite and on Postgres; the dashboard is below their path, for their users."""

import asyncio
import os
import re
import runpy
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from flask import Flask, abort, request
from sqlalchemy import event
from sqlalchemy.orm import Session
from werkzeug.serving import make_server

from forebay import Forebay
from forebay.contrib.asgi import Actor, Dashboard, Role, lifespan
from forebay.contrib.sqlalchemy import enqueue_with
from forebay.contrib.wsgi import WsgiDashboard
from forebay.work.worker import Worker
from tests.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE = "http://shop.example"
COOKIE = {"cookie": "shop=secret"}
FAILING: dict[str, dict[str, Any]] = {
    "fastapi_shop.py": {"params": {"item": "pen"}, "headers": {"x-fail": "true"}},
    "litestar_shop.py": {"params": {"item": "pen", "fail": "true"}},
    "flask_shop.py": {"params": {"item": "pen", "fail": "1"}},
}


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the example finds its shop and its store: one database on Postgres, two files on SQLite."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        shop = url.replace("postgresql://", "postgresql+psycopg://")
    else:
        url, shop = f"sqlite:///{tmp_path}/jobs.db", f"sqlite:///{tmp_path}/shop.db"
    for name, value in {"FOREBAY_URL": url, "SHOP_DATABASE": shop, "SHOP_TOKEN": "secret"}.items():
        monkeypatch.setenv(name, value)
    return str(request.param)


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


@asynccontextmanager
async def visiting(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an ASGI application that has started."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
            yield client
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await running


def run_jobs(fb: Forebay) -> list[Any]:
    """The results of all jobs."""
    worker = Worker(fb)
    worker.start()
    try:
        return [fb.result(job.id) for job in list(fb.jobs())]
    finally:
        worker.drain(5)


async def check_shop(client: httpx.AsyncClient, fb: Forebay, failing: dict[str, Any]) -> None:
    """An order and its job, or neither."""
    placed = await client.post("/orders", params={"item": "book"})
    assert (placed.status_code, placed.json()) == (201, {"order": 1})
    refused = await client.post("/orders", **failing)
    assert refused.status_code == 409
    assert await asyncio.to_thread(run_jobs, fb) == ["receipt for book"]


async def check_dashboard(client: httpx.AsyncClient) -> None:
    """Below /jobs, for users of the shop; every link stays there."""
    stranger = await client.get("/jobs/ui/")
    assert (stranger.status_code, stranger.headers["location"]) == (303, "/login")
    page = await client.get("/jobs/ui/", headers=COOKIE)
    assert page.status_code == 200, page.text
    assert set(re.findall(r'(?:href|src|action)="(/[^/"]*/)', page.text)) == {"/jobs/"}
    for file in re.findall(r'(?:href|src)="(/jobs/ui/static/[^"]*)"', page.text):
        assert (await client.get(file)).status_code == 200
    assert (await client.get("/jobs/ui/jobs/1", headers=COOKIE)).status_code == 200
    (token,) = set(re.findall(r'name="csrf" value="([0-9a-f]{64})"', page.text))
    pause, own = "/jobs/ui/queues/default/pause", {**COOKIE, "origin": str(client.base_url).rstrip("/")}
    assert (await client.post(pause, headers=own, data={"csrf": "x"})).status_code == 403
    foreign = {**COOKIE, "origin": "http://elsewhere.example"}
    assert (await client.post(pause, headers=foreign, data={"csrf": token})).status_code == 403
    paused = await client.post(pause, headers=own, data={"csrf": token})
    assert (paused.status_code, paused.headers["location"]) == (303, "/jobs/ui/queues/default")
    assert (await client.get("/jobs/ui/keys", headers=COOKIE)).status_code == 403, "an operator is no admin"


async def check_api(client: httpx.AsyncClient) -> None:
    """A cookie comes with requests of other sites, a bearer token does not."""
    assert (await client.get("/jobs/jobs/1")).status_code == 401
    assert (await client.get("/jobs/jobs/1", headers=COOKIE)).json()["kind"] == "send_receipt"
    resume = "/jobs/queues/default/resume"
    assert (await client.post(resume, headers=COOKIE)).status_code == 401
    assert (await client.post(resume, headers={**COOKIE, "authorization": "Basic eDp5"})).status_code == 401
    assert (await client.post(resume, headers={**COOKIE, "origin": "http://elsewhere.example"})).status_code == 401
    own = {**COOKIE, "origin": str(client.base_url).rstrip("/")}
    assert (await client.post(resume, headers=own)).status_code in (200, 204)


CHECKS: list[Callable[[httpx.AsyncClient], Awaitable[None]]] = [check_dashboard, check_api]


def test_fastapi(database: str) -> None:
    shop = example("fastapi_shop.py")

    async def main() -> None:
        async with visiting(shop["app"]) as client:
            await check_shop(client, shop["fb"], FAILING["fastapi_shop.py"])
            for check in CHECKS:
                await check(client)

    asyncio.run(main())
    shop["engine"].dispose()


@pytest.mark.parametrize("store", ["the shop's database", "another"])
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_fastapi_with_async_sessions(
    driver: str, store: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_url if store == "the shop's database" else f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("FOREBAY_URL", url)
    monkeypatch.setenv("SHOP_DATABASE", postgres_url.replace("postgresql://", f"postgresql+{driver}://"))
    shop = example("fastapi_async_shop.py")

    async def main() -> None:
        async with visiting(shop["app"]) as client:
            await check_shop(client, shop["fb"], FAILING["fastapi_shop.py"])

    asyncio.run(main())


@pytest.mark.parametrize("example_name", ["fastapi_shop.py", "fastapi_async_shop.py", "litestar_shop.py"])
def test_a_commit_that_fails_is_no_success_for_the_client(
    example_name: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_URL", postgres_url)
    monkeypatch.setenv("SHOP_DATABASE", postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    shop = example(example_name)

    def refuse(_: Session) -> None:
        raise OSError("the database is gone")

    async def main() -> int:
        async with visiting(shop["app"]):
            transport = httpx.ASGITransport(shop["app"], raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                event.listen(Session, "before_commit", refuse)
                try:
                    answer = await client.post("/orders", params={"item": "book"})
                finally:
                    event.remove(Session, "before_commit", refuse)
                assert await asyncio.to_thread(list, shop["fb"].jobs()) == []
                return answer.status_code

    assert asyncio.run(main()) == 500
    if example_name != "fastapi_async_shop.py":
        shop["engine"].dispose()


def test_litestar(database: str) -> None:
    shop = example("litestar_shop.py")

    async def main() -> None:
        async with visiting(shop["app"]) as client:
            await check_shop(client, shop["fb"], FAILING["litestar_shop.py"])
            for check in CHECKS:
                await check(client)

    asyncio.run(main())
    shop["engine"].dispose()


@contextmanager
def uvicorn_of(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "uvicorn serves")
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def werkzeug_of(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


@pytest.mark.parametrize("name", FAILING)
def test_over_a_socket_of_a_real_server(name: str, database: str) -> None:
    """Uvicorn, or the server of werkzeug: orders, the dashboard below the app's path, its login and its API."""
    shop = example(name)
    served = werkzeug_of if name == "flask_shop.py" else uvicorn_of
    shop["fb"].backlog()  # `forebay migrate`

    async def main(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await check_shop(client, shop["fb"], FAILING[name])
            for check in CHECKS:
                await check(client)

    with served(shop["app"]) as url:
        asyncio.run(main(url))
    if name == "flask_shop.py":
        shop["dashboard"].close()
        shop["fb"].close()
    shop["engine"].dispose()


class ThreadedWsgi(httpx.AsyncBaseTransport):
    """A WSGI application for an async client; a thread a request, as its servers have it."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx.WSGITransport(app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        plain = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        answer = await asyncio.to_thread(self._inner.handle_request, plain)
        content = await asyncio.to_thread(answer.read)
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


def test_flask(database: str) -> None:
    shop = example("flask_shop.py")
    shop["fb"].backlog()  # `forebay migrate`

    async def main() -> None:
        async with httpx.AsyncClient(transport=ThreadedWsgi(shop["app"]), base_url=BASE) as client:
            await check_shop(client, shop["fb"], FAILING["flask_shop.py"])
            for check in CHECKS:
                await check(client)

    asyncio.run(main())
    shop["dashboard"].close()
    shop["fb"].close()
    shop["engine"].dispose()


def test_the_session_of_flask_sqlalchemy(database: str) -> None:
    """Its `db.session` is a scoped session; a view that fails leaves neither row nor job."""
    from flask_sqlalchemy import SQLAlchemy

    fb = Forebay(os.environ["FOREBAY_URL"])
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SHOP_DATABASE"]
    db = SQLAlchemy(app)

    class Order(db.Model):  # type: ignore[name-defined,misc]
        id = db.Column(db.Integer, primary_key=True)
        item = db.Column(db.String(50))

    @fb.job(keep_result=True)
    def send_receipt(order: int) -> str:
        with app.app_context():
            return f"receipt for {db.session.get_one(Order, order).item}"

    @app.post("/orders")
    def order() -> tuple[dict[str, int | None], int]:
        placed = Order(item=request.args["item"])
        db.session.add(placed)
        db.session.flush()
        job = enqueue_with(db.session, send_receipt, placed.id)
        if "fail" in request.args:
            abort(409)
        db.session.commit()
        return {"order": placed.id, "job": job}, 201

    fb.backlog()  # `forebay migrate`
    with app.app_context():
        db.create_all()
    client = app.test_client()
    # In the shop's own Postgres database the job is part of the transaction, and its id is known before the commit.
    joined = {"order": 1, "job": 1 if database == "postgres" else None}
    assert client.post("/orders?item=book").json == joined
    assert client.post("/orders?item=pen&fail=1").status_code == 409
    assert run_jobs(fb) == ["receipt for book"]
    with app.app_context():
        assert [order.item for order in db.session.query(Order)] == ["book"]
        db.session.remove()  # what is not in the pool is not closed with it
        db.engine.dispose()
    fb.close()


def test_a_wsgi_server_is_bounded_and_holds_no_thread_for_a_stream() -> None:
    fb = Forebay("memory://")
    dashboard = WsgiDashboard(fb, lambda _: Actor("ann", frozenset({Role.PRODUCER})))
    with (
        closing(dashboard),
        httpx.Client(transport=httpx.WSGITransport(dashboard), base_url=BASE) as client,
    ):
        for path, headers in (("/ui/", {"accept": "text/event-stream"}), ("/events", {})):
            refused = client.get(path, headers=headers)
            assert (refused.status_code, refused.json()["type"]) == (406, "urn:forebay:not-streamed")
        huge = {"REQUEST_METHOD": "POST", "PATH_INFO": "/jobs", "CONTENT_LENGTH": str(2**40), "wsgi.input": None}
        statuses: list[str] = []
        assert b"too-large" in b"".join(dashboard(huge, lambda status, _: statuses.append(status))), "it is not read"
        assert statuses[0].startswith("413 ")
        assert client.post("/jobs", content=b"x", headers={"content-length": "many"}).status_code == 400
        made = client.post("/jobs", json={"kind": "mail", "payload": "x" * 100_000}, headers={"origin": BASE})
        assert made.status_code == 202, made.text
    assert [len(job.body) for job in fb.jobs()] == [100_002]


def test_a_wsgi_server_starts_with_a_request_and_again_after_it_was_closed() -> None:
    fb = Forebay("memory://")
    dashboard = WsgiDashboard(fb)
    assert not is_open(fb), "a server that forks does so before"
    before = threading.enumerate()
    with httpx.Client(transport=httpx.WSGITransport(dashboard), base_url=BASE) as client:
        for _ in range(2):
            assert client.get("/ui/login").status_code == 200
            dashboard.close()
        started = [thread for thread in threading.enumerate() if thread not in before]
        assert not [thread for thread in started if thread.name == "forebay-wsgi" and is_live(thread)]


def is_live(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


def is_open(fb: Forebay) -> bool:
    return fb._store is not None


def test_the_store_is_open_while_the_application_runs(tmp_path: Path) -> None:
    fb = Forebay(f"sqlite:///{tmp_path}/jobs.db")
    dashboard = Dashboard(fb)

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url=BASE) as client:
            before = await client.get("/ui/login")
            assert (before.status_code, before.json()["type"].endswith("not-started")) == (503, True)
            async with lifespan(fb, dashboard)(None):
                assert is_open(fb)
                assert (await client.get("/ui/login")).status_code == 200
            assert not is_open(fb)
            assert (await client.get("/ui/login")).status_code == 503

    asyncio.run(main())


def test_a_live_page_ends_when_the_host_logs_its_user_out() -> None:
    fb = Forebay("memory://")
    users: list[Actor | None] = [Actor("ann", frozenset({Role.VIEWER}))]

    async def user_of(_: object) -> Actor | None:
        return users[0]

    dashboard = Dashboard(fb, user_of)

    async def main() -> str:
        async with lifespan(fb, dashboard)(None):
            received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            headers = [(b"host", b"shop.example"), (b"accept", b"text/event-stream")]
            scope = {"type": "http", "method": "GET", "path": "/ui/", "headers": headers, "query_string": b""}
            scope |= {
                "scheme": "http",
                "server": ("shop.example", 80),
                "client": ("127.0.0.1", 1),
                "http_version": "1.1",
            }
            first = iter([{"type": "http.request", "body": b"", "more_body": False}])

            async def receive() -> Any:
                return next(first, None) or await asyncio.Event().wait()

            stream = asyncio.create_task(dashboard(scope, receive, received.put))
            text = ""
            while "data:" not in text:
                text += (await received.get()).get("body", b"").decode()
            users[0] = None
            await asyncio.wait_for(stream, 30)
            while not received.empty():
                text += received.get_nowait().get("body", b"").decode()
            return text

    assert "event: over" in asyncio.run(main())


def test_what_a_user_of_the_host_does_is_recorded_by_name() -> None:
    fb = Forebay("memory://")
    fb.enqueue("mail")
    dashboard = Dashboard(fb, lambda _: Actor("ann", frozenset({Role.ADMIN})))

    async def main() -> str:
        async with visiting_raw(fb, dashboard) as client:
            page = (await client.get("/ui/")).text
            token = re.findall(r'name="csrf" value="([0-9a-f]{64})"', page)[0]
            done = await client.post("/ui/queues/default/pause", headers={"origin": BASE}, data={"csrf": token})
            assert done.status_code == 303
            return (await client.get("/ui/operators")).text

    assert re.search(r"ann.*pause|pause.*ann", asyncio.run(main()), re.DOTALL)


@asynccontextmanager
async def visiting_raw(fb: Forebay, dashboard: Dashboard) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(dashboard)
    async with lifespan(fb, dashboard)(None), httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client
