"""An app's API and dashboard inside a WSGI application: Flask and others.

    dashboard = WsgiDashboard(fb, operator_of)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/jobs": dashboard})

`operator_of(environ)` returns the user of the application as an `Actor`, or None. See docs/guides/flask.md.

The server is an ASGI application. It runs on an event loop in a thread of this process, which the first request starts,
so that a server that forks its processes before has one in each. A WSGI server holds a thread for each response until
it is complete, so responses are passed on whole, and event streams are refused: pages show what they loaded.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from forebay.client import Forebay
from forebay.contrib.asgi import Actor, Dashboard, Role
from forebay.serve.problems import Problem
from forebay.serve.settings import ServeSettings

__all__ = ["Actor", "Role", "WsgiDashboard"]

Environ: TypeAlias = dict[str, Any]
WsgiAuth: TypeAlias = Callable[[Environ], Actor | None]

_ENVIRON: Final = "forebay.wsgi_environ"
_STOP_SECONDS: Final = 10.0


class WsgiDashboard:
    """The server of an app, to be mounted; it starts with the first request.

    authenticate  the user of a request as an `Actor`, from its WSGI environment; None: only keys count
    login_url     where those who are not logged in are sent
    settings      of the server; it fires no schedules by default, which workers do
    """

    def __init__(
        self,
        fb: Forebay,
        authenticate: WsgiAuth | None = None,
        *,
        login_url: str | None = None,
        settings: ServeSettings | None = None,
    ) -> None:
        self._settings = settings or ServeSettings(maintain=False, login_url=login_url)
        host = None if authenticate is None else _HostAuth(authenticate)
        self._dashboard = Dashboard(fb, host, settings=self._settings)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving = contextlib.AsyncExitStack()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        response = _Response()
        body, refused = self._body_of(environ)
        if refused is None:
            call = self._dashboard(_scope(environ), _Body(body).receive, response.send)
        else:
            call = refused.response()(_scope(environ), _Body(b"").receive, response.send)
        asyncio.run_coroutine_threadsafe(call, self._running()).result()
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", response.headers)
        return [bytes(response.body)]

    def close(self) -> None:
        """Stop the server; the next request starts it again. The store of the app stays open."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._serving.aclose(), loop).result(_STOP_SECONDS)
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(loop,), name="forebay-wsgi", daemon=True).start()
                entering = self._serving.enter_async_context(self._dashboard.serving())
                try:
                    asyncio.run_coroutine_threadsafe(entering, loop).result()
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    raise
                self._loop = loop
            return self._loop

    def _body_of(self, environ: Environ) -> tuple[bytes, Problem | None]:
        """The body of the request, or why it is refused."""
        if "text/event-stream" in environ.get("HTTP_ACCEPT", "") or environ.get("PATH_INFO") == "/events":
            detail = "a stream would hold a thread of this server: run forebay serve for live pages and events"
            return b"", Problem(406, "not-streamed", "Event streams are not served here", detail)
        try:
            size = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            return b"", Problem(400, "content-length", "The length of the body is not a number")
        if not 0 <= size <= self._settings.max_body:
            detail = f"{size} bytes, the limit is {self._settings.max_body}"
            return b"", Problem(413, "too-large", "The request is too large", detail)
        return environ["wsgi.input"].read(size) if size else b"", None


class _HostAuth:
    """The check of the host, in a thread: it may read a session from a database."""

    def __init__(self, authenticate: WsgiAuth) -> None:
        self._authenticate = authenticate

    async def __call__(self, request: Any) -> Actor | None:
        return await asyncio.to_thread(self._authenticate, request.scope[_ENVIRON])


class _Body:
    """The messages of one request: its body, then nothing more."""

    def __init__(self, body: bytes) -> None:
        self._left: bytes | None = body

    async def receive(self) -> dict[str, Any]:
        if self._left is None:
            await asyncio.Event().wait()
        body, self._left = self._left, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Response:
    """The messages of one response, put together."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


def _scope(environ: Environ) -> dict[str, Any]:
    """The request in the words of ASGI. WSGI has decoded its paths as Latin-1."""
    root, path = (environ.get(name, "").encode("latin-1") for name in ("SCRIPT_NAME", "PATH_INFO"))
    names = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
    for name in environ:
        if name.startswith("HTTP_") and name not in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"):
            names[name] = name[5:].replace("_", "-").lower()
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").rpartition("/")[2],
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": (root + path).decode("utf-8", "replace"),
        "raw_path": root + path,
        "root_path": root.decode("utf-8", "replace"),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [(name.encode(), environ[key].encode("latin-1")) for key, name in names.items() if environ.get(key)],
        "client": (environ.get("REMOTE_ADDR") or "unknown", int(environ.get("REMOTE_PORT") or 0)),
        "server": (environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)),
        _ENVIRON: environ,
    }


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
