"""What handlers wrote down, read back: starts and effects, by process or by seq."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from forebay.lab.proof import Lines


class Line(Struct, frozen=True):
    seq: int
    job_id: int
    delivery: int
    started_at: datetime | None = None
    effect_at: datetime | None = None

    @property
    def at(self) -> float:
        moment = self.started_at or self.effect_at
        assert moment is not None
        return moment.timestamp()


def testified(folder: Path) -> Iterator[tuple[int, Line]]:
    """The pid of a process, and what it wrote."""
    for file in sorted(folder.glob("*.ndjson")):
        pid = int(file.name.partition("-")[0])
        yield from ((pid, line) for lines in Lines(file, "testimony").read(Line) for line in lines)


def by_seq(folder: Path) -> dict[int, list[tuple[int, float]]]:
    """Deliveries and their moments."""
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for _, line in testified(folder):
        found[line.seq].append((line.delivery, line.at))
    return found
