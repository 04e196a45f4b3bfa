"""What does a failure cost? CPU from its verdict to its second acknowledgement, the client's and the server's.

A loop settles and claims in one call, as a worker does, on a backlog that does not end. Some jobs fail their first
attempt, all with the same error, and are due again after a delay that is drawn. What the same jobs take when none fails
is subtracted.
"""

import random
import time
from contextlib import closing
from functools import partial
from typing import Final

from forebay import Want
from forebay.core.outcome import Ack, Failure, Retry
from forebay.store.postgres.store import PostgresStore
from forebay_proof.bench.clients.cell import CLIENT, SERVER, WAL, Measurement, Values, costs
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.server import Bench
from forebay_proof.load.claimer import LEASE
from forebay_proof.load.payloads import BATCH

_TRACE: Final = "".join(
    f'  File "app/{n}.py", line {n}, in step\n    await step({n}, retries={n})\n' for n in range(10)
)
_FAILURE: Final = Failure("ConnectionError", "the server said 503", _TRACE)
_MAX_DELAY: Final = 200_000
_PROMOTE_EVERY: Final = 0.05
_CASES: Final = (
    ("alike-500", 500, BATCH, 0.05),
    ("alike-100", 100, BATCH, 0.05),
    ("unlike-500", 500, 1, 0.05),
    ("unlike-100", 100, 1, 0.05),
    ("every-500", 500, BATCH, 1.0),
)
"""Jobs a claim, jobs a row, and how many of them fail."""


def worked_off(bench: Bench, jobs: int, batch: int, rows_of: int, share: float) -> tuple[Values, int]:
    """What a job took, and how many failed."""
    chance = random.Random(7)
    done = failed = 0
    wants = [Want("default", batch)]
    with bench.database() as database:
        backlog.seed(database, jobs * 3 // 2, rows_of)
        database.settle_down()
        with closing(PostgresStore(database.url)) as store:
            leases = store.claim(wants, "bench", LEASE)
            server, client, wal = database.server_cpu(), time.process_time(), database.wal()
            promoted = time.monotonic()
            while done < jobs:
                verdicts: list[Ack | Retry] = [
                    Retry(chance.randrange(_MAX_DELAY), _FAILURE)
                    if lease.job.attempt == 1 and chance.random() < share
                    else Ack()
                    for lease in leases
                ]
                acked = sum(type(verdict) is Ack for verdict in verdicts)
                done, failed = done + acked, failed + len(verdicts) - acked
                if time.monotonic() > promoted + _PROMOTE_EVERY:
                    store.promote(1_000)
                    promoted = time.monotonic()
                _, leases = store.settle_and_claim(list(zip(leases, verdicts, strict=True)), wants, "bench", LEASE)
            server, client = database.server_cpu() - server, time.process_time() - client
            return costs(done, server, client, database.wal() - wal), failed


def failure(bench: Bench, jobs: int, batch: int, rows_of: int, share: float) -> Values:
    without, _ = worked_off(bench, jobs, batch, rows_of, 0)
    values, failed = worked_off(bench, jobs, batch, rows_of, share)
    return {key: (values[key] - without[key]) * jobs / failed for key in (SERVER, CLIENT, WAL)}


def figures(bench: Bench, jobs: int) -> list[Figure]:
    found: list[Figure] = []
    for name, batch, rows_of, share in _CASES:
        cell = Measurement(
            f"failure/{name}", partial(failure, bench, jobs if share < 1 else jobs // 4, batch, rows_of, share)
        )
        found += [
            cell.figure(CLIENT, goal="≤ 26"),
            cell.figure(SERVER, goal="≤ 52"),
            cell.figure(WAL),
        ]
    return found
