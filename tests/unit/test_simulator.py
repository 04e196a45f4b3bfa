"""The simulator finds what only a crash shows, says how to replay it, and repeats it by its seed."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from forebay import Forebay, Invalid, State
from forebay.testing import JobSimulator

pytest_plugins = ["pytester"]
SEEDS = range(60)


class Bank:
    """An app with a correct and a careless handler of each kind."""

    def __init__(self) -> None:
        self.fb = fb = Forebay("memory://")
        self.paid: list[int] = []
        self.mailed: list[int] = []
        self.half: set[int] = set()

        @fb.job
        def charge(order: int) -> None:
            if order not in self.paid:
                self.paid.append(order)
            receipt.using(key=f"receipt-{order}").enqueue(order)

        @fb.job
        async def receipt(order: int) -> None:
            await asyncio.sleep(5)
            if order not in self.mailed:
                self.mailed.append(order)

        @fb.job
        def careless(order: int) -> None:
            self.paid.append(order)

        @fb.job(max_attempts=2)
        async def half_done(order: int) -> None:
            self.half.add(order)
            await asyncio.sleep(5)
            self.half.discard(order)
            self.paid.append(order)

        self.charge, self.careless, self.half_done = charge, careless, half_done


def test_a_correct_app_holds_under_every_seed() -> None:
    faults: Counter[str] = Counter()
    for seed in SEEDS:
        bank = Bank()
        with JobSimulator(bank.fb, seed=seed) as sim:
            for order in range(5):
                bank.charge.enqueue(order)
            sim.advance(hours=2)
            assert sorted(bank.paid) == sorted(bank.mailed) == list(range(5)), seed
            assert sim.errors == []
            assert all(job.state is not State.DEAD for job in bank.fb.jobs())
        faults.update(fault.partition(":")[0] for fault in sim.faults)
    assert set(faults) == {"before", "during", "after", "delay"}
    assert min(faults.values()) > 20


def test_a_handler_that_is_not_idempotent_is_found() -> None:
    def runs_twice(seed: int) -> bool:
        bank = Bank()
        with JobSimulator(bank.fb, seed=seed) as sim:
            bank.careless.enqueue(1)
            sim.advance(hours=1)
        return len(bank.paid) > 1

    assert any(runs_twice(seed) for seed in SEEDS)


def test_a_crash_at_an_await_leaves_half_of_the_work() -> None:
    halves = 0
    for seed in SEEDS:
        bank = Bank()
        with JobSimulator(bank.fb, seed=seed, rate=1) as sim:
            bank.half_done.enqueue(1)
            sim.advance(hours=1)
            halves += any(fault.startswith("during") for fault in sim.faults)
            assert 1 in bank.paid, "it survives all its crashes"
    assert halves > 10


def test_a_crash_at_an_enqueue_is_before_or_after_it() -> None:
    left: set[tuple[int, int]] = set()
    for seed in SEEDS:
        fb = Forebay("memory://")
        ends: list[int] = []

        @fb.job
        def parent(ends: list[int] = ends, fb: Any = fb) -> None:
            fb.enqueue("child")
            ends.append(1)

        with JobSimulator(fb, seed=seed, rate=1) as sim:
            fb.enqueue("parent")
            sim.run_all()
            if sim.faults[0].startswith("during"):
                left.add((len(sim.enqueued("child")) - len(ends), len(ends)))
    assert any(orphans > 0 for orphans, _ in left), "the child was stored, and its parent did not end"


def test_the_same_seed_gives_the_same_run_and_leaves_random_as_it_was() -> None:
    def history(seed: int) -> tuple[list[str], list[int], float]:
        bank = Bank()
        with JobSimulator(bank.fb, seed=seed) as sim:
            for order in range(10):
                bank.charge.enqueue(order)
            sim.advance(hours=1)
            return sim.faults, bank.mailed, random.random()

    state = random.getstate()
    assert history(3) == history(3)
    assert len({str(history(seed)) for seed in range(10)}) == 10
    assert random.getstate() == state
    with pytest.raises(Invalid, match="rate"):
        JobSimulator(Bank().fb, seed=1, rate=2)


APP = """
from forebay import Forebay

fb = Forebay("memory://")
paid = []


@fb.job
def careless(order: int) -> None:
    paid.append(order)
"""

QUICK = ("--disable-plugin-autoload", "-p", "forebay")

TEST = """
import shop


def test_paid_once(fb_sim):
    shop.paid.clear()
    for order in range(5):
        shop.careless.enqueue(order)
    fb_sim.advance(hours=1)
    assert sorted(shop.paid) == list(range(5))
"""


def test_a_failure_says_how_to_replay_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=APP, test_shop=TEST)
    pytester.makeini("[pytest]\nforebay_app = shop:fb\n")
    found = pytester.runpytest_subprocess("--forebay-seeds", "30", *QUICK, "-q")
    outcomes = found.parseoutcomes()
    assert outcomes["failed"] + outcomes.get("passed", 0) == 30
    assert outcomes["failed"] > 3
    line = next(line for line in found.outlines if line.startswith("replay it: "))
    seed = line.split("--forebay-seed ")[1].split()[0]
    assert any(text.strip().startswith(("after:", "during:")) for text in found.outlines)
    again = pytester.runpytest_subprocess("--forebay-seed", seed, "test_shop.py::test_paid_once", *QUICK, "-q")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([line])
    refused = pytester.runpytest_subprocess("--forebay-seeds", "0", *QUICK)
    assert refused.ret != 0
