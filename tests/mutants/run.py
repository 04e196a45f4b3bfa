"""Breaks each guard on purpose, in a copy of the tree, and demands that a test goes red.

    make mutants                    all of them, two at a time
    make mutants ARGS="--only fence"
    make mutants ARGS="--share 3/20"    the fourth of twenty shares
    make mutants ARGS="--twice"         which of them a second layer kills, too
    make mutants ARGS="--list"

A mutant that survives is a promise that no test keeps. A mutant whose text is no longer in the source, or whose tests
do not even start, is an error too: the list must stay true. The untouched copy has to pass first.

A test that hangs goes red by its own time limit. Tests that do not end within `PATIENCE` are stopped and counted apart:
of the tests that a mutant names that is a kill, of a second layer it is none, since a layer may only have been slow.
With `--twice` each layer has to pass a change without effect first: what goes red for that would kill everything.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.catalogue import ALL  # noqa: E402
from tests.mutants.guards import Mutant  # noqa: E402
from tests.mutants.layers import Layer, layer_of, second_layers, with_a_comment  # noqa: E402

PARTS: Final = (
    *("src", "proof", "tests", "examples", "docs", "deploy", "clients"),
    *("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "compose.yaml"),
)
WORKERS: Final = 2
PATIENCE: Final = 420
LAYER_PATIENCE: Final = 3_600
"""Seconds. Both are longer than the time limit of one test in pyproject.toml, by which a test that hangs fails."""


class Outcome(Enum):
    """Of a run of tests."""

    PASSED = "survived"
    FAILED = "killed"
    LATE = "killed by the time limit"
    NOT_RUN = "its tests did not run"


class RunOfTests(NamedTuple):
    """`output`: why, where that has to be shown."""

    outcome: Outcome
    output: str = ""


_OUTCOMES: Final = {0: Outcome.PASSED, 1: Outcome.FAILED}
"""By pytest's exit code; others say that no test ran, or that a file cannot be read."""


def copy_tree(target: Path) -> None:
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / part)


def run_tests(tree: Path, tests: tuple[str, ...], patience: float) -> RunOfTests:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-m", "not nightly", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=patience,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(tree),
                # Processes that a test starts must load the broken copy, not the tree that is installed.
                "PYTHONPATH": f"{tree / 'src'}:{tree / 'proof' / 'src'}",
            },
            check=False,
        )
    except subprocess.TimeoutExpired:
        return RunOfTests(Outcome.LATE, f"no end after {patience:.0f} s")
    return RunOfTests(_OUTCOMES.get(done.returncode, Outcome.NOT_RUN), f"{done.stdout[-2000:]}{done.stderr[-400:]}")


def try_mutant(mutant: Mutant, tests: tuple[str, ...], trees: SimpleQueue[Path], patience: float) -> RunOfTests:
    """What these tests say to the broken copy."""
    tree = trees.get()
    path = tree / mutant.file
    original = path.read_text()
    try:
        if (count := original.count(mutant.old)) != 1:
            return RunOfTests(
                Outcome.NOT_RUN, f"its text stands {count} times in {mutant.file}, it must stand there once"
            )
        path.write_text(original.replace(mutant.old, mutant.new))
        return run_tests(tree, tests, patience)
    finally:
        path.write_text(original)
        trees.put(tree)


def try_layers(mutant: Mutant, trees: SimpleQueue[Path]) -> str | None:
    """The first layer besides its own of which a test failed; None if there is none."""
    runs = ((layer, try_mutant(mutant, layer.tests, trees, LAYER_PATIENCE)) for layer in second_layers(mutant))
    return next((layer.name for layer, run in runs if run.outcome is Outcome.FAILED), None)


def share(text: str) -> tuple[int, int]:
    number, _, shares = text.partition("/")
    if not 0 <= int(number) < int(shares):
        raise ValueError(text)
    return int(number), int(shares)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--share", type=share, default=(0, 1), metavar="N/M", help="only share N of M, from 0 on")
    parser.add_argument("--twice", action="store_true", help="count those that a second layer kills, too: hours")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    args = parser.parse_args()
    number, shares = args.share
    mutants = [mutant for mutant in ALL if args.only in mutant.name][number::shares]
    if args.list:
        print(*(f"{mutant.name:45} {mutant.file}" for mutant in mutants), sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="forebay-mutants-") as scratch:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copy_tree(Path(scratch) / str(number))
            trees.put(Path(scratch) / str(number))
        return (judge_twice if args.twice else judge)(mutants, trees)


def judge(mutants: list[Mutant], trees: SimpleQueue[Path]) -> int:
    began = time.perf_counter()

    def untouched(tests: tuple[str, ...]) -> RunOfTests:
        tree = trees.get()
        try:
            return run_tests(tree, tests, PATIENCE)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(WORKERS) as pool:
        sets = sorted({mutant.tests for mutant in mutants})
        if not all_pass("the untouched tree", sets, list(pool.map(untouched, sets))):
            return 1
        counts: Counter[Outcome] = Counter()
        runs = pool.map(lambda each: try_mutant(each, each.tests, trees, PATIENCE), mutants)
        for mutant, run in zip(mutants, runs, strict=True):
            counts[run.outcome] += 1
            if run.outcome in (Outcome.FAILED, Outcome.LATE):
                print(f"{run.outcome.value}: {mutant.name}", flush=True)
            else:
                print(f"ALIVE: {mutant.name}: {run.outcome.value}: {' '.join(mutant.tests)}\n{run.output}", flush=True)
    killed, late = counts[Outcome.FAILED] + counts[Outcome.LATE], counts[Outcome.LATE]
    seconds = time.perf_counter() - began
    print(f"{killed} passed ({late} by the time limit), {len(mutants) - killed} failed in {seconds:.0f} s")
    return 0 if killed == len(mutants) else 1


def judge_twice(mutants: list[Mutant], trees: SimpleQueue[Path]) -> int:
    """How many a second layer kills, too. One that only its own tests kill is named; that is no failure."""
    with ThreadPoolExecutor(WORKERS) as pool:
        changes = changes_without_effect(mutants)
        runs = list(pool.map(lambda layer: try_mutant(changes[layer], layer.tests, trees, LAYER_PATIENCE), changes))
        if not all_pass("a tree with one more comment", [layer.tests for layer in changes], runs):
            return 1
        twice = 0
        layers = pool.map(lambda each: try_layers(each, trees), mutants)
        for mutant, layer in zip(mutants, layers, strict=True):
            twice += layer is not None
            print(f"{mutant.name}: {layer_of(mutant.tests)} {f'and {layer}' if layer else 'alone'}", flush=True)
    print(f"evidence: {twice} mutants\n{twice} of {len(mutants)} are killed by a second layer")
    return 0


def changes_without_effect(mutants: list[Mutant]) -> dict[Layer, Mutant]:
    """One for each layer that could kill one of these, in a file of its rooms."""
    lines = [mutant for mutant in (*mutants, *ALL) if mutant.file.endswith(".py") and "\n" not in mutant.old]
    layers = dict.fromkeys(layer for mutant in mutants for layer in second_layers(mutant))
    chosen = {layer: next(mutant for mutant in lines if layer in second_layers(mutant)) for layer in layers}
    return {layer: with_a_comment(mutant, (ROOT / mutant.file).read_text()) for layer, mutant in chosen.items()}


def all_pass(tree: str, sets: list[tuple[str, ...]], runs: list[RunOfTests]) -> bool:
    """Whether all of these tests passed on this tree; those that did not are printed."""
    red = [(tests, run) for tests, run in zip(sets, runs, strict=True) if run.outcome is not Outcome.PASSED]
    for tests, run in red:
        print(f"{tree} is red already: {' '.join(tests)}\n{run.output}", flush=True)
    return not red


if __name__ == "__main__":
    sys.exit(main())
