"""The embedded store against the reference model. A crash is a second opener: what it reads is all that survives.

How long it runs is the Hypothesis profile's say; see `tests/conftest.py`.
"""

import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Mapping

from forebay.store.sqlite.store import SqliteStore
from forebay.testing.clock import ManualClock
from forebay_proof.model.lockstep import OpenedStore
from forebay_proof.model.machine import StoreMachine
from tests.stores.histories import HISTORIES


class _Sqlite:
    """No step cuts the power, and a thousand syncs take their time: the file is not synced."""

    def __init__(self, clock: ManualClock) -> None:
        directory = tempfile.mkdtemp()
        self._clean = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self.clock = clock
        self.path = f"{directory}/jobs.db"
        self.store = self._open()

    def reopen(self) -> SqliteStore:
        self.store.close()
        self.store = self._open()
        return self.store

    def _open(self) -> SqliteStore:
        store = SqliteStore(self.path, clock=self.clock)
        store.backend.session.writer._connection.execute("PRAGMA synchronous = OFF")
        return store

    def residue(self) -> Mapping[str, int]:
        """Rows that are left, and counters that do not say so."""
        # `promote` sweeps the keys of an empty store.
        self.store.promote(1_000)
        connection = sqlite3.connect(self.path)
        try:
            left = {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("job", "key", "gate", "lane", "lane_until", "woken", "class")
            }
            sums = "abs(waiting) + abs(ready) + abs(running) + abs(done) + abs(dead) + abs(cancelled)"
            (left["counters"],) = connection.execute(
                f"SELECT total({sums} + abs(laned) + abs(keys)) FROM queue"
            ).fetchone()
        finally:
            connection.close()
        self.store.close()
        self._clean()
        return left


def open_sqlite(clock: ManualClock) -> OpenedStore:
    sqlite = _Sqlite(clock)
    return OpenedStore(sqlite.store, sqlite.reopen, None, sqlite.residue)


TestSqliteStore = StoreMachine.for_store(open_sqlite).TestCase
TestSqliteStore.settings = HISTORIES
