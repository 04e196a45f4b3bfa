"""Whole cycles by a process of `measure.race`: `python -m forebay_proof.bench.cycles URL JOBS BATCH`."""

import sys

from forebay import Store, Want, open_store
from forebay.core.lease import Settlement
from forebay.core.outcome import Ack
from forebay.store.protocol import Pipelining
from forebay_proof.bench.memory import LEASE, cycle, drafts


def work(store: Store, jobs: int, batch: int) -> None:
    """As a worker does it: enqueue, claim, acknowledge; verdicts ride on the next claim where the store lets them."""
    if not isinstance(store, Pipelining):
        return cycle(store, jobs, batch)
    want, settled = [Want("default", batch)], list[Settlement]()
    for _ in range(jobs // batch):
        store.enqueue(drafts(batch))
        _, leases = store.settle_and_claim(settled, want, "bench", LEASE)
        settled = [(lease, Ack()) for lease in leases]
    store.settle(settled)
    return None


def main(url: str, jobs: int, batch: int) -> None:
    store = open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    work(store, jobs, batch)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
