"""On SQLite, too, a group's place moves on in the caller's transaction: with what the entry caused, or not at all."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forebay import Invalid, QueueSpec, Store, open_store
from forebay.core.errors import PartitionLost, WrongQueueKind
from forebay.core.instant import ms, seconds
from forebay.core.policy import Retained
from forebay.transactions import commit_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{path}")
    store.put_spec(QueueSpec(name="log", retention=Retained(2)))
    store.append("log", [b"%d" % number for number in range(8)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE totals (n INTEGER)")
    yield store
    store.close()


def totals(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return len(connection.execute("SELECT n FROM totals").fetchall())


@pytest.mark.parametrize("place_first", [False, True])
def test_both_or_neither(path: Path, store: Store, place_first: bool) -> None:
    def handle(connection: sqlite3.Connection, offset: int) -> None:
        if not place_first:
            connection.execute("INSERT INTO totals VALUES (1)")
        assert commit_in(connection, "log", "g", 0, offset) == offset
        if place_first:
            connection.execute("INSERT INTO totals VALUES (1)")
        assert connection.in_transaction

    with closing(sqlite3.connect(path)) as connection:
        with connection:
            handle(connection, 1)
            assert store.position("log", "g", 0) == -1, "not before the commit"
        assert (totals(path), store.position("log", "g", 0)) == (1, 1)
        handle(connection, 3)
        connection.rollback()
    assert (totals(path), store.position("log", "g", 0)) == (1, 1)
    assert [one.seen_at > 0 for one in store.groups("log", "", 1)] == [True, True]


def test_in_a_transaction_that_the_caller_began_by_hand(path: Path, store: Store) -> None:
    store.commit("log", "g", 0, 3)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = lambda _, row: {"dict": row}
        with pytest.raises(Invalid, match="no transaction is open"):
            commit_in(connection, "log", "g", 0, 1)
        connection.execute("BEGIN")
        assert commit_in(connection, "log", "g", 0, 1) == 3, "it only moves forward"
        assert commit_in(connection, "log", "g", 1, 2) == 2
        connection.execute("COMMIT")
    assert store.position("log", "g", 1) == 2
    assert store.append("log", [b"9"])[0].offset == 4, "the store goes on writing"


def test_a_member_that_was_followed_commits_nothing_of_its_transaction(path: Path, store: Store) -> None:
    (old, *_) = store.own("log", "g", "slow", ms(5))
    while (new := store.own("log", "g", "quick", seconds(30))) == []:
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO totals VALUES (1)")
        with pytest.raises(PartitionLost):
            commit_in(connection, "log", "g", 0, 1, epoch=old.epoch)
        connection.rollback()
        assert (totals(path), store.position("log", "g", 0)) == (0, -1)
        with connection:
            commit_in(connection, "log", "g", 0, 1, epoch=new[0].epoch)
    assert store.position("log", "g", 0) == 1


def test_what_is_wrong_is_said_in_our_words(path: Path, store: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(WrongQueueKind):
            commit_in(connection, "other", "g", 0, 0)
        with pytest.raises(Invalid, match="partition"):
            commit_in(connection, "log", "g", 2, 0)
        with pytest.raises(Invalid, match="-1 … 3"):
            commit_in(connection, "log", "g", 0, 4)
        with pytest.raises(Invalid, match="epoch"):
            commit_in(connection, "log", "g", 0, 0, epoch=0)
        connection.rollback()
    with closing(sqlite3.connect(tmp_path / "other.db")) as stranger, pytest.raises(Invalid, match="no tables"):
        commit_in(stranger, "log", "g", 0, 0)
    assert store.groups("log", "", 10) == []
