"""Forebay in a minute, on the embedded stores: no server, nothing to set up, nothing left behind.

    1  fifteen jobs of mixed priority        2  a duplicate is refused
    3  a flood meets backpressure            4  retries and a dead letter, with live numbers while it drains
    5  `kill -9` of a process with a journal, and a recovery that loses nothing
    6  real worker processes on a SQLite file, killed with -9 while they work
    7  the ledger of that file, read by Spark: the proof, and a report to look at

It ends with a verdict and an exit code: 0 only if every job that was ever accepted is accounted for.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from forebay import Draft, KeyConflict, QueueFull, QueueSpec, Store, Want, decide, open_store
from forebay.core.instant import ms, seconds
from forebay.core.outcome import Ack, DeadLetter, Failed, Failure, Outcome, Succeeded
from forebay.core.policy import Bounded, FullJitter, Priority, Routing
from forebay.demo import fleet
from forebay.demo.title import title
from forebay.store.protocol import Query, matching

QUEUE = "demo"
SPEC = QueueSpec(
    name=QUEUE,
    selection=Priority(),
    routing=Routing(max_attempts=4, backoff=FullJitter(base=ms(20), cap=ms(200))),
    capacity=Bounded(100),
)
WORKERS = 4
VICTIM_THREADS = 8
VICTIM_SECONDS = 2.0
VICTIM_STARTS_WITHIN = 30.0


def handle(kind: str, attempt: int) -> Outcome:
    """Three kinds of jobs: one succeeds, one succeeds after retries, one never does."""
    time.sleep(random.uniform(0.002, 0.008))
    if kind == "poison" or (kind == "flaky" and attempt < 3):
        return Failed(Failure("SmtpError", f"the mail server hung up ({kind})"))
    return Succeeded()


def work(store: Store, name: str, rng: random.Random) -> None:
    """A worker in ten lines: claim, run, decide, settle."""
    while store.backlog([QUEUE])[0].depth:
        leases = store.claim([Want(QUEUE, 1)], name, seconds(5))
        if not leases:
            store.wait([QUEUE], seconds(0.2))
        for lease in leases:
            outcome = handle(lease.job.kind, lease.job.attempt)
            store.settle([(lease, decide(lease.job, outcome, SPEC.routing, rng.random()))])


def fifteen_jobs(store: Store, rng: random.Random) -> None:
    title(1, "Fifteen jobs of mixed priority go in shuffled and come out in order")
    priorities = [rng.randint(1, 9) for _ in range(15)]
    store.enqueue([Draft("email", {"n": n}, QUEUE, priority=p) for n, p in enumerate(priorities)])
    leases = store.claim([Want(QUEUE, 15)], "demo", seconds(30))
    print("   in:  ", *priorities)
    print("   out: ", *(lease.job.priority for lease in leases))
    store.settle([(lease, Ack()) for lease in leases])


def a_duplicate(store: Store) -> None:
    title(2, "The same key is the same job; the same key with another payload is an error")
    first = store.enqueue([Draft("email", {"to": "ada"}, QUEUE, key="email-42")])[0]
    again = store.enqueue([Draft("email", {"to": "ada"}, QUEUE, key="email-42")])[0]
    print(f"   accepted as job {first.id}; sent again: job {again.id}, duplicate={again.duplicate}")
    try:
        store.enqueue([Draft("email", {"to": "eve"}, QUEUE, key="email-42")])
    except KeyConflict as conflict:
        print(f"   refused: {conflict}")


def a_flood(store: Store, rng: random.Random) -> None:
    title(3, "A flood of 200 meets a queue bounded at 100")
    accepted = refused = 0
    last: QueueFull | None = None
    for n in range(200):
        kind = "poison" if n == 50 else "flaky" if n % 10 == 0 else "email"
        try:
            store.enqueue([Draft(kind, {"n": n}, QUEUE, priority=rng.randint(1, 9))])
            accepted += 1
        except QueueFull as full:
            refused, last = refused + 1, full
    print(f"   accepted {accepted}, refused {refused}; the producer gets: {last}")


def a_drain(store: Store, rng: random.Random) -> bool:
    title(4, f"{WORKERS} workers drain it; a tenth fails twice before it works, one never will")
    workers = [
        threading.Thread(target=work, args=(store, f"worker-{n}", random.Random(rng.random()))) for n in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        now = store.backlog([QUEUE])[0]
        print(f"   ready {now.ready:3}  running {now.running}  waiting to retry {now.waiting:2}  dead {now.dead}")
        time.sleep(0.1)
    dead = store.browse(Query(queue=QUEUE), after=0, limit=10).jobs
    for job in dead:
        print(f"   dead letter: job {job.id} ({job.kind}) after {job.attempt} attempts: {job.errors[-1].message}")
    moved = store.redrive([job.id for job in dead])
    leases = store.claim([Want(QUEUE, 10)], "operator", seconds(30))
    store.settle([(lease, DeadLetter(Failure("Given up", "still no mail server"))) for lease in leases])
    print(
        f"   redriven {moved}: delivery {leases[0].job.delivery} goes on counting, attempt is {leases[0].job.attempt}"
    )
    return len(dead) == 1 and len(leases) == 1


def be_the_victim(directory: str, receipts: str) -> None:
    """Accept and finish jobs as fast as possible until this process is killed; write down every acknowledgement."""
    store = open_store(f"memory://{directory}")
    log = os.open(receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def produce(thread: int) -> None:
        number = 0
        while True:
            batch = [Draft("email", {"seq": f"{thread}-{number + n}"}) for n in range(5)]
            ids = [receipt.id for receipt in store.enqueue(batch)]
            os.write(log, "".join(f"accepted {job_id}\n" for job_id in ids).encode())
            leases = store.claim([Want("default", 2)], f"thread-{thread}", seconds(30))
            # Written before, too: an ack may become durable in the instant before the kill and never be answered.
            os.write(log, "".join(f"acking {lease.job.id}\n" for lease in leases).encode())
            store.settle([(lease, Ack()) for lease in leases])
            os.write(log, "".join(f"done {lease.job.id}\n" for lease in leases).encode())
            number += 5

    for thread in range(VICTIM_THREADS):
        threading.Thread(target=produce, args=(thread,), daemon=True).start()
    signal.pause()


def a_kill(directory: Path) -> bool:
    title(5, f"A process with a journal works flat out with {VICTIM_THREADS} threads, then: kill -9")
    journal, receipts = directory / "journal", directory / "receipts"
    victim = subprocess.Popen([sys.executable, "-m", "forebay.demo", "--victim", str(journal), str(receipts)])
    try:
        began = time.monotonic()
        while not (receipts.exists() and receipts.stat().st_size) and time.monotonic() - began < VICTIM_STARTS_WITHIN:
            time.sleep(0.05)
        time.sleep(VICTIM_SECONDS)
        print(f"   kill -9 {victim.pid}")
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    lines = [line.split() for line in receipts.read_text().rpartition("\n")[0].splitlines()]
    accepted, acking, done = (
        {int(number) for event, number in lines if event == word} for word in ("accepted", "acking", "done")
    )
    began = time.perf_counter()
    store = open_store(f"memory://{journal}")
    took = time.perf_counter() - began
    found = {job.id for job in matching(store, Query())}
    store.close()
    lost, undone = accepted - acking - found, done & found
    unconfirmed = len(found - accepted)
    print(f"   accepted and acknowledged to the producers   {len(accepted):6}")
    print(f"   finished and acknowledged to the workers     {len(done):6}")
    print(f"   open jobs found after recovery in {took * 1000:4.0f} ms    {len(found):6}   ({unconfirmed} unconfirmed)")
    print(f"   accepted, not finished, and missing          {len(lost):6}")
    print(f"   finished, and back from the dead             {len(undone):6}")
    return len(accepted) > 100 and len(done) > 50 and not lost and not undone


def a_fleet(seed: int, report: str) -> bool:
    title(
        6, "Three worker processes drain the mix of a busy day from one SQLite file, and are killed with -9 meanwhile"
    )
    return fleet.main(["--seed", str(seed), "--report", report]) == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victim", nargs=2, metavar=("DIRECTORY", "RECEIPTS"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same run (default: 7)")
    default = str(Path(tempfile.gettempdir(), "forebay-report.html"))
    parser.add_argument("--report", metavar="FILE", default=default, help=f"the page (default: {default})")
    args = parser.parse_args(arguments)
    if args.victim:
        be_the_victim(*args.victim)
        return 0
    rng = random.Random(args.seed)
    store = open_store("memory://")
    store.put_spec(SPEC)
    print(f"The queue: {SPEC.vector()}")
    fifteen_jobs(store, rng)
    a_duplicate(store)
    a_flood(store, rng)
    drained = a_drain(store, rng)
    store.close()
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as directory:
        survived = a_kill(Path(directory))
    good = drained and survived and a_fleet(args.seed, args.report)
    print(f"\nVerdict: {'nothing lost, nothing done twice by the queue' if good else 'FAILED, see above'}")
    return 0 if good else 1
