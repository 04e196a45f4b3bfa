"""The peers of the Postgres store with their settings: their best, by their own pages and by trial."""

from pathlib import Path
from typing import Final

from forebay_proof.bench.clients.peer import NODE_ENV, PYTHON, Peer, Peers

_HERE: Final = Path(__file__).parent


def _pgqueuer(name: str, batch: int) -> Peer:
    return Peer(
        name,
        "pgqueuer",
        [PYTHON, "-m", "forebay_proof.bench.pg.peers.pgqueuer_peer"],
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
        env=NODE_ENV,
        node="graphile-worker",
    )


PEERS: Final = Peers(
    _pgqueuer("pgqueuer", 500),
    _pgqueuer("pgqueuer-1000", 1_000),
    Peer(
        "procrastinate",
        "procrastinate",
        [PYTHON, "-m", "forebay_proof.bench.pg.peers.procrastinate_peer"],
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
