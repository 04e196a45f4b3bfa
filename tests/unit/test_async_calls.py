"""`aenqueue`: coroutines share calls of the store, errors reach those that caused them, nothing is half done."""

import asyncio
from collections.abc import Sequence
from threading import Event, active_count

import pytest

from forebay.async_calls import MAX_WAITING, AsyncEnqueue
from forebay.client import Forebay
from forebay.core.errors import ForebayError, Invalid, PartlyDone, QueueFull, StoreFailed
from forebay.core.job import Draft
from forebay.core.limits import MAX_BATCH
from forebay.store.protocol import Receipt

PATIENCE = 10.0


class Calls:
    """A store that records its calls. `open` lets them through; `refuses`: kinds that fail a call as a whole."""

    def __init__(self) -> None:
        self.kinds: list[list[str]] = []
        self.stored: list[str] = []
        self.refuses: dict[str, Exception] = {}
        self.open = Event()
        self.open.set()
        self.begun = Event()

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        kinds = [draft.kind for draft in drafts]
        self.kinds.append(kinds)
        self.begun.set()
        assert self.open.wait(PATIENCE)
        for kind in kinds:
            if kind in self.refuses:
                raise self.refuses[kind]
        self.stored += kinds
        return [Receipt(len(self.stored) - len(kinds) + place, True) for place in range(len(kinds))]


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def put_all(shared: AsyncEnqueue, kinds: Sequence[str], queue: str = "q") -> list[Receipt | BaseException]:
    return await asyncio.gather(*[shared.put(Draft(kind, queue=queue)) for kind in kinds], return_exceptions=True)


async def begun(calls: Calls) -> None:
    await asyncio.to_thread(calls.begun.wait, PATIENCE)


def test_a_thousand_coroutines_need_one_call_and_one_thread(calls: Calls) -> None:
    before = active_count()
    kinds = [f"k{n}" for n in range(MAX_BATCH)]

    async def run() -> tuple[list[Receipt | BaseException], int]:
        return await put_all(AsyncEnqueue(calls.enqueue), kinds), active_count()

    receipts, threads = asyncio.run(run())
    assert calls.kinds == [kinds]
    assert [receipt.id for receipt in receipts if isinstance(receipt, Receipt)] == list(range(MAX_BATCH))
    assert threads - before <= 1


def test_what_arrives_during_a_call_goes_with_the_next(calls: Calls) -> None:
    async def run() -> None:
        shared = AsyncEnqueue(calls.enqueue)
        calls.open.clear()
        first = asyncio.create_task(shared.put(Draft("a", queue="q")))
        await begun(calls)
        rest = [asyncio.create_task(shared.put(Draft(kind, queue="q"))) for kind in "bc"]
        await asyncio.sleep(0)
        calls.open.set()
        await asyncio.gather(first, *rest)

    asyncio.run(run())
    assert calls.kinds == [["a"], ["b", "c"]]


def test_a_queue_that_waits_holds_up_no_other(calls: Calls) -> None:
    async def run() -> None:
        shared = AsyncEnqueue(lambda drafts: calls.enqueue(drafts) if drafts[0].queue == "q" else [Receipt(7, True)])
        calls.open.clear()
        slow = asyncio.create_task(shared.put(Draft("a", queue="q")))
        await begun(calls)
        assert (await shared.put(Draft("b", queue="other"))).id == 7
        calls.open.set()
        await slow

    asyncio.run(run())


def test_an_error_reaches_the_coroutine_that_caused_it(calls: Calls) -> None:
    calls.refuses = {"bad": Invalid("bad", "it is refused", "leave it out")}
    answers = asyncio.run(put_all(AsyncEnqueue(calls.enqueue), ["a", "bad", "b"]))
    assert [isinstance(answer, Invalid) for answer in answers] == [False, True, False]
    assert sorted(calls.stored) == ["a", "b"]


def test_a_store_that_fails_fails_all_and_is_not_called_again(calls: Calls) -> None:
    """Whether the jobs are stored is unknown, so a second call could store them twice."""
    calls.refuses = {"a": StoreFailed("the store", "it is gone")}
    answers = asyncio.run(put_all(AsyncEnqueue(calls.enqueue), ["a", "b"]))
    assert [type(answer) for answer in answers] == [StoreFailed, StoreFailed]
    assert calls.kinds == [["a", "b"]]


@pytest.mark.parametrize(
    "cause", [StoreFailed("cell b", "connection refused"), Invalid("key", "it is too long", "shorten it")]
)
def test_of_several_cells_one_that_fails_or_refuses_fails_its_own_drafts_only(
    cause: ForebayError, calls: Calls
) -> None:
    def enqueue(drafts: Sequence[Draft]) -> list[Receipt]:
        good = [draft for draft in drafts if not draft.kind.startswith("b")]
        if len(good) == len(drafts):
            return calls.enqueue(drafts)
        if not good:
            calls.kinds.append([draft.kind for draft in drafts])
            raise cause
        receipts = dict(zip([draft.kind for draft in good], calls.enqueue(good), strict=True))
        raise PartlyDone([receipts.get(draft.kind) for draft in drafts], cause)

    answers = asyncio.run(put_all(AsyncEnqueue(enqueue), ["a1", "b1", "a2", "b2"]))
    assert [answer is cause or isinstance(answer, Receipt) for answer in answers] == [True] * 4
    assert [isinstance(answer, Receipt) for answer in answers] == [True, False, True, False]
    assert calls.stored == ["a1", "a2"]
    again = [] if isinstance(cause, StoreFailed) else [["b1"], ["b2"]]
    assert sorted(calls.kinds[1:]) == again


def test_drafts_of_a_queue_that_was_full_are_enqueued_one_by_one(calls: Calls) -> None:
    calls.refuses = {"late": QueueFull("q", 5, 5, 1, 0.5)}

    async def run() -> None:
        shared = AsyncEnqueue(calls.enqueue)
        await put_all(shared, ["a", "late"])
        await put_all(shared, ["b", "c"])

    asyncio.run(run())
    assert sorted(calls.stored) == ["a", "b", "c"]
    assert calls.kinds[0] == ["a", "late"]
    assert all(len(kinds) == 1 for kinds in calls.kinds[1:])


def test_a_cancelled_coroutine_takes_its_waiting_draft_along(calls: Calls) -> None:
    async def run() -> None:
        shared = AsyncEnqueue(calls.enqueue)
        calls.open.clear()
        first = asyncio.create_task(shared.put(Draft("a", queue="q")))
        await begun(calls)
        gone = asyncio.create_task(shared.put(Draft("b", queue="q")))
        stays = asyncio.create_task(shared.put(Draft("c", queue="q")))
        await asyncio.sleep(0)
        gone.cancel()
        first.cancel()
        calls.open.set()
        assert (await stays).id == 1
        assert gone.cancelled()
        assert first.cancelled()

    asyncio.run(run())
    assert calls.stored == ["a", "c"], "the first call was under way: its job is stored, though no caller waits for it"


def test_a_loop_that_ends_leaves_no_waiter(calls: Calls) -> None:
    """Whatever it ends first: the task that enqueues is one among others."""

    async def run() -> list[Receipt | BaseException]:
        shared = AsyncEnqueue(calls.enqueue)
        calls.open.clear()
        first = asyncio.create_task(put_all(shared, "a"))
        await begun(calls)
        second = asyncio.create_task(put_all(shared, "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (queues,) = shared._loops.values()
        task = queues["q"].task
        assert task is not None
        task.cancel()
        async with asyncio.timeout(PATIENCE):
            ended = [*await first, *await second]
        assert queues == {}
        calls.open.set()
        return ended

    assert [type(error) for error in asyncio.run(run())] == [asyncio.CancelledError] * 2
    assert calls.kinds == [["a"]]


def test_so_many_may_wait_and_the_others_wait_for_room(calls: Calls) -> None:
    async def run() -> int:
        shared = AsyncEnqueue(calls.enqueue)
        calls.open.clear()
        first = asyncio.create_task(shared.put(Draft("a", queue="q")))
        await begun(calls)
        drafts = [Draft("b", queue="q")] * (MAX_WAITING + 5)
        rest = [asyncio.create_task(shared.put(draft)) for draft in drafts]
        await asyncio.sleep(0)
        (queues,) = shared._loops.values()
        waiting = len(queues["q"].waiting)
        calls.open.set()
        await asyncio.gather(first, *rest)
        return waiting

    assert asyncio.run(run()) == MAX_WAITING
    assert len(calls.stored) == MAX_WAITING + 6
    assert len(calls.kinds) <= 13


def test_keys_and_jobs_of_an_app_are_as_those_of_threads() -> None:
    fb = Forebay("memory://")

    async def run() -> list[tuple[int, bool]]:
        receipts = await asyncio.gather(*[fb.aenqueue("k", {"n": n % 2}, key=f"key{n % 2}") for n in range(4)])
        return [(receipt.id, receipt.duplicate) for receipt in receipts]

    found = asyncio.run(run())
    assert [found[0][0], found[1][0]] == [found[2][0], found[3][0]]
    assert [duplicate for _, duplicate in found] == [False, False, True, True]
    fb.close()
