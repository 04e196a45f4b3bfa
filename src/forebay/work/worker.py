"""The worker: all roles of one process, started together and drained together.

SIGTERM drains: nothing is claimed any more, what runs may finish within the drain timeout, the rest is handed back so
that others claim it at once, and the exit code is 0. A second SIGTERM does not wait. A lost lease is never
acknowledged. A process whose loop died or whose threads hang ends with code 70, so that its supervisor replaces it.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from forebay.core.errors import ForebayError, StoreFailed
from forebay.core.policy import Routing
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Exchanging, Store
from forebay.work.announcer import Announcer
from forebay.work.app import find_app
from forebay.work.cancel_listener import CancelListener
from forebay.work.claimer import Claimer
from forebay.work.courier import Courier
from forebay.work.exit_status import CANNOT_START
from forebay.work.handler import Handler
from forebay.work.job_log import JobLog
from forebay.work.log_setup import configure_logging
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.progress_reporter import ProgressReporter
from forebay.work.reaper import Promoter, Reaper
from forebay.work.recovery import Recovery
from forebay.work.renewer import Renewer
from forebay.work.role import STALLED_SECONDS, Beat, Role, Voice
from forebay.work.sentinel import BROKEN, Sentinel
from forebay.work.settler import GATHER, Settler
from forebay.work.stall_watch import stall_bound
from forebay.work.start_marks import StartMarks, marks_directory, marks_of, marks_path, stacks_path
from forebay.work.ticker import Ticker

if TYPE_CHECKING:
    from forebay.work.window import Window

_log = logging.getLogger("forebay.work")

_SPECS_EVERY: Final = 5.0
_LOOK_EVERY: Final = 0.2
_HEAR_EVERY: Final = 0.05
_CARRIED: Final = 0.005
"""Seconds in which a verdict waits for a claim to ride on."""

_SWITCH_EVERY: Final = 0.001
_FLUSH_MOST: Final = 10.0
_CLAIM_MOST: Final = 2.0
_LOST_SECONDS: Final = 60.0
_OPEN_EVERY: Final = 1.0
_ON_DISK: Final = ("sqlite:", "memory:")
_WINDOWS: Final = 64
"""Ports that the processes of one supervisor may share among them."""


class App(Protocol):
    """What a worker needs of an application."""

    @property
    def url(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def registry(self) -> Mapping[str, Handler]: ...


def new_owner() -> str:
    """A name for this process's leases that no other process, before or after it, ever has."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


class Routings:
    """The routing of each queue, as the store has it; looked up again every few seconds, or kept while it is away."""

    def __init__(self, store: Store, voice: Voice | None = None) -> None:
        self._store = store
        self._voice = voice or Voice()
        self._specs: dict[str, QueueSpec] = {}
        self._read_at = float("-inf")

    def __call__(self, queue: str) -> Routing:
        if monotonic() - self._read_at > _SPECS_EVERY:
            self._read_at = monotonic()
            try:
                self._specs = {spec.name: spec for spec in self._store.specs()}
            except Exception as error:
                self._voice.warn("routing", error)
        spec = self._specs.get(queue)
        return Routing() if spec is None else spec.routing


class Worker:
    """One process's worth of work. `supervised`: another process replaces this one when it ends."""

    def __init__(
        self,
        app: App,
        options: Options = Options(),  # noqa: B008
        *,
        target: str | None = None,
        owner: str | None = None,
        supervised: bool = False,
    ) -> None:
        store = app.store
        self.owner = owner or new_owner()
        self.options = options
        self._supervised = supervised
        directory = marks_directory(app.url)
        marks = self._marks = None if directory is None else StartMarks(marks_path(directory, self.owner))
        voice, job_log = Voice(), JobLog()
        routings = Routings(store, voice)
        self.settler = Settler(
            store,
            lambda lease, _: self.pool.settled(lease.fence),
            gather=_CARRIED if isinstance(store, Exchanging) else GATHER,
            between=_CARRIED if isinstance(store, Exchanging) else 0.0,
        )
        self._sentinel = Sentinel()
        self.pool = Pool(
            app.registry,
            options,
            routings,
            self.settler.put,
            store=lambda: store,
            target=target,
            # A store that belongs to one process cannot be used in another one.
            quarantine=not app.url.startswith("memory:"),
            marks=marks,
            sentinel=self._sentinel if self._supervised else None,
            log=job_log,
        )
        claim = Courier(store, self.settler).claim if isinstance(store, Exchanging) else None
        self.claimer = Claimer(store, self.pool, options, self.owner, self.settler.put, claim=claim)
        self.renewer = Renewer(store, self.pool, options)
        self.reaper = Reaper(
            store, routings, wary=True, log=job_log, marks=partial(marks_of, directory), owner=self.owner
        )
        self.promoter = Promoter(store)
        self.ticker = Ticker(store)
        self.announcer = Announcer(store, self.pool, options, self.owner, app.registry)
        tending: list[Role] = [self.pool, self.renewer, self.reaper, self.promoter, self.ticker]
        tending.append(ProgressReporter(store, self.pool))
        if directory is not None:
            tending.append(Recovery(store, routings, directory, self.owner, job_log))
        self._claiming = Beat(self.claimer, voice)
        self._settling = Beat(self.settler, voice)
        self._announcing = Beat(self.announcer, voice)
        self._listening = Beat(CancelListener(store, self.pool, self.owner), voice)
        self._tending = [*(Beat(role, voice) for role in tending), self._announcing]
        self._signals = 0
        self._signalled = Event()

    @property
    def healthy(self) -> bool:
        """Claims make progress, and the pool can run what they bring. A call that hangs is no progress either."""
        return self._able and self.progress_age() <= STALLED_SECONDS

    @property
    def broken(self) -> bool:
        """Whether this process should be replaced.

        One that cannot reach its store for long may have lost its own means to: under a supervisor a fresh one costs
        little, once nothing runs here and every verdict is written. Alone it goes on trying.
        """
        lost = self._supervised and self.progress_age() > _LOST_SECONDS
        return not self._able or (lost and self.pool.idle and self.settler.empty)

    @property
    def _able(self) -> bool:
        return self.pool.healthy and self._claiming.alive and self._settling.alive

    def failed(self) -> dict[str, int]:
        """Steps that failed, by role."""
        return {
            beat.role.name: beat.failed for beat in (self._claiming, self._settling, *self._tending, self._listening)
        }

    def progress_age(self) -> float:
        """Seconds since the claimer last got an answer from the store, or found the pool full."""
        return monotonic() - self._claiming.beaten_at

    def start(self) -> None:
        if self._marks is not None:
            self._marks.open()
        self.pool.start()
        for beat in (self._settling, *self._tending, self._listening, self._claiming):
            beat.start()

    def drain(self, timeout: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Claim no more, let what runs finish, hand back the rest, write every verdict, stop."""
        self.claimer.close()
        self.pool.release_waiting()
        self._claiming.stop(_CLAIM_MOST)
        deadline = monotonic() + timeout
        while not self.pool.idle and monotonic() < deadline and not hurry():
            self.pool.wait_until_idle(min(_LOOK_EVERY, max(0.0, deadline - monotonic())))
        self.pool.interrupt_all()
        self.pool.wait_until_idle(1.0)
        self._listening.stop(0)
        flushed_by = monotonic() + _FLUSH_MOST
        while not self.settler.empty and monotonic() < flushed_by and self._settling.alive:
            self.settler.news.set()
            Event().wait(0.005)
        for beat in (*self._tending, self._settling):
            self.settler.news.set()
            beat.stop(1)
        self._withdraw()
        self.pool.close()
        self._sentinel.close()
        if self._marks is not None and self.settler.empty and self.pool.idle:
            self._marks.close()

    def _withdraw(self) -> None:
        """A store that is away is not waited for: the worker is only shown a little longer."""
        if self._announcing.alive or self._announcing.failures:
            return
        try:
            self.announcer.withdraw()
        except Exception as error:
            _log.debug("worker %s was not withdrawn: %s", self.owner, error)

    def run(self) -> int:
        """Work until a signal comes; the exit code."""
        # Roles that come back from the store should not wait long for a loop that is busy with quick handlers.
        sys.setswitchinterval(_SWITCH_EVERY)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        window = self._window()
        self.start()
        self._be_watched()
        if window is not None:
            window.open()
        _log.info("worker %s: queues %s", self.owner, ", ".join(self.options.queues))
        while not self._signals and not self.broken:
            self._rest()
            if self._supervised:
                self._sentinel.check()
        if not self._signals:
            _log.error("worker %s is broken: no loop, hanging handlers, or no way to its store", self.owner)
            self.drain(0)
            return BROKEN
        self.drain(self.options.drain_timeout.total_seconds(), hurry=lambda: self._signals > 1)
        return 0

    def _be_watched(self) -> None:
        """A signal that ends the process leaves its stacks; one without a supervisor gets a watchdog of its own."""
        if self._marks is None:
            return
        path = self._marks.path
        with suppress(OSError, RuntimeError):
            if not faulthandler.is_enabled():
                # Kept open on purpose: it is written to when nothing else can be done any more.
                self._stacks = stacks_path(path.parent, self.owner).open("w")
                faulthandler.enable(self._stacks)
            if not self._supervised:
                bound = stall_bound(self.options.lease_for.total_seconds())
                subprocess.Popen([sys.executable, "-m", "forebay.work.stall_watch", path, str(bound)])

    def _window(self) -> "Window | None":
        if self.options.metrics is None:
            return None
        from forebay.work.window import Window

        return Window(self, self.options.metrics, _WINDOWS if self._supervised else 1)

    def _rest(self) -> None:
        """Until the next look, or somebody wants it to end."""
        until = monotonic() + _LOOK_EVERY
        while not self._signals and monotonic() < until:
            self._signalled.wait(_HEAR_EVERY)

    def ask_to_stop(self) -> None:
        """As a SIGTERM would."""
        self._signals += 1
        self._signalled.set()

    def _on_signal(self, number: int, frame: object) -> None:
        # Only counted: the thread that is interrupted may hold the lock of the event it waits for.
        self._signals += 1


def wait_for_store(app: App) -> bool:
    """Whether the store is there by now; False: the supervisor is gone, and nobody needs it any more.

    A server may come back. A file that cannot be opened, on a full disk above all, is an error at once.
    """
    voice = Voice()
    while True:
        try:
            app.store.now()
            return True
        except StoreFailed as error:
            if app.url.startswith(_ON_DISK):
                raise
            voice.warn("store", error)
        if select.select([0], [], [], _OPEN_EVERY)[0] and not os.read(0, 1):
            return False


def main(target: str, options: Options, owner: str) -> int:
    """A supervised process: waits for a server that is away, drains when its supervisor is gone."""
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
        worker.ask_to_stop()

    Thread(target=watch_parent, name="forebay-parent", daemon=True).start()
    code = worker.run()
    app.close()
    return code


if __name__ == "__main__":
    code = main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Options), sys.argv[3])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that hang in a handler must not keep a drained process alive.
    os._exit(code)
