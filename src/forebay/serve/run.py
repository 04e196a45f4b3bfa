"""Running the app: uvicorn with its quick parts where they are installed, and an end that loses nothing.

SIGTERM or ctrl-c: nothing new is accepted, long polls are answered at once, requests under way may finish within the
drain, and the process ends with code 0. A second signal does not wait.
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

from forebay.serve.ground import Ground
from forebay.serve.security.connections import Connections, Refusal, connections_most
from forebay.serve.security.door import unauthorized
from forebay.serve.security.guarded import protocol
from forebay.serve.settings import ServeSettings

BACKLOG: Final = 4_096
_SWITCH_EVERY: Final = 0.001
"""Seconds after which a thread that works for the store lets the loop have its turn."""

_YOUNG_MOST: Final = 10_000
"""New objects after which the collector looks for garbage; a hundred requests under way are about so many."""

_TURNS: Final = 2
"""Such looks before one at those who survived them too: it takes some ten milliseconds."""


class Server(uvicorn.Server):
    """One server; `ready` is told its address when it listens."""

    def __init__(self, app: FastAPI, settings: ServeSettings, ready: Callable[[str], None] | None = None) -> None:
        self._ground: Ground = app.state.ground
        self._scheme = "https" if settings.tls else "http"
        door = self._ground.door
        guarded = Connections(connections_most(settings.connections_most), dropped=door.limits.connection_dropped)
        refusal = Refusal(door.may_be_good, unauthorized(), self._scheme)
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=protocol(settings.idle_seconds, guarded, refusal),
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
        """Where it listens, once it has started."""
        host, port, *_ = self._listener.getsockname()
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready(self.url)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._ground.dismiss()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a signal that was heeded is not raised again: to drain and end is success."""
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
    """Bound now, so that a port that is taken is an error of the one who starts the server."""
    family = AF_INET6 if ":" in settings.host else AF_INET
    return create_server((settings.host, settings.port), family=family, backlog=BACKLOG)


def run(app: FastAPI, settings: ServeSettings, ready: Callable[[str], None]) -> int:
    """Serve until a signal comes; the exit code."""
    sys.setswitchinterval(_SWITCH_EVERY)
    calm_collector()
    server = Server(app, settings, ready)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve())
    return 0 if server.started else 1


def calm_collector() -> None:
    """What the app is made of lives as long as the process: the collector looks at it now, and never again.

    Else requests under way, which look like more and more survivors, make it walk over everything about once a second,
    and everybody waits meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MOST, _TURNS)
