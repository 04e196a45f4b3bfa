"""A producer and a worker in one process, made to lose its power: `python -m forebay_proof.power_writer URL OWNER`.

Each line of standard output is written after the store has answered: `enqueued ID…`, `done ID…`, `dead ID…`. So what
is printed was acknowledged, and what was acknowledged just before a cut may be missing. Enqueued are batches of unlike
jobs; a tenth of the claimed ones fails for good, a tenth is tried again. It ends with its process.
"""

import os
import sys
import time
from random import Random
from threading import Thread

from forebay import Draft, Store, Want, open_store
from forebay.core.instant import micros, ms, seconds
from forebay.core.lease import Settled
from forebay.core.outcome import Ack, DeadLetter, Failure, Retry, Verdict

QUEUE = "power"
_LEASE = seconds(2)
_PAD = 400


def say(word: str, ids: list[int]) -> None:
    """One write, so that lines of both threads stay whole."""
    if ids:
        os.write(1, f"{word} {' '.join(map(str, ids))}\n".encode())


def produce(store: Store, rng: Random) -> None:
    while True:
        drafts = [Draft("job", {"pad": "x" * rng.randrange(_PAD)}, QUEUE) for _ in range(rng.randint(1, 20))]
        say("enqueued", [receipt.id for receipt in store.enqueue(drafts)])


def work(store: Store, owner: str, rng: Random) -> None:
    while True:
        leases = store.claim([Want(QUEUE, rng.randint(1, 20))], owner, _LEASE)
        settled = [(lease, _verdict(rng)) for lease in leases]
        outcomes = store.settle(settled) if settled else []
        ended: dict[type[Verdict], list[int]] = {}
        for (lease, verdict), outcome in zip(settled, outcomes, strict=True):
            if outcome is Settled.APPLIED:
                ended.setdefault(type(verdict), []).append(lease.job.id)
        say("done", ended.get(Ack, []))
        say("dead", ended.get(DeadLetter, []))
        if not leases:
            time.sleep(0.005)


def _verdict(rng: Random) -> Verdict:
    match rng.randrange(10):
        case 0:
            return DeadLetter(Failure("Broken", "on purpose"))
        case 1:
            return Retry(micros(ms(50)), Failure("Flapping", "on purpose"))
        case _:
            return Ack()


def main() -> None:
    url, owner = sys.argv[1:]
    store = open_store(url)
    rng = Random(owner)
    Thread(target=produce, args=(store, rng), daemon=True).start()
    work(store, owner, Random(f"{owner}-work"))


if __name__ == "__main__":
    main()
