"""The Postgres store on a durable server: beside its peers, beside pgbench with its own statements, and beside itself.

make bench-postgres PEERS=1                            all of it, more than an hour; the peers are installed first
make bench-postgres ARGS="--quick"                     a first look, without peers that are not there
make bench-postgres ARGS="--json --only end_to_end"    one object a figure

drain/        a backlog worked off
drain_unlike/ the same where each job is a row of its own            bulk/      many jobs put at once, batches of 1,000
end_to_end/   enqueue and process together, batches of 100, a depth of 20,000; failing: 5 % on their first attempt
failure/      CPU of a failed attempt and all that follows, a job in twenty or every job; failing/none: by the rate
single/       64 threads, a job a call                               single_enqueue/ one thread, a job a call
aenqueue/     1,000 coroutines of one loop, a job a call             single_claim/   one thread, claims of one job
latency/      from the call to the handler, an idle worker; 80-percent: calls at four fifths of end_to_end
fleet/        8 processes, 64 jobs at once in each                   scheduled/ how late due jobs start
scale/        depth: a deep backlog beside a shallow one; queues and tenants: a drain over many of them; bloat: sizes of
              tables and indexes after so many jobs
sweep/        jobs a claim, and claimers at once                     defaults/  a worker's own settings beside the best
flat/         minutes in buckets                                     snapshot/  twelve minutes with a snapshot held

What is named after a peer, or pgbench, is ours over theirs: drain/graphile, drain_unlike/graphile, end_to_end/pgbench,
single_enqueue/pgqueuer, latency/graphile. What they reach themselves ends in -rate or -time.

One server of its own for all, with fsync and synchronous_commit, a fresh database for each measurement; payloads of 100
bytes, async handlers that only count. CPU is that of the server and of all clients. Settings are printed first.
"""

import os
import sys
import traceback
from collections.abc import Iterator

from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.pg import backlog, bloat, depth, drain, failures, flow, scale, single
from forebay_proof.bench.pg.peers.programs import PEERS
from forebay_proof.bench.pg.pgbench import CONNECTIONS, find_pgbench
from forebay_proof.bench.pg.server import Bench, described
from forebay_proof.bench.pg.sweep import Sweep

QUICK = flow.Lengths(window=4, bucket=3, buckets=10, held=10, threads=6_400, backlog=100_000)
FULL = flow.Lengths(window=20, bucket=10, buckets=30, held=72, threads=64_000, backlog=1_000_000)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def preface(bench: Bench) -> None:
    say(f"Postgres {bench.version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {described()}")
    say(f"forebay: {backlog.SETTINGS}")
    for line in PEERS.described("make bench-postgres PEERS=1"):
        say(line)
    if find_pgbench() is None:
        say("no pgbench here: end_to_end/pgbench and sweep/connections are left out")
    else:
        say(f"pgbench: {CONNECTIONS} connections, the store's statements prepared, 100 jobs a statement")


def themes(bench: Bench, quick: bool, knee: Sweep) -> Iterator[tuple[list[Figure], int]]:
    """Figures that are measured beside each other, and in how many rounds; the long ones in one."""
    lengths, jobs, rounds = (QUICK, 20_000, 2) if quick else (FULL, 100_000, 3)
    yield drain.figures(bench, jobs), rounds
    yield drain.bulk_figures(bench, jobs), rounds
    yield flow.figures(bench, lengths), rounds
    yield failures.figures(bench, 40_000 if quick else 200_000), rounds
    yield single.figures(bench, 2_000 if quick else 10_000, 4 if quick else 15), rounds
    yield knee.figures(), 1
    yield depth.figures(bench, 200_000 if quick else 10_000_000, 100 if quick else 2_000), 1
    yield scale.figures(bench, 20_000 if quick else 200_000, 1_000, 10_000 if quick else 100_000), 1 if quick else 3
    yield flow.scheduled_figures(bench, lengths), 1
    yield flow.flat_figures(bench, lengths), 1
    yield flow.snapshot_figures(bench, lengths), 1
    yield bloat.figures(bench, 120_000 if quick else 12_000_000), 1


def main() -> int:
    """A theme that fails is reported, and the others go on; the exit code then is 1."""
    args = arguments(__doc__)
    failed = 0
    with Bench() as bench:
        preface(bench)
        knee = Sweep(bench, 2 if args.quick else 5, 400_000 if args.quick else 2_000_000)
        for figures, rounds in themes(bench, args.quick, knee):
            try:
                run(figures, rounds=rounds, only=args.only, as_json=args.json)
            except Exception:
                failed = 1
                say(f"{figures[0].name.partition('/')[0]} failed:\n{traceback.format_exc()}")
            for line in knee.table():
                say(line)
    return failed


if __name__ == "__main__":
    sys.exit(main())
