"""Sessions of the dashboard: a key is shown once, then a cookie stands for it.

The cookie is HttpOnly, SameSite=Strict, and Secure under TLS; it is a random number that means something to this
process alone. A session ends when it is idle, when it is old, when somebody logs out, and as soon as its key is revoked
or expires. Cookies never open the API: only pages take them, so no other site can make a browser use a key.

Every change by a page needs its session's token, in the form or in a header, and must come from a page of this very
server (`Origin`). `seat` checks all of that, so that no route can forget it:

    @router.post("/ui/queues/{name}/pause")
    async def pause(name: str, actor: Annotated[Actor, seat(Role.OPERATOR)]) -> ...
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request, Response
from starlette.exceptions import HTTPException

from forebay.serve.actor import Actor, Role
from forebay.serve.problems import Problem
from forebay.serve.security.door import Door, Need, Pass, check_roles, pass_of

IDLE_SECONDS: Final = 30 * 60
OLDEST_SECONDS: Final = 12 * 3_600
ONCE_SECONDS: Final = 15 * 60
SESSIONS_MOST: Final = 1_000
FIELDS_MOST: Final = 200
LOGIN: Final = "/ui/login"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
_SAFE: Final = ("GET", "HEAD")


class Session:
    """One browser that is logged in."""

    __slots__ = ("born", "csrf", "seen", "visit")

    def __init__(self, visit: Pass, now: float) -> None:
        self.visit = visit
        self.csrf = secrets.token_urlsafe(24)
        self.born = now
        self.seen = now


class Sessions:
    """The sessions of this process, at most `SESSIONS_MOST`: the longest silent one makes room."""

    def __init__(self, door: Door, now: Callable[[], float] = monotonic) -> None:
        self._door = door
        self._now = now
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._once: dict[str, tuple[Pass, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def one_time(self, actor: Actor) -> str:
        """A token that opens one session, once, for a URL that a terminal prints."""
        token = secrets.token_urlsafe(24)
        self._once[token] = (Pass(actor, actor.name), self._now() + ONCE_SECONDS)
        return token

    async def open(self, shown: str) -> str | None:
        """The cookie of a new session for whoever shows a key, a token of the issuer, or a one-time token."""
        visit, until = self._once.pop(shown, (None, 0.0))
        if visit is not None and self._now() >= until:
            return None
        visit = visit or await self._door.holder(shown)
        if visit is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._open[cookie] = Session(visit, self._now())
        if len(self._open) > SESSIONS_MOST:
            self._open.popitem(last=False)
        return cookie

    def find(self, cookie: str, touch: bool = True) -> Session | None:
        """The session; a look without `touch` does not count as use, so that it still goes idle."""
        session, now = self._open.get(cookie), self._now()
        if session is None:
            return None
        alive = now - session.seen < IDLE_SECONDS and now - session.born < OLDEST_SECONDS
        visit = self._renewed(session.visit) if alive else None
        if visit is None:
            del self._open[cookie]
            return None
        session.visit = visit
        if touch:
            session.seen = now
            self._open.move_to_end(cookie)
        return session

    def visit(self, request: Request) -> Pass | None:
        """Whose limits hold for a page that is asked for; no use of the session yet."""
        session = self.find(request.cookies.get(cookie_name(request), ""), touch=False)
        return None if session is None else session.visit

    def close(self, cookie: str) -> None:
        self._open.pop(cookie, None)

    def _renewed(self, visit: Pass) -> Pass | None:
        """The pass as its key is now."""
        now = self._door.clock.now()
        if visit.key is not None:
            key = self._door.keyring.living(visit.key, now)
            return None if key is None else pass_of(key)
        return visit if visit.until is None or now < visit.until else None


def sessions(request: Request) -> Sessions:
    found: Sessions = request.app.state.ground.door.sessions
    return found


def cookie_name(request: Request) -> str:
    """Browsers keep cookies by host, not by port: two servers on one machine must not share a name."""
    if request.url.scheme == "https":
        return "__Host-forebay"
    server = request.scope.get("server")
    return f"forebay-{server[1] if server else 0}"


async def log_in(request: Request, response: Response, shown: str) -> bool:
    """Open a session and hand its cookie to the browser; False when what is shown opens nothing."""
    cookie = await sessions(request).open(shown.strip())
    if cookie is None:
        return False
    response.set_cookie(
        cookie_name(request),
        cookie,
        max_age=OLDEST_SECONDS,
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


def _session(request: Request, touch: bool = True) -> Session | None:
    return sessions(request).find(request.cookies.get(cookie_name(request), ""), touch)


def session_of(request: Request, *, touch: bool = True) -> Actor | None:
    """Who is logged in with this browser. A page that follows by itself does not touch: it is no use by a person."""
    session = _session(request, touch)
    return None if session is None else session.visit.actor


def csrf_token(request: Request) -> str:
    """What a form of this session must carry, in its field `csrf`."""
    session = _session(request, touch=False)
    return "" if session is None else session.csrf


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of several with one name the last."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise Problem(415, "media-type", "The body is no form", "send application/x-www-form-urlencoded")
    try:
        body = (await request.body()).decode()
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MOST))
    except ValueError:
        raise Problem(422, "invalid", "The form cannot be read", "send UTF-8 and few fields") from None


def check_origin(request: Request) -> None:
    """Whether a page of this server sends this: browsers say so, and other programs have no cookie to lend."""
    origin = request.headers.get("origin")
    if origin is None:
        own = request.headers.get("sec-fetch-site") == "same-origin"
    else:
        parts = urlsplit(origin)
        same_host = parts.netloc == request.headers.get("host") and parts.netloc != ""
        own = same_host and (parts.scheme == "https" or request.url.scheme == "http")
    if not own:
        raise Problem(403, "forged", "This was not sent by a page of this server", "reload the page and try again")


async def check_csrf(request: Request) -> None:
    """Refuse a change that did not come from this session's own pages."""
    check_origin(request)
    session = _session(request)
    given = request.headers.get(CSRF_HEADER)
    if given is None:
        given = (await form_of(request)).get(CSRF_FIELD, "")
    if session is None or not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise Problem(403, "forged", "This was not sent by a page of this session", "reload the page and try again")


class Seat(Need):
    """As `Need`, for pages: the caller is who is logged in; a change must come from one of the session's pages."""

    async def __call__(self, request: Request) -> Actor:
        actor = session_of(request)
        if actor is None:
            if request.method in _SAFE:
                raise HTTPException(303, headers={"Location": LOGIN})
            raise Problem(401, "unauthorized", "Authentication is needed", f"log in at {LOGIN}")
        if request.method not in _SAFE:
            await check_csrf(request)
        return check_roles(actor, self.roles)


def seat(*roles: Role) -> Any:
    """The one who is logged in, who has one of these roles."""
    return Depends(Seat(roles))
