"""A worker's window: `GET /metrics` for Prometheus and `GET /health` for whoever restarts processes.

Plain HTTP from the standard library, in threads of its own, on this machine alone unless it is told another address:
nobody is asked for a key, so a wider address is for a network that is trusted. At most a few requests at once, each
with a time limit; the worker's own roles are looked at and never waited for, but for the loop, which is asked how long
it takes to answer.
"""

import logging
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any, Final, Protocol

from forebay.core.errors import Invalid
from forebay.work.claimer import Claimer
from forebay.work.meter import Family, Sample, counter, gauge, histogram, text_of
from forebay.work.options import Options, checked_place
from forebay.work.pool import Pool
from forebay.work.reaper import Promoter, Reaper
from forebay.work.renewer import Renewer
from forebay.work.role import STALLED_SECONDS
from forebay.work.settler import Settler

_log = logging.getLogger("forebay.work")

_AT_ONCE: Final = 4
_SECONDS: Final = 5.0
_LAG_MOST: Final = 1.0
_STATES: Final = ("closed", "open", "half-open")


class Watched(Protocol):
    """What the window needs of a worker."""

    options: Options
    pool: Pool
    claimer: Claimer
    settler: Settler
    renewer: Renewer
    reaper: Reaper
    promoter: Promoter

    @property
    def healthy(self) -> bool: ...

    def progress_age(self) -> float: ...

    def failed(self) -> dict[str, int]: ...


def families(worker: Watched) -> Iterator[Family]:
    """All that one worker process counts."""
    pool, claimer, settler, renewer = worker.pool, worker.claimer, worker.settler, worker.renewer
    yield gauge("forebay_worker_healthy", "1: it claims, and can run what it claims.", _one(worker.healthy))
    yield gauge("forebay_worker_slots", "Jobs that may run at once.", _one(worker.options.concurrency))
    yield gauge("forebay_worker_running", "Jobs in its hands.", _one(pool.running))
    yield gauge("forebay_worker_free", "Jobs that it would take now.", _one(max(0, pool.free)))
    yield gauge("forebay_worker_loop_lag_seconds", "How long the loop takes to answer.", _one(pool.lag(_LAG_MOST)))
    told = "Since the store last answered a claim, or the pool was full."
    yield gauge("forebay_worker_progress_age_seconds", told, _one(worker.progress_age()))
    yield counter("forebay_worker_claims_total", "Calls of claim.", _one(claimer.claims))
    yield counter("forebay_worker_claimed_total", "Jobs that it got.", _one(claimer.claimed))
    yield histogram("forebay_worker_claim_seconds", "How long a claim takes.", [((), claimer.took.look())])
    settled: list[Sample] = [((("answer", "applied"),), settler.applied), ((("answer", "stale"),), settler.stale)]
    told = "Verdicts that were written. stale: somebody else had the job by then."
    yield counter("forebay_worker_settles_total", told, settled)
    yield gauge("forebay_worker_verdicts_waiting", "Verdicts that are not yet written.", _one(settler.waiting))
    yield counter("forebay_worker_renewals_total", "Leases that it made longer.", _one(renewer.renewed))
    yield counter("forebay_worker_leases_lost_total", "Leases that others had taken.", _one(renewer.lost))
    yield counter("forebay_worker_reaped_total", "Jobs taken back from others.", _one(worker.reaper.reaped))
    yield counter("forebay_worker_promoted_total", "Jobs that it made ready.", _one(worker.promoter.promoted))
    failed: list[Sample] = [((("role", role),), float(count)) for role, count in worker.failed().items()]
    yield counter("forebay_worker_errors_total", "Steps that failed, as when the store is away.", failed)
    circuits = pool.circuits()
    states: list[Sample] = [
        ((("kind", kind), ("state", state)), float(state == now))
        for kind, (now, _) in circuits.items()
        for state in _STATES
    ]
    yield gauge("forebay_breaker_state", "1: the state that the breaker is in.", states)
    saved: list[Sample] = [((("kind", kind),), float(count)) for kind, (_, count) in circuits.items()]
    yield counter("forebay_breaker_saved_total", "Runs that were not wasted on what is down.", saved)


def _one(value: float) -> list[Sample]:
    return [((), float(value))]


class Window:
    """Listens at once, on the first of `tries` ports that is free; answers from `open` on."""

    def __init__(self, worker: Watched, place: str, tries: int = 1) -> None:
        host, first = checked_place(place)
        failure: OSError | None = None
        for port in range(first, min(first + tries, 65_536)):
            try:
                self._server = _Server((host, port), worker)
                return
            except OSError as error:
                failure = error
        raise Invalid("metrics", f"{host}:{first} cannot be listened on: {failure}", "name another address")

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    def open(self) -> None:
        Thread(target=self._server.serve_forever, name="forebay-window", daemon=True).start()
        _log.info("metrics at port %d", self.port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, place: tuple[str, int], worker: Watched) -> None:
        self.worker = worker
        self._room = BoundedSemaphore(_AT_ONCE)
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, _Answer)

    def server_bind(self) -> None:
        # Without the look-up of a name that the parent class makes.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a reader of the metrics went away", exc_info=True)


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                self._say(200, "text/plain; version=0.0.4; charset=utf-8", text_of(families(self.server.worker)))
            case "/health":
                worker = self.server.worker
                age = worker.progress_age()
                ailment = f"no claim round for {age:.0f} s" if age > STALLED_SECONDS else "broken"
                self._say(*((200, "text/plain", "alive\n") if worker.healthy else (503, "text/plain", f"{ailment}\n")))
            case _:
                self._say(404, "text/plain", "there is /metrics, and there is /health\n")

    def _say(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are not worth a line each."""
