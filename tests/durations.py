"""How long each test takes: kept in pytest's cache, printed by file, and used to start the longest first.

A run keeps the seconds of every test, with those of its fixtures, in the cache under `forebay/durations`; files that
it did not touch keep theirs. At its end it prints the files that took longest.

`Schedule` hands tests to the workers of xdist. Tests that share something costly stay together: those of a room with a
Java or a browser, those on a cluster, and those of a file with a fixture for the whole file. Such groups go first. The
rest is mixed: each room is spread over the whole run, because tests of processes mostly wait, those of stores mostly
compute, and the cores are busy only where both run side by side. Within its room a test that took long starts early.
Without a cache, as on a fresh clone, the order within a room is that of the collection.

Times on a busy machine are long: read them as shares.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

KEY: Final = "forebay/durations"
SLOWEST: Final = 10

TOGETHER: Final = {
    "tests/spark/": "tests/spark/",
    "tests/browser/": "tests/browser/",
    "tests/stores/test_redis_cluster.py": "a Redis Cluster",
    "tests/stores/test_conformance.py::test_contract[clustered-": "a Redis Cluster",
}
"""How the names of tests begin that share something costly, a JVM, a browser or a cluster, and which of these: all
tests that share one go to one process."""

FOR_THE_FILE: Final = 'scope="module"'

ROOM_ENDS: Final = {"tests/process": 0.8, "tests/lab": 0.8, "tests/docs": 0.8}
"""Rooms of long tests end after this share of the run: what begins last must be short."""


def kept(config: pytest.Config) -> dict[str, float]:
    """Seconds by test, of the last run of each; none where there is no cache."""
    cached: pytest.Cache | None = getattr(config, "cache", None)
    found = None if cached is None else cached.get(KEY, None)
    return found if isinstance(found, dict) else {}


def file_of(test: str) -> str:
    return test.partition("::")[0]


def by_file(tests: Mapping[str, float]) -> list[tuple[str, float, int]]:
    """Each file with its seconds and its count of tests, the slowest first."""
    counts = Counter(map(file_of, tests))
    seconds: defaultdict[str, float] = defaultdict(float)
    for test, spent in tests.items():
        seconds[file_of(test)] += spent
    return sorted(((file, spent, counts[file]) for file, spent in seconds.items()), key=lambda row: -row[1])


class Durations:
    """Adds up the reports of one run, in the process that has them all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.tests: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] = self.tests.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        cached: pytest.Cache | None = getattr(self._config, "cache", None)
        if cached is None or not self.tests:
            return
        touched = set(map(file_of, self.tests))
        others = {
            test: spent
            for test, spent in kept(self._config).items()
            if file_of(test) not in touched and (self._config.rootpath / file_of(test)).exists()
        }
        cached.set(KEY, others | {test: round(spent, 3) for test, spent in self.tests.items()})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        files = by_file(self.tests)
        if len(files) <= 1:
            return
        terminalreporter.section(f"slowest {min(SLOWEST, len(files))} of {len(files)} files")
        for file, spent, count in files[:SLOWEST]:
            terminalreporter.write_line(f"{spent:8.1f} s {count:6} tests  {file}")


@cache
def _shares_a_fixture(file: str, root: Path) -> bool:
    return FOR_THE_FILE in (root / file).read_text()


def unit_of(test: str, root: Path) -> str:
    """What goes to one worker as a whole: a room, a file, or just this test."""
    if shared := next((shared for start, shared in TOGETHER.items() if test.startswith(start)), None):
        return shared
    return file_of(test) if _shares_a_fixture(file_of(test), root) else test


def in_order(units: Mapping[str, Iterable[str]], seconds: Mapping[str, float]) -> list[str]:
    """Groups first, the longest before others; then every room spread over the run, its longest tests early."""
    groups = [unit for unit in units if "::" not in unit]
    groups.sort(key=lambda unit: -sum(seconds.get(test, 0.0) for test in units[unit]))
    rooms: defaultdict[str, list[str]] = defaultdict(list)
    for unit in units:
        if "::" in unit:
            rooms["/".join(file_of(unit).split("/")[:2])].append(unit)
    place: dict[str, float] = {}
    for room, tests in rooms.items():
        tests.sort(key=lambda test: -seconds.get(test, 0.0))
        share = ROOM_ENDS.get(room, 1.0) / len(tests)
        place |= {test: share * position for position, test in enumerate(tests)}
    return groups + sorted(place, key=place.__getitem__)


class Schedule(LoadScopeScheduling):  # type: ignore[misc]
    """By the path of a test: xdist 3.8 loses the mark `xdist_group` on its way through pytest 9.2, silently."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid, self.config.rootpath)

    def schedule(self) -> None:
        """The first unit of each worker is chosen by xdist: the groups with most tests."""
        begins = self.collection is None
        super().schedule()
        for unit in in_order(self.workqueue, kept(self.config)) if begins else ():
            self.workqueue.move_to_end(unit)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        """Forgets what is done: counting it again after each of ten thousand tests takes seconds."""
        for unit in [unit for unit, tests in workload.items() if all(tests.values())]:
            del workload[unit]
        return int(super()._pending_of(workload))
