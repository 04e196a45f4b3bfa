"""The Postgres store against the reference model. A crash is a second opener: what it reads is all that survives.

How long it runs is the Hypothesis profile's say; see `tests/conftest.py`. Every history starts with empty tables.
"""

from collections.abc import Mapping

import pytest
from hypothesis.stateful import run_state_machine_as_test

from forebay.store.postgres.store import PostgresStore
from forebay.testing.clock import ManualClock
from forebay_proof.model.lockstep import OpenedStore
from forebay_proof.model.machine import StoreMachine
from tests.stores.histories import HISTORIES
from tests.stores.tables import Tables


class _Postgres:
    def __init__(self, tables: Tables, clock: ManualClock) -> None:
        self.tables = tables
        self.clock = clock
        self.store = PostgresStore(tables.url, clock=clock)

    def reopen(self) -> PostgresStore:
        self.store.close()
        self.store = PostgresStore(self.tables.url, clock=self.clock)
        return self.store

    def residue(self) -> Mapping[str, int]:
        """Rows that are left, and what a process holds on to."""
        # `promote` sweeps what is no longer needed, now and then.
        self.store.backend.claims.swept_at = self.store.backend.claims.trimmed_at = 0
        self.store.promote(1_000)
        names = ("run", "ended", "key", "gate", "lane", "inbox")
        left = {name: self.tables.value(f"SELECT count(*) FROM forebay.{name}") for name in names}
        # Marks of transactions have the server's own time, and are swept by that.
        left["call"] = self.tables.value("SELECT count(*) FROM forebay.call WHERE first_id > 0")
        left["leases"] = sum(len(holder.jobs()) for holder in self.store.backend.claims.holders.values())
        self.store.close()
        return left


@pytest.mark.timeout(3_600)
def test_postgres_answers_as_the_model_does(tables: Tables) -> None:
    last: list[_Postgres] = []

    def opener(clock: ManualClock) -> OpenedStore:
        for left in last:
            left.store.close()
        tables.clear()
        last[:] = [_Postgres(tables, clock)]
        return OpenedStore(last[0].store, last[0].reopen, None, last[0].residue)

    run_state_machine_as_test(StoreMachine.for_store(opener), settings=HISTORIES)
