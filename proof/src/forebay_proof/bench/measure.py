"""How every benchmark here measures: alternating rounds in one run, the median with its spread, ratios to a baseline.

The machine is shared and noisy, so a figure alone says little; what was measured beside it in the same round says more.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

ONLY: Final = "only figures whose name contains one of these (and their baselines)"
"""The help of `--only`."""


@dataclass
class Figure:
    """One measured thing. `baseline` names another figure of the same run; `goal` is what the project wants of it."""

    name: str
    unit: str
    measure: Callable[[], float]
    baseline: str | None = None
    goal: str = ""
    values: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


def bench_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work and two rounds: for a first look")
    parser.add_argument("--json", action="store_true", help="one JSON object a figure instead of the table")
    parser.add_argument("--only", default="", metavar="TEXT,TEXT", help=ONLY)
    return parser


def arguments(description: str | None) -> argparse.Namespace:
    return bench_parser(description).parse_args()


def selected(only: str, name: str) -> bool:
    """Whether `--only` selects a name."""
    return any(part in name for part in only.split(","))


def taken(name: str, unit: str, value: float, baseline: str | None = None) -> Figure:
    """A figure that is known already."""
    return Figure(name, unit, lambda: value, baseline)


def run(figures: Sequence[Figure], *, rounds: int, only: str, as_json: bool) -> None:
    """Measure all figures round by round, so that a noisy minute hurts a figure and its baseline alike."""
    named = {figure.name: figure for figure in figures}
    wanted = [figure for figure in figures if selected(only, figure.name)]
    for figure in tuple(wanted):
        if (base := named.get(figure.baseline or "")) and base not in wanted:
            wanted.append(base)
    for number in range(rounds):
        for figure in wanted:
            _progress(f"round {number + 1} of {rounds}: {figure.name}")
            figure.values.append(figure.measure())
    _progress("")
    for figure in wanted:
        base = named.get(figure.baseline or "")
        ratio = figure.value / base.value if base is not None and base.values else None
        if as_json:
            print(json.dumps(_object(figure, ratio)))
        else:
            print(_line(figure, ratio))


@contextmanager
def race(count: int, module: str, *arguments: str) -> Iterator[Callable[[], None]]:
    """Several processes of a benchmark, started and ready: what is given lets all go and waits for the last."""
    command = [sys.executable, "-m", module, *arguments]
    with ExitStack() as stack:
        opened = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
        workers = [stack.enter_context(worker) for worker in opened]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()

        def go() -> None:
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(b"go\n")
                worker.stdin.flush()
            if any(worker.wait() for worker in workers):
                raise RuntimeError(f"a process of {module} failed")

        yield go


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _object(figure: Figure, ratio: float | None) -> dict[str, object]:
    low, high = figure.spread
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "spread": [low, high],
        "rounds": len(figure.values),
        "baseline": figure.baseline,
        "ratio": ratio,
        "goal": figure.goal,
    }


def _line(figure: Figure, ratio: float | None) -> str:
    low, high = figure.spread
    compared = f"{ratio:10.2f} × {figure.baseline}" if ratio is not None else ""
    goal = f"   goal {figure.goal}" if figure.goal else ""
    return f"{figure.name:34} {figure.value:12,.1f} {figure.unit:8} [{low:,.1f} … {high:,.1f}]{goal}{compared}"
