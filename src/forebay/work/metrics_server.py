"""The metrics endpoint of a worker: `GET /metrics` for Prometheus and `GET /health` for a process supervisor.

Plain HTTP from the standard library, on the loopback interface unless configured otherwise. There is no
authentication, so bind a wider address only on a trusted network. Concurrent requests are bounded and each has a
timeout. A scrape reads the roles without waiting for them; only the event loop is probed, for its lag.
"""

import logging
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any, Final, Protocol

from forebay.core.errors import Invalid
from forebay.work.claimer import Claimer
from forebay.work.heartbeat import Renewer
from forebay.work.metrics import Family, Sample, counter, gauge, histogram, to_text
from forebay.work.options import Options, parse_address
from forebay.work.pool import Pool
from forebay.work.reaper import Promoter, Reaper
from forebay.work.role import STALLED_SECONDS
from forebay.work.settler import Settler

_log = logging.getLogger("forebay.work")

_MAX_REQUESTS: Final = 4
_TIMEOUT: Final = 5.0
_MAX_LAG: Final = 1.0
_STATES: Final = ("closed", "open", "half-open")


class MeteredWorker(Protocol):
    """The part of a worker that its metrics read."""

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


def families(worker: MeteredWorker) -> Iterator[Family]:
    """All metrics of one worker process."""
    pool, claimer, settler, renewer = worker.pool, worker.claimer, worker.settler, worker.renewer
    yield gauge("forebay_worker_healthy", "1: the worker claims jobs and can run them.", _one(worker.healthy))
    yield gauge("forebay_worker_slots", "Jobs that may run at once.", _one(worker.options.concurrency))
    yield gauge("forebay_worker_running", "Jobs held by the worker, running or waiting for a slot.", _one(pool.running))
    yield gauge("forebay_worker_free", "Jobs that the worker could start now.", _one(max(0, pool.free)))
    yield gauge("forebay_worker_loop_lag_seconds", "Event loop lag.", _one(pool.lag(_MAX_LAG)))
    description = "Time since the store last answered a claim, or the pool was full."
    yield gauge("forebay_worker_progress_age_seconds", description, _one(worker.progress_age()))
    yield counter("forebay_worker_claims_total", "Claim calls.", _one(claimer.claims))
    yield counter("forebay_worker_claimed_total", "Jobs claimed.", _one(claimer.claimed))
    durations = claimer.durations.snapshot()
    yield histogram("forebay_worker_claim_duration_seconds", "Duration of a claim.", [((), durations)])
    settled: list[Sample] = [((("answer", "applied"),), settler.applied), ((("answer", "stale"),), settler.stale)]
    description = "Verdicts written. stale: the job had another lease by then."
    yield counter("forebay_worker_settles_total", description, settled)
    yield gauge("forebay_worker_verdicts_pending", "Verdicts not yet written.", _one(settler.pending))
    yield counter("forebay_worker_renewals_total", "Leases renewed.", _one(renewer.renewed))
    yield counter("forebay_worker_leases_lost_total", "Leases lost to other workers.", _one(renewer.lost))
    yield counter("forebay_worker_reaped_total", "Expired leases reclaimed.", _one(worker.reaper.reaped))
    yield counter("forebay_worker_promoted_total", "Jobs moved from waiting to ready.", _one(worker.promoter.promoted))
    failed: list[Sample] = [((("role", role),), float(count)) for role, count in worker.failed().items()]
    yield counter("forebay_worker_errors_total", "Failed steps by role.", failed)
    circuits = pool.circuits()
    states: list[Sample] = [
        ((("kind", kind), ("state", state)), float(state == now))
        for kind, (now, _) in circuits.items()
        for state in _STATES
    ]
    yield gauge("forebay_breaker_state", "1 for the current state of the circuit breaker.", states)
    rejected: list[Sample] = [((("kind", kind),), float(count)) for kind, (_, count) in circuits.items()]
    yield counter("forebay_breaker_rejected_total", "Runs that an open circuit breaker postponed.", rejected)


def _one(value: float) -> list[Sample]:
    return [((), float(value))]


class MetricsServer:
    """Binds in the constructor, to the first free one of `ports` ports; answers after `start`."""

    def __init__(self, worker: MeteredWorker, address: str, ports: int = 1) -> None:
        host, first = parse_address(address)
        failure: OSError | None = None
        for port in range(first, min(first + ports, 65_536)):
            try:
                self._server = _Server((host, port), worker)
                return
            except OSError as error:
                failure = error
        raise Invalid("metrics", f"cannot listen on {host}:{first}: {failure}", "choose another address")

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    def start(self) -> None:
        Thread(target=self._server.serve_forever, name="forebay-metrics", daemon=True).start()
        _log.info("metrics on port %d", self.port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], worker: MeteredWorker) -> None:
        self.worker = worker
        self._requests = BoundedSemaphore(_MAX_REQUESTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _RequestHandler)

    def server_bind(self) -> None:
        # The parent class would also resolve the host name, which can block.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._requests.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._requests.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a metrics client disconnected", exc_info=True)


class _RequestHandler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", to_text(families(self.server.worker)))
            case "/health":
                worker = self.server.worker
                age = worker.progress_age()
                reason = f"no claim round for {age:.0f} s" if age > STALLED_SECONDS else "broken"
                self._send(*((200, "text/plain", "alive\n") if worker.healthy else (503, "text/plain", f"{reason}\n")))
            case _:
                self._send(404, "text/plain", "not found: use /metrics or /health\n")

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are not logged."""
