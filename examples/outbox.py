"""The job exists if, and only if, the order does: an outbox, and a relay that may die at any moment.

The shop has its own database. It writes the order and what is to be done about it in one transaction; a relay carries
the outbox to the job store by `ingest`, which moves its checkpoint and takes the drafts in one step. The relay dies
after a step, before it can note how far it came: the store knows, and takes nothing twice.

On Postgres, with the jobs in the same database, no relay is needed: `enqueue_in`, see docs/guides/transactions.md.

    python examples/outbox.py
"""

import sqlite3
import sys
from contextlib import suppress
from hashlib import blake2b
from tempfile import TemporaryDirectory

from forebay import Draft
from forebay.store.open import open_store
from forebay.store.protocol import Checkpoint, Query, Store

_SOURCE = "shop/outbox"
_TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body TEXT NOT NULL);
"""


def order(shop: sqlite3.Connection, item: str, *, fails: bool = False) -> None:
    with shop:
        number = shop.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        shop.execute("INSERT INTO outbox (kind, body) VALUES ('send_receipt', ?)", (f'{{"order": {number}}}',))
        if fails:
            raise RuntimeError("the card was declined")


def relay(shop: sqlite3.Connection, store: Store, most: int = 2) -> bool:
    """One step; False: there is nothing left to carry. The place is the last id of the outbox that was taken."""
    before = store.ingested(_SOURCE)
    rows = shop.execute(
        "SELECT id, kind, body FROM outbox WHERE id > ? ORDER BY id LIMIT ?", (before.batch if before else 0, most)
    ).fetchall()
    if not rows:
        return False
    drafts = [Draft(kind, body=body.encode()) for _, kind, body in rows]
    digest = blake2b(b"".join(draft.body for draft in drafts), digest_size=16).digest()
    store.ingest(_SOURCE, before, Checkpoint(rows[-1][0], len(rows), digest), drafts)
    return True


def main() -> int:
    with TemporaryDirectory() as folder:
        shop = sqlite3.connect(f"{folder}/shop.db")
        shop.executescript(_TABLES)
        store = open_store(f"sqlite:///{folder}/jobs.db")
        for item in ("tea", "milk", "cups"):
            order(shop, item)
        with suppress(RuntimeError):
            order(shop, "a yacht", fails=True)

        relay(shop, store)
        print("the first relay carried two and died; it noted nothing")
        while relay(shop, store):
            pass
        jobs = store.browse(Query(), 0, 10).jobs
        print(f"three orders, one that was rolled back, and receipts to send: {[job.payload for job in jobs]}")
        store.close()
        shop.close()
    return 0 if [job.payload for job in jobs] == [{"order": number} for number in (1, 2, 3)] else 1


if __name__ == "__main__":
    sys.exit(main())
