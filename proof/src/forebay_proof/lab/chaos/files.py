"""Faults of stores that are files: a lock that is held, a writer killed in its transaction, a full volume, a disk that
fails to sync, two owners of one journal.

Where the fault needs a disk of its own it brings its own producer (`writer.py`) and a store apart from the scene's. A
full disk is a small tmpfs in a mount namespace of its own, which needs no root where user namespaces are allowed; else
a limit on the size of files stands in for it. A failing fsync is made by strace: the call returns EIO.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from msgspec import Struct

from forebay import Store, Want, open_store
from forebay.core.instant import seconds
from forebay.core.lease import Settled
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Ack
from forebay.store.protocol import Query
from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.plan import Kept
from forebay_proof.lab.chaos.scene import Bite, Impossible, Scene, pause
from forebay_proof.load.app import QUEUE

_PATIENCE: Final = 60.0
_HOLD: Final = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute(sys.argv[2])
connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
print("held", flush=True)
time.sleep(float(sys.argv[3]))
connection.execute("ROLLBACK")
"""
_APART: Final = ("unshare", "--map-root-user", "--mount", "sh", "-c")
_MOUNT: Final = 'mount -t tmpfs -o "size=$1" forebay-lab "$0"'
_FILL: Final = f'{_MOUNT} && shift && copy=$1 && shift && "$@" && cp -R "$0"/. "$copy"'


class WriterReport(Struct):
    """What a writer printed, parsed."""

    requested: set[int]
    accepted: dict[int, int]
    failures: list[str]
    after: list[str]

    @classmethod
    def of(cls, text: str) -> "WriterReport":
        output = cls(set(), {}, [], [])
        for line in text.splitlines():
            match line.split():
                case ["sending", first, end]:
                    output.requested.update(range(int(first), int(end)))
                case ["accepted", seq, job]:
                    if output.failures:
                        output.after.append("accepted")
                    output.accepted[int(seq)] = int(job)
                case ["failed", *words]:
                    output.failures.append(" ".join(words))
                case ["answered" | "silent" as word]:
                    output.after.append(word)
                case _:
                    continue
        return output


def writer(url: str, first: int, *, batches: int = 200, pad: int = 0, limit: int = 0) -> list[str]:
    words = [url, str(first), str(batches), str(pad), str(limit)]
    return [sys.executable, "-m", "forebay_proof.lab.chaos.writer", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path)}


def database(scene: Scene) -> str:
    return scene.lab_server.url.removeprefix("sqlite:///")


@contextmanager
def held(scene: Scene, how: str, lasts: float) -> Iterator[bool]:
    """Another process has begun a transaction in the file; whether it got so far."""
    command = [sys.executable, "-c", _HOLD, database(scene), how, str(lasts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip() == "held"
            process.wait(lasts + _PATIENCE)
        finally:
            process.kill()


class HoldLock(ChaosFault, frozen=True):
    """Another process holds the only lock for writers, for so long."""

    stores: ClassVar[tuple[Kept, ...]] = ("sqlite",)
    lasts: float = 3.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        with held(scene, "BEGIN IMMEDIATE", self.lasts) as got:
            pass
        return Bite(got, f"the lock was held for {self.lasts:g} s")


class StarveCheckpoint(ChaosFault, frozen=True):
    """A reader that does not end keeps the log of the file from being emptied."""

    stores: ClassVar[tuple[Kept, ...]] = ("sqlite",)
    lasts: float = 3.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        log = Path(f"{database(scene)}-wal")
        before = log.stat().st_size
        with held(scene, "BEGIN", self.lasts) as got:
            pause(self.lasts)
            grown = log.stat().st_size - before
        return Bite(got, f"a reader held its view for {self.lasts:g} s, the log grew by {grown:,} bytes")


class KillWriter(ChaosFault, frozen=True):
    """kill -9 of a producer in the middle of a transaction."""

    stores: ClassVar[tuple[Kept, ...]] = ("sqlite", "postgres", "redis")

    def strike(self, scene: Scene, rng: Random) -> Bite:
        seqs = scene.seqs(4_000)
        command = writer(scene.way, seqs.start, batches=1_000)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] and not lines[-1].startswith("accepted"):
                lines.append(process.stdout.readline())
            pause(rng.uniform(0.005, 0.2))
            process.send_signal(signal.SIGKILL)
            text = "".join(lines) + process.stdout.read()
        output = WriterReport.of(text.rpartition("\n")[0])
        scene.add_receipts((seq, output.accepted.get(seq)) for seq in sorted(output.requested))
        lost = len(output.requested) - len(output.accepted)
        what = f"a writer was killed after {len(output.accepted)} receipts, {lost} of its jobs under way"
        return Bite(process.returncode == -signal.SIGKILL and bool(output.accepted), what)


class FullVolume(ChaosFault, frozen=True):
    """No space left on the device while the store grows. What was accepted is there, and the file goes on elsewhere."""

    stores: ClassVar[tuple[Kept, ...]] = ("memory", "sqlite")

    def strike(self, scene: Scene, rng: Random) -> Bite:
        place, copy = fresh(scene, "volume"), fresh(scene, "copy")
        size = rng.randrange(600, 2_000) * 1024
        command = writer(url_of(scene.kept, place), 1, batches=4_000, pad=rng.randrange(500, 4_000))
        words = [*_APART, _FILL, str(place), str(size), str(copy), *command]
        how = f"a volume of {size // 1024} KiB"
        done = run(words) if may_mount(place) else None
        if done is None:
            copy, how = place, f"a limit of {size // 4} bytes a file, for no volume can be mounted here"
            done = run(writer(url_of(scene.kept, place), 1, batches=4_000, pad=2_000, limit=size // 4))
        output = WriterReport.of(done.stdout)
        return judged(scene, output, copy, f"{how}: {output.failures[:1]}")


class FailSync(ChaosFault, frozen=True):
    """The k-th fsync fails with EIO, k counting up. Nothing is acknowledged by it, and what was is there."""

    stores: ClassVar[tuple[Kept, ...]] = ("memory", "sqlite")

    def strike(self, scene: Scene, rng: Random) -> Bite:
        if shutil.which("strace") is None:
            raise Impossible("strace is not installed: it makes the k-th fsync fail")
        number = scene.memo["sync"] = scene.memo.get("sync", 0) + 1
        place = fresh(scene, "disk")
        trace = scene.directory / "trace"
        calls = "fsync,fdatasync"
        inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO:when={number}"]
        command = writer(url_of(scene.kept, place), 1, batches=60)
        done = run(["strace", "-f", "-qq", "-o", str(trace), *inject, *command])
        met = trace.read_text().count("(INJECTED)") if trace.exists() else 0
        if not met and "PTRACE" in done.stderr:
            raise Impossible(f"strace may not trace here: {done.stderr.strip()[:200]}")
        output = WriterReport.of(done.stdout)
        bite = judged(scene, output, place, f"fsync {number} failed: {output.failures[:1]}")
        return Bite(met > 0, bite.what if output.failures else f"fsync {number} failed unnoticed", acks=bite.acks)


class SecondOwner(ChaosFault, frozen=True):
    """A second worker is started on a journal that has an owner: it is refused, and the first one goes on."""

    stores: ClassVar[tuple[Kept, ...]] = ("memory",)

    def strike(self, scene: Scene, rng: Random) -> Bite:
        url = url_of("memory", scene.directory / "journal")
        command = [sys.executable, "-m", "forebay", "worker", "forebay_proof.load.app:fb", "--store", url]
        first: subprocess.Popen[str] | None = scene.memo.get("owner")
        if first is None:
            started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
            first = scene.memo["owner"] = scene.parts.enter_context(started)
            scene.parts.callback(first.kill)
            assert first.stdout is not None
            first.stdout.readline()
        second = run(command)
        if second.returncode == 0 or first.poll() is not None:
            scene.report_failure(
                f"two owners of one journal: the second ended with {second.returncode}, the first {first.poll()}"
            )
        output = (second.stderr or second.stdout).strip().splitlines()[-1:]
        return Bite(second.returncode != 0 and "lock" in "".join(output) + second.stderr, f"refused: {output}", acks=1)


def judged(scene: Scene, output: WriterReport, place: Path, what: str) -> Bite:
    """What was acknowledged is there, and can be worked on; nothing was acknowledged after the failure."""
    if "accepted" in output.after or (scene.kept == "memory" and "answered" in output.after):
        scene.report_failure(f"{what}: acknowledged after the failure")
    store = open_store(url_of(scene.kept, place))
    try:
        found = everything(store)
        if lost := set(output.accepted.values()) - found:
            scene.report_failure(f"{what}: accepted and lost: {sorted(lost)[:5]}")
        for leases in [store.claim([Want(QUEUE, 1)], "lab", seconds(5))] if output.accepted else []:
            if store.settle([(lease, Ack()) for lease in leases]) != [Settled.APPLIED]:
                scene.report_failure(f"{what}: the store cannot be worked on afterwards")
    finally:
        store.close()
    return Bite(bool(output.failures), f"{len(output.accepted)} accepted; {what}", acks=len(output.accepted))


def everything(store: Store) -> set[int]:
    found: set[int] = set()
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(), after, MAX_BATCH)
        found.update(job.id for job in page.jobs)
        after = page.next
    return found


def url_of(kept: Kept, place: Path) -> str:
    return f"memory://{place.resolve()}" if kept == "memory" else f"sqlite:///{place.resolve()}/jobs.db"


def fresh(scene: Scene, name: str) -> Path:
    place = scene.directory / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def may_mount(place: Path) -> bool:
    try:
        return run([*_APART, _MOUNT, str(place), "64k"]).returncode == 0
    except OSError:
        return False


def run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, env=environment(), capture_output=True, text=True, check=False, timeout=_PATIENCE)
