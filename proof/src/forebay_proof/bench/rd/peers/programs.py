"""The peers of the Redis store with their settings: their best, by their own pages and by trial."""

from pathlib import Path
from typing import Final

from forebay_proof.bench.clients.peer import NODE_ENV, PYTHON, Peer, Peers

_HERE: Final = Path(__file__).parent


def _bullmq(name: str, processes: int, concurrency: int) -> Peer:
    return Peer(
        name,
        "bullmq",
        ["node", _HERE / "bullmq.cjs"],
        processes=processes,
        work=[concurrency],
        settings=f"processes: {processes}, concurrency {concurrency}, ioredis, removeOnComplete; addBulk of 1,000, two "
        "at a time",
        left="return redis.call('LLEN', 'bull:email:wait') + redis.call('LLEN', 'bull:email:active')",
        slower=2,
        env=NODE_ENV,
        node="bullmq",
    )


def _dramatiq(name: str, threads: int) -> Peer:
    return Peer(
        name,
        "dramatiq",
        [PYTHON, "-m", "forebay_proof.bench.rd.peers.dramatiq_peer"],
        processes=2,
        work=[threads],
        settings=f"two processes, threads in each: {threads}, prefetch 1,000, no middleware but Retries, hiredis; put "
        "one by one",
        left="return redis.call('HLEN', 'dramatiq:default.msgs')",
        slower=5,
        env={"dramatiq_queue_prefetch": "1000"},
    )


def _celery(name: str, *, late: bool) -> Peer:
    when = "late: what a killed worker had comes back" if late else "early: what a killed worker had is lost"
    return Peer(
        name,
        "celery",
        [PYTHON, "-m", "forebay_proof.bench.rd.peers.celery_peer"],
        processes=2,
        work=[256, int(late)],
        settings=f"two processes, pool solo, prefetch multiplier 256, no results, no events, acks {when}; one producer "
        "reused, put one by one",
        left="return redis.call('LLEN', 'celery') + redis.call('HLEN', 'unacked')",
        slower=10,
    )


PEERS: Final = Peers(
    _bullmq("bullmq", 1, 100),
    _bullmq("bullmq-2-processes", 2, 100),
    _dramatiq("dramatiq", 1),
    _dramatiq("dramatiq-8-threads", 8),
    _celery("celery", late=True),
    _celery("celery-early", late=False),
    Peer(
        "rq",
        "rq",
        [PYTHON, "-m", "forebay_proof.bench.rd.peers.rq_peer"],
        processes=2,
        work=[],
        settings="two processes of SimpleWorker, so no process for each job, result_ttl 0; enqueue_many of 1,000",
        left="return redis.call('LLEN', 'rq:queue:email') + redis.call('ZCARD', 'rq:wip:email')",
        slower=100,
    ),
)
