"""The price of the ledger: whole cycles (enqueue, claim, acknowledge) with it on, beside the same with it off.

forebay bench run ledger            SQLite and the journal, in batches of 100 and one by one
forebay bench run ledger --quick    a first look

CPU a job, not rates: the disk of a shared machine is noisier than the price.
"""

import tempfile
import time

from forebay import open_store
from forebay.core.ledger import LedgerRule
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.memory import BATCH, cycle

ROUNDS = 5


def cpu(scheme: str, jobs: int, batch: int, *, on: bool) -> float:
    """Microseconds of this process a job."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as directory:
        store = open_store(f"{scheme}:///{directory}/jobs")
        store.put_ledger_rule(LedgerRule(on=on))
        began = time.process_time()
        cycle(store, jobs, batch)
        spent = time.process_time() - began
        store.close()
    return spent / jobs * 1_000_000


def figures(scale: int) -> list[Figure]:
    found = []
    for scheme, jobs, batch in (
        ("sqlite", 5_000, BATCH),
        ("memory", 10_000, BATCH),
        ("sqlite", 100, 1),
        ("memory", 200, 1),
    ):
        for on in (False, True):
            name = f"{scheme}/batch-{batch}/{'on' if on else 'off'}"

            def measure(scheme: str = scheme, jobs: int = jobs, batch: int = batch, on: bool = on) -> float:
                return cpu(scheme, max(batch, jobs // scale), batch, on=on)

            found.append(Figure(name, "µs/job", measure, f"{scheme}/batch-{batch}/off" if on else None))
    return found


def main() -> None:
    args = arguments(__doc__)
    run(figures(10 if args.quick else 1), rounds=2 if args.quick else ROUNDS, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
