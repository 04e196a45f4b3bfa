"""Which peers are here, how they are started, and with which settings: their best, by their own pages and by trial.

They live in `.venv-bench`, which `make bench-postgres PEERS=1` fills with pinned versions; what is not there is left
out. Each is a program with three words: `prepare URL`, `put URL JOBS`, `work URL …`. Where two layouts come out alike
in trials both are measured, and the better one counts.
"""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.pg.processes import ROOT, Clients

PLACE: Final = ROOT / ".venv-bench"
_PYTHON: Final = PLACE / "bin" / "python"
_NODE_MODULES: Final = PLACE / "node_modules"
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """One layout of a project: `work` are the words for its workers. `left` asks for jobs that are not done.

    `slower`: its backlog is so many times smaller, since it would take minutes.
    """

    name: str
    project: str
    command: Sequence[str | Path]
    processes: int
    work: Sequence[int]
    settings: str
    left: str
    slower: int = 1
    env: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, url: str, clients: Clients) -> None:
        clients.run("prepare", [*self.command, "prepare", url], self.env)

    def put(self, url: str, clients: Clients, group: str, jobs: int) -> None:
        clients.run(group, [*self.command, "put", url, str(jobs)], self.env)

    def start(self, url: str, clients: Clients) -> None:
        for _ in range(self.processes):
            clients.start("worker", [*self.command, "work", url, *map(str, self.work)], self.env)


def _pgqueuer(name: str, batch: int) -> Peer:
    return Peer(
        name,
        "pgqueuer",
        [_PYTHON, "-m", "bench.pg.peers.pgqueuer_peer"],
        processes=2,
        work=[batch],
        settings=f"two processes, asyncpg pool of 3, uvloop, batch_size={batch}, durability balanced (its queue "
        "logged, its log not), its own autovacuum settings, no log aggregation; put in lists of 1,000, two at a time",
        left="SELECT count(*) FROM pgqueuer",
        env={"PGQUEUER_DURABILITY": "balanced"},
    )


def _graphile(name: str, local: int, concurrent: int) -> Peer:
    return Peer(
        name,
        "graphile",
        ["node", _HERE / "graphile.cjs"],
        processes=2,
        work=[local, concurrent],
        settings=f"two processes, concurrentJobs {concurrent}, maxPoolSize 25, localQueue {local}, "
        "completeJobBatchDelay 0; addJobs of 1,000, two at a time",
        left="SELECT count(*) FROM graphile_worker._private_jobs",
        env={"NODE_PATH": str(_NODE_MODULES), "NODE_ENV": "production"},
    )


_ALL: Final = (
    _pgqueuer("pgqueuer", 500),
    _pgqueuer("pgqueuer-1000", 1_000),
    Peer(
        "procrastinate",
        "procrastinate",
        [_PYTHON, "-m", "bench.pg.peers.procrastinate_peer"],
        processes=4,
        work=[5],
        settings="four processes, concurrency 5, uvloop, delete_jobs=successful, no notifications; "
        "batch_defer of 1,000",
        left="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        slower=20,
    ),
    _graphile("graphile", 500, 24),
    _graphile("graphile-1000", 1_000, 100),
)


def peers() -> list[Peer]:
    return [peer for peer in _ALL if version_of(peer.project)]


def missing() -> list[str]:
    """Projects."""
    return sorted({peer.project for peer in _ALL if not version_of(peer.project)})


@functools.cache
def version_of(project: str) -> str:
    """Empty if it is not here."""
    if project == "graphile":
        told = _NODE_MODULES / "graphile-worker" / "package.json"
        return str(json.loads(told.read_text())["version"]) if shutil.which("node") and told.exists() else ""
    if not _PYTHON.exists():
        return ""
    code = f"import {project}, uvloop; from importlib.metadata import version; print(version({project!r}))"
    return subprocess.run([_PYTHON, "-c", code], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
