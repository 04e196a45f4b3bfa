"""Long polls for work: waiting clients are served in turn, clients that left get nothing, and no job is lost."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease
from forebay.serve.actor import Role
from forebay.serve.context import ServerContext
from forebay.serve.long_poll import end_of
from forebay.serve.security.auth import Authenticator
from forebay.serve.settings import ServeSettings
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Query, Store, Want
from tests.serve.site import Serving, Site
from tests.serve.test_api_jobs import problem
from tests.serve.test_api_work import claimed, state


def polled(
    threads: ThreadPoolExecutor, site: Site, client: httpx.Client, **more: Any
) -> "Future[list[dict[str, Any]]]":
    """A long poll that is in the line when this returns."""
    before = site.context.claim_polls.pollers
    future = threads.submit(claimed, client, **{"wait": 30, **more})
    while site.context.claim_polls.pollers == before:
        assert not future.done(), future.result()
    return future


def test_a_long_poll_is_answered_by_the_first_job(any_store: Store, serve_on: Serving) -> None:
    site = serve_on(any_store)
    client = site.client(Role.WORKER, Role.PRODUCER)
    assert claimed(client, wait=0.05) == []
    with ThreadPoolExecutor(1) as threads:
        waiting = polled(threads, site, client)
        client.post("/jobs", json={"kind": "a", "queue": "mail"})
        assert len(waiting.result(10)) == 1
    assert site.context.claim_polls.pollers == 0


def test_the_longest_waiter_is_served_first_and_each_once(site: Site) -> None:
    client = site.client(Role.WORKER, Role.PRODUCER)
    with ThreadPoolExecutor(6) as threads:
        waiting = [polled(threads, site, client, owner=f"w{number}") for number in range(6)]
        for number in range(6):
            client.post("/jobs", json={"kind": "a", "queue": "mail", "payload": number})
            assert waiting[number].result(10)[0]["job"]["payload"] == number
            assert not any(later.done() for later in waiting[number + 1 :])


def test_a_burst_is_shared_by_all_waiters(site: Site, store: Store) -> None:
    client = site.client(Role.WORKER)
    with ThreadPoolExecutor(8) as threads:
        waiting = [polled(threads, site, client, count=2) for _ in range(8)]
        store.enqueue([Draft("a", n, "mail") for n in range(16)])
        got = [lease["job"]["payload"] for future in waiting for lease in future.result(10)]
    assert sorted(got) == list(range(16))


def test_one_poll_may_wait_for_several_queues(site: Site, store: Store) -> None:
    client = site.client(Role.WORKER)
    wants = [{"queue": "a"}, {"queue": "b"}]
    with ThreadPoolExecutor(2) as threads:
        for queue in ("a", "b"):
            future = threads.submit(client.post, "/claim", json={"wants": wants, "wait": 30})
            while not site.context.claim_polls.pollers:
                assert not future.done()
            store.enqueue([Draft("k", None, queue)])
            assert [lease["job"]["queue"] for lease in future.result(10).json()["leases"]] == [queue]
            while site.context.claim_polls.pollers:
                pass


def test_a_waiter_that_has_left_gets_no_job(site: Site, store: Store) -> None:
    client = site.client(Role.WORKER)
    short = httpx.Client(base_url=site.url, headers=client.headers, timeout=0.2, trust_env=False, verify=False)
    with short, pytest.raises(httpx.ReadTimeout):
        short.post("/claim", json={"wants": [{"queue": "mail"}], "wait": 30})
    while site.context.claim_polls.pollers:
        pass
    [receipt] = store.enqueue([Draft("a", None, "mail")])
    assert state(store, receipt.id) is State.READY
    assert [lease["job"]["delivery"] for lease in claimed(client)] == [1]


def test_nothing_is_lost_between_a_poll_and_its_end(site: Site, store: Store) -> None:
    """Polls that end just when jobs come: what was handed out was answered, the rest is still there."""
    client = site.client(Role.WORKER)
    answered: list[int] = []

    def poll(number: int) -> None:
        for turn in range(40):
            leases = claimed(client, wait=0.001 + 0.004 * ((number * 7 + turn * 3) % 10) / 10)
            answered.extend(lease["job"]["id"] for lease in leases)

    with ThreadPoolExecutor(8) as threads:
        polls = [threads.submit(poll, number) for number in range(8)]
        while not all(each.done() for each in polls):
            store.enqueue([Draft("a", None, "mail")])
    for each in polls:
        each.result()
    running = [job.id for job in store.browse(Query(state=State.RUNNING), 0, 1000).jobs]
    assert sorted(answered) == sorted(set(answered)) == sorted(running)
    assert len(answered) > 20


class Gated(MemoryStore):
    """Claims after the first one wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = 0
        self.go = Event()

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        self.claims += 1
        if self.claims > 1:
            assert self.go.wait(10)
        return super().claim(wants, owner, lease_for)


def test_a_claim_under_way_when_the_time_is_up_is_still_answered(serve_on: Serving) -> None:
    store = Gated()
    site = serve_on(store, ServeSettings(port=0, maintain=False, drain=1))
    with ThreadPoolExecutor(1) as threads:
        poll = polled(threads, site, site.client(Role.WORKER), wait=0.2)
        store.enqueue([Draft("a", None, "mail")])
        while store.claims < 2:
            assert not poll.done()
        with pytest.raises(TimeoutError):
            poll.result(0.4)
        store.go.set()
        assert len(poll.result(10)) == 1
    store.close()


def test_jobs_claimed_for_a_caller_that_left_are_released_unharmed(serve_on: Serving) -> None:
    store = Gated()
    site = serve_on(store, ServeSettings(port=0, maintain=False, drain=1))
    headers = site.client(Role.WORKER).headers
    short = httpx.Client(base_url=site.url, headers=headers, timeout=0.5, trust_env=False, verify=False)
    with short, ThreadPoolExecutor(1) as threads:
        poll = polled(threads, site, short)
        [receipt] = store.enqueue([Draft("a", None, "mail")])
        with pytest.raises(httpx.ReadTimeout):
            poll.result(10)
    assert store.claims == 2
    store.go.set()
    while site.context.claim_polls.pollers:
        pass
    [job] = store.get([receipt.id])
    assert job is not None
    assert (job.state, job.attempt, job.delivery) == (State.READY, 0, 1)
    store.close()


def test_jobs_claimed_for_a_request_that_was_cut_off_go_back_unharmed() -> None:
    store = Gated()

    async def never() -> None:
        await asyncio.Event().wait()

    async def cut_off() -> Job | None:
        context = ServerContext(store, ServeSettings(maintain=False), Authenticator.of(store))
        wants = [Want("mail", 1)]
        poll = asyncio.create_task(context.claim_polls.claim(wants, "w", timedelta(seconds=30), 30, never))
        while not context.claim_polls.pollers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        [receipt] = store.enqueue([Draft("a", None, "mail")])
        while store.claims < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        poll.cancel()
        await asyncio.wait([poll])
        store.go.set()
        await context.stop()
        return store.get([receipt.id])[0]

    job = asyncio.run(cut_off())
    assert job is not None
    assert (job.state, job.attempt, job.delivery) == (State.READY, 0, 1)
    store.close()


def test_long_polls_are_answered_at_once_when_the_server_is_to_stop(site: Site) -> None:
    client = site.client(Role.WORKER)
    with ThreadPoolExecutor(3) as threads:
        waiting = [polled(threads, site, client) for _ in range(3)]
        site.stop_soon()
        assert [future.result(5) for future in waiting] == [[], [], []]


def test_waiting_is_bounded(store: Store, serve_on: Serving) -> None:
    site = serve_on(store, ServeSettings(port=0, max_pollers=1, drain=1))
    client = site.client(Role.WORKER)
    with ThreadPoolExecutor(1) as threads:
        waiting = polled(threads, site, client, wait=1)
        problem(client.post("/claim", json={"wants": [{"queue": "mail"}], "wait": 5}), 503, "busy")
        assert waiting.result(5) == []


@given(st.floats(0, 1e8), st.floats(0.001, 60))
def test_a_poll_is_over_in_time_and_hardly_early(now: float, wait: float) -> None:
    assert now < end_of(now, wait) <= now + wait
    assert now + wait - end_of(now, wait) <= wait / 128 + 1e-6


def test_polls_that_are_over_at_nearly_the_same_time_end_together() -> None:
    assert len({end_of(1_000 + number / 1_000, 60) for number in range(1_000)}) <= 5
    assert end_of(1_000.2, 60) == end_of(1_030, 30.05) == end_of(1_059.005, 1) == 1_060


@pytest.mark.parametrize("wait", [5e-324, 1e-9, 0.0004])
def test_a_poll_of_no_time_at_all_is_over_at_once(wait: float) -> None:
    assert 999.9 < end_of(1_000, wait) <= 1_000 + wait
