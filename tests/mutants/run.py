"""Breaks each guard on purpose, in a copy of the tree, and demands that a test goes red.

    make mutants                    all of them, two at a time
    make mutants ARGS="--only fence"
    make mutants ARGS="--share 3/20"    the fourth of twenty shares
    make mutants ARGS="--twice"         which of them a second layer kills, too
    make mutants ARGS="--list"

A mutant that survives is a promise that no test keeps. A mutant whose text is no longer in the source, or whose tests
do not even start, is an error too: the list must stay true. The untouched copy has to pass first.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.catalogue import ALL  # noqa: E402
from tests.mutants.guards import Mutant  # noqa: E402
from tests.mutants.layers import layer_of, second_layers  # noqa: E402

PARTS = ("src", "proof", "tests", "examples", "docs", "README.md", "CONTRIBUTING.md", "pyproject.toml")
WORKERS = 2
PATIENCE_SECONDS = 300
TESTS_FAILED = 1


def copy_tree(target: Path) -> None:
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / part)


def run_tests(tree: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-m", "not nightly", "-p", "no:cacheprovider"]
    try:
        return subprocess.run(
            [*command, *tests],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
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
        return subprocess.CompletedProcess(command, TESTS_FAILED, "hung, which is red too", "")


def try_mutant(mutant: Mutant, tests: tuple[str, ...], trees: SimpleQueue[Path]) -> str | None:
    """None when one of the tests noticed; otherwise why the mutant lives."""
    tree = trees.get()
    path = tree / mutant.file
    original = path.read_text()
    try:
        if original.count(mutant.old) != 1:
            return f"its text stands {original.count(mutant.old)} times in {mutant.file}, it must stand there once"
        path.write_text(original.replace(mutant.old, mutant.new))
        done = run_tests(tree, tests)
        if done.returncode == TESTS_FAILED:
            return None
        if done.returncode == 0:
            return f"SURVIVED {' '.join(tests)}"
        return f"its tests did not run: {done.stdout[-400:]}{done.stderr[-400:]}"
    finally:
        path.write_text(original)
        trees.put(tree)


def try_layers(mutant: Mutant, trees: SimpleQueue[Path]) -> str | None:
    """The first layer besides its own that noticed; None if none did."""
    noticed = (layer.name for layer in second_layers(mutant) if try_mutant(mutant, layer.tests, trees) is None)
    return next(noticed, None)


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
    with ThreadPoolExecutor(WORKERS) as pool:
        if not sound({mutant.tests for mutant in mutants}, trees, pool):
            return 1
        survivors = 0
        verdicts = pool.map(lambda each: try_mutant(each, each.tests, trees), mutants)
        for mutant, verdict in zip(mutants, verdicts, strict=True):
            survivors += verdict is not None
            print(
                f"{'killed ' if verdict is None else 'ALIVE  '} {mutant.name}{f': {verdict}' if verdict else ''}",
                flush=True,
            )
    print(f"{len(mutants) - survivors} passed, {survivors} failed in {time.perf_counter() - began:.0f} s")
    return 1 if survivors else 0


def judge_twice(mutants: list[Mutant], trees: SimpleQueue[Path]) -> int:
    """How many a second layer kills, too. One that only its own tests kill is named; that is no failure."""
    with ThreadPoolExecutor(WORKERS) as pool:
        if not sound({layer.tests for mutant in mutants for layer in second_layers(mutant)}, trees, pool):
            return 1
        twice = 0
        layers = pool.map(lambda each: try_layers(each, trees), mutants)
        for mutant, layer in zip(mutants, layers, strict=True):
            twice += layer is not None
            print(f"{mutant.name}: {layer_of(mutant.tests)} {f'and {layer}' if layer else 'alone'}", flush=True)
    print(f"evidence: {twice} mutants\n{twice} of {len(mutants)} are killed by a second layer")
    return 0


def sound(sets: set[tuple[str, ...]], trees: SimpleQueue[Path], pool: ThreadPoolExecutor) -> bool:
    """Whether the untouched tree passes all of these tests."""

    def run_untouched(tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        tree = trees.get()
        try:
            return run_tests(tree, tests)
        finally:
            trees.put(tree)

    ordered = sorted(sets)
    for tests, untouched in zip(ordered, pool.map(run_untouched, ordered), strict=True):
        if untouched.returncode != 0:
            print(f"the untouched tree is red already: {' '.join(tests)}\n{untouched.stdout[-2000:]}")
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
