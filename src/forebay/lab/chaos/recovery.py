"""How long it took until what a fault had stopped went on, read from what handlers wrote and from nothing else.

Where a fault stopped processes, recovery is the time from it until the last of the jobs that they were running started
again somewhere; it bit if they ran any. Else it is the time from the end of the fault until the next effect.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.ledger import Change, LedgerEntry
from forebay.lab.chaos.scene import Strike


class Line(Struct, frozen=True):
    """What one run of a handler wrote, at its start or its end."""

    seq: int
    job: int
    delivery: int
    at: int
    pid: int


class _Written(Struct):
    seq: int
    job_id: int
    delivery: int
    started_at: datetime | None = None
    effect_at: datetime | None = None


_TAIL_BYTES: Final = 32_768
_decode = msgspec.json.Decoder(_Written).decode


def lines_of(folder: Path, without: Container[int] = ()) -> list[Line]:
    """All lines below it, but for those of these processes; a torn last line is left out."""
    files = sorted(folder.glob("*.ndjson")) if folder.exists() else []
    pids = [int(path.name.partition("-")[0]) for path in files]
    return [
        line
        for path, pid in zip(files, pids, strict=True)
        if pid not in without
        for line in _read(path.read_bytes(), pid)
    ]


def last_lines_of(folder: Path, pid: int) -> list[Line]:
    """Of one process, those at the end of its file."""
    found: list[Line] = []
    for path in folder.glob(f"{pid}-*.ndjson"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            found += _read(file.read() if not file.tell() else file.read().partition(b"\n")[2], pid)
    return found


def _read(data: bytes, pid: int) -> Iterator[Line]:
    whole, _, _ = data.rpartition(b"\n")
    for text in whole.splitlines():
        line = _decode(text)
        moment = line.started_at or line.effect_at
        assert moment is not None
        yield Line(line.seq, line.job_id, line.delivery, round(moment.timestamp() * 1_000_000), pid)


def recovered(
    strikes: Iterable[Strike], starts: list[Line], effects: list[Line], steady: Callable[[int], bool]
) -> list[float]:
    """Fill in `recovery`, and for faults that stopped processes `held` and whether they bit.

    Returns for each job that such a fault interrupted the seconds until it started again, smallest first. Only `steady`
    jobs are looked at, which do not fail by themselves: those that do start again for that, too.
    """
    done = {(line.job, line.delivery): line.at for line in effects}
    by_pid: dict[int, list[Line]] = {}
    again: dict[int, list[Line]] = {}
    for line in starts:
        if steady(line.seq):
            by_pid.setdefault(line.pid, []).append(line)
        again.setdefault(line.job, []).append(line)
    moments = sorted(line.at for line in effects)
    restarts: list[float] = []
    for strike in strikes:
        if strike.pids:
            restarts += _of_jobs(strike, [line for pid in strike.pids for line in by_pid.get(pid, [])], done, again)
        elif strike.bit and strike.recovery is None:
            after = next((at for at in moments if at > strike.over_at), None)
            strike.recovery = None if after is None else (after - strike.over_at) / 1_000_000
    return sorted(restarts)


def unstarted(entries: Iterable[LedgerEntry], starts: Iterable[Line]) -> Counter[int]:
    """By job, how often the ledger says that it was handed out while no handler says that it began."""
    begun = {(line.job, line.delivery) for line in starts}
    return Counter(
        job
        for entry in entries
        for span in entry.record.spans
        if span.change == Change.CLAIMED
        for job in range(span.first, span.first + span.n)
        if (job, span.delivery) not in begun
    )


def _of_jobs(
    strike: Strike, starts: list[Line], done: dict[tuple[int, int], int], again: dict[int, list[Line]]
) -> list[float]:
    took: list[float] = []
    for line in starts:
        ended_at = done.get((line.job, line.delivery))
        if line.at > strike.at or (ended_at is not None and ended_at <= strike.at):
            continue
        later = [other.at for other in again[line.job] if other.delivery > line.delivery]
        if later and min(later) > strike.at:
            took.append((min(later) - strike.at) / 1_000_000)
    strike.held = len(took)
    strike.bit = strike.bit and strike.held > 0
    strike.recovery = max(took, default=None)
    return took
