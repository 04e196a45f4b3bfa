"""Real workers in real processes on one SQLite file, killed with `kill -9` while they work, and the count afterwards.

    python -m forebay.demo.fleet [--jobs 6000] [--processes 3] [--kills 4] [--seed 7] [--report FILE]

A supervisor runs the app of `mix.py`. Worker processes are killed at random; the supervisor replaces them and
takes back at once what they held. In the end every accepted job must be done or dead, every effect applied once, and
every dead letter must have used exactly its attempts: judged by the producers' receipts and by what the handlers wrote,
not by the queue's own counters. With `--report` the same is then proved from the ledger, on Spark (`proof`).
"""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from forebay import Draft, Job, State
from forebay.client import Forebay
from forebay.demo import proof
from forebay.store.protocol import Query

KINDS, WEIGHTS = ("fast", "slow", "flapping", "poison"), (70, 20, 5, 5)
ALLOWED_ATTEMPTS = {"poison": 3}
PATIENCE_SECONDS = 120
BATCH = 500


def produce(fb: Forebay, jobs: int, rng: random.Random, receipts: Path) -> dict[int, str]:
    """Accepted sequence numbers and their kinds. Each receipt is written when it arrives."""
    kinds = rng.choices(KINDS, WEIGHTS, k=jobs)
    drafts = [
        Draft(kind, {"seq": seq}, "mix", max_attempts=ALLOWED_ATTEMPTS.get(kind)) for seq, kind in enumerate(kinds)
    ]
    with receipts.open("w") as file:
        for start in range(0, jobs, BATCH):
            for seq, receipt in enumerate(fb.store.enqueue(drafts[start : start + BATCH]), start):
                file.write(f'{{"seq": {seq}, "job_id": {receipt.id}, "answer": "accepted"}}\n')
    return dict(enumerate(kinds))


def watch(fb: Forebay, kills: int, rng: random.Random) -> int:
    """Show how it drains and kill a worker now and then; how many were killed."""
    killed: set[int] = set()
    began = time.monotonic()
    next_kill = began + 1.0
    while (now := fb.backlog("mix")[0]).depth and time.monotonic() - began < PATIENCE_SECONDS:
        counts = f"waiting {now.waiting:4}  ready {now.ready:5}  running {now.running:3}  dead {now.dead:3}"
        print(f"   {time.monotonic() - began:5.1f} s  {counts}  killed {len(killed)}", flush=True)
        pids = [worker.pid for worker in fb.store.workers("", BATCH) if worker.pid not in killed]
        if len(killed) < kills and time.monotonic() >= next_kill and pids:
            victim = rng.choice(pids)
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            next_kill = time.monotonic() + rng.uniform(0.5, 1.5)
            print(f"   kill -9 {victim}", flush=True)
        time.sleep(0.5)
    return len(killed)


def audit(fb: Forebay, accepted: dict[int, str], evidence: Path, killed: int) -> bool:
    """Receipts and effects against each other; of the store only the dead letters are read."""
    with sqlite3.connect(evidence) as database:
        starts = dict(database.execute("SELECT seq, count(*) FROM started GROUP BY seq"))
        repeated = database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM started GROUP BY job, delivery HAVING count(*) > 1)"
        )
        twice = repeated.fetchone()[0]
        effects = {seq for (seq,) in database.execute("SELECT seq FROM effect")}
    dead = {job.payload["seq"]: job for job in fb.jobs(Query(queue="mix", state=State.DEAD))}
    left = fb.backlog("mix")[0].depth
    lost = set(accepted) - effects - set(dead)
    both = effects & set(dead)
    wrong = [seq for seq, job in dead.items() if not used_exactly_its_attempts(job, starts.get(seq, 0))]
    innocent = [seq for seq in dead if accepted[seq] != "poison"]
    runs = sum(starts.values())
    for fact, value in {
        "accepted": len(accepted),
        "effects applied (each once)": len(effects),
        "dead letters": len(dead),
        "handler runs in all": runs,
        "worker processes killed with -9": killed,
        "lost": len(lost),
        "both done and dead": len(both),
        "still open": left,
        "a delivery that ran twice": twice,
        "dead with another number of attempts than allowed": len(wrong),
        "dead though not poison": len(innocent),
    }.items():
        print(f"   {fact:40} {value:6}")
    print("   what a killed process held runs alone the next time: until its turn it may be handed out and back again")
    return not (lost or both or left or twice or wrong or innocent) and killed > 0


def used_exactly_its_attempts(job: Job, starts: int) -> bool:
    """A life is charged just before the handler's first line: a kill in between leaves one start less to be seen."""
    unseen = sum(error.abandoned for error in job.errors)
    return job.attempt == job.max_attempts and starts <= job.attempt <= starts + unseen


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=6000, help="how many jobs to accept (default: 6000)")
    parser.add_argument("--processes", type=int, default=3, help="worker processes (default: 3)")
    parser.add_argument("--kills", type=int, default=4, help="how many of them to kill (default: 4)")
    parser.add_argument("--seed", type=int, default=7, help="the same seed makes the same jobs (default: 7)")
    parser.add_argument("--report", metavar="FILE", help="prove it on Spark as well, and write the report there")
    args = parser.parse_args(arguments)
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="forebay-fleet-") as directory:
        url, evidence = f"sqlite:///{directory}/jobs.db", Path(directory) / "evidence.db"
        # The tour shows failures itself; FOREBAY_LOG=WARNING shows what the workers log.
        quiet = {"FOREBAY_LOG": "CRITICAL", **os.environ}
        environment = {**quiet, "FOREBAY_URL": url, "MIX_EVIDENCE": str(evidence)}
        os.environ.update(FOREBAY_URL=url, MIX_EVIDENCE=str(evidence))
        from forebay.demo.mix import fb

        accepted = produce(fb, args.jobs, rng, Path(directory) / proof.RECEIPTS)
        command = [sys.executable, "-m", "forebay", "worker", "forebay.demo.mix:fb", "--queues", "mix", "--processes"]
        supervisor = subprocess.Popen([*command, str(args.processes)], env=environment)
        try:
            killed = watch(fb, args.kills, rng)
        finally:
            supervisor.send_signal(signal.SIGTERM)
            code = supervisor.wait(60)
        good = audit(fb, accepted, evidence, killed) and code == 0
        fb.close()
        print(f"   the supervisor drained and left with code {code}")
        if args.report is not None:
            good = proof.prove(Path(directory), url, evidence, Path(args.report)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
