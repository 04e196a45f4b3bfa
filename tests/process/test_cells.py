"""Cells on real servers: one is killed under load and comes back; the others go on, and no job is lost or run twice."""

import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pytest

from forebay.core.errors import PartlyDone, StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.lease import Settled, Settlement
from forebay.core.outcome import Ack
from forebay.store.cells.ids import cell_of
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay.work.settler import Settler
from forebay_proof.servers.postgres import PostgresServer, StopMode
from forebay_proof.servers.process import ServerUnavailable
from tests.waiting import eventually

FILE = """
version = 1
[cells.a]
number = 0
url = "{a}?call_timeout=2"
deadline = 1
[cells.b]
number = 1
url = "{b}?call_timeout=2"
deadline = 1
[queues]
"*" = "a"
orders = {{ partitions = 8, by = "tenant", cells = ["a", "b"] }}
"""
TENANTS = [f"t{number}" for number in range(16)]


class Load:
    """A producer of single drafts and a claimer, each with a store of its own."""

    def __init__(self, url: str) -> None:
        self.accepted: dict[int, float] = {}
        self.unknown = 0
        self.runs: Counter[int] = Counter()
        self.settled: dict[int, float] = {}
        self._stores = [open_store(url), open_store(url)]
        self._stop = Event()
        self._producing = True
        self._threads = [
            Thread(target=self._produce, args=(self._stores[0],), daemon=True),
            Thread(target=self._claim, args=(self._stores[1],), daemon=True),
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        for store in self._stores:
            store.close()

    def goes_on(self, since: float, cell: int) -> bool:
        """Whether enough jobs of a cell were done after this instant."""
        return sum(done > since and cell_of(job_id) == cell for job_id, done in list(self.settled.items())) > 30

    def stop_producing(self) -> None:
        self._producing = False
        self._threads[0].join(30)

    def _produce(self, store: Store) -> None:
        number = 0
        while self._producing and not self._stop.is_set():
            number += 1
            tenant = TENANTS[number % len(TENANTS)]
            try:
                receipt = store.enqueue([Draft("work", queue="orders", tenant=tenant)])[0]
            except StoreFailed:
                self.unknown += 1
            else:
                self.accepted[receipt.id] = time.monotonic()
            time.sleep(0.002)

    def _claim(self, store: Store) -> None:
        settler = Settler(store, lambda lease, answer: self._done(lease.job.id, answer), pause=lambda _: None)
        while not self._stop.is_set():
            try:
                leases = store.claim([Want("orders", 20)], "w", seconds(60))
                verdicts: list[Settlement] = [(lease, Ack()) for lease in leases]
                self.runs.update(lease.job.id for lease in leases)
                settler.put(verdicts)
                settler.step()
            except (PartlyDone, StoreFailed):
                time.sleep(0.01)

    def _done(self, job_id: int, answer: Settled) -> None:
        assert answer is Settled.APPLIED
        self.settled[job_id] = time.monotonic()


@pytest.mark.timeout(240)
def test_a_cell_is_killed_and_back_and_the_other_goes_on(tmp_path: Path) -> None:
    servers = PostgresServer(durable=True, private=True), PostgresServer(durable=True, private=True)
    try:
        with servers[0] as a, servers[1] as b:
            path = tmp_path / "cells.toml"
            path.write_text(FILE.format(a=a.create_database(), b=b.create_database()))
            with Load(f"cells:{path}") as load:
                for _ in range(2):
                    eventually(lambda: load.goes_on(0, 0) and load.goes_on(0, 1), "both cells work")
                    b.stop(StopMode.KILL)
                    killed = time.monotonic()
                    eventually(partial(load.goes_on, killed + 2, 0), "cell a goes on while b is down")
                    ends = sorted(done for job_id, done in load.settled.items() if cell_of(job_id) == 0)
                    longest = max(later - earlier for earlier, later in pairwise(ends))
                    assert longest < 5, f"cell a was held up for {longest:.1f} s"
                    b.start()
                    eventually(partial(load.goes_on, time.monotonic(), 1), "cell b is used again")
                load.stop_producing()
                eventually(lambda: load.accepted.keys() <= load.settled.keys(), "every accepted job is done")
                assert {cell_of(job_id) for job_id in load.accepted} == {0, 1}
                assert load.unknown > 0
                twice = [job_id for job_id, runs in load.runs.items() if runs > 1]
                assert twice == [], "no lease ended, so no job was handed out twice"
    except ServerUnavailable as error:
        pytest.skip(str(error))
