"""`Load`: processes that enqueue the jobs of a mix, and write a receipt for every answer.

    with Load(url=url, rate=10_000, seconds=60, directory=folder) as load:
        load.start()
        report = load.wait()

With a rate, the load is an open loop: batch n is due at an instant that is known beforehand; a slow answer delays no
later batch, and latencies count from the instant at which a call was due, so a stall counts for every call that it
delays. A batch that is more than `max_behind` late is not sent and counts as missed. Without a rate, batches are sent
one after the other as fast as they are accepted; with `depth`, only while fewer than so many jobs are unfinished, as
the consumers' tallies count them.
A receipt is written for each answer (NDJSON, a file for each process below `receipts`); kill -9 loses at most half a
line. A lost answer is written as unknown; with `keys` the call is then repeated under the same key until it is known.

Producers end with this process, even if it is killed: they hold the other end of a pipe.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError, Invalid
from forebay.core.limits import MAX_BATCH
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.load.app import QUEUE
from forebay_proof.load.mix import MAX_SEQ, S1, Mix
from forebay_proof.processes import cpu_seconds

RECEIPTS: Final = "receipts"
_REPORT: Final = "report-{}.json"
_READY_SECONDS: Final = 60.0
_START_SECONDS: Final = 0.2
_END_SECONDS: Final = 60.0
_STEP: Final = 0.05


class ProducerFailed(ForebayError):
    """A producer did not start, or ended before the end of its schedule."""


class LoadShare(Struct, frozen=True, kw_only=True):
    """The work of one producer: batches `number`, `number + producers`, … of the load. No `receipts`: none are kept.

    `depth`: unfinished jobs at most, 0 for any number;  `consumers`: the folder of the tallies that count finished ones
    """

    url: str
    rate: float
    jobs: int
    first: int
    seed: int
    batch: int
    mix: Mix
    queue: str
    keys: bool
    threads: int
    max_behind: float
    number: int
    producers: int
    receipts: str
    report: str
    depth: int = 0
    consumers: str = ""


class ProducerReport(Struct, kw_only=True):
    """What one producer, or all of them together, sent and received so far.

    unknown  answers that were lost, each once, whether the call was repeated or not;  open: those still unknown
    late     by how many seconds the last call began after its instant;  missed: jobs that were never sent for it
    ended    by itself: the schedule is at its end;  seconds, cpu: since the first instant, without the process's start
    """

    sent: int = 0
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    unknown: int = 0
    open: int = 0
    missed: int = 0
    late: float = 0.0
    max_late: float = 0.0
    ended: bool = False
    seconds: float = 0.0
    cpu: float = 0.0
    latency: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)

    def plus(self, other: "ProducerReport") -> "ProducerReport":
        added = ("sent", "accepted", "duplicates", "refused", "unknown", "open", "missed", "cpu")
        return ProducerReport(
            **{name: getattr(self, name) + getattr(other, name) for name in added},
            late=max(self.late, other.late),
            max_late=max(self.max_late, other.max_late),
            ended=self.ended and other.ended,
            seconds=max(self.seconds, other.seconds),
            latency=self.latency.plus(other.latency),
        )


class Load:
    """One load. `seconds` or `jobs` says how much of it; neither: until it is stopped. `first` is its first seq.

    `depth` needs `consumers`, the folder of the tallies of those that do the jobs.
    """

    def __init__(
        self,
        url: str,
        *,
        rate: float | None = None,
        seconds: float | None = None,
        jobs: int | None = None,
        directory: Path,
        seed: int = 7,
        batch: int = 100,
        processes: int = 1,
        mix: Mix = S1,
        queue: str = QUEUE,
        first: int = 0,
        keys: bool = False,
        threads: int = 4,
        max_behind: float = 10.0,
        depth: int = 0,
        consumers: Path | None = None,
        receipts: bool = True,
    ) -> None:
        if seconds is not None and (jobs is not None or rate is None):
            raise Invalid("load", "seconds are for a rate, and without jobs", "give a rate and seconds, or jobs")
        if depth and consumers is None:
            raise Invalid("load", "a depth needs the tallies of the consumers", "give consumers, too")
        self.jobs = round((rate or 0) * seconds) if seconds is not None else MAX_SEQ if jobs is None else jobs
        for name, value, most in (
            ("jobs", self.jobs, MAX_SEQ),
            ("batch", batch, MAX_BATCH),
            ("processes", processes, 64),
            ("threads", threads, 256),
        ):
            if not 0 < value <= most:
                raise Invalid(name, f"{value} is not within 1 … {most}", "choose one inside these bounds")
        self.rate = rate
        self.directory = directory
        self.receipts = directory / RECEIPTS
        self._keeps_receipts = receipts
        self._processes = processes
        self._running: list[subprocess.Popen[bytes]] = []
        self.order = LoadShare(
            url=url,
            rate=rate or 0.0,
            jobs=self.jobs,
            first=first,
            seed=seed,
            batch=batch,
            mix=mix,
            queue=queue,
            keys=keys,
            threads=threads,
            max_behind=max_behind,
            number=0,
            producers=processes,
            receipts="",
            report="",
            depth=depth,
            consumers=str(consumers or ""),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Returns when all producers are up; the first instant is a moment later."""
        self.receipts.mkdir(parents=True, exist_ok=True)
        for number in range(self._processes):
            file = self.directory / _REPORT.format(number)
            file.unlink(missing_ok=True)
            order = msgspec.structs.replace(
                self.order,
                number=number,
                receipts=str(self.receipts / f"{number}-{time.time_ns()}.ndjson") if self._keeps_receipts else "",
                report=str(file),
            )
            self._running.append(self._producer(order))
        self._wait_until_ready()
        start_at = time.time() + _START_SECONDS
        for process in self._running:
            _send(process, msgspec.json.encode(start_at))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not all((self.directory / _REPORT.format(number)).exists() for number in range(self._processes)):
            if not self.running() or time.monotonic() > deadline:
                raise ProducerFailed(f"producers were not ready within {_READY_SECONDS:g} s")
            time.sleep(_STEP)

    def _producer(self, order: LoadShare) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with (self.directory / f"producer-{order.number}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "forebay_proof.load.producer"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        _send(process, msgspec.json.encode(order))
        return process

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running if process.poll() is None]

    def cpu_seconds(self) -> float:
        """Of the producers that run, as the system counts it; of those that have ended, by their last reports."""
        ended = [number for number, process in enumerate(self._running) if process.poll() is not None]
        return cpu_seconds(self.pids) + sum(self._report(number).cpu for number in ended)

    def report(self) -> ProducerReport:
        """A moment old while producers run."""
        return reduce(ProducerReport.plus, map(self._report, range(self._processes)))

    def _report(self, number: int) -> ProducerReport:
        file = self.directory / _REPORT.format(number)
        return msgspec.json.decode(file.read_bytes(), type=ProducerReport) if file.exists() else ProducerReport()

    def running(self) -> bool:
        """Whether any producer is; `ProducerFailed` with its log if one ended badly."""
        for number, process in enumerate(self._running):
            if process.poll() not in (None, 0):
                log = (self.directory / f"producer-{number}.log").read_text(errors="replace")[-2_000:]
                raise ProducerFailed(f"producer {number} ended with {process.returncode}: {log}")
        return bool(self.pids)

    def wait(self, seconds: float | None = None) -> ProducerReport:
        """Until all have ended, or so long."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.running() and (deadline is None or time.monotonic() < deadline):
            time.sleep(_STEP)
        return self.report()

    def stop(self) -> ProducerReport:
        """No further batch is sent; what is under way is waited for."""
        for process in self._running:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        return self.wait(_END_SECONDS)

    def close(self) -> None:
        """Nothing is left running."""
        for process in self._running:
            with suppress(OSError):
                process.kill()
            process.wait()
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()


def _send(process: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()
