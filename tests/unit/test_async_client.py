"""The calls for coroutines share calls of the store, are bounded, and survive a cancellation; options are typed."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from threading import Event, active_count
from typing import Any, get_type_hints

import pytest

from forebay import Breaker, Draft, Forebay, Invalid, Job, State
from forebay.core.errors import Closed, ForebayError
from forebay.core.limits import MAX_BATCH
from forebay.enqueue_options import EnqueueOptions, Settings
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import CancelAnswer, Query, Receipt
from forebay.work.declare import JobOptions
from tests.waiting import PATIENCE


class CountingStore(MemoryStore):
    """Counts the calls of `get` and `cancel`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        self.calls.append("get")
        return super().get(ids)

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        self.calls.append("cancel")
        return super().cancel(ids)


@pytest.fixture
def fb() -> Iterator[Forebay]:
    with Forebay("memory://") as fb:
        yield fb


def test_a_thousand_coroutines_get_and_cancel_by_few_calls(fb: Forebay) -> None:
    store = CountingStore()
    fb.replace_store(store)
    receipts = store.enqueue([Draft("x") for _ in range(MAX_BATCH)])

    async def run() -> tuple[list[object], list[object], int]:
        before = active_count()
        jobs = await asyncio.gather(*[fb.aget(receipt.id) for receipt in receipts])
        ended = await asyncio.gather(*[fb.acancel(receipt.id) for receipt in receipts])
        return list(jobs), list(ended), active_count() - before

    jobs, ended, threads = asyncio.run(run())
    assert [job.id for job in jobs] == [receipt.id for receipt in receipts]  # type: ignore[attr-defined]
    assert set(ended) == {CancelAnswer.CANCELLED}
    assert len(store.calls) <= 4
    assert threads <= 2


def test_what_is_gone_is_none_and_an_error_reaches_its_own_coroutine(fb: Forebay) -> None:
    async def run() -> list[object]:
        receipt = await fb.aenqueue("x")
        calls = [fb.aget(receipt.id), fb.aget(receipt.id + 1), fb.aget("no id")]  # type: ignore[arg-type]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    job, gone, error = asyncio.run(run())
    assert job is not None
    assert gone is None
    assert isinstance(error, ForebayError)


def test_jobs_are_read_page_by_page(fb: Forebay) -> None:
    fb.enqueue_many([Draft("x") for _ in range(MAX_BATCH + 5)])
    fb.enqueue("y")

    async def run() -> list[int]:
        return [job.id async for job in fb.ajobs(Query(kind="x"))]

    assert asyncio.run(run()) == [job.id for job in fb.jobs(Query(kind="x"))]


def test_many_drafts_come_from_plain_and_async_iterators(fb: Forebay) -> None:
    counts: list[int] = []

    async def drafts() -> AsyncIterator[Draft]:
        for n in range(2 * MAX_BATCH + 1):
            await asyncio.sleep(0)
            yield Draft("async", n)

    async def run() -> int:
        taken = await fb.aenqueue_many(Draft("plain", n) for n in range(10))
        return taken + await fb.aenqueue_many(drafts(), counts.append)

    assert asyncio.run(run()) == 2 * MAX_BATCH + 11
    assert [job.payload for job in fb.jobs(Query(kind="async"))] == list(range(2 * MAX_BATCH + 1))
    assert counts[-1] == 2 * MAX_BATCH + 1


def test_an_error_in_the_stream_says_how_many_are_in(fb: Forebay) -> None:
    def drafts() -> Iterator[Draft]:
        yield from (Draft("x") for _ in range(MAX_BATCH + 1))
        raise Invalid("row", "it is broken", "mend it")

    async def run() -> None:
        await fb.aenqueue_many(drafts())

    with pytest.raises(Invalid) as raised:
        asyncio.run(run())
    assert raised.value.accepted == len(list(fb.jobs())) > 0


def test_a_cancelled_stream_reads_no_further_and_leaves_a_prefix(fb: Forebay) -> None:
    read, go_on = Event(), Event()
    numbers: list[int] = []

    def drafts() -> Iterator[Draft]:
        for n in range(10 * MAX_BATCH):
            numbers.append(n)
            if n == MAX_BATCH + 1:
                read.set()
                assert go_on.wait(PATIENCE)
            yield Draft("x", n)

    async def run() -> None:
        task = asyncio.create_task(fb.aenqueue_many(drafts()))
        await asyncio.to_thread(read.wait, PATIENCE)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    stored = [job.payload for job in fb.jobs()]
    assert stored == list(range(len(stored)))
    assert len(numbers) <= MAX_BATCH + 3
    assert len(stored) >= MAX_BATCH


def test_an_app_is_a_context_manager_of_both_kinds() -> None:
    async def run() -> tuple[Receipt, Forebay]:
        async with Forebay("memory://") as fb:
            return await fb.aenqueue("x"), fb

    receipt, fb = asyncio.run(run())
    assert receipt.id
    with Forebay("memory://") as other:
        job = other.get(other.enqueue("x").id)
        assert job is not None
        assert job.state is State.READY
        store = other.store
    with pytest.raises(Closed):
        store.enqueue([Draft("x")])
    fb.close()


def test_the_typed_options_are_those_that_there_are(fb: Forebay) -> None:
    hints = get_type_hints(EnqueueOptions)
    assert list(hints) == list(Settings.__struct_fields__)
    with pytest.raises(Invalid, match="prority"):
        fb.enqueue("x", None, prority=5)  # type: ignore[call-arg]


SOURCE = Path(__file__).parents[2] / "src"
SNIPPET = """
from forebay import Forebay

fb = Forebay()


@fb.job
def send(to: str) -> None: ...


send.using(priority=5, delay=60).enqueue("ada")
send.using(prority=5).enqueue("ada")
send.using(priority="high").enqueue("ada")
send.using(priority=5).enqueue(7)
fb.enqueue("send", None, qeue="mail")
"""
WRONG_OPTIONS = (12, 13, 14, 15)
JOBS = """
from forebay import Call, Forebay

fb = Forebay()


class Pool: ...


@fb.job(batch=2, wait=0.1, max_attempts=5, kind="add")
async def insert(calls: list[Call[int]], pool: Pool) -> None: ...


@fb.job(max_attempts=5, isolate=True, timeout=30)
def resize(width: int) -> None: ...


paid = fb.webhook("paid", url="https://example.com", secret="s", max_attempts=12, keep_result=True)
insert.enqueue(5)
resize.enqueue(5)
insert.enqueue("five")
resize.enqueue("five")
fb.job(max_atempts=5)
fb.job(batch=2, max_atempts=5)
fb.job(batch=2, isolate=True)
fb.job(max_attempts="five")
fb.webhook("gone", url="https://example.com", secret="s", max_atempts=12)
"""
WRONG_JOBS = (21, 22, 23, 24, 25, 26, 27)


SNIPPETS = pytest.mark.parametrize(
    ("snippet", "wrong", "misspelt"),
    [(SNIPPET, WRONG_OPTIONS, ("prority", "qeue")), (JOBS, WRONG_JOBS, ("max_atempts",))],
    ids=["enqueue", "job"],
)


def _nothing() -> None: ...


def test_the_typed_options_of_a_job_are_those_that_it_takes(fb: Forebay) -> None:
    values: dict[str, Any] = {
        "queue": "mail",
        "max_attempts": 3,
        "cost": 2,
        "retry_on": OSError,
        "drop_on": [ValueError],
        "breaker": Breaker(),
        "keep_result": True,
        "result_ttl": 60,
        "version": 2,
        "kind": "other",
        "timeout": 5,
        "isolate": True,
    }
    assert list(get_type_hints(JobOptions)) == list(values)
    decorate: Any = fb.job(**values)
    decorate(_nothing)
    handler = fb.registry["other"]
    assert (handler.queue, handler.max_attempts, handler.cost, handler.where) == ("mail", 3, 2, "process")
    decorate = fb.job(max_atempts=5)  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="max_atempts"):
        decorate(_nothing)


@SNIPPETS
def test_a_wrong_option_is_an_error_of_mypy(
    tmp_path: Path, snippet: str, wrong: tuple[int, ...], misspelt: tuple[str, ...]
) -> None:
    (tmp_path / "snippet.py").write_text(snippet)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    checked = subprocess.run([*command, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = re.findall(r"^snippet\.py:(\d+): error: ", checked.stdout, re.MULTILINE)
    assert sorted(set(map(int, lines))) == list(wrong), checked.stdout
    assert all(word in checked.stdout for word in misspelt)


@pytest.mark.nightly
@SNIPPETS
def test_a_wrong_option_is_an_error_of_pyright(
    tmp_path: Path, snippet: str, wrong: tuple[int, ...], misspelt: tuple[str, ...]
) -> None:
    program = Path(sys.prefix, "pyright", "node_modules", ".bin", "pyright")
    if not program.exists():
        pytest.skip(f"no {program}: run `make pyright`, which needs npm")
    (tmp_path / "snippet.py").write_text(snippet)
    command = [str(program), "--pythonpath", sys.executable, "--outputjson", "snippet.py"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    checked = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = [each for each in json.loads(checked.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert sorted({each["range"]["start"]["line"] + 1 for each in found}) == list(wrong), checked.stdout
    assert all(word in checked.stdout for word in misspelt)
