"""Durations are kept by file and printed; what shares something costly stays together, and long tests start early."""

from pathlib import Path

import pytest

from tests.durations import KEY, by_file, in_order, unit_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = """
    from tests.durations import Durations

    def pytest_configure(config):
        config.pluginmanager.register(Durations(config))
"""


def test_files_are_listed_by_their_seconds() -> None:
    tests = {"a.py::one": 1.0, "b.py::one": 1.5, "a.py::two[x::y]": 1.0}
    assert by_file(tests) == [("a.py", 2.0, 2), ("b.py", 1.5, 1)]


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        ("tests/spark/test_fleet.py::test_it", "tests/spark/"),
        ("tests/browser/test_dashboard.py::test_it[a]", "tests/browser/"),
        ("tests/stores/test_redis_cluster.py::test_it[a]", "a Redis Cluster"),
        ("tests/stores/test_conformance.py::test_contract[clustered-keys-a_b_c]", "a Redis Cluster"),
        ("tests/stores/test_postgres_plans.py::test_it", "tests/stores/test_postgres_plans.py"),
        ("tests/unit/test_heap.py::test_it[a/b]", "tests/unit/test_heap.py::test_it[a/b]"),
    ],
)
def test_what_shares_something_costly_is_one_unit(test: str, unit: str) -> None:
    assert unit_of(test, ROOT) == unit


def test_groups_go_first_and_rooms_are_mixed() -> None:
    rooms = {"tests/process/p.py": 4, "tests/unit/u.py": 5}
    units = {test: [test] for file, count in rooms.items() for test in (f"{file}::{n}" for n in range(count))}
    groups = {"tests/spark/": ["tests/spark/s.py::a"], "tests/stores/g.py": ["tests/stores/g.py::a"]}
    seconds = {"tests/stores/g.py::a": 9.0, "tests/spark/s.py::a": 1.0, "tests/process/p.py::3": 5.0}
    assert in_order(units | groups, seconds) == [
        "tests/stores/g.py",
        "tests/spark/",
        "tests/process/p.py::3",
        "tests/unit/u.py::0",
        "tests/process/p.py::0",
        "tests/unit/u.py::1",
        "tests/process/p.py::1",
        "tests/unit/u.py::2",
        "tests/process/p.py::2",
        "tests/unit/u.py::3",
        "tests/unit/u.py::4",
    ]


def test_a_run_keeps_its_durations_and_prints_the_slowest_files(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN)
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}")
    pytester.makepyfile(test_one="def test_a(): ...", test_two="def test_b(): ...\ndef test_c(): ...")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["*slowest 2 of 2 files*", "*s * 2 tests  test_two.py"])
    (pytester.path / "test_one.py").unlink()
    pytester.runpytest_inprocess("test_two.py::test_b")
    shown = pytester.runpytest_inprocess("--cache-show", KEY).stdout.str()
    assert "test_two.py::test_b" in shown
    assert not any(gone in shown for gone in ("test_two.py::test_c", "test_one.py::test_a"))
