"""A window: from its making to its close, what a fleet did and what it took, as rows of the case.

jobs/s                       jobs that were claimed, and their jobs done but for those in flight at either end
claim p50, p99               of the claims that brought something, as a worker sees them
jobs a claim                 what a claim brought on average
server, workers, machine     CPU: microseconds a job of the store's server and of the workers; how busy all cores were
evenness                     Jain's index of the jobs by process: 1 is even, 1/n is one process for all
evidence/…                   what the ground has seen: what sessions waited for, bytes and syncs
"""

import os
import time
from pathlib import Path
from typing import Final

from forebay.lab.experiments.stage import Crew, Stage, Working
from forebay.lab.ground import Ground
from forebay.lab.sketch import Sketch

_SHOWN: Final = 6


class Window:
    def __init__(self, stage: Stage, ground: Ground, crew: Crew[Working]) -> None:
        self._stage = stage
        self._ground = ground
        self._crew = crew
        self._evidence = ground.evidence()
        self._evidence.__enter__()
        self._server = ground.server_cpu_seconds()
        self._workers = crew.fleet.cpu_seconds()
        self._machine = machine_seconds()
        self._before = crew.sketches()
        self._at = time.monotonic()

    def jobs(self) -> int:
        """Claimed since it was made."""
        return self._crew.claimed() - sum(sketch.counted for sketch in self._before.values())

    def close(self) -> float:
        """The rate."""
        took = time.monotonic() - self._at
        after = self._crew.sketches()
        own = {
            pid: sketch.plus([self._before[pid]], -1) if pid in self._before else sketch
            for pid, sketch in after.items()
        }
        whole = Sketch().plus(own.values())
        jobs = max(1, whole.counted)
        busy, idle = (end - start for start, end in zip(self._machine, machine_seconds(), strict=True))
        record = self._stage.record
        record("jobs/s", whole.counted / took, "jobs/s")
        claims = whole.histogram()
        for percent in (50, 99):
            record(f"claim p{percent}", 1e3 * claims.percentile(percent), "ms")
        record("jobs a claim", whole.counted / max(1, claims.total), "jobs")
        server = self._ground.server_cpu_seconds() - self._server
        workers = self._crew.fleet.cpu_seconds() - self._workers
        record("server", 1e6 * server / jobs, "µs/job")
        record("workers", 1e6 * workers / jobs, "µs/job")
        record("server's share", 100 * server / max(1e-9, busy + idle), "%")
        record("workers' share", 100 * workers / max(1e-9, busy + idle), "%")
        record("machine", 100 * busy / max(1e-9, busy + idle), "%")
        record("evenness", evenness([sketch.counted for sketch in own.values()]), "")
        self._testify(jobs, took)
        return whole.counted / took

    def _testify(self, jobs: int, took: float) -> None:
        """Counts a second, bytes and time a job, and the commonest waits of active sessions."""
        evidence, record = self._evidence, self._stage.record
        evidence.__exit__(None, None, None)
        for name in ("commits", "wal_syncs", "total_commands_processed", "rollbacks", "deadlocks"):
            if name in evidence.facts:
                record(f"evidence/{name}", evidence.facts[name] / took, "/s")
        for name in ("wal_bytes", "server_written_bytes"):
            if name in evidence.facts:
                record(f"evidence/{name}", evidence.facts[name] / jobs, "B/job")
        inside = {name: ms for name, ms in evidence.facts.items() if name.startswith("ms in ")}
        for name in sorted(inside, key=inside.__getitem__, reverse=True)[:_SHOWN]:
            record(f"evidence/{name.removeprefix('ms ')}", 1e3 * inside[name] / jobs, "µs/job")
        seen = sum(evidence.waits.values())
        for name, times in evidence.waits.most_common(_SHOWN):
            record(f"evidence/wait {name}", 100 * times / seen, "%")


def evenness(counts: list[int]) -> float:
    """Jain's index."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0


def machine_seconds() -> tuple[float, float]:
    """CPU of all cores since the start: busy, idle."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, idle, waiting, *more = (int(word) for word in line.split()[1:])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + sum(more[:3])) / tick, (idle + waiting) / tick
