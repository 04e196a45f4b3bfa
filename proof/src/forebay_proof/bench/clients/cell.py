"""A cell measures many values at once; each becomes a figure, and all figures of a round share one measurement.

A figure that reads a cell a second time is in its next round: the cell measures again. So every figure works alone,
and those of one cell never measure twice for one round. A `ClientWindow` measures between two moments.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.clients.server import BenchDatabase
from forebay_proof.bench.measure import Figure
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.tally import CLAIM, ENQUEUE, LATE

Values = Mapping[str, float]

RATE: Final = "jobs/s"
CPU: Final = "per-cpu-second"
SERVER: Final = "server-cpu"
CLIENT: Final = "client-cpu"
WAL: Final = "wal"
DEAD: Final = "dead"
LEFT: Final = "left"
OFFERED: Final = "offered"
PUT: Final = "put"
BOTH: Final = "put-and-drained"
_UNITS: Final = {
    RATE: "jobs/s",
    OFFERED: "jobs/s",
    PUT: "jobs/s",
    BOTH: "jobs/s",
    CPU: "jobs",
    SERVER: "µs/job",
    CLIENT: "µs/job",
    WAL: "B/job",
    DEAD: "rows",
    LEFT: "jobs",
}


@dataclass
class Measurement:
    name: str
    work: Callable[[], Values]
    values: Values | None = None
    _served: set[str] = field(default_factory=set)

    def read(self, key: str, reader: str) -> float:
        if self.values is None or reader in self._served:
            self.values = self.work()
            self._served.clear()
        self._served.add(reader)
        return self.values[key]

    def figure(self, key: str = RATE, baseline: str | None = None, goal: str = "") -> Figure:
        name = self.name if key == RATE else f"{self.name}/{key}"
        return Figure(name, _UNITS.get(key, "ms"), lambda: self.read(key, name), baseline, goal)

    def figures(self, keys: Sequence[str], baseline: str | None = None, **goals: str) -> list[Figure]:
        """The rate, and then these; goals by key, with `_` for `-`."""
        rate = self.figure(RATE, baseline, goals.get("rate", ""))
        return [rate, *(self.figure(key, goal=goals.get(key.replace("-", "_"), "")) for key in keys)]

    def named_figures(self, *reads: tuple[str, str, str, str | None, str]) -> list[Figure]:
        """Of (name, key, unit, baseline, goal)."""
        return [
            Figure(name, unit, partial(self.read, key, name), baseline, goal)
            for name, key, unit, baseline, goal in reads
        ]


def ratio(name: str, ours: Sequence[Measurement], theirs: Sequence[Measurement], goal: str, key: str = RATE) -> Figure:
    """The best of ours over the best of theirs, of the same round."""

    def best(cells: Sequence[Measurement]) -> float:
        return max(cell.read(key, name) for cell in cells)

    return Figure(name, "×", lambda: best(ours) / best(theirs), goal=goal)


def latencies(name: str, histogram: LatencyHistogram) -> dict[str, float]:
    """In milliseconds."""
    return {f"{name}-p{percent}": 1e3 * histogram.percentile(percent) for percent in (50, 99)}


def costs(jobs: int, server: float, client: float, wal: float) -> dict[str, float]:
    """Of CPU seconds and bytes; `CPU` is jobs per second of CPU, the server's and the clients' together."""
    jobs = max(1, jobs)
    return {
        CPU: jobs / max(1e-9, server + client),
        SERVER: 1e6 * server / jobs,
        CLIENT: 1e6 * client / jobs,
        WAL: wal / jobs,
    }


class ClientWindow:
    """From its making to `close`: jobs done by a group of clients, and what it took."""

    def __init__(self, database: BenchDatabase, clients: Clients, group: str = "worker") -> None:
        self._database = database
        self._clients = clients
        self._group = clients.tallies(group)
        self._before = self._latencies()
        self._wal = database.wal()
        self._server = database.server_cpu()
        self._client = clients.cpu()
        self._jobs = self._group.jobs()
        self._at = time.perf_counter()

    def close(self) -> dict[str, float]:
        took = time.perf_counter() - self._at
        jobs = self._group.jobs() - self._jobs
        server = self._database.server_cpu() - self._server
        client = self._clients.cpu() - self._client
        wal = self._database.wal() - self._wal
        self._clients.check()
        return {
            RATE: jobs / took,
            **costs(jobs, server, client, wal),
            **{
                name: milliseconds
                for channel, histogram in self._latencies().items()
                for name, milliseconds in latencies(channel, histogram.minus(self._before[channel])).items()
            },
        }

    def _latencies(self) -> dict[str, LatencyHistogram]:
        return {
            CLAIM: self._group.histogram(CLAIM),
            ENQUEUE: self._clients.enqueue_latency(),
            LATE: self._group.histogram(LATE),
        }
