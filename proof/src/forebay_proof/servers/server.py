"""`LocalServer`: what every private server has in common: a directory, an account, a port that it keeps, one process.

Promise. `start` returns when the server answers, and comes back on the same port after a stop; `stop_by` returns when
no process of it is left; `close` leaves no file either and may be called again. A server says what it needs by three
methods: `_prepare` before its first start, `_command` for every start, `_is_ready` until it is.

What can go wrong: the port that was free is taken before the server listens. Then the first start tries another.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, Signals
from typing import ClassVar, Final
from urllib.parse import urlsplit

from forebay_proof.servers.account import Account
from forebay_proof.servers.lifetime import Lifetime
from forebay_proof.servers.process import (
    LOOPBACK,
    PATIENCE,
    ProcessHandle,
    ServerFailed,
    ServerWatchdog,
    free_port,
    tail,
)

_PORT_TRIES: Final = 5
_STEP: Final = 0.02


class LocalServer(Lifetime):
    program: ClassVar[str]
    end: ClassVar[Signals] = SIGKILL
    """The signal that ends it for good, with nothing left in the kernel."""

    usual_port: ClassVar[int] = 0

    def __init__(self) -> None:
        self._port = 0
        self._elsewhere: str | None = None
        """The URL of one that runs already, which is used in its place."""

        self._watchdog: ServerWatchdog | None = None
        self._account: Account | None = None
        self._child: ProcessHandle | None = None

    def _begin(self) -> None:
        self.start()

    @property
    def private(self) -> bool:
        """Whether it is ours to stop and to kill."""
        return self._elsewhere is None

    @property
    def host(self) -> str:
        return (urlsplit(self._elsewhere).hostname or LOOPBACK) if self._elsewhere else LOOPBACK

    @property
    def port(self) -> int:
        return (urlsplit(self._elsewhere).port or self.usual_port) if self._elsewhere else self._port

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def directory(self) -> Path:
        if self._watchdog is None:
            raise ServerFailed(f"{self.program} has not been started")
        return self._watchdog.directory

    def start(self) -> None:
        """Start it and wait until it answers; nothing happens if it runs."""
        if self._child is not None and self._child.alive():
            return
        if self._watchdog is None or self._account is None:
            self._watchdog = self._watchdog or ServerWatchdog()
            self._account = self._prepare(self._watchdog)
        known = self._port
        for _ in range(1 if known else _PORT_TRIES):
            self._port = known or free_port()
            self._child = self._watchdog.run(
                self._command(self._account, self._watchdog.directory),
                f"{self.program}.log",
                env=self._account.env(),
                user=self._account.user,
                end=self.end,
            )
            if self._wait_until_ready(self._child):
                return
        self._port = known
        raise ServerFailed(f"{self.program} did not start:\n{tail(self.directory / f'{self.program}.log')}")

    def stop_by(self, number: Signals) -> None:
        """End it with this signal and keep its data."""
        self._started().stop(number)

    def close(self) -> None:
        """End it and leave nothing behind."""
        if self._watchdog is not None:
            self._watchdog.close()
        self._watchdog = self._account = self._child = None
        self._port = 0

    def _started(self) -> ProcessHandle:
        if self._child is None:
            raise ServerFailed(f"{self.program} has not been started")
        return self._child

    def _wait_until_ready(self, child: ProcessHandle) -> bool:
        """Whether it came up; if it did not, it has ended."""
        for _ in range(round(PATIENCE / _STEP)):
            if child.wait(_STEP) is not None:
                return False
            if self._is_ready(child):
                return True
        child.stop(SIGKILL)
        return False

    @abstractmethod
    def _prepare(self, watchdog: ServerWatchdog) -> Account:
        """Find the programs and the account, and write what every start reads."""

    @abstractmethod
    def _command(self, account: Account, directory: Path) -> Sequence[str | Path]: ...

    @abstractmethod
    def _is_ready(self, child: ProcessHandle) -> bool:
        """Whether this child, and not a stranger on its port, answers."""
