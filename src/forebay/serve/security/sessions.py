"""Dashboard sessions: a login with a key opens a session, which a cookie identifies.

The cookie is HttpOnly, SameSite=Strict, and Secure under TLS; it is a random id that only this process knows. A session
ends when it is idle, when it is old, at logout, and as soon as its key is revoked or expires. The API does not accept
cookies, so that no other site can make a browser use a key.

Every change from a page needs the session's CSRF token, in the form or in a header, and must come from a page of this
server (`Origin`). `require_session` checks all of that, so that no route can leave it out:

    @router.post("/ui/queues/{name}/pause")
    async def pause(name: str, actor: Annotated[Actor, require_session(Role.OPERATOR)]) -> ...
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Request, Response
from starlette.exceptions import HTTPException

from forebay.serve.actor import Actor, Role
from forebay.serve.problems import Problem
from forebay.serve.security.auth import (
    SAFE_METHODS,
    Authenticator,
    Credentials,
    RequireRole,
    check_roles,
    credentials_of,
    is_same_origin,
)
from forebay.serve.security.mounting import HOST_ACTOR, MOUNTED_AT

IDLE_SECONDS: Final = 30 * 60
MAX_AGE_SECONDS: Final = 12 * 3_600
ONE_TIME_SECONDS: Final = 15 * 60
MAX_SESSIONS: Final = 1_000
MAX_FIELDS: Final = 200
LOGIN: Final = "/ui/login"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"


class BrowserSession:
    """One logged-in browser."""

    __slots__ = ("credentials", "csrf", "opened_at", "used_at")

    def __init__(self, credentials: Credentials, now: float) -> None:
        self.credentials = credentials
        self.csrf = secrets.token_urlsafe(24)
        self.opened_at = now
        self.used_at = now


class Sessions:
    """The sessions of this process, at most `MAX_SESSIONS`: the least recently used one is closed for a new one."""

    def __init__(self, authenticator: Authenticator, now: Callable[[], float] = monotonic) -> None:
        self._authenticator = authenticator
        self._now = now
        self._open: OrderedDict[str, BrowserSession] = OrderedDict()
        self._one_time: dict[str, tuple[Credentials, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def one_time(self, actor: Actor) -> str:
        """A token that opens one session, once, for a URL that is printed to the terminal."""
        token = secrets.token_urlsafe(24)
        self._one_time[token] = (Credentials(actor, actor.name), self._now() + ONE_TIME_SECONDS)
        return token

    async def open(self, secret: str) -> str | None:
        """The cookie of a new session for an API key, a token of the issuer, or a one-time token; None: invalid."""
        credentials, until = self._one_time.pop(secret, (None, 0.0))
        if credentials is not None and self._now() >= until:
            return None
        credentials = credentials or await self._authenticator.verify(secret)
        if credentials is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._open[cookie] = BrowserSession(credentials, self._now())
        if len(self._open) > MAX_SESSIONS:
            self._open.popitem(last=False)
        return cookie

    def find(self, cookie: str, touch: bool = True) -> BrowserSession | None:
        """The session. Without `touch` the lookup does not count as use, so that the session can still become idle."""
        session, now = self._open.get(cookie), self._now()
        if session is None:
            return None
        alive = now - session.used_at < IDLE_SECONDS and now - session.opened_at < MAX_AGE_SECONDS
        credentials = self._current(session.credentials) if alive else None
        if credentials is None:
            del self._open[cookie]
            return None
        session.credentials = credentials
        if touch:
            session.used_at = now
            self._open.move_to_end(cookie)
        return session

    def credentials(self, request: Request) -> Credentials | None:
        """The credentials of the request's session, without counting as use."""
        session = self.find(request.cookies.get(cookie_name(request), ""), touch=False)
        return None if session is None else session.credentials

    def close(self, cookie: str) -> None:
        self._open.pop(cookie, None)

    def _current(self, credentials: Credentials) -> Credentials | None:
        """The credentials as their key is now; None: revoked or expired."""
        now = self._authenticator.clock.now()
        if credentials.key is not None:
            key = self._authenticator.keyring.find_valid(credentials.key, now)
            return None if key is None else credentials_of(key)
        return credentials if credentials.until is None or now < credentials.until else None


def sessions(request: Request) -> Sessions:
    found: Sessions = request.app.state.context.authenticator.sessions
    return found


def cookie_name(request: Request) -> str:
    """Browsers keep cookies by host, not by port: two servers on one machine must not share a name."""
    if request.url.scheme == "https":
        return "__Host-forebay"
    server = request.scope.get("server")
    return f"forebay-{server[1] if server else 0}"


async def log_in(request: Request, response: Response, secret: str) -> bool:
    """Open a session and set its cookie; False when the secret is invalid."""
    cookie = await sessions(request).open(secret.strip())
    if cookie is None:
        return False
    response.set_cookie(
        cookie_name(request),
        cookie,
        max_age=MAX_AGE_SECONDS,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return True


def log_out(request: Request, response: Response) -> None:
    name = cookie_name(request)
    sessions(request).close(request.cookies.get(name, ""))
    response.delete_cookie(name, path="/", secure=request.url.scheme == "https", httponly=True, samesite="strict")


def _session(request: Request, touch: bool = True) -> BrowserSession | None:
    return sessions(request).find(request.cookies.get(cookie_name(request), ""), touch)


def session_of(request: Request, *, touch: bool = True) -> Actor | None:
    """The logged-in actor. A live page passes touch=False, because its refresh is not a use by a person."""
    user: Actor | None = request.scope.get(HOST_ACTOR)
    if user is not None:
        return user
    session = _session(request, touch)
    return None if session is None else session.credentials.actor


def csrf_token(request: Request) -> str:
    """The value of the field `csrf` in a form of this session, or of this user of the host application."""
    user: Actor | None = request.scope.get(HOST_ACTOR)
    if user is not None:
        signed: str = request.app.state.context.signer.csrf_token(user.name)
        return signed
    session = _session(request, touch=False)
    return "" if session is None else session.csrf


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; the last one of each name."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise Problem(415, "media-type", "The body is not a form", "send application/x-www-form-urlencoded")
    try:
        body = (await request.body()).decode()
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        detail = f"send UTF-8 and at most {MAX_FIELDS} fields"
        raise Problem(422, "invalid", "The form cannot be read", detail) from None


def check_origin(request: Request) -> None:
    """Refuse a request that no page of this server sent, by the headers that browsers set."""
    if not is_same_origin(request):
        raise Problem(403, "csrf", "The request did not come from this server", "reload the page and try again")


async def check_csrf(request: Request) -> None:
    """Refuse a change that did not come from a page of this session."""
    check_origin(request)
    wanted = csrf_token(request)
    given = request.headers.get(CSRF_HEADER)
    if given is None:
        given = (await form_of(request)).get(CSRF_FIELD, "")
    if not wanted or not hmac.compare_digest(given.encode(), wanted.encode()):
        raise Problem(403, "csrf", "The request did not come from this session", "reload the page and try again")


class RequireSession(RequireRole):
    """`RequireRole` for pages: the actor is the session's, and a change must come from one of the session's pages.

    The actor is also at `request.state.actor`, for the frame of the page.
    """

    async def __call__(self, request: Request) -> Actor:
        actor = session_of(request)
        if actor is None:
            if request.method in SAFE_METHODS:
                raise HTTPException(303, headers={"Location": login_url(request)})
            raise Problem(401, "unauthorized", "Authentication is needed", f"log in at {login_url(request)}")
        if request.method not in SAFE_METHODS:
            await check_csrf(request)
        request.state.actor = check_roles(actor, self.roles)
        return actor


def login_url(request: Request) -> str:
    """The host application's, where there is one."""
    own: str | None = request.app.state.context.settings.login_url
    return own or f"{MOUNTED_AT.get()}{LOGIN}"


def require_session(*roles: Role) -> Any:
    """The logged-in actor, who has one of these roles."""
    return Depends(RequireSession(roles))
