"""What handlers of the lab wrote, read back: a record for each start and each effect, in a file for each process."""

from collections import defaultdict
from collections.abc import Container, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

_TAIL_BYTES: Final = 32_768


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
