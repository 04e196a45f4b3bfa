"""The bill of a job for `forebay capacity`: CPU, log, ledger, memory and connections, measured on one store.

    figures = measure_bill(Trial(store="postgres", rate=2_000, seconds=20), rounds=2, directory=folder)

Each round is a load with its workers, and two passes of the store's verbs that differ in their payloads alone: the
difference between them is what a byte of payload costs. CPU, log and ledger are of an accepted job, whatever became of
it. Only private servers are measured: others have more to do.
"""

import base64
import os
import random
import statistics
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil
from msgspec import Struct

from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.store.protocol import Want
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.lab.trial import Trial, TrialResult, prepare
from forebay_proof.load.app import QUEUE
from forebay_proof.load.fleet import Fleet
from forebay_proof.load.mix import Mix
from forebay_proof.processes import children_of

STORES: Final = ("postgres", "redis")
UNITS: Final = {
    "producer_cpu": "µs/job",
    "worker_cpu": "µs/job",
    "server_cpu": "µs/job",
    "payload_bytes": "B/job",
    "log_bytes": "B/job",
    "log_factor": "B/B",
    "ledger_bytes": "B/job",
    "waiting_bytes": "B/job",
    "waiting_factor": "B/B",
    "worker_memory": "MiB",
    "worker_connections": "connections",
    "producer_connections": "connections",
    "cell_rate": "jobs/s",
}
_JOBS, _BATCH = 5_000, 100
_MORE_PAYLOAD: Final = 1_000
_SAMPLED_DRAFTS: Final = 1_000
_LEASE: Final = seconds(600)
_MIB: Final = 1 << 20
_TABLE_SIZES: Final = """
    SELECT relname, pg_total_relation_size(c.oid)::float8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'forebay' AND c.relkind = 'r'
"""


def measure_bill(trial: Trial, *, rounds: int, directory: Path) -> dict[str, list[float]]:
    """The value of each figure in each round."""
    if trial.store not in STORES:
        raise Invalid("store", f"{trial.store!r} has no bill", f"use {' or '.join(STORES)}")
    found = [_round(trial, directory / str(number)) for number in range(rounds)]
    return {name: [each[name] for each in found] for name in UNITS}


def _round(trial: Trial, directory: Path) -> dict[str, float]:
    connections = _Connections()
    kept: list[float] = []
    outcome = trial.run(directory, disturb=connections, afterwards=lambda server, _: kept.append(_sizes(server).ledger))
    if outcome.verdict.answer != "PASS" or not outcome.flat:
        reason = f"{outcome.verdict.answer}, {outcome.depth[0]:g} jobs open, then {outcome.depth[1]:g}"
        raise Invalid("rate", f"{trial.rate:g} jobs/s is not held here: {reason}", "measure at a lower --rate")
    accepted = outcome.producers.accepted
    payload = mean_payload(trial.mix, trial.seed)
    small, large = (_volume(trial.store, size) for size in (round(payload), round(payload) + _MORE_PAYLOAD))
    return {
        **_cpu(outcome),
        "payload_bytes": payload,
        "log_bytes": _log_bytes(outcome.evidence) / accepted,
        "ledger_bytes": kept[0] / accepted,
        "log_factor": (large["log"] - small["log"]) / _MORE_PAYLOAD,
        "waiting_bytes": small["stored"],
        "waiting_factor": (large["stored"] - small["stored"]) / _MORE_PAYLOAD,
        "worker_memory": max(each.fleet_rss for each in outcome.samples) / (trial.processes + 1) / _MIB,
        **connections.found(),
        "cell_rate": outcome.accepted_rate,
    }


def _cpu(outcome: TrialResult) -> dict[str, float]:
    parts = {"producer_cpu": "producers", "worker_cpu": "fleet", "server_cpu": "server"}
    return {name: 1e6 * outcome.cpu[part] / outcome.accepted_rate for name, part in parts.items()}


def mean_payload(mix: Mix, seed: int) -> float:
    """Bytes of JSON of a job of the mix."""
    drafts = (mix.draft(seed, seq, QUEUE) for seq in range(_SAMPLED_DRAFTS))
    return statistics.fmean(len(msgspec.json.encode(draft.payload)) for draft in drafts)


class _Connections:
    """The most connections to the server that one worker, or one producer, was seen to have."""

    def __init__(self) -> None:
        self._maxima = {"worker_connections": 0, "producer_connections": 0}

    def __call__(self, fleet: Fleet, lab_server: LabServer) -> None:
        port = lab_server.server.port
        for name, pids in (("worker_connections", fleet.workers()), ("producer_connections", children_of(os.getpid()))):
            self._maxima[name] = max([self._maxima[name], *(_connections_to(port, pid) for pid in pids)])

    def found(self) -> dict[str, int]:
        return self._maxima


def _connections_to(port: int, pid: int) -> int:
    with suppress(psutil.Error):
        return sum(bool(each.raddr) and each.raddr.port == port for each in psutil.Process(pid).net_connections("tcp"))
    return 0


def _volume(store: str, payload_bytes: int) -> dict[str, float]:
    """Bytes of a job with a payload that does not compress: stored while it waits, and of log for its whole life."""
    with LabServer(store) as lab_server:
        prepare(lab_server.url)
        with closing(Forebay(lab_server.url)) as app, lab_server.evidence() as evidence:
            before = _sizes(lab_server).whole
            for _ in range(0, _JOBS, _BATCH):
                app.store.enqueue(list(_drafts(payload_bytes)))
            stored = _sizes(lab_server).whole - before
            while leases := app.store.claim([Want(QUEUE, _BATCH)], "bill", _LEASE):
                app.store.settle([(lease, Ack()) for lease in leases])
    return {"stored": stored / _JOBS, "log": _log_bytes(evidence.facts) / _JOBS}


def _drafts(payload_bytes: int) -> Iterator[Draft]:
    rng = random.Random(payload_bytes)
    length = max(1, payload_bytes - len('{"text":""}'))
    for _ in range(_BATCH):
        text = base64.b64encode(rng.randbytes(length)).decode()[:length]
        yield Draft("idle", {"text": text}, QUEUE)


def _log_bytes(facts: dict[str, float]) -> float:
    """The WAL; of Redis what its processes wrote, which is the append-only file."""
    return facts["wal_bytes"] if "wal_bytes" in facts else facts["server_written_bytes"]


class _Sizes(Struct, frozen=True):
    """Bytes of everything stored, and of the ledger alone. Redis: of memory."""

    whole: float
    ledger: float


def _sizes(lab_server: LabServer) -> _Sizes:
    if lab_server.kind == "redis":
        import redis

        with redis.Redis.from_url(lab_server.url.partition("?")[0], protocol=2) as client:
            streams = [float(client.memory_usage(key) or 0) for key in client.scan_iter(_type="stream")]
            return _Sizes(float(client.info("memory")["used_memory"]), sum(streams))
    import psycopg

    with psycopg.connect(lab_server.url, autocommit=True) as connection:
        rows = connection.execute(_TABLE_SIZES).fetchall()
    return _Sizes(sum(size for _, size in rows), sum(size for name, size in rows if name.startswith("ledger")))
