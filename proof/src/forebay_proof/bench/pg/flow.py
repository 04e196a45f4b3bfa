"""Enqueue and process together: flat out beside pgbench, a fleet, scheduled jobs, and for minutes."""

import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import psycopg

from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import (
    CLIENT,
    CPU,
    DEAD,
    LEFT,
    OFFERED,
    RATE,
    SERVER,
    WAL,
    Measurement,
    Values,
    latencies,
    ratio,
)
from forebay_proof.bench.clients.drain import COSTS
from forebay_proof.bench.clients.flow import CALLS, MAX_START, WARM_UP, RunningFlow, at_share, flowing, together
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.pgbench import ceiling, find_pgbench
from forebay_proof.bench.pg.server import Bench, PostgresDatabase
from forebay_proof.load.app import QUEUE
from forebay_proof.load.mix import MIXES
from forebay_proof.load.payloads import BULK
from forebay_proof.tally import LATE

_PROCESSES: Final = 2
_FLEET: Final = 8
_MAX_FLEET: Final = 60_000
"""Jobs a second that no fleet here works off."""

_SCHEDULED_RATE: Final = 1_000
_THREADS: Final = 64


@dataclass(frozen=True)
class Lengths:
    """In seconds, in buckets of such a length, and how many jobs. `held`: buckets in which a snapshot is held."""

    window: float
    bucket: float
    buckets: int
    held: int
    threads: int
    backlog: int


def fleet(bench: Bench, lengths: Lengths) -> Values:
    """One producer feeds them all: mostly a measure of how little the idle ones disturb it."""
    with flowing(bench, size=ours.DEFAULTS, processes=_FLEET) as flow:
        return flow.measured(lengths.window)


def fleet_flat_out(bench: Bench, lengths: Lengths) -> Values:
    """On a backlog that outlasts the window."""
    with bench.database() as database, Clients() as clients:
        backlog.seed(database, round(_MAX_FLEET * (2 * WARM_UP + lengths.window)))
        database.settle_down()
        ours.start_worker(database, clients, ours.DEFAULTS, _FLEET)
        workers = clients.tallies("worker")
        clients.wait_until(lambda: workers.busy() >= _FLEET, MAX_START, "every process at work")
        time.sleep(WARM_UP)
        values = RunningFlow(database, clients).measured(lengths.window)
        left = database.number(backlog.LEFT)
        clients.stop()
        return {**values, LEFT: left}


def scheduled(bench: Bench, lengths: Lengths) -> Values:
    """How late jobs start that were due at some time, while a deep backlog is worked off and kept deep."""
    with bench.database() as database, Clients() as clients:
        backlog.seed(database, lengths.backlog)
        database.settle_down()
        ours.start_load(database, clients, batch=BULK)
        ours.start_worker(database, clients, ours.FLOW)
        ours.start_load(database, clients, mix=MIXES["delayed"], rate=_SCHEDULED_RATE)
        late = clients.tallies("worker")
        clients.wait_until(lambda: late.histogram(LATE).total > 0, MAX_START, "the first due job")
        time.sleep(WARM_UP)
        values = RunningFlow(database, clients).measured(lengths.window)
        left = database.number(backlog.LEFT)
        clients.stop()
        return {**values, LEFT: left}


def threads(bench: Bench, jobs: int) -> Values:
    with bench.database() as database, Clients() as clients:
        ours.prepare(database)
        report = ours.run_load(database, clients, jobs, batch=1, threads=_THREADS)
        return {RATE: jobs / report.seconds, **latencies("enqueue", report.latency)}


def for_minutes(bench: Bench, lengths: Lengths) -> Values:
    with flowing(bench, processes=_PROCESSES) as flow:
        rates = _buckets(flow, lengths, lengths.buckets, "flat")
        third = len(rates) // 3
        return {
            RATE: sum(rates) / len(rates),
            "lowest": min(rates),
            "end-over-start": sum(rates[-third:]) / sum(rates[:third]),
            **flow.database.traces(),
        }


def with_snapshot(bench: Bench, lengths: Lengths) -> Values:
    """First without; then a transaction of the same database holds its snapshot, for longer."""
    with flowing(bench, processes=_PROCESSES) as flow:
        third = lengths.held // 3
        free = _buckets(flow, lengths, lengths.buckets // 3, "no snapshot")
        with psycopg.connect(flow.database.url) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM forebay.queue")
            held = _buckets(flow, lengths, lengths.held, "snapshot held")
            traces = flow.database.traces()
        return {
            "free": sum(free) / len(free),
            "held": sum(held) / len(held),
            "held-end": sum(held[-third:]) / third,
            **traces,
        }


def _buckets(flow: RunningFlow[PostgresDatabase], lengths: Lengths, count: int, what: str) -> list[float]:
    rates = [flow.measured(lengths.bucket)[RATE] for _ in range(count)]
    shown = " ".join(f"{rate:,.0f}" for rate in rates)
    print(f"{what}, jobs/s in buckets of {lengths.bucket:g} s: {shown}", file=sys.stderr, flush=True)
    return rates


def figures(bench: Bench, lengths: Lengths) -> list[Figure]:
    flowed = partial(together, bench, lengths.window, processes=_PROCESSES)
    flat_out = Measurement("end_to_end/forebay", flowed)
    failing = Measurement("end_to_end/forebay-failing", partial(flowed, mix=MIXES["flaky"], queue=QUEUE))
    all_of_it = (*COSTS, *CALLS, DEAD)
    found: list[Figure] = []
    base = None
    if find_pgbench() is not None:
        bare = Measurement("end_to_end/pgbench-rate", lambda: ceiling(bench, lengths.window))
        found += bare.figures((CPU, SERVER, CLIENT, WAL))
        base = bare.name
        found.append(ratio("end_to_end/pgbench", [flat_out], [bare], "≥ 0.8"))
    found += flat_out.figures(all_of_it, base, rate="≥ 50,000")
    silent = Measurement("end_to_end/forebay-without-ledger", partial(flowed, ledger=False))
    found += silent.figures(COSTS, "end_to_end/forebay", rate="≤ 1.1 ×")
    found += failing.figures(all_of_it, "end_to_end/forebay")
    found.append(ratio("failing/none", [failing], [flat_out], "≥ 0.85"))
    single = Measurement("single/enqueue-64-threads", lambda: threads(bench, lengths.threads))
    found += single.figures(("enqueue-p50", "enqueue-p99"), rate="≥ 8,000", enqueue_p99="< 25")
    name = "latency/80-percent"
    reached = partial(flat_out.read, RATE, name)
    eased = Measurement(name, partial(at_share, bench, lengths.window, reached, processes=_PROCESSES))
    found += eased.figures((OFFERED, *COSTS, *CALLS), claim_p99="< 10")
    many = Measurement("fleet/8x64", lambda: fleet_flat_out(bench, lengths))
    found += many.figures((*COSTS, "claim-p50", "claim-p99", LEFT), rate="≥ 40,000", claim_p99="< 15")
    fed = Measurement("fleet/8x64-fed-by-one", lambda: fleet(bench, lengths))
    found += fed.figures((*COSTS, "claim-p50", "claim-p99"), "fleet/8x64")
    return found


def scheduled_figures(bench: Bench, lengths: Lengths) -> list[Figure]:
    late = Measurement(f"scheduled/backlog-{lengths.backlog // 1000}k", lambda: scheduled(bench, lengths))
    return late.figures(("late-p50", "late-p99", "claim-p99", LEFT), late_p99="< 100")


def flat_figures(bench: Bench, lengths: Lengths) -> list[Figure]:
    return Measurement("flat/forebay", lambda: for_minutes(bench, lengths)).named_figures(
        ("flat/forebay", RATE, "jobs/s", None, ""),
        ("flat/lowest-bucket", "lowest", "jobs/s", "flat/forebay", ""),
        ("flat/last-third-over-first", "end-over-start", "×", None, "≥ 0.9"),
        ("flat/dead", DEAD, "rows", None, ""),
    )


def snapshot_figures(bench: Bench, lengths: Lengths) -> list[Figure]:
    return Measurement("snapshot/held", lambda: with_snapshot(bench, lengths)).named_figures(
        ("snapshot/free", "free", "jobs/s", None, ""),
        ("snapshot/held", "held", "jobs/s", "snapshot/free", "≥ 0.8 ×"),
        ("snapshot/held-last-third", "held-end", "jobs/s", "snapshot/free", "≥ 0.8 ×"),
        ("snapshot/dead", DEAD, "rows", None, ""),
    )
