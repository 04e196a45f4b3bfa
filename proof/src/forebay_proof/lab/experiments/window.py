"""A window: from its making to its close, what a fleet did and what it took, as rows of the case.

jobs/s                       jobs that were claimed, and their jobs done but for those in flight at either end
claim p50, p99               of the claims that brought something, as a worker sees them
jobs a claim                 what a claim brought on average
server, workers, machine     CPU: microseconds a job of the store's server and of the workers; how busy all cores were
evenness                     Jain's index of the jobs by process: 1 is even, 1/n is one process for all
evidence/…                   what the server counted: what sessions waited for, bytes and syncs
"""

import time
from functools import reduce
from typing import Final

from forebay_proof.histogram import LatencyHistogram
from forebay_proof.lab.experiments.stage import ClaimCount, Stage, TalliedFleet, Working
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.processes import machine_seconds

_SHOWN: Final = 6


class FleetWindow:
    def __init__(self, stage: Stage, lab_server: LabServer, tallied: TalliedFleet[Working]) -> None:
        self._stage = stage
        self._lab_server = lab_server
        self._tallied = tallied
        self._evidence = lab_server.evidence()
        self._evidence.__enter__()
        self._server = lab_server.server_cpu_seconds()
        self._workers = tallied.fleet.cpu_seconds()
        self._machine = machine_seconds()
        self._before = tallied.claims()
        self._at = time.monotonic()

    def jobs(self) -> int:
        """Claimed since it was made."""
        return self._tallied.claimed() - sum(claims.jobs for claims in self._before.values())

    def close(self) -> float:
        """The rate."""
        took = time.monotonic() - self._at
        nothing = ClaimCount(0, LatencyHistogram())
        own = [claims.since(self._before.get(name, nothing)) for name, claims in self._tallied.claims().items()]
        claimed = sum(claims.jobs for claims in own)
        latency = reduce(LatencyHistogram.plus, (claims.latency for claims in own), LatencyHistogram())
        jobs = max(1, claimed)
        busy, idle = (end - start for start, end in zip(self._machine, machine_seconds(), strict=True))
        record = self._stage.record
        record("jobs/s", claimed / took, "jobs/s")
        for percent in (50, 99):
            record(f"claim p{percent}", 1e3 * latency.percentile(percent), "ms")
        record("jobs a claim", claimed / max(1, latency.total), "jobs")
        server = self._lab_server.server_cpu_seconds() - self._server
        workers = self._tallied.fleet.cpu_seconds() - self._workers
        record("server", 1e6 * server / jobs, "µs/job")
        record("workers", 1e6 * workers / jobs, "µs/job")
        record("server's share", 100 * server / max(1e-9, busy + idle), "%")
        record("workers' share", 100 * workers / max(1e-9, busy + idle), "%")
        record("machine", 100 * busy / max(1e-9, busy + idle), "%")
        record("evenness", evenness([claims.jobs for claims in own]), "")
        self._record_window(jobs, took)
        return claimed / took

    def _record_window(self, jobs: int, took: float) -> None:
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
