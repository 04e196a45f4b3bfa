"""Group commit over HTTP: callers share a write, and a refusal reaches only its own caller."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Closed, ForebayError, KeyConflict, QueueFull, StoreFailed, WrongQueueKind
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.policy import Block, Bounded, Retained
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.enqueuer import enqueue_each
from forebay.serve.settings import ServeSettings
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Receipt
from tests.serve.site import Serving


class Slow(MemoryStore):
    """Holds its first call of `enqueue` until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.go = Event()

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        self.calls.append(len(drafts))
        if len(self.calls) == 1:
            assert self.go.wait(10)
        return super().enqueue(drafts)


def test_what_arrives_while_a_write_is_under_way_shares_the_next(serve_on: Serving) -> None:
    store = Slow()
    site = serve_on(store, ServeSettings(port=0, maintain=False, drain=1))
    client = site.client(Role.PRODUCER)
    with ThreadPoolExecutor(30) as threads:
        first = threads.submit(client.post, "/jobs", json={"kind": "a"})
        while not store.calls:
            assert not first.done()
        bodies = [{"kind": "b", "key": f"k{n % 10}"} for n in range(19)]
        others = [threads.submit(client.post, "/jobs", json=body) for body in bodies]
        while site.context.enqueuer.waiting < 19:
            assert not first.done()
        store.go.set()
        statuses = [answer.result(10).status_code for answer in others]
    assert sorted(statuses) == [202] * 10 + [409] * 9
    assert store.calls == [1, 19]
    store.close()


def test_a_full_queue_costs_few_calls() -> None:
    store = Slow()
    store.go.set()
    store.put_spec(QueueSpec(name="small", capacity=Bounded(3)))
    drafts = [Draft("a", n, "small" if n % 2 else "wide") for n in range(200)]
    answers = enqueue_each(store, drafts)
    taken = [isinstance(answer, Receipt) for answer in answers]
    assert [n for n in range(200) if taken[n] and n % 2] == [1, 3, 5]
    assert all(taken[::2])
    assert all(isinstance(answer, QueueFull) and answer.requested == 1 for answer in answers[7::2])
    assert len(store.calls) <= 3
    store.close()


DRAFTS = st.lists(
    st.builds(
        lambda queue, key, payload: Draft("a", payload, queue, key=key),
        st.sampled_from(["wide", "small", "log"]),
        st.sampled_from([None, "k1", "k2"]),
        st.integers(0, 1),
    ),
    max_size=12,
)


def alone(store: MemoryStore, draft: Draft) -> Receipt | type[ForebayError]:
    try:
        return store.enqueue([draft])[0]
    except ForebayError as error:
        return type(error)


@given(DRAFTS)
def test_together_is_as_one_by_one(drafts: list[Draft]) -> None:
    """The same refusals of the same kinds, and as many jobs in each queue."""
    stores = [MemoryStore(), MemoryStore()]
    for store in stores:
        store.put_spec(QueueSpec(name="small", capacity=Bounded(2)))
        store.put_spec(QueueSpec(name="log", retention=Retained()))
    together = enqueue_each(stores[0], drafts)
    singly = [alone(stores[1], draft) for draft in drafts]
    for draft, one, other in zip(drafts, together, singly, strict=True):
        if draft.queue != "small":
            response = one.duplicate if isinstance(one, Receipt) else type(one)
            assert response == (other.duplicate if isinstance(other, Receipt) else other)
    counts = [len(store.browse(Query(queue="small"), 0, 100).jobs) for store in stores]
    assert counts[0] == counts[1]
    assert {type(each) for each in together} <= {Receipt, QueueFull, KeyConflict, WrongQueueKind}
    for store in stores:
        store.close()


def test_a_store_that_fails_is_everybodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    calls: list[int] = []

    def fails(drafts: Sequence[Draft]) -> list[Receipt]:
        calls.append(len(drafts))
        raise StoreFailed("disk", "full")

    monkeypatch.setattr(store, "enqueue", fails)
    answers = enqueue_each(store, [Draft("a")] * 8)
    assert all(isinstance(answer, StoreFailed) for answer in answers)
    assert calls == [8]
    monkeypatch.undo()
    store.close()
    assert all(isinstance(answer, Closed) for answer in enqueue_each(store, [Draft("a")] * 2))


def test_a_queue_that_makes_its_producers_wait_holds_up_no_other(serve_on: Serving) -> None:
    store = MemoryStore()
    store.put_spec(QueueSpec(name="slow", capacity=Bounded(1, Block(seconds(30)))))
    site = serve_on(store, ServeSettings(port=0, threads=4, drain=1))
    client = site.client(Role.PRODUCER)
    assert client.post("/jobs", json={"kind": "a", "queue": "slow"}).status_code == 202
    with ThreadPoolExecutor(12) as threads:
        stuck = [threads.submit(client.post, "/jobs", json={"kind": "a", "queue": "slow"}) for _ in range(10)]
        while site.context.enqueuer.blocked < 10:
            assert not any(answer.done() for answer in stuck)
        assert client.post("/jobs", json={"kind": "a", "queue": "quick"}).status_code == 202
        store.put_spec(QueueSpec(name="slow"))
        store.cancel([job.id for job in store.browse(Query(queue="slow"), 0, 10).jobs])
        assert {answer.result(20).status_code for answer in stuck} == {202}
    store.close()
