"""A reader of a log that counts each entry once: its place is kept where its effect is, in the same transaction.

The reader adds up payments in its own database, and writes the offset beside the sum. It dies between its commit and
its `commit` to the log, starts again at its own offset, and counts nothing twice. The log's own place of the group is
only there for others: for the lag that people look at, and for the window of the log.

With the log in the same database, Postgres or SQLite: `commit_in(connection, …)`, see docs/guides/logs.md.

    python examples/log_offset.py
"""

import sqlite3
import sys
from tempfile import TemporaryDirectory

import msgspec

from forebay import QueueSpec
from forebay.core.policy import Retained
from forebay.store.open import open_store
from forebay.store.protocol import Store

_TABLES = """
CREATE TABLE total (cents INTEGER NOT NULL);
CREATE TABLE place (partition INTEGER PRIMARY KEY, entry INTEGER NOT NULL);
INSERT INTO total VALUES (0);
INSERT INTO place VALUES (0, -1);
"""


def read_on(store: Store, books: sqlite3.Connection, *, dies: bool = False) -> int:
    """One batch: the effect and its offset, both or neither; how many entries."""
    (after,) = books.execute("SELECT entry FROM place WHERE partition = 0").fetchone()
    entries = store.read("payments", 0, after, 2)
    if entries:
        with books:
            cents = sum(msgspec.json.decode(entry.body)["cents"] for entry in entries)
            books.execute("UPDATE total SET cents = cents + ?", (cents,))
            books.execute("UPDATE place SET entry = ? WHERE partition = 0", (entries[-1].offset,))
        if not dies:
            store.commit("payments", "books", 0, entries[-1].offset)
    return len(entries)


def main() -> int:
    with TemporaryDirectory() as folder:
        books = sqlite3.connect(f"{folder}/books.db")
        books.executescript(_TABLES)
        store = open_store(f"sqlite:///{folder}/jobs.db")
        store.put_spec(QueueSpec(name="payments", retention=Retained(1)))
        store.append("payments", [b'{"cents": %d}' % cents for cents in (100, 20, 3, 4)])

        read_on(store, books, dies=True)
        place = store.position("payments", "books", 0)
        print(f"the first reader counted two and died; the log believes that it came to {place}")
        while read_on(store, books):
            pass
        (cents,) = books.execute("SELECT cents FROM total").fetchone()
        print(f"each payment once: {cents} cents; the log knows it too: {store.position('payments', 'books', 0)}")
        store.close()
        books.close()
    return 0 if cents == 127 else 1


if __name__ == "__main__":
    sys.exit(main())
