"""Redis with delivery by streams: XPENDING shows what the leases are, and a damaged stream is rebuilt.

That it keeps the contract is shown where every store does (`test_conformance.py`, `test_redis_model.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest
import redis as driver

from forebay import Draft, QueueSpec, open_store
from forebay.cli.redis import diagnoses
from forebay.core.errors import Invalid
from forebay.core.instant import minutes
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import ABANDONED, Ack, Failure, Release, Retry
from forebay.core.policy import AtMost, Fair, Priority
from forebay.store.protocol import Inspecting, Want
from forebay.store.redis.store import RedisStore
from forebay.testing.clock import ManualClock
from forebay_proof.servers.redis import RedisServer

STREAM, GROUP, UNHELD = "{forebay}:s:default", "workers", "(unheld)"
LOST: Final = Failure(ABANDONED, "its worker is gone")
Bench = tuple[RedisStore, ManualClock, "driver.Redis"]


@pytest.fixture
def bench(redis: RedisServer) -> Iterator[Bench]:
    redis.clear()
    clock = ManualClock()
    store = RedisStore(redis.url(delivery="streams"), clock=clock)
    with redis.client() as client:
        yield store, clock, client
    store.close()


def put(store: RedisStore, count: int, **fields: int) -> list[int]:
    return [receipt.id for receipt in store.enqueue([Draft("k", **fields) for _ in range(count)])]  # type: ignore[arg-type]


def claim(store: RedisStore, count: int, owner: str = "ada") -> list[Lease]:
    return store.claim([Want("default", count)], owner, minutes(1))


def ids(leases: Sequence[Lease]) -> list[int]:
    return [lease.job.id for lease in leases]


def pending(client: "driver.Redis") -> dict[int, tuple[str, int]]:
    """By job: the consumer that holds its entry, and how often it was handed out."""
    found: Any = client.xpending_range(STREAM, GROUP, "-", "+", 1_000)
    return {
        int(each["message_id"].partition(b"-")[2]): (each["consumer"].decode(), each["times_delivered"])
        for each in found
    }


def test_what_is_pending_names_its_holder_and_its_deliveries(bench: Bench) -> None:
    store, clock, client = bench
    put(store, 5)
    assert client.xlen(STREAM) == 5
    first = claim(store, 2, "ada") + claim(store, 2, "bob")
    assert pending(client) == {1: ("ada", 1), 2: ("ada", 1), 3: ("bob", 1), 4: ("bob", 1)}
    store.settle([(first[0], Ack()), (first[1], Release()), (first[2], Retry(10, Failure("E")))])
    assert pending(client) == {2: (UNHELD, 1), 3: (UNHELD, 1), 4: ("bob", 1)}
    assert client.xlen(STREAM) == 4, "what has ended is deleted, not only acknowledged"
    clock.advance(10)
    again = claim(store, 9, "eve")
    assert ids(again) == [2, 3, 5], (
        "what was released and a retry that has waited lead, by their times; then the stream"
    )
    assert pending(client) == {2: ("eve", 2), 3: ("eve", 2), 4: ("bob", 1), 5: ("eve", 1)}
    store.settle([(lease, Ack()) for lease in (*again, first[3])])
    assert client.exists(STREAM) == 0, "an empty stream goes with its group"


def test_what_was_lost_is_taken_over_when_its_lease_ends_and_the_late_verdict_is_refused(bench: Bench) -> None:
    store, clock, client = bench
    put(store, 1)
    (lost,) = claim(store, 1, "ada")
    clock.advance(61_000_000)
    (overdue,) = store.overdue(9)
    assert store.settle([(overdue, Retry(0, LOST))]) == [Settled.APPLIED]
    (taken,) = claim(store, 1, "bob")
    assert pending(client) == {1: ("bob", 2)}
    assert store.settle([(lost, Ack())]) == [Settled.STALE]
    assert pending(client) == {1: ("bob", 2)}, "a plain XACK would have had an effect"
    assert store.settle([(taken, Ack())]) == [Settled.APPLIED]


def destroyed_group(client: "driver.Redis") -> None:
    client.xgroup_destroy(STREAM, GROUP)


def deleted_stream(client: "driver.Redis") -> None:
    client.delete(STREAM)


def deleted_entries(client: "driver.Redis") -> None:
    client.xtrim(STREAM, maxlen=1, approximate=False)


def deleted_pending(client: "driver.Redis") -> None:
    entries: Any = client.xrange(STREAM)
    (second,) = (entry for entry, _ in entries if entry.endswith(b"-2"))
    client.xdel(STREAM, second)


def foreign_entry(client: "driver.Redis") -> None:
    client.xadd(STREAM, {"not": "ours"})


@pytest.mark.parametrize("damage", [destroyed_group, deleted_stream, deleted_entries, deleted_pending, foreign_entry])
def test_a_damaged_stream_is_rebuilt_from_the_records(bench: Bench, damage: Callable[["driver.Redis"], None]) -> None:
    store, clock, client = bench
    put(store, 8)
    held = claim(store, 3)
    store.settle([(held[1], Release())])
    damage(client)
    clock.advance(1)
    late = put(store, 1)
    assert ids(claim(store, 9, "bob")) == [2, 4, 5, 6, 7, 8, *late], "nothing twice, nothing left out, in order"
    assert store.settle([(held[0], Ack()), (held[2], Ack())]) == [Settled.APPLIED] * 2
    assert put(store, 2)
    clock.advance(61_000_000)
    store.settle([(lease, Retry(0, LOST)) for lease in store.overdue(9)])
    rest = claim(store, 99)
    assert len(rest) == 9
    store.settle([(lease, Ack()) for lease in rest])
    assert store.backlog(["default"])[0].depth == 0
    assert not client.exists(STREAM)


def test_only_fifo_without_classes_and_gates_flows(bench: Bench) -> None:
    store, _, client = bench
    specs = [
        QueueSpec(name="ranked", selection=Priority()),
        QueueSpec(name="gated", eligibility=AtMost(9)),
        QueueSpec(name="fair", share=Fair()),
    ]
    for spec in specs:
        store.put_spec(spec)
        store.enqueue([Draft("k", queue=spec.name, tenant="t")])
    put(store, 1, delay=5)
    assert list(client.scan_iter("*:s:*")) == []
    put(store, 1)
    assert list(client.scan_iter("*:s:*")) == [STREAM.encode()]


def test_a_consumer_that_holds_nothing_is_forgotten(bench: Bench) -> None:
    store, clock, client = bench
    put(store, 3)
    done = claim(store, 1, "gone")
    claim(store, 1, "here")
    store.settle([(lease, Ack()) for lease in done])
    clock.advance(601_000_000)
    store.promote(10)
    assert [each["name"] for each in client.xinfo_consumers(STREAM, GROUP)] == [b"here"]


def test_the_first_job_decides_how_a_store_delivers(redis: RedisServer) -> None:
    redis.clear()
    by_streams, by_sets = open_store(redis.url(delivery="streams")), open_store(redis.url(delivery="sets"))
    with redis.client() as client:
        assert client.keys() == [], "opening writes nothing"
    follows = open_store(redis.url())
    by_streams.enqueue([Draft("k")])
    for refused in (lambda: by_sets.enqueue([Draft("k")]), lambda: open_store(redis.url(delivery="sets"))):
        with pytest.raises(Invalid, match=r"delivery=sets: this store delivers by streams.*prefix"):
            refused()
    follows.enqueue([Draft("k")])
    with redis.client() as client:
        assert client.xlen(STREAM) == 2
    assert isinstance(follows, Inspecting)
    assert follows.vitals().settings["delivery"] == "streams"
    reported = {diagnosis.check: diagnosis for diagnosis in diagnoses(redis.url(delivery="sets"))}
    assert reported["delivery"].status == "fail"
    assert [each.fact for each in diagnoses(redis.url()) if each.check == "delivery"] == ["by streams, in exact order"]
    for store in (by_streams, by_sets, follows):
        store.close()


def test_a_store_of_sets_is_not_turned_into_one_of_streams(redis: RedisServer) -> None:
    redis.clear()
    by_streams, plain = open_store(redis.url(delivery="streams")), open_store(redis.url())
    plain.enqueue([Draft("k")])
    with pytest.raises(Invalid, match="delivers by sets"):
        by_streams.enqueue([Draft("k")])
    by_streams.close()
    plain.close()
