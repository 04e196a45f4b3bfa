"""At least once, and yet one effect: a consumer that writes the fence beside its effect.

The job is handed out twice: its first worker does the effect and dies before it can say so. The fence is (job id,
delivery) and only ever grows. The effect's own database remembers it, in the transaction of the effect, so the second
delivery finds that the work is done, and a worker that comes back from a long sleep is refused.

    python examples/idempotent_consumer.py
"""

import sqlite3
import sys
from tempfile import TemporaryDirectory

from forebay import Draft, Want
from forebay.core.decide import decide
from forebay.core.instant import minutes, ms
from forebay.core.lease import Lease
from forebay.core.outcome import Abandoned, Ack, Verdict
from forebay.core.policy import Fixed, Routing
from forebay.store.open import open_store

_TABLES = """
CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE applied (job INTEGER PRIMARY KEY, delivery INTEGER NOT NULL);
INSERT INTO account VALUES ('ada', 0);
"""
_REMEMBER = "INSERT INTO applied VALUES (?, ?) ON CONFLICT (job) DO NOTHING"


def pay(bank: sqlite3.Connection, lease: Lease) -> bool:
    """The effect and its fence, both or neither. False: another delivery has done it."""
    job_id, delivery = lease.fence
    with bank:
        if not bank.execute(_REMEMBER, (job_id, delivery)).rowcount:
            return False
        bank.execute("UPDATE account SET cents = cents + ? WHERE name = 'ada'", (lease.job.payload["cents"],))
    return True


def main() -> int:
    with TemporaryDirectory() as folder:
        bank = sqlite3.connect(f"{folder}/bank.db")
        bank.executescript(_TABLES)
        store = open_store(f"sqlite:///{folder}/jobs.db")
        store.enqueue([Draft("pay", {"cents": 500})])

        [first] = store.claim([Want("default", 1)], "worker-1", ms(1))
        print(f"worker-1 pays: {pay(bank, first)}, and dies before it can acknowledge")

        store.wait(["default"], minutes(1))
        for lease in store.overdue(10):
            store.settle([(lease, _again(lease))])
        [second] = store.claim([Want("default", 1)], "worker-2", minutes(1))
        print(f"worker-2 has delivery {second.job.delivery}; pays: {pay(bank, second)}")
        print(f"worker-2 acknowledges: {store.settle([(second, Ack())])[0]}")
        print(f"worker-1 comes back and is refused: {store.settle([(first, Ack())])[0]}")

        (cents,) = bank.execute("SELECT cents FROM account").fetchone()
        print(f"two deliveries, one payment: {cents} cents")
        store.close()
        bank.close()
    return 0 if cents == 500 else 1


def _again(lease: Lease) -> Verdict:
    """What a reaper does with a lease that ran out: `forebay worker` has one."""
    return decide(lease.job, Abandoned(), Routing(backoff=Fixed()), 0.0)


if __name__ == "__main__":
    sys.exit(main())
