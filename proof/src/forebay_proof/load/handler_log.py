"""The log of handler runs: a line for each start and each effect, in a file for each process; written and read back.

A line holds seq, job and delivery (the fence), and the time. It is written by one write(2): a kill -9 leaves whole
lines, at most a torn last one, which the reader leaves out.
"""

import os
import time
from collections import defaultdict
from collections.abc import Container, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from forebay import Context

_TAIL_BYTES: Final = 32_768


class HandlerLog:
    """A log of handler runs, made at its first line. A line is written whole or not at all, even on a full disk."""

    def __init__(self, variable: str, word: bytes) -> None:
        self._folder = os.environ.get(variable)
        self._form = b'{"seq":%d,"job_id":%d,"delivery":%d,"' + word + b'":"%s%06dZ"}\n'
        self._handle = -1
        self._stamp = (0, b"")  # replaced as one value: handlers are threads, too
        self.write = self._write if self._folder else self._skip

    def _skip(self, seq: int, ctx: Context) -> None:
        pass

    def _write(self, seq: int, ctx: Context) -> None:
        second, nanos = divmod(time.time_ns(), 1_000_000_000)
        known, stamp = self._stamp
        if second != known:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)).encode()
            self._stamp = (second, stamp)
        job_id, delivery = ctx.fence
        line = self._form % (seq, job_id, delivery, stamp, nanos // 1_000)
        if self._handle < 0:
            self._open()
        if (written := os.write(self._handle, line)) != len(line):
            os.ftruncate(self._handle, os.lseek(self._handle, 0, os.SEEK_END) - written)
            raise OSError(f"only {written} bytes of a line could be written")

    def _open(self) -> None:
        folder = Path(self._folder or "")
        folder.mkdir(parents=True, exist_ok=True)
        name = folder / f"{os.getpid()}-{time.time_ns()}.ndjson"
        self._handle = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)


class HandlerRecord(Struct, frozen=True):
    """What one run of a handler wrote, at its start or its end; `at` is in microseconds since 1970."""

    seq: int
    job: int
    delivery: int
    at: int
    pid: int

    @property
    def seconds(self) -> float:
        return self.at / 1_000_000


class _Line(Struct):
    seq: int
    job_id: int
    delivery: int
    started_at: datetime | None = None
    effect_at: datetime | None = None


_decode: Final = msgspec.json.Decoder(_Line).decode


def read_records(folder: Path, without: Container[int] = ()) -> list[HandlerRecord]:
    """All records below the folder, but for those of the processes in `without`; a torn last line is left out."""
    files = sorted(folder.glob("*.ndjson")) if folder.exists() else []
    pids = [int(path.name.partition("-")[0]) for path in files]
    return [
        record
        for path, pid in zip(files, pids, strict=True)
        if pid not in without
        for record in _read(path.read_bytes(), pid)
    ]


def read_last_records(folder: Path, pid: int) -> list[HandlerRecord]:
    """The records at the end of the files of one process."""
    found: list[HandlerRecord] = []
    for path in folder.glob(f"{pid}-*.ndjson"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            found += _read(file.read() if not file.tell() else file.read().partition(b"\n")[2], pid)
    return found


def _read(data: bytes, pid: int) -> Iterator[HandlerRecord]:
    whole, _, _ = data.rpartition(b"\n")
    for text in whole.splitlines():
        line = _decode(text)
        moment = line.started_at or line.effect_at
        assert moment is not None
        yield HandlerRecord(line.seq, line.job_id, line.delivery, round(moment.timestamp() * 1_000_000), pid)


def by_seq(folder: Path) -> dict[int, list[tuple[int, float]]]:
    """Deliveries and their times, in seconds since 1970."""
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for record in read_records(folder):
        found[record.seq].append((record.delivery, record.seconds))
    return found
