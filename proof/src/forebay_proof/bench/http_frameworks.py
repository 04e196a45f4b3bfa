"""What a framework adds to a request: CPU of one call of the application, without a socket and without a store.

python -m forebay_proof.bench.http_frameworks  FastAPI, with and without pydantic; Litestar where installed

Every application has the same two routes: a job in and its receipt out, and a page of twenty rows by a filter. Each
checks a role. `direct` is what `POST /jobs` uses (`forebay.serve.api.routing.FastPath`).

`rate` is one request against a limit per caller, a thousand callers in turn: the server's token buckets beside the
moving and the sliding window of the package `limits`, where it is installed.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from forebay.serve.actor import Actor, Role
from forebay.serve.api.requests import NAME_PATTERN, NewJob
from forebay.serve.api.responses import Accepted, EntryPlace
from forebay.serve.api.routing import FastPath, JsonBody, NameFilter, ProducerActor, api_router
from forebay.serve.api.schema import ResponseModel
from forebay.serve.security.auth import CREDENTIALS, Credentials
from forebay.serve.security.limits import TokenBuckets
from forebay_proof.bench.measure import Figure, arguments, run

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
CALLS = 2_000
JOB = {"kind": "send_email", "payload": {"to": "ada@example.com", "subject": "Hello", "number": 42}, "queue": "mail"}
BODY = json.dumps(JOB).encode()
HEADERS = [
    (b"host", b"bench"),
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
]
ACTOR = Actor("bench", frozenset(Role))
RECEIPT = Accepted(1, "accepted", False, False, True)


class PageModel(ResponseModel, frozen=True):
    places: list[EntryPlace]
    next: int | None


PAGE = PageModel([EntryPlace(number, number) for number in range(20)], None)


def _fastapi() -> FastAPI:
    return FastAPI(openapi_url=None, telemetry={"metrics": False, "logs": False})


def msgspec_app() -> FastAPI:
    """FastAPI with the routes of the API: `ApiRoute`."""
    router = api_router("bench")

    @router.post("/jobs", status_code=202)
    async def enqueue(actor: ProducerActor, job: JsonBody[NewJob], request: Request) -> Accepted:  # noqa: ARG001
        return RECEIPT

    @router.get("/jobs")
    async def browse(
        actor: ProducerActor,  # noqa: ARG001
        queue: NameFilter = None,  # noqa: ARG001
        after: Annotated[int, Query(ge=0)] = 0,  # noqa: ARG001
        limit: Annotated[int, Query(ge=1, le=100)] = 100,  # noqa: ARG001
    ) -> PageModel:
        return PAGE

    app = _fastapi()
    app.include_router(router)
    return app


def pydantic_app() -> FastAPI:
    """FastAPI with models of pydantic."""
    name = Annotated[str, Field(pattern=NAME_PATTERN)]

    class JobModel(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        kind: name
        payload: Any = None
        queue: name | None = None
        priority: Annotated[int, Field(ge=-1_000, le=1_000)] = 0
        run_at: datetime | None = None
        delay: Annotated[float, Field(ge=0)] = 0
        deadline: datetime | None = None
        expires_at: datetime | None = None
        key: Annotated[str, Field(min_length=1, max_length=256)] | None = None
        tenant: name | None = None
        subject: str | None = None
        max_attempts: Annotated[int, Field(ge=1)] | None = None
        meta: dict[str, str] | None = None
        cost: Annotated[int, Field(ge=1)] | None = None

    class ReceiptModel(BaseModel):
        job_id: int
        status: str
        duplicate: bool
        merged: bool
        durable: bool

    class Place(BaseModel):
        partition: int
        offset: int

    class Places(BaseModel):
        places: list[Place]
        next: int | None

    receipt = ReceiptModel(job_id=1, status="accepted", duplicate=False, merged=False, durable=True)
    page = Places(places=[Place(partition=number, offset=number) for number in range(20)], next=None)
    app = _fastapi()

    async def producer(request: Request) -> Actor:
        actor: Actor = request.scope[CREDENTIALS].actor
        assert actor.has(Role.PRODUCER)
        return actor

    @app.post("/jobs", status_code=202)
    async def enqueue(job: JobModel, request: Request, actor: Annotated[Actor, Depends(producer)]) -> ReceiptModel:  # noqa: ARG001
        return receipt

    @app.get("/jobs")
    async def browse(
        actor: Annotated[Actor, Depends(producer)],  # noqa: ARG001
        queue: NameFilter = None,  # noqa: ARG001
        after: Annotated[int, Query(ge=0)] = 0,  # noqa: ARG001
        limit: Annotated[int, Query(ge=1, le=100)] = 100,  # noqa: ARG001
    ) -> Places:
        return page

    return app


def litestar_app() -> AsgiApp:
    """Litestar with the same structs. It has no `Raw`, so a payload is parsed."""
    litestar: Any = import_module("litestar")
    parameter = import_module("litestar.params").Parameter

    class ParsedJob(NewJob, frozen=True, forbid_unknown_fields=True):
        payload: Any = None

    def producer(connection: Any, _: Any) -> None:
        assert connection.scope[CREDENTIALS].actor.has(Role.PRODUCER)

    async def enqueue(data: ParsedJob, request: litestar.Request) -> Accepted:  # noqa: ARG001
        return RECEIPT

    async def browse(
        queue: Annotated[str | None, parameter(pattern=NAME_PATTERN)] = None,  # noqa: ARG001
        after: Annotated[int, parameter(ge=0)] = 0,  # noqa: ARG001
        limit: Annotated[int, parameter(ge=1, le=100)] = 100,  # noqa: ARG001
    ) -> PageModel:
        return PAGE

    handlers = [
        litestar.post("/jobs", status_code=202, guards=[producer])(enqueue),
        litestar.get("/jobs", guards=[producer])(browse),
    ]
    app: AsgiApp = litestar.Litestar(handlers, openapi_config=None, logging_config=None)
    return app


async def _call(app: AsgiApp, method: str, query: bytes) -> int:
    status = 0

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": BODY if method == "POST" else b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": "/jobs",
        "raw_path": b"/jobs",
        "query_string": query,
        "headers": list(HEADERS),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "state": {},
        CREDENTIALS: Credentials(ACTOR, "bench"),
    }
    await app(scope, receive, send)
    return status


def cpu(app: AsgiApp, method: str, query: bytes = b"") -> float:
    """Microseconds of one call."""

    async def calls() -> float:
        began = time.process_time()
        for _ in range(CALLS):
            assert await _call(app, method, query) in (200, 202)
        return (time.process_time() - began) / CALLS * 1e6

    return asyncio.run(calls())


def rates() -> dict[str, Callable[[str], object]]:
    """One request of a caller against a limit, by library."""
    buckets = TokenBuckets()
    found: dict[str, Callable[[str], object]] = {"token bucket": lambda caller: buckets.take(caller, 1e6, 1_000_000)}
    if find_spec("limits") is not None:
        limits: Any = import_module("limits")
        storage = import_module("limits.storage").MemoryStorage()
        strategies = import_module("limits.strategies")
        limit = limits.RateLimitItemPerSecond(1_000_000)
        moving = strategies.MovingWindowRateLimiter(storage)
        sliding = strategies.SlidingWindowCounterRateLimiter(storage)
        found["limits, moving window"] = lambda caller: moving.hit(limit, caller)
        found["limits, sliding window"] = lambda caller: sliding.hit(limit, caller)
    return found


def rate_cpu(take: Callable[[str], object]) -> float:
    """Microseconds of one request."""
    callers = [f"key:{number}" for number in range(1_000)]
    began = time.process_time()
    for number in range(10 * CALLS):
        take(callers[number % len(callers)])
    return (time.process_time() - began) / (10 * CALLS) * 1e6


def main() -> None:
    args = arguments(__doc__)
    ours = msgspec_app()
    apps: dict[str, AsgiApp] = {"fastapi + msgspec": ours, "fastapi + pydantic": pydantic_app()}
    if find_spec("litestar") is not None:
        apps["litestar"] = litestar_app()
    baseline = "post/direct"
    figures = [Figure(baseline, "µs", lambda: cpu(FastPath(ours, ours.routes), "POST"))]
    for name, app in apps.items():
        figures.append(Figure(f"post/{name}", "µs", lambda app=app: cpu(app, "POST"), baseline))  # type: ignore[misc]
    for name, app in apps.items():
        query = b"queue=mail&limit=20"
        figures.append(Figure(f"list/{name}", "µs", lambda app=app, q=query: cpu(app, "GET", q)))  # type: ignore[misc]
    for name, take in rates().items():
        base = "rate/token bucket"
        figures.append(Figure(f"rate/{name}", "µs", lambda take=take: rate_cpu(take), base))  # type: ignore[misc]
    run(figures, rounds=3 if args.quick else 7, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
