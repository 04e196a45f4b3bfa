"""A claimer without a worker, until it is killed: `python -m forebay_proof.lab.experiments.bare QUEUE BATCH`.

It claims and acknowledges, and keeps a tally of its claims as the app of the lab does. What it reaches is what the
store can do; the distance to a fleet is what the worker costs.
"""

import sys

from forebay.core.instant import seconds
from forebay.core.lease import Settlement
from forebay.core.outcome import Ack
from forebay.store.protocol import Pipelining, Want
from forebay_proof.lab.probed_app import fb


def main(queue: str, batch: int) -> None:
    store = fb.store
    done: list[Settlement] = []
    while True:
        wants = [Want(queue, batch)]
        if isinstance(store, Pipelining):
            leases = store.settle_and_claim(done, wants, "bare", seconds(60))[1]
        else:
            store.settle(done)
            leases = store.claim(wants, "bare", seconds(60))
        done = [(lease, Ack()) for lease in leases]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
