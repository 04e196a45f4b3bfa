"""The worker: all roles of one process, started together and drained together.

    claimer -> pool -> settler       jobs in, handlers run, verdicts out
    renewer, cancel listener         keep the leases of what runs, deliver cancel requests
    reaper, promoter, ticker,        maintain the store; every worker does it, any number may race
    recovery
    announcer, progress reporter     what operators see

SIGTERM drains: the worker stops claiming, running jobs may finish within the drain timeout, the rest is released for
other workers to claim, and the exit code is 0. A second SIGTERM skips the wait. A job whose lease is lost is never
acknowledged. Start-up hooks run before the first claim, shutdown hooks after the drain. A process whose event loop died
or whose threads hang exits with code 70, so that its supervisor replaces it.
"""

import faulthandler
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.core.errors import ForebayError, StoreFailed
from forebay.core.humanize import many
from forebay.core.policy import Routing
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Pipelining, Store
from forebay.work.app import App, find_app
from forebay.work.claimer import Claimer
from forebay.work.exit_status import BROKEN, CANNOT_START
from forebay.work.heartbeat import Announcer, CancelListener, ProgressReporter, Renewer
from forebay.work.hooks import Hooked, Hooks
from forebay.work.job_log import JobLog
from forebay.work.lifespan import Lifespan, StartupFailed
from forebay.work.log_setup import configure_logging
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.process_guards import DescriptorGuard
from forebay.work.reaper import Promoter, Reaper
from forebay.work.recovery import Recovery
from forebay.work.role import STALLED_SECONDS, RoleThread, ThrottledLogger, WorkerRole
from forebay.work.settler import GATHER, PipelinedClaimer, Settler
from forebay.work.stall_watch import stall_bound
from forebay.work.start_marks import StartMarks, marks_directory, marks_of, marks_path, stacks_path
from forebay.work.ticker import Ticker

if TYPE_CHECKING:
    from forebay.work.metrics_server import MetricsServer

_log = logging.getLogger("forebay.work")

_SPECS_TTL: Final = 5.0
_POLL_INTERVAL: Final = 0.2
_SIGNAL_INTERVAL: Final = 0.05
_PIPELINE_WAIT: Final = 0.005
"""Seconds for which a verdict waits for a claim to be sent with."""

_SWITCH_INTERVAL: Final = 0.001
_MAX_FLUSH: Final = 10.0
_MAX_CLAIM: Final = 2.0
_UNREACHABLE_SECONDS: Final = 60.0
_OPEN_INTERVAL: Final = 1.0
_ON_DISK: Final = ("sqlite:", "memory:")
_METRICS_PORTS: Final = 64
"""Ports that the processes of one supervisor try for their metrics endpoints."""


def new_owner() -> str:
    """A unique owner name for the leases of this process."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


class RoutingCache:
    """The routing of each queue, read from the store every few seconds; kept while the store is unreachable."""

    def __init__(self, store: Store, log: ThrottledLogger | None = None) -> None:
        self._store = store
        self._throttled = log or ThrottledLogger()
        self._specs: dict[str, QueueSpec] = {}
        self._read_at = float("-inf")

    def __call__(self, queue: str) -> Routing:
        if monotonic() - self._read_at > _SPECS_TTL:
            self._read_at = monotonic()
            try:
                self._specs = {spec.name: spec for spec in self._store.specs()}
            except Exception as error:
                self._throttled.log_failure("routing", error)
        spec = self._specs.get(queue)
        return Routing() if spec is None else spec.routing


class Worker:
    """All roles of one process. `supervised`: a supervisor replaces the process when it exits."""

    def __init__(
        self,
        app: App,
        options: Options = Options(),  # noqa: B008
        *,
        target: str | None = None,
        owner: str | None = None,
        supervised: bool = False,
    ) -> None:
        store, self._registry = app.store, app.registry
        self.owner = owner or new_owner()
        self.options = options
        self._supervised = supervised
        directory = marks_directory(app.url)
        marks = self._marks = None if directory is None else StartMarks(marks_path(directory, self.owner))
        throttled, job_log = ThrottledLogger(), JobLog()
        routing = RoutingCache(store, throttled)
        pipelined = isinstance(store, Pipelining)
        self.settler = Settler(
            store,
            lambda lease, _: self.pool.settled(lease.fence),
            gather=_PIPELINE_WAIT if pipelined else GATHER,
            between=_PIPELINE_WAIT if pipelined else 0.0,
        )
        self._descriptors = DescriptorGuard()
        self._hooks = app.hooks if isinstance(app, Hooked) else Hooks()
        self._lifespan = Lifespan(self._hooks, self._run_on_loop)
        self.pool = Pool(
            self._lifespan.wired(app.registry),
            options,
            routing,
            self.settler.put,
            store=lambda: store,
            target=target,
            # A memory store cannot be opened in another process.
            quarantine=not app.url.startswith("memory:"),
            marks=marks,
            descriptors=self._descriptors if self._supervised else None,
            log=job_log,
            uses_loop=self._hooks.needs_loop,
        )
        claim = PipelinedClaimer(store, self.settler).claim if isinstance(store, Pipelining) else None
        self.claimer = Claimer(store, self.pool, options, self.owner, self.settler.put, claim=claim)
        self.renewer = Renewer(store, self.pool, options)
        self.reaper = Reaper(
            store, routing, after_outage=True, log=job_log, marks=partial(marks_of, directory), owner=self.owner
        )
        self.promoter = Promoter(store)
        self.ticker = Ticker(store, layers=self._hooks.enqueue_layers_for(app.registry))
        self.announcer = Announcer(store, self.pool, options, self.owner, app.registry)
        reporter = ProgressReporter(store, self.pool)
        maintaining: list[WorkerRole] = [self.pool, self.renewer, self.reaper, self.promoter, self.ticker, reporter]
        maintaining += app.roles()
        maintaining += [] if directory is None else [Recovery(store, routing, directory, self.owner, job_log)]
        self._claiming = RoleThread(self.claimer, throttled)
        self._settling = RoleThread(self.settler, throttled)
        self._announcing = RoleThread(self.announcer, throttled)
        self._listening = RoleThread(CancelListener(store, self.pool, self.owner), throttled)
        self._maintaining = [*(RoleThread(role, throttled) for role in maintaining), self._announcing]
        self._signals, self._signalled = 0, Event()

    @property
    def healthy(self) -> bool:
        """Claims complete and the pool can run jobs. A claim that hangs counts as no progress."""
        return self._able and self.progress_age() <= STALLED_SECONDS

    @property
    def broken(self) -> bool:
        """Whether this process should be replaced.

        If the store has been unreachable for long, the cause may be in this process. A supervised one exits then, once
        nothing runs here and every verdict is written: a restart is cheap. An unsupervised one keeps retrying.
        """
        unreachable = self._supervised and self.progress_age() > _UNREACHABLE_SECONDS
        return not self._able or (unreachable and self.pool.idle and self.settler.empty)

    @property
    def _able(self) -> bool:
        return self.pool.healthy and self._claiming.alive and self._settling.alive

    def failed(self) -> dict[str, int]:
        """Failed steps by role."""
        threads = (self._claiming, self._settling, *self._maintaining, self._listening)
        return {thread.role.name: thread.failed for thread in threads}

    def progress_age(self) -> float:
        """Seconds since the store last answered the claimer, or the pool was full."""
        return monotonic() - self._claiming.progressed_at

    def prepare(self) -> None:
        """Start the event loop and run the start-up hooks. Raises `StartupFailed`; nothing is claimed yet."""
        self.pool.start()
        try:
            # Handlers in child processes have their values there.
            handlers = [handler for handler in self._registry.values() if handler.where != "process"]
            self._lifespan.start(handler for handler in handlers if handler.queue in self.options.queues)
        except StartupFailed:
            self.pool.close()
            raise

    def _run_on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.pool.run_on_loop(work)

    def start(self) -> None:
        """Open the store, run the start-up hooks and begin to claim; returns at once. `drain` ends it."""
        self.prepare()
        self._start_roles()

    def _start_roles(self) -> None:
        if self._marks is not None:
            self._marks.open()
        for thread in (self._settling, *self._maintaining, self._listening, self._claiming):
            thread.start()

    def drain(self, timeout: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop claiming, let jobs finish until the timeout, release the rest, write every verdict, stop the roles.

        `hurry` is polled: once it returns True, the wait for running jobs ends.
        """
        self.claimer.close()
        self.pool.release_pending()
        self._claiming.stop(0)
        self.claimer.join(_MAX_CLAIM)
        deadline = monotonic() + timeout
        while not self.pool.idle and monotonic() < deadline and not hurry():
            self.pool.wait_until_idle(min(_POLL_INTERVAL, max(0.0, deadline - monotonic())))
        self.pool.interrupt_all()
        self.pool.wait_until_idle(1.0)
        self._listening.stop(0)
        flushed_by = monotonic() + _MAX_FLUSH
        while not self.settler.empty and monotonic() < flushed_by and self._settling.alive:
            self.settler.wakeup.set()
            Event().wait(0.005)
        for thread in (*self._maintaining, self._settling):
            self.settler.wakeup.set()
            thread.stop(1)
        self._withdraw()
        shutdown = self.options.shutdown_timeout.total_seconds()
        ends_by = monotonic() + shutdown
        if self._hooks.needs_shutdown:
            self.pool.hang_up()
        self._lifespan.stop_within(shutdown)
        self.pool.close(ends_by)
        self._descriptors.close()
        if self._marks is not None and self.settler.empty and self.pool.idle:
            self._marks.close()

    def _withdraw(self) -> None:
        """Remove the worker from the list. An unreachable store is skipped: the announcement expires by itself."""
        if self._announcing.alive or self._announcing.failures:
            return
        try:
            self.announcer.withdraw()
        except Exception as error:
            _log.debug("worker %s was not withdrawn: %s", self.owner, error)

    def run(self) -> int:
        """Work until a signal arrives; returns the exit code."""
        # A role whose store call returns should not wait long for a loop that is busy with quick handlers.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        try:
            self.prepare()
        except StartupFailed as error:
            _log.error("worker %s cannot start: %s", self.owner, error, exc_info=error.__cause__)
            return CANNOT_START
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        metrics = self._metrics_server()
        self._start_roles()
        self._start_watchdog()
        if metrics is not None:
            metrics.start()
        _log.info("worker %s: queues %s", self.owner, ", ".join(self.options.queues))
        while not self._signals and not self.broken:
            self._wait_for_signal()
            if self._supervised:
                self._descriptors.check()
        if not self._signals:
            _log.error("worker %s exits: its event loop died, handlers hang, or the store is unreachable", self.owner)
            self.drain(0)
            return BROKEN
        timeout = self.options.drain_timeout.total_seconds()
        if running := self.pool.running:
            what = many(running, "running job")
            _log.warning("draining: %s may end within %g s; a second signal releases the rest", what, timeout)
        self.drain(timeout, hurry=lambda: self._signals > 1)
        return 0

    def _start_watchdog(self) -> None:
        """Dump stacks on a fatal signal. Without a supervisor, also start a process that detects a held GIL."""
        if self._marks is None:
            return
        path = self._marks.path
        with suppress(OSError, RuntimeError):
            if not faulthandler.is_enabled():
                # Stays open: faulthandler writes to it while the process crashes.
                self._stacks = stacks_path(path.parent, self.owner).open("w")
                faulthandler.enable(self._stacks)
            if not self._supervised:
                bound = stall_bound(self.options.lease_for.total_seconds())
                subprocess.Popen([sys.executable, "-m", "forebay.work.stall_watch", path, str(bound)])

    def _metrics_server(self) -> "MetricsServer | None":
        if self.options.metrics is None:
            return None
        from forebay.work.metrics_server import MetricsServer

        return MetricsServer(self, self.options.metrics, _METRICS_PORTS if self._supervised else 1)

    def _wait_for_signal(self) -> None:
        """Return at the next poll, or soon after a signal."""
        until = monotonic() + _POLL_INTERVAL
        while not self._signals and monotonic() < until:
            self._signalled.wait(_SIGNAL_INTERVAL)

    def request_stop(self) -> None:
        """Drain, as after a SIGTERM."""
        self._signals += 1
        self._signalled.set()

    def _on_signal(self, number: int, frame: object) -> None:
        # Only counted: the interrupted thread may hold the lock of the event.
        self._signals += 1


def wait_for_store(app: App) -> bool:
    """Retry until the store can be opened; False if the supervisor exits first.

    A server may become reachable. A file that cannot be opened, for example on a full disk, raises at once.
    """
    throttled = ThrottledLogger()
    while True:
        try:
            app.store.now()
            return True
        except StoreFailed as error:
            if app.url.startswith(_ON_DISK):
                raise
            throttled.log_failure("store", error)
        if select.select([0], [], [], _OPEN_INTERVAL)[0] and not os.read(0, 1):
            return False


def main(target: str, options: Options, owner: str) -> int:
    """The entry point of a supervised process. It drains when its supervisor exits."""
    app = find_app(target)
    configure_logging()
    try:
        if not wait_for_store(app):
            return 0
    except (ForebayError, OSError) as error:
        _log.error("worker %s cannot start: %s", owner, error)
        return CANNOT_START
    worker = Worker(app, options, target=target, owner=owner, supervised=True)

    def watch_parent() -> None:
        while os.read(0, 1):
            pass
        worker.request_stop()

    Thread(target=watch_parent, name="forebay-parent", daemon=True).start()
    code = worker.run()
    app.close()
    return code


if __name__ == "__main__":
    code = main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Options), sys.argv[3])
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that hangs in a handler must not keep a drained process alive.
    os._exit(code)
