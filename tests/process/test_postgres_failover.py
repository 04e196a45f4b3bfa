"""A Postgres primary that is killed, and its standby promoted: what was acknowledged is there afterwards.

Workers, producers and the store of the test name both servers in their URL. What an asynchronous standby loses is
audited in `tests/spark/test_audit_failover.py`.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from forebay import Draft, open_store
from forebay.cli import main
from forebay.cli import postgres as doctor
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import minutes
from forebay.core.job import Progress, State
from forebay.store import connection_pool
from forebay.store.postgres.connect import Server
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Query, Want
from forebay_proof.conformance.racing import RacingCall
from forebay_proof.servers.postgres import REPLICATED, STANDBY, PostgresServer, StopMode, database_of, join_hosts
from tests.process.load import Load, now

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Pair:
    """A primary and its standby, which change places; `url` names both, and a fresh database."""

    def __init__(self, *, durable: bool = False) -> None:
        self._stack = ExitStack()
        self.primary = self._stack.enter_context(PostgresServer(durable=durable, private=True, settings=REPLICATED))
        self.standby = self._stack.enter_context(self.primary.standby(synchronous=True))
        self.create_database()

    def create_database(self) -> None:
        name = database_of(self.primary.create_database())
        self.url = join_hosts(self.primary.url(name), self.standby.url(name))

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fail_over(self) -> None:
        self.primary.stop(StopMode.KILL)
        self.standby.promote()

    def replace_primary(self) -> None:
        """The promoted server gets a new standby, in the place of the old primary."""
        port = self.primary.port
        self.primary.close()
        self.primary = self.standby
        self.standby = self._stack.enter_context(self.primary.standby(synchronous=True, port=port))


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.create_database()
    return servers


def fail_over_under_load(directory: Path, rounds: int, *, durable: bool) -> None:
    with Pair(durable=durable) as pair:
        load = Load(directory, pair.url)
        try:
            fleet = load.workers(2)
            load.produce()
            load.produce(threads=1, keyed=True)
            for number in range(rounds):
                if number:
                    pair.replace_primary()
                load.until_busy(50)
                pair.fail_over()
                load.until_consumed(now(), 2)
            load.stop_producing()
            load.until_quiet()
            assert load.end(fleet) == 0
            load.audit_load()
        finally:
            load.close()


def test_a_fail_over_to_a_synchronous_standby_loses_nothing(tmp_path: Path) -> None:
    fail_over_under_load(tmp_path, 1, durable=False)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_ten_fail_overs_lose_nothing(tmp_path: Path) -> None:
    fail_over_under_load(tmp_path, 10, durable=True)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_commit_that_the_standby_does_not_have_is_not_acknowledged(pair: Pair, key: str | None) -> None:
    """An operator cancels the wait for the standby: the server then reports success, with a warning."""
    store = open_store(pair.url)
    pair.standby.stop(StopMode.FAST)
    enqueue = RacingCall(lambda: store.enqueue([Draft("k", key=key)]))
    for _ in range(2):
        pair.primary.wait_until(WAITING)
        with pair.primary.connect() as connection:
            assert connection.execute(CANCEL).fetchall() == [(True,)]
        time.sleep(0.2)
        assert enqueue.running, "it waits again for the standby"
    pair.standby.start()
    (receipt,) = enqueue.result(patience=20)
    assert [job.id for job in store.browse(Query(), 0, 10).jobs] == [receipt.id], "it is there, once"
    store.close()


def test_a_server_that_a_fail_over_left_behind_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "CERTAIN_SECONDS", 1.0)
    store = open_store(pair.url)
    (before,) = store.enqueue([Draft("k")])
    pair.fail_over()
    (after,) = store.enqueue([Draft("k")])
    assert after.id > before.id + 1_000_000_000, "no id that the old primary may have assigned"
    assert [job.id for job in store.browse(Query(), 0, 10).jobs] == [before.id, after.id]
    pair.primary.start()
    assert store.enqueue([Draft("k")])[0].id == after.id + 1_000, "the new primary is used, though the old one is first"
    pair.standby.stop(StopMode.KILL)
    with pytest.raises(
        StoreFailed, match=f"{pair.primary.port} is on timeline 1, and a fail-over has led to timeline 2"
    ):
        store.enqueue([Draft("k")])
    store.close()
    pair.standby.start()
    pair.replace_primary()


def test_a_standby_that_may_lack_what_was_acknowledged_is_reported(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        store = PostgresStore(pair.url)
    assert (store.capabilities.unsafe, caplog.messages) == ((), [])
    assert store.vitals().standbys.keys() == {"standby"}
    (found,) = (each for each in doctor.diagnoses(pair.url) if each.check == "standby")
    assert (found.status, found.fact.partition(",")[0]) == ("ok", "standby (sync)")
    pair.primary.reconfigure("synchronous_standby_names", "")
    pair.primary.wait_until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'async'")
    store.vitals()
    store.vitals()
    risk = "synchronous_standby_names is empty: a fail-over can lose acknowledged jobs"
    assert store.capabilities.unsafe == (risk,)
    assert [risk in message for message in caplog.messages] == [True], "once"
    store.close()
    pair.primary.reconfigure("synchronous_standby_names", STANDBY)


def test_a_replication_slot_that_nothing_reads_is_reported(pair: Pair) -> None:
    with closing(PostgresStore(pair.url)) as store, pair.primary.connect() as connection:
        assert store.vitals().slots == {}, "the standby reads its own"
        connection.execute("SELECT pg_create_physical_replication_slot('old', true)")
        store.enqueue([Draft("k")])
        try:
            (found,) = (each for each in doctor.diagnoses(pair.url) if each.check == "slot")
            assert (found.status, found.fact.partition(":")[0]) == ("warn", "nothing reads the replication slot old")
            assert store.vitals().slots["old"] > 0
        finally:
            connection.execute("SELECT pg_drop_replication_slot('old')")


def test_a_url_with_several_hosts_means_the_one_that_accepts_writes(pair: Pair) -> None:
    first, second = ("127.0.0.1", str(pair.primary.port)), ("127.0.0.1", str(pair.standby.port))
    server = Server(join_hosts(pair.standby.url(), pair.primary.url()))
    assert server.hosts == [second, first]
    server.connect().close()
    assert server.options()["port"] == f"{pair.primary.port},{pair.standby.port}", "the one that was right is first"
    for wrong in ("any", "standby", "prefer-standby"):
        with pytest.raises(Invalid, match=f"2 hosts and target_session_attrs={wrong}, which accepts a standby"):
            open_store(f"{pair.url}?target_session_attrs={wrong}")
    open_store(f"{pair.url}?target_session_attrs=primary").close()


def test_a_standby_is_read_and_takes_no_writes(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own URL: jobs, counters, and the ledger as the primary has numbered it; no progress of running jobs."""
    with closing(open_store(pair.url)) as store:
        ids = [receipt.id for receipt in store.enqueue([Draft("k", {"n": number}) for number in range(3)])]
        (lease,) = store.claim([Want("default", 1)], "w", minutes(5))
        store.report_progress([(lease.fence, Progress(0.5))])
        extent = store.ledger_extent()
        store.enqueue([Draft("late")])
    lag = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
    pair.primary.wait_until(lag)
    url = pair.standby.url(database_of(pair.url))
    with closing(open_store(url)) as store:
        assert [job and job.state for job in store.get(ids)] == [State.RUNNING, State.READY, State.READY]
        assert len(store.browse(Query(), 0, 10).jobs) == 4
        assert (store.totals(1).running, store.totals(1).ready) == (1, 3)
        assert store.ledger_extent() == extent
        assert [entry.offset for entry in store.ledger(-1, 10)] == list(range(*extent))
        with pytest.raises(StoreFailed, match="read-only transaction"):
            store.enqueue([Draft("k")])
    for command in (["stats"], ["ls"], ["show", str(ids[0])], ["explain", str(ids[1])], ["top", "--once"]):
        assert main([*command, "--store", url]) == 0, capsys.readouterr().err


def test_a_cell_follows_a_fail_over(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    cells = f'[cells.a]\nnumber = 0\nurl = "sqlite:///{tmp_path}/a.db"\n[cells.b]\nnumber = 1\nurl = "{pair.url}"\n'
    file.write_text(f'version = 1\n{cells}[queues]\n"*" = "b"\n')
    store = open_store(f"cells:{file}")
    (before,) = store.enqueue([Draft("k")])
    pair.fail_over()
    (after,) = store.enqueue([Draft("k")])
    assert [job.id for job in store.browse(Query(), 0, 10).jobs] == [before.id, after.id]
    store.close()
    pair.replace_primary()
