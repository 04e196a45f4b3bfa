"""Where the knee is: jobs a claim by one claimer, and claimers at once, each with what its sessions waited for.

Batches are claimed by the store in one process; claimers are pgbench connections with the store's own statements, a
hundred jobs a claim, so that no Python is between them and the server; their times are those of a claim with its
acknowledgement. The knee is the first setting within a tenth of the highest rate.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import CPU, RATE, ClientWindow, Measurement, Values, costs
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.pgbench import find_pgbench, record, run
from forebay_proof.bench.pg.server import Bench, top
from forebay_proof.histogram import percentile
from forebay_proof.load.payloads import BATCH

BATCHES: Final = (1, 10, 50, 100, 200, 1_000)
CONNECTIONS: Final = (1, 2, 4, 8, 16, 64)
_MAX_START: Final = 60.0
_NEAR: Final = 0.9
_HEAD: Final = f"{'jobs/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'jobs/CPU-s':>11}  waits of active sessions"


@dataclass
class Sweep:
    bench: Bench
    seconds: float
    backlog: int
    found: dict[str, dict[int, tuple[Values, str]]] = field(default_factory=dict)

    def batch(self, size: int) -> Values:
        with self.bench.database() as database, Clients() as clients:
            backlog.seed(database, self.backlog)
            database.settle_down()
            ours.start_claimer(database, clients, size)
            done = clients.tallies("worker")
            clients.wait_until(lambda: done.jobs() > 0, _MAX_START, "the first claim")
            window = ClientWindow(database, clients)
            with database.waits() as waits:
                ends_at = time.monotonic() + self.seconds
                while time.monotonic() < ends_at and done.jobs() < 0.9 * self.backlog:
                    time.sleep(0.005)
                values = window.close()
            clients.stop()
        self.found.setdefault("jobs a claim", {})[size] = (values, top(waits))
        return values

    def connections(self, count: int) -> Values:
        with self.bench.database() as database, Clients() as clients:
            script = record(database.url)
            backlog.seed(database, self.backlog)
            database.settle_down()
            server, wal, client = database.server_cpu(), database.wal(), clients.cpu()
            with database.waits() as waits:
                found = run(database, clients, script.drain, script.variables, connections=count, seconds=self.seconds)
            jobs = BATCH * len(found.times)
            values = {
                RATE: BATCH * found.rate,
                **costs(jobs, database.server_cpu() - server, clients.cpu() - client, database.wal() - wal),
                "claim-p50": 1e3 * percentile(found.times, 50),
                "claim-p99": 1e3 * percentile(found.times, 99),
            }
            assert self.backlog >= jobs, "the backlog ran dry"
        self.found.setdefault("claimers", {})[count] = (values, top(waits))
        return values

    def table(self) -> Iterator[str]:
        """What was measured since the last time, in lines."""
        found, self.found = self.found, {}
        for what, rows in found.items():
            highest = max(values[RATE] for values, _ in rows.values())
            knee = min(setting for setting, (values, _) in rows.items() if values[RATE] >= _NEAR * highest)
            yield f"{what:>14} {_HEAD}"
            for setting, (values, waits) in rows.items():
                yield (
                    f"{setting:14,} {values[RATE]:10,.0f} {values['claim-p50']:8.1f} {values['claim-p99']:8.1f} "
                    f"{values[CPU]:11,.0f}  {waits}{'   ← knee' if setting == knee else ''}"
                )

    def figures(self) -> list[Figure]:
        found: list[Figure] = []
        for size in BATCHES:
            cell = Measurement(f"sweep/batch-{size}", _calling(self.batch, size))
            found += cell.figures(("claim-p99",), None if size == 100 else "sweep/batch-100")
        if find_pgbench() is not None:
            for count in CONNECTIONS:
                cell = Measurement(f"sweep/connections-{count}", _calling(self.connections, count))
                found += cell.figures(("claim-p99",), None if count == 1 else "sweep/connections-1")
        return found


def _calling(work: Callable[[int], Values], value: int) -> Callable[[], Values]:
    return lambda: work(value)
