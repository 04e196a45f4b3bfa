"""The Redis store against the reference model. A crash is a second opener: what it reads is all that survives.

How long it runs is the Hypothesis profile's say; see `tests/conftest.py`. Every history starts with an empty server.
"""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis.stateful import run_state_machine_as_test

from forebay.core.job import Draft
from forebay.store.protocol import Want
from forebay.store.redis.store import RedisStore
from forebay.testing.clock import ManualClock
from forebay_proof.model.lockstep import OpenedStore
from forebay_proof.model.machine import StoreMachine
from forebay_proof.model.strategies import SPECS
from forebay_proof.servers.redis import RedisServer
from tests.stores.histories import HISTORIES
from tests.stores.keys import left_behind


class _Redis:
    def __init__(self, server: RedisServer, clock: ManualClock, delivery: str) -> None:
        self.server = server
        self.clock = clock
        self.url = server.url(delivery=delivery)
        self.store = RedisStore(self.url, clock=clock)

    def reopen(self) -> RedisStore:
        self.store.close()
        self.store = RedisStore(self.url, clock=self.clock)
        return self.store

    def residue(self) -> Mapping[str, int]:
        """Keys that are left, and counters that do not say so."""
        # `promote` sweeps what is no longer needed.
        self.store.promote(1_000)
        self.store.close()
        with self.server.client() as client:
            return left_behind(client)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("delivery", ["sets", "streams"])
def test_redis_answers_as_the_model_does(redis: RedisServer, delivery: str) -> None:
    last: list[_Redis] = []

    def opener(clock: ManualClock) -> OpenedStore:
        for left in last:
            left.store.close()
        redis.clear()
        last[:] = [_Redis(redis, clock, delivery)]
        return OpenedStore(last[0].store, last[0].reopen, None, last[0].residue)

    run_state_machine_as_test(StoreMachine.for_store(opener), settings=HISTORIES)


@pytest.mark.parametrize("delivery", ["sets", "streams"])
def test_queues_that_are_read_while_lanes_are_written_leave_none_out(redis: RedisServer, delivery: str) -> None:
    """A shared gate brings other queues in, and the table of queues grew while it was gone through."""
    redis.clear()
    clock = ManualClock()
    store = RedisStore(redis.url(delivery=delivery), clock=clock)
    for spec in SPECS:
        if spec.name in ("until", "dear", "stock"):
            store.put_spec(spec)
    ids = [store.enqueue([Draft("k", 2, queue=queue)])[0].id for queue in ("until", "dear", "dear")]
    store.cancel([ids[0], ids[2]])
    with redis.client() as client:
        assert client.keys("*:at:*") == []
    later = store.enqueue([Draft("k", 2, queue="until")])[0].id
    assert store.claim([Want("until", 1)], "me", timedelta(seconds=9)) == []
    assert store.release("go", 1) == 1
    assert [lease.job.id for lease in store.claim([Want("until", 1)], "me", timedelta(seconds=9))] == [later]
    store.close()
