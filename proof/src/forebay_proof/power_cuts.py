"""Power cuts under load: what a store has acknowledged is there after the cut, on every store.

The store's files are on an ext4 file system in a loop device. A cut is a copy of the device's backing file, taken while
everything on it is stopped in the middle of its work: what was synced is in the copy, and what was only written is in
the page cache of the file system and not in the copy. Then all processes are killed, the copy is mounted in place of
the device, and the store starts from it, as a machine does that has lost its power. The next cut meets this store.

A writer (`power_writer.py`) prints what was acknowledged, to a file elsewhere. After each cut every job that was
acknowledged since the last one must exist, with the end that was acknowledged; after the last cut, all of them.
A cut *bit* if a file that was written just before it without a sync is empty or gone; else it proves nothing.
`relaxed` runs the store without syncs: the check must find losses then.

What can go wrong: `ServerUnavailable` where loop devices cannot be mounted, which takes root.
"""

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct

from forebay import QueueSpec, State, Store, open_store
from forebay.core.errors import Invalid
from forebay.core.instant import days
from forebay.core.limits import MAX_BATCH
from forebay.core.policy import KeepFor
from forebay_proof.power_writer import QUEUE
from forebay_proof.processes import tree_of
from forebay_proof.servers.postgres import PostgresServer, StopMode
from forebay_proof.servers.process import ServerFailed, ServerUnavailable
from forebay_proof.servers.redis import RedisServer

_WARM_SECONDS: Final = (0.15, 0.6)
"""How long the store works before a cut."""

_PATIENCE: Final = 30.0
_COPIES: Final = 100
_MIB: Final = 1 << 20


class PowerResult(Struct, kw_only=True):
    """Of one store: cuts, those that dropped unsynced data, what was acknowledged, and what of it was lost."""

    store: str
    cuts: int
    bit: int
    acknowledged: int
    lost: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.lost and self.bit == self.cuts > 0


class Volume:
    """An ext4 file system in a file, mounted at `mount`."""

    def __init__(self, image: Path, mount: Path, size: int) -> None:
        self._image = image
        self.mount = mount
        mount.mkdir(parents=True, exist_ok=True)
        image.touch()
        os.truncate(image, size)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", str(image))
        self.attach()

    def attach(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mount))

    def detach(self) -> None:
        _run("umount", str(self.mount))

    def copy(self) -> Path:
        """The device as it is now. Copied again while the kernel still writes: a cut has one instant."""
        taken = self._image.with_suffix(".cut")
        for _ in range(_COPIES):
            before = self._writes()
            _run("cp", "--sparse=always", str(self._image), str(taken))
            if self._writes() == before:
                return taken
        raise ServerFailed(f"the device of {self.mount} was not quiet during any of {_COPIES} copies")

    def replace(self, taken: Path) -> None:
        """Continue with this copy; nothing uses the file system any more."""
        self.detach()
        taken.replace(self._image)
        self.attach()

    def _writes(self) -> str:
        device = _run("findmnt", "-no", "SOURCE", str(self.mount)).strip().removeprefix("/dev/")
        return Path(f"/sys/block/{device}/stat").read_text().split()[4]


class Subject(ABC):
    """A store on a volume. `url`: where it is once it was started."""

    size = 96 * _MIB

    def __init__(self, folder: Path, stack: ExitStack, *, relaxed: bool) -> None:
        self.folder = folder
        self.relaxed = relaxed
        self._stack = stack
        self.url = ""

    def volume(self, mount: Path) -> Volume:
        volume = Volume(self.folder / "device", mount, self.size)
        self._stack.callback(lambda: subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True))
        return volume

    @abstractmethod
    def prepare(self) -> Volume:
        """Make the store and mount its volume; then it runs."""

    @abstractmethod
    def roots(self) -> list[int]:
        """The process of its server; those that it started are its children."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...


class FileSubject(Subject):
    """A store without a server."""

    scheme = ""

    def prepare(self) -> Volume:
        if self.relaxed:
            raise Invalid("relaxed", "a store in files always syncs", "use postgres or redis")
        mount = self.folder / "mount"
        self.url = f"{self.scheme}{mount}/store"
        return self.volume(mount)

    def roots(self) -> list[int]:
        return []

    def kill(self) -> None: ...

    def start(self) -> None: ...


class JournalSubject(FileSubject):
    scheme = "memory://"


class SqliteSubject(FileSubject):
    scheme = "sqlite:///"


class PostgresSubject(Subject):
    size = 512 * _MIB

    def prepare(self) -> Volume:
        settings = {"max_wal_size": "64MB", "min_wal_size": "32MB"}
        self._server = PostgresServer(
            durable=True, private=True, settings=settings | ({"synchronous_commit": "off"} if self.relaxed else {})
        )
        self._stack.enter_context(self._server)
        self.url = self._server.create_database()
        return _moved(self._server.directory / "data", self, self._server.stop, self._server.start)

    def roots(self) -> list[int]:
        return [self._server.pid]

    def kill(self) -> None:
        self._server.stop(StopMode.KILL)

    def start(self) -> None:
        self._server.start()


class RedisSubject(Subject):
    def prepare(self) -> Volume:
        self._server = RedisServer(
            durable=True, private=True, settings={"appendfsync": "everysec"} if self.relaxed else None
        )
        self._stack.enter_context(self._server)
        self.url = self._server.url(**({"durability": "trusted"} if self.relaxed else {}))
        return _moved(self._server.directory / "data", self, self._server.kill, self._server.start)

    def roots(self) -> list[int]:
        return [self._server.pid]

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


SUBJECTS: Final[dict[str, type[Subject]]] = {
    "memory": JournalSubject,
    "sqlite": SqliteSubject,
    "postgres": PostgresSubject,
    "redis": RedisSubject,
}


def _moved(data: Path, subject: Subject, stop: Callable[[], None], start: Callable[[], None]) -> Volume:
    """Move a server's data onto a volume that is mounted in its place."""
    stop()
    aside = data.with_name("aside")
    data.rename(aside)
    volume = subject.volume(data)
    shutil.copystat(aside, data)
    os.chown(data, aside.stat().st_uid, aside.stat().st_gid)
    _run("cp", "-a", f"{aside}/.", str(data))
    shutil.rmtree(data / "lost+found")
    _run("sync", "-f", str(data))
    start()
    return volume


class PowerCuts:
    def __init__(self, kind: str, cuts: int, seed: int = 0, *, relaxed: bool = False) -> None:
        if kind not in SUBJECTS:
            raise Invalid("store", f"{kind!r} is none of {', '.join(SUBJECTS)}", "choose one of them")
        if cuts < 1:
            raise Invalid("cuts", f"{cuts} is less than 1", "give a positive number")
        self._kind = kind
        self._cuts = cuts
        self._relaxed = relaxed
        self._rng = Random(seed)
        self._states: dict[int, State | None] = {}
        self._recent: set[int] = set()

    def run(self, say: Callable[[str], None]) -> PowerResult:
        began, bit = time.monotonic(), 0
        lost: list[str] = []
        with TemporaryDirectory(prefix="forebay-power-") as folder, ExitStack() as stack:
            subject = SUBJECTS[self._kind](Path(folder), stack, relaxed=self._relaxed)
            volume = subject.prepare()
            with _opened(subject.url) as store:
                store.put_spec(QueueSpec(name=QUEUE, retention=KeepFor(days(1))))
            for number in range(1, self._cuts + 1):
                bit += self._cut(subject, volume, Path(folder), number)
                with _opened(subject.url) as store:
                    lost += self._missing(store, self._states if number == self._cuts else self._recent, number)
                self._recent.clear()
                if number % 10 == 0 or number == self._cuts:
                    say(f"{self._kind}: {number} cuts, {bit} bit, {len(self._states):,} jobs, {len(lost)} lost")
            subject.kill()
            volume.detach()
        took = time.monotonic() - began
        acknowledged = len(self._states)
        return PowerResult(
            store=self._kind, cuts=self._cuts, bit=bit, acknowledged=acknowledged, lost=lost, seconds=took
        )

    def _cut(self, subject: Subject, volume: Volume, folder: Path, number: int) -> bool:
        """Work for a moment, lose the power, start again; whether unsynced data was dropped."""
        receipts = folder / "receipts"
        with receipts.open("wb") as out:
            command = [sys.executable, "-m", "forebay_proof.power_writer", subject.url, f"writer-{number}"]
            writer = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, cwd="/")
        try:
            _until(lambda: receipts.stat().st_size > 0, "the writer has its first receipt")
            time.sleep(self._rng.uniform(*_WARM_SECONDS))
            canary = volume.mount / f"canary-{number}"
            canary.write_text("not synced")
            for process in tree_of([*subject.roots(), writer.pid]):
                process.send_signal(SIGSTOP)
            taken = volume.copy()
        finally:
            writer.kill()
            writer.wait()
        for process in tree_of(subject.roots()):
            process.send_signal(SIGCONT)
        subject.kill()
        volume.replace(taken)
        bit = not canary.exists() or not canary.read_text()
        self._read(receipts)
        subject.start()
        return bit

    def _read(self, receipts: Path) -> None:
        for line in receipts.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            word, *ids = line.split()
            state = {"enqueued": None, "done": State.DONE, "dead": State.DEAD}[word]
            for job_id in map(int, ids):
                self._states[job_id] = state or self._states.get(job_id)
                self._recent.add(job_id)

    def _missing(self, store: Store, ids: Iterable[int], number: int) -> list[str]:
        found: list[str] = []
        every = sorted(ids)
        for first in range(0, len(every), MAX_BATCH):
            part = every[first : first + MAX_BATCH]
            for job_id, job in zip(part, store.get(part), strict=True):
                expected = self._states[job_id]
                if job is None:
                    found.append(f"cut {number}: job {job_id} is gone")
                elif expected is not None and job.state is not expected:
                    found.append(f"cut {number}: job {job_id} was acknowledged as {expected}, and is {job.state}")
        return found


@contextmanager
def _opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(f"not within {_PATIENCE:g} s: {what}")
        time.sleep(0.01)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerUnavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}; loop devices need root on Linux")
    return done.stdout
