"""The door: who asks, and whether the route is for them.

    @router.get("/queues")
    async def queues(actor: Annotated[Actor, need(Role.VIEWER)]) -> ...

`Doorkeeper` stands before every route: it finds out who asks (a key, a token, a client's certificate), holds the caller
to its limits and leaves a `Pass`. Pages of a session count for its key, so that a flood of strangers is theirs alone.
`need` reads the pass: 401 when nobody known asks, 403 when the caller has none of its roles. That says something
about the route, never about a thing. Things are the route's business: what `actor.sees` denies is a 404, as if it had
never been.
"""

from collections.abc import Collection
from typing import Any, Final

from fastapi import Depends, Request
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.core.instant import Instant
from forebay.serve.actor import Actor, Role
from forebay.serve.problems import Problem
from forebay.serve.security.certificates import PEER, Certificates
from forebay.serve.security.following import KeyFollower
from forebay.serve.security.guarded import RECOGNISE
from forebay.serve.security.keys import Key, Keyring
from forebay.serve.security.limits import Allowance, Limits
from forebay.serve.security.sources import SOURCE
from forebay.serve.security.tokens import Tokens
from forebay.serve.security.usage import UsageFollower
from forebay.store.clock import SystemClock
from forebay.store.protocol import Store

PASS: Final = "forebay.pass"
ANYBODY: Final = "anybody"
"""Whose limits hold for those who are not known."""


class Pass(Struct, frozen=True):
    """Somebody known. `caller` is whose limits hold; `key` the key that was shown, if it was one."""

    actor: Actor
    caller: str
    allowance: Allowance = Allowance()
    key: str | None = None
    until: Instant | None = None


class Door:
    """Knows keys, tokens and certificates, and tells from a request who asks."""

    def __init__(
        self,
        keyring: Keyring,
        *,
        follower: KeyFollower | None = None,
        tokens: Tokens | None = None,
        certificates: Certificates | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.clock = SystemClock()
        self.keyring = keyring
        self.follower = follower
        self.tokens = tokens
        self.certificates = certificates
        self.limits = limits or Limits(wall=lambda: self.clock.now() / 1_000_000)
        self.usage: UsageFollower | None = None
        self.sessions: Any = None
        """Of the dashboard; put there with the walls."""

    @classmethod
    def of(cls, store: Store, **others: Any) -> "Door":
        """The door of a server on this store: keys and quotas are read now, and followed by two roles to be run."""
        keyring = Keyring()
        follower = KeyFollower(store, keyring)
        follower.step()
        door = cls(keyring, follower=follower, **others)
        door.usage = UsageFollower(store, door.limits.quotas, door.limits.names)
        door.usage.step()
        return door

    async def who(self, scope: Scope) -> Pass | None:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if shown:
            scheme, _, text = shown[0].decode("latin-1").partition(" ")
            return await self.holder(text.strip()) if len(shown) == 1 and scheme.lower() == "bearer" else None
        if self.certificates is not None and (peer := scope.get(PEER)) is not None:
            actor = self.certificates.actor(peer)
            return None if actor is None else Pass(actor, actor.name)
        return None

    def may_be_good(self, text: str) -> bool:
        """Whether a text is one of our keys, or nobody can say now; one that is none is counted."""
        if self.follower is not None and not self.follower.trusted:
            return True
        good = self.keyring.find(text, self.clock.now()) is not None
        self.limits.refused["bad-key"] += not good
        return good

    def seated(self, scope: Scope) -> Pass | None:
        """Whose session a page is asked for with. Only limits know it here: what a cookie opens is the page's word."""
        if self.sessions is None or not scope["path"].startswith("/ui/"):
            return None
        found: Pass | None = self.sessions.visit(Request(scope))
        return found

    async def holder(self, text: str) -> Pass | None:
        """Whose key or token this is."""
        if text.startswith("fb_"):
            if self.follower is not None and not self.follower.trusted:
                detail = "keys cannot be checked while the store is out of reach"
                raise Problem(503, "store-away", "The store is out of reach", detail, {"Retry-After": "2"})
            key = self.keyring.find(text, self.clock.now())
            return None if key is None else pass_of(key)
        if self.tokens is not None and (bearer := await self.tokens.bearer(text)) is not None:
            return Pass(bearer.actor, bearer.actor.name, until=bearer.until)
        return None


def pass_of(key: Key) -> Pass:
    allowance = Allowance(key.rate, key.burst, key.quota_hour, key.quota_day, key.queue_names)
    return Pass(key.actor(), f"key:{key.id}", allowance, key.id, key.expires_at)


class Doorkeeper:
    """ASGI: nobody passes unseen, and nobody takes more than its share."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        SOURCE.set(client[0] if client else "")
        try:
            visit = scope[PASS] = await self._door.who(scope)
            counted = visit or self._door.seated(scope)
            if counted is not None and (recognise := scope.get(RECOGNISE)) is not None:
                recognise()
            caller, allowance = (counted.caller, counted.allowance) if counted else (ANYBODY, Allowance())
            with self._door.limits.turn(caller, allowance, waits(scope)):
                await self._app(scope, receive, send)
        except Problem as refused:
            await refused.response()(scope, receive, send)


def waits(scope: Scope) -> bool:
    """Whether the request is a long poll or a stream of events: it holds a socket, and nothing else."""
    path, method = scope["path"], scope["method"]
    if method == "POST":
        return bool(path == "/claim")
    page = path.startswith("/ui/") and any(
        name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"]
    )
    return method == "GET" and (page or b"wait=" in scope["query_string"])


async def caller(request: Request) -> Actor:
    """Who asks, or a 401."""
    visit: Pass | None = request.scope[PASS]
    if visit is None:
        raise unauthorized()
    return visit.actor


def unauthorized() -> Problem:
    return Problem(
        401,
        "unauthorized",
        "Authentication is needed",
        "send a valid key: Authorization: Bearer fb_…",
        headers={"WWW-Authenticate": 'Bearer realm="forebay"'},
    )


class Need:
    """A dependency that lets callers with one of its roles pass; the matrix of tests reads `roles` from the router."""

    def __init__(self, roles: tuple[Role, ...]) -> None:
        self.roles = roles

    async def __call__(self, request: Request) -> Actor:
        return check_roles(await caller(request), self.roles)


def check_roles(actor: Actor, roles: tuple[Role, ...]) -> Actor:
    if not any(actor.has(role) for role in roles):
        raise Problem(403, "forbidden", "Missing role", f"it needs {' or '.join(roles)}")
    return actor


def need(*roles: Role) -> Any:
    """The caller, who has one of these roles."""
    return Depends(Need(roles))


def spend(request: Request, jobs: int) -> None:
    """Count jobs against the caller's quotas, or a 429; before they are enqueued."""
    visit: Pass | None = request.scope[PASS]
    door: Door = request.app.state.ground.door
    if visit is not None and jobs:
        door.limits.spend(visit.caller, visit.allowance, jobs)


def name_queues(request: Request, names: Collection[str]) -> None:
    """Count names of queues that are not configured against the caller's bound, or a 429; before they are used."""
    visit: Pass | None = request.scope[PASS]
    ground = request.app.state.ground
    known = ground.metrics.watch.configured
    if visit is not None and (fresh := [name for name in names if name not in known]):
        ground.door.limits.name_queues(visit.caller, visit.allowance, fresh)
