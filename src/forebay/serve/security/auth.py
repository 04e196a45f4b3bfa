"""Authentication and roles.

    @router.get("/queues")
    async def queues(actor: Annotated[Actor, require_role(Role.VIEWER)]) -> ...

`AuthMiddleware` runs before every route: it authenticates the caller by API key, token or client certificate, applies
the caller's limits and stores `Credentials` in the scope. A dashboard page counts against the limits of the key that
opened its session, so that anonymous requests cannot use up the limits of operators.

`require_role` reads the credentials: 401 without any, 403 when the caller has none of the roles. Both are statements
about the route. What the caller may see is the route's own check: an object that `actor.sees` denies is a 404, the same
answer as for one that does not exist.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.serve.actor import Actor, Role
from forebay.serve.problems import Problem
from forebay.serve.security.connections import MARK_AUTHENTICATED, PEER
from forebay.serve.security.keys import ApiKey, KeyFollower, Keyring
from forebay.serve.security.limits import Allowance, Limits, UsageFollower
from forebay.serve.security.mounting import HOST_ACTOR
from forebay.serve.security.operator_log import SOURCE
from forebay.store.clock import SystemClock
from forebay.store.protocol import Store

if TYPE_CHECKING:
    from forebay.serve.security.tokens import TokenVerifier

CREDENTIALS: Final = "forebay.credentials"
SAFE_METHODS: Final = ("GET", "HEAD")
ANONYMOUS: Final = "anonymous"
"""The caller whose limits all unauthenticated requests share."""


class Credentials(Struct, frozen=True):
    """An authenticated caller. `caller` names the limits that apply; `key` is the id of its API key, if any."""

    actor: Actor
    caller: str
    allowance: Allowance = Allowance()
    key: str | None = None
    until: Instant | None = None


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    roles: tuple[Role, ...]
    queues: tuple[str, ...] = ("*",)
    tenant: str | None = None


class Certificates:
    """mTLS: actors by the common name of a client's certificate, which TLS has verified; names are compared exactly.

        {"billing-worker": {"roles": ["worker"], "queues": ["billing.*"]}}

    A client whose name is not listed may connect and needs a key.
    """

    def __init__(self, grants: dict[str, Grant]) -> None:
        self._actors = {
            name: Actor(f"cert:{name}", frozenset(grant.roles), grant.queues, grant.tenant)
            for name, grant in grants.items()
        }

    @classmethod
    def from_file(cls, path: Path) -> "Certificates":
        try:
            return cls(msgspec.json.decode(path.read_bytes(), type=dict[str, Grant]))
        except (OSError, msgspec.DecodeError) as error:
            raise Invalid("client roles", f"{path}: {error}", 'write {"name": {"roles": ["worker"]}}') from None

    def actor(self, name: str) -> Actor | None:
        return self._actors.get(name)


class Authenticator:
    """Turns keys, tokens and client certificates into credentials."""

    def __init__(
        self,
        keyring: Keyring,
        *,
        follower: KeyFollower | None = None,
        tokens: "TokenVerifier | None" = None,
        certificates: Certificates | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.clock = SystemClock()
        self.keyring = keyring
        self.follower = follower
        self.tokens = tokens
        self.certificates = certificates
        self.limits = limits or Limits(wall_clock=lambda: self.clock.now() / 1_000_000)
        self.usage: UsageFollower | None = None
        self.sessions: Any = None
        """The dashboard's sessions, set by `install_security`."""

    @classmethod
    def of(cls, store: Store, **others: Any) -> "Authenticator":
        """The authenticator of a server on this store. Keys and quotas are read now; two roles keep them up to date."""
        keyring = Keyring()
        follower = KeyFollower(store, keyring)
        follower.step()
        authenticator = cls(keyring, follower=follower, **others)
        authenticator.usage = UsageFollower(store, authenticator.limits.quotas, authenticator.limits.names)
        authenticator.usage.step()
        return authenticator

    async def authenticate(self, scope: Scope) -> Credentials | None:
        """By the Authorization header, or else by the client's certificate, or else by the host application."""
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        if headers:
            scheme, _, secret = headers[0].decode("latin-1").partition(" ")
            if len(headers) == 1 and scheme.lower() == "bearer":
                return await self.verify(secret.strip()) or host_credentials(scope)
        elif self.certificates is not None and (peer := scope.get(PEER)) is not None:
            actor = self.certificates.actor(peer)
            return None if actor is None else Credentials(actor, actor.name)
        if scope["method"] not in SAFE_METHODS and not is_same_origin(Request(scope)):
            return None
        return host_credentials(scope)

    async def verify(self, secret: str) -> Credentials | None:
        """The credentials of an API key or a token."""
        if secret.startswith("fb_"):
            if self.follower is not None and not self.follower.trusted:
                detail = "keys cannot be checked while the store is unavailable; try again"
                raise Problem(503, "store-unavailable", "The store is unavailable", detail, {"Retry-After": "2"})
            key = self.keyring.find(secret, self.clock.now())
            return None if key is None else credentials_of(key)
        if self.tokens is not None and (token := await self.tokens.verify(secret)) is not None:
            return Credentials(token.actor, token.actor.name, until=token.until)
        return None

    def may_accept_key(self, text: str) -> bool:
        """Whether a text is a valid key, or cannot be checked now. Invalid keys are counted."""
        if self.follower is not None and not self.follower.trusted:
            return True
        valid = self.keyring.find(text, self.clock.now()) is not None
        self.limits.refused["bad-key"] += not valid
        return valid

    def session_credentials(self, scope: Scope) -> Credentials | None:
        """The credentials of a page's session. They select limits only: pages check the session themselves."""
        if self.sessions is None or not scope["path"].startswith("/ui/"):
            return None
        found: Credentials | None = host_credentials(scope) or self.sessions.credentials(Request(scope))
        return found


def host_credentials(scope: Scope) -> Credentials | None:
    """Of the user of the host application in which the server is mounted."""
    actor: Actor | None = scope.get(HOST_ACTOR)
    return None if actor is None else Credentials(actor, f"user:{actor.name}")


def is_same_origin(request: Request) -> bool:
    """Whether a page of this server sent the request, by the headers that browsers set."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    parts = urlsplit(origin)
    same_host = parts.netloc == request.headers.get("host") and parts.netloc != ""
    return same_host and (parts.scheme == "https" or request.url.scheme == "http")


def credentials_of(key: ApiKey) -> Credentials:
    allowance = Allowance(key.rate, key.burst, key.quota_hour, key.quota_day, key.queue_names)
    return Credentials(key.actor(), f"key:{key.id}", allowance, key.id, key.expires_at)


class AuthMiddleware:
    """ASGI: authenticates each request and applies the caller's limits."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        SOURCE.set(client[0] if client else "")
        try:
            credentials = scope[CREDENTIALS] = await self._authenticator.authenticate(scope)
            counted = credentials or self._authenticator.session_credentials(scope)
            if counted is not None and (mark_authenticated := scope.get(MARK_AUTHENTICATED)) is not None:
                mark_authenticated()
            caller, allowance = (counted.caller, counted.allowance) if counted else (ANONYMOUS, Allowance())
            with self._authenticator.limits.admit(caller, allowance, is_long_poll(scope)):
                await self._app(scope, receive, send)
        except Problem as refused:
            await refused.response()(scope, receive, send)


def is_long_poll(scope: Scope) -> bool:
    """Whether the request is a long poll or an event stream, which holds a socket and nothing else."""
    path, method = scope["path"], scope["method"]
    if method == "POST":
        return bool(path == "/claim")
    if path == "/events":
        return bool(method == "GET")
    page = path.startswith("/ui/") and any(
        name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"]
    )
    return method == "GET" and (page or b"wait=" in scope["query_string"])


def authenticated_actor(request: Request) -> Actor:
    """The caller, or a 401."""
    credentials: Credentials | None = request.scope[CREDENTIALS]
    if credentials is None:
        raise unauthorized()
    return credentials.actor


def unauthorized() -> Problem:
    return Problem(
        401,
        "unauthorized",
        "Authentication is needed",
        "send a valid key: Authorization: Bearer fb_…",
        headers={"WWW-Authenticate": 'Bearer realm="forebay"'},
    )


class RequireRole(SecurityBase):
    """A dependency that admits callers with one of `roles`. The matrix test reads `roles` from the router."""

    model = HTTPBearer(description="an API key")
    scheme_name = "key"

    def __init__(self, roles: tuple[Role, ...]) -> None:
        self.roles = roles

    async def __call__(self, request: Request) -> Actor:
        return check_roles(authenticated_actor(request), self.roles)


def check_roles(actor: Actor, roles: tuple[Role, ...]) -> Actor:
    for role in roles:
        if actor.has(role):
            return actor
    raise Problem(403, "forbidden", "Missing role", f"it needs the role {' or '.join(roles)}")


def require_role(*roles: Role) -> Any:
    """The authenticated caller, who has one of these roles."""
    return Depends(RequireRole(roles))


def charge_jobs(request: Request, jobs: int) -> None:
    """Count jobs against the caller's quotas before they are enqueued, or a 429."""
    credentials: Credentials | None = request.scope[CREDENTIALS]
    authenticator: Authenticator = request.app.state.context.authenticator
    if credentials is not None and jobs:
        authenticator.limits.charge_jobs(credentials.caller, credentials.allowance, jobs)


def charge_queue_names(request: Request, names: Collection[str]) -> None:
    """Count names of queues without a spec against the caller's limit before they are used, or a 429."""
    credentials: Credentials | None = request.scope[CREDENTIALS]
    context = request.app.state.context
    configured = context.metrics.poller.configured
    if credentials is not None and (fresh := [name for name in names if name not in configured]):
        context.authenticator.limits.charge_queue_names(credentials.caller, credentials.allowance, fresh)
