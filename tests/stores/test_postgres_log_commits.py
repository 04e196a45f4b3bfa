"""A group's place moves on in the caller's own transaction: what an entry caused and that it was handled, or none."""

import asyncio
from collections.abc import Iterator

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest

from forebay import Invalid, QueueSpec, Store, open_store
from forebay.core.errors import PartitionLost, WrongQueueKind
from forebay.core.instant import ms, seconds
from forebay.core.policy import Retained
from forebay.transactions import acommit_in, commit_in


@pytest.fixture
def url(cleared_url: str) -> str:
    with psycopg.connect(cleared_url) as connection:
        connection.execute("DROP TABLE IF EXISTS totals")
        connection.execute("CREATE TABLE totals (n bigint)")
    return cleared_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.put_spec(QueueSpec(name="log", retention=Retained(2)))
    store.append("log", [b"%d" % number for number in range(8)])
    yield store
    store.close()


def totals(url: str) -> int:
    with psycopg.connect(url) as connection:
        return len(connection.execute("SELECT FROM totals").fetchall())


def test_both_or_neither(url: str, store: Store) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO totals VALUES (1)")
        assert commit_in(connection, "log", "g", 0, 1) == 1
        assert store.position("log", "g", 0) == -1, "not before the commit"
    assert (totals(url), store.position("log", "g", 0)) == (1, 1)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO totals VALUES (2)")
        commit_in(connection, "log", "g", 0, 3)
        connection.rollback()
    assert (totals(url), store.position("log", "g", 0)) == (1, 1)


def test_a_place_only_moves_forward_here_as_well(url: str, store: Store) -> None:
    store.commit("log", "g", 0, 3)
    with psycopg.connect(url) as connection:
        assert commit_in(connection, "log", "g", 0, 1) == 3
    assert [one.seen_at > 0 for one in store.groups("log", "", 1)] == [True, True]


def test_a_member_that_was_followed_commits_nothing_of_its_transaction(url: str, store: Store) -> None:
    (old, *_) = store.own("log", "g", "slow", ms(50))
    while (new := store.own("log", "g", "quick", seconds(30))) == []:
        pass
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO totals VALUES (1)")
        with pytest.raises(PartitionLost):
            commit_in(connection, "log", "g", 0, 1, epoch=old.epoch)
        connection.rollback()
    assert (totals(url), store.position("log", "g", 0)) == (0, -1)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO totals VALUES (1)")
        commit_in(connection, "log", "g", 0, 1, epoch=new[0].epoch)
    assert (totals(url), store.position("log", "g", 0)) == (1, 1)


def test_a_partition_stays_with_the_member_that_commits_it(url: str, store: Store) -> None:
    """The lease is over, but the transaction is not: the others take what they can, and this one next time."""
    owned = store.own("log", "g", "slow", ms(1))
    with psycopg.connect(url) as connection:
        commit_in(connection, "log", "g", 0, 3, epoch=owned[0].epoch)
        while not (taken := store.own("log", "g", "quick", seconds(30))):
            pass
        assert [one.partition for one in taken] == [1]
    taken = store.own("log", "g", "quick", seconds(30))
    assert [(one.partition, one.epoch, one.position) for one in taken] == [(0, 2, 3), (1, 2, -1)]


def test_what_is_wrong_is_said_in_our_words(url: str, store: Store) -> None:
    with psycopg.connect(url) as connection:
        with pytest.raises(WrongQueueKind):
            commit_in(connection, "other", "g", 0, 0)
        with pytest.raises(Invalid, match="0 … 1"):
            commit_in(connection, "log", "g", 2, 0)
        with pytest.raises(Invalid, match="-1 … 3"):
            commit_in(connection, "log", "g", 0, 4)
        with pytest.raises(Invalid, match="epoch"):
            commit_in(connection, "log", "g", 0, 0, epoch=0)
    assert store.groups("log", "", 10) == []


def test_with_drivers_that_are_awaited(url: str, store: Store) -> None:
    async def both() -> None:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute("INSERT INTO totals VALUES (1)")
                assert await acommit_in(connection, "log", "g", 0, 2) == 2
        finally:
            await connection.close()
        async with await psycopg.AsyncConnection.connect(url) as other:
            assert await acommit_in(other, "log", "g", 1, 3) == 3

    asyncio.run(both())
    assert (totals(url), store.position("log", "g", 0), store.position("log", "g", 1)) == (1, 2, 3)


def test_an_open_transaction_holds_up_no_append_and_no_trim(url: str, store: Store) -> None:
    """What its group has not had stays until it has ended; everything else goes."""
    store.commit("log", "g", 0, -1)
    with psycopg.connect(url) as connection:
        commit_in(connection, "log", "g", 0, 0)
        assert store.trim("log", store.now() + 1, 100) == 4
        store.append("log", [b"9"])
        assert store.extent("log") == [(0, 5), (4, 4)]
    assert store.trim("log", store.now() + 1, 100) == 5
    assert [one.lost for one in store.groups("log", "", 1)] == [4, 4]
