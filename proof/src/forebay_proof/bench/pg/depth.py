"""Does depth cost? Jobs are put, claimed and acknowledged, a hundred a call, on a deep backlog and on a shallow one.

In rows of a hundred jobs and of one. CPU is that of all three calls; the time of a claim is measured beside it.
"""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from forebay import Want, open_store
from forebay.core.outcome import Ack
from forebay_proof.bench.clients.cell import CLIENT, CPU, SERVER, Measurement, Values, costs, latencies
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.server import Bench
from forebay_proof.histogram import LatencyHistogram
from forebay_proof.load.claimer import LEASE
from forebay_proof.load.mix import email_drafts
from forebay_proof.load.payloads import BATCH

SHALLOW: Final = 10_000
_GOALS: Final = {CPU: "≥ 0.83 ×", "claim-p50": "≤ 1.2 ×"}


def claims(bench: Bench, depth: int, rows_of: int, cycles: int) -> Values:
    """Each cycle puts as many as it takes, so the depth stays. The first tenth of the cycles does not count."""
    with bench.database() as database:
        backlog.seed(database, depth, rows_of)
        database.settle_down()
        found = LatencyHistogram()
        server, client, wal = database.server_cpu(), time.process_time(), database.wal()
        with closing(open_store(database.url)) as store:
            for number in range(cycles):
                store.enqueue(email_drafts(BATCH, unlike=rows_of == 1))
                began = time.perf_counter()
                leases = store.claim([Want("default", BATCH)], "bench", LEASE)
                if number >= cycles // 10:
                    found.add(time.perf_counter() - began)
                store.settle([(lease, Ack()) for lease in leases])
        server, client = database.server_cpu() - server, time.process_time() - client
        return {**costs(cycles * BATCH, server, client, database.wal() - wal), **latencies("claim", found)}


def figures(bench: Bench, deep: int, cycles: int) -> list[Figure]:
    found: list[Figure] = []
    for kind, rows_of in (("runs", BATCH), ("singles", 1)):
        for depth in (SHALLOW, deep):
            name = f"scale/depth-{kind}-{_short(depth)}"
            base = "" if depth == SHALLOW else f"scale/depth-{kind}-{_short(SHALLOW)}"
            cell = Measurement(name, _measuring(bench, depth, rows_of, cycles))
            found += [
                cell.figure(key, f"{base}/{key}" if base else None, _GOALS.get(key, "") if base else "")
                for key in (CPU, SERVER, CLIENT, "claim-p50", "claim-p99")
            ]
    return found


def _short(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"


def _measuring(bench: Bench, depth: int, rows_of: int, cycles: int) -> Callable[[], Values]:
    return lambda: claims(bench, depth, rows_of, cycles)
