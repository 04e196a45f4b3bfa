"""Running the app under uvicorn, and draining it.

On SIGTERM or ctrl-c the server accepts nothing new and answers long polls at once; requests in flight may finish within
the drain, and the process exits with code 0. A second signal ends it without waiting.
"""

import asyncio
import contextlib
import gc
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from socket import AF_INET, AF_INET6, create_server, socket
from typing import Final

import uvicorn
from fastapi import FastAPI

from forebay.serve.context import ServerContext
from forebay.serve.security.auth import unauthorized
from forebay.serve.security.connections import Connections, EarlyRejection, connection_limit, guarded_protocol
from forebay.serve.settings import ServeSettings

BACKLOG: Final = 4_096
_SWITCH_EVERY: Final = 0.001
"""The interpreter's switch interval in seconds: how long a store thread may keep the event loop waiting."""

_GC_YOUNG: Final = 10_000
"""New objects between two collections of the young generation; about a hundred requests in flight."""

_GC_MIDDLE: Final = 2
"""Young collections before one of the middle generation, which takes about ten milliseconds."""


class HttpServer(uvicorn.Server):
    """One server; `ready` is called with its address when it listens."""

    def __init__(self, app: FastAPI, settings: ServeSettings, ready: Callable[[str], None] | None = None) -> None:
        self._context: ServerContext = app.state.context
        self._scheme = "https" if settings.tls else "http"
        authenticator = self._context.authenticator
        limit = connection_limit(settings.max_connections)
        connections = Connections(limit, dropped=authenticator.limits.connection_dropped)
        rejection = EarlyRejection(authenticator.may_accept_key, unauthorized(), self._scheme)
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=guarded_protocol(settings.idle_seconds, connections, rejection),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=max(1, int(settings.idle_seconds)),
                timeout_graceful_shutdown=max(1, round(settings.drain)),
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                ssl_ca_certs=settings.tls_client_ca,
                ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
            )
        )
        self._ready = ready
        self._listener = listener(settings)

    async def serve(self, sockets: list[socket] | None = None) -> None:
        await super().serve([self._listener])

    @property
    def url(self) -> str:
        """The address that it listens on."""
        host, port, *_ = self._listener.getsockname()
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready(self.url)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._context.end_polls()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in uvicorn, but a handled signal is not raised again: a drained server exits with success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def listener(settings: ServeSettings) -> socket:
    """The listening socket, bound here so that a port in use raises in the caller."""
    family = AF_INET6 if ":" in settings.host else AF_INET
    return create_server((settings.host, settings.port), family=family, backlog=BACKLOG)


def run(app: FastAPI, settings: ServeSettings, ready: Callable[[str], None]) -> int:
    """Serve until a signal arrives; the exit code."""
    server = HttpServer(app, settings, ready)
    sys.setswitchinterval(_SWITCH_EVERY)
    tune_collector()
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve())
    return 0 if server.started else 1


def tune_collector() -> None:
    """Freeze the app's own objects, which live as long as the process, out of garbage collection.

    Otherwise requests in flight promote so many objects that a full collection walks over everything about once a
    second, and all requests wait for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, _GC_MIDDLE)
