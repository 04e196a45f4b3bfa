"""A claimer without a worker: `python -m forebay_proof.load.claimer QUEUE BATCH`, until it is killed.

It claims and acknowledges on the store of FOREBAY_URL, and keeps a tally as the app of the load does. What it reaches
is what the store can do; the distance to a fleet is what the worker costs. With a third word, `apart`, settlements and
claims are two calls even where the store takes both in one, so that the latency of a claim is that of the claim alone.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Final

from forebay.core.instant import seconds
from forebay.core.lease import Lease, Settlement
from forebay.core.outcome import Ack
from forebay.store.open import open_store
from forebay.store.protocol import Pipelining, Store, Want
from forebay_proof.load.probed_store import count_claims, probed
from forebay_proof.tally import TallyFile

APART: Final = "apart"
LEASE: Final = seconds(600)
_PAUSE: Final = 0.001


def claim_until(
    store: Store, tally: TallyFile, queue: str, batch: int, apart: bool, stopped: Callable[[], bool]
) -> None:
    """Claim and acknowledge; what was claimed last stays unacknowledged where both are one call."""
    store = probed(store, count_claims(tally))
    wants = [Want(queue, batch)]
    done: list[Settlement] = []
    while not stopped():
        leases: list[Lease]
        if isinstance(store, Pipelining) and not apart:
            leases = store.settle_and_claim(done, wants, "claimer", LEASE)[1]
            tally.count(len(done))
            done = [(lease, Ack()) for lease in leases]
        else:
            leases = store.claim(wants, "claimer", LEASE)
            store.settle([(lease, Ack()) for lease in leases])
            tally.count(len(leases))
        if not leases:
            time.sleep(_PAUSE)


def main(queue: str, batch: str, *words: str) -> None:
    store = open_store(os.environ["FOREBAY_URL"])
    claim_until(store, TallyFile.of_this_process(), queue, int(batch), APART in words, lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:])
