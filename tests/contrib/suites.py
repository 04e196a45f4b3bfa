"""The test suites of other task backends, run on Forebay with a SQLite store.

A program for a Python with Django: `suites.py NAME SOURCE WORK`, with the source of the suite's package and an empty
directory. Only settings and names are replaced (`suite_backends.py`): in the place of a dummy backend is Forebay
without a worker, whose list of results is a view of the store; in the place of an immediate one, Forebay with a worker
that runs each job right after its enqueue; in the place of a table, a view of the store. It prints how many
tests ran and were left out, the last line of the error of each that failed, and why others were skipped.
"""

import json
import os
import shutil
import sys
import unittest
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
SETTINGS: Final = """
SECRET_KEY = "only for tests"
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db", "TEST": {"NAME": "test.db"}}}
FOREBAY = {"URL": "sqlite:///jobs.db"}
INSTALLED_APPS = ["forebay.contrib.django", "django.contrib.auth", "django.contrib.contenttypes"]
"""
MANAGE: Final = """
import sys
from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""
WORKER_SETTINGS: Final = """
from settings import *

DATABASES["default"]["NAME"] = DATABASES["default"]["TEST"]["NAME"]
TASKS = {"default": {"BACKEND": "suite_backends.DatabaseBackend"}}
"""


class Suite(NamedTuple):
    """tests      the folder of the tests, in the source of their package
    label      the same, as a package
    settings   of the project, beside the common ones
    replaced   texts in the tests, and what takes their place
    added      files beside the tests
    left_out   classes of tests that are not run
    """

    tests: str
    label: str
    settings: str
    replaced: dict[str, str]
    added: Mapping[str, str] = MappingProxyType({})
    left_out: tuple[str, ...] = ()


def _backends(api: str) -> dict[str, str]:
    return {
        f'"{api}.backends.dummy.DummyBackend"': '"suite_backends.Waiting"',
        f'"{api}.backends.immediate.ImmediateBackend"': '"suite_backends.Immediate"',
    }


SUITES: Final = {
    "django": Suite("tests/tasks", "tasks", "USE_TZ = False", _backends("django.tasks")),
    "django-tasks": Suite(
        "tests",
        "tests.tests",
        "from tests.settings import *\nINSTALLED_APPS += ['forebay.contrib.django']",
        _backends("django_tasks"),
    ),
    # Its archive has the tests without their tasks and settings. A worker needs longer to start than theirs.
    "django-tasks-db": Suite(
        "tests",
        "tests.tests",
        "USE_TZ = True\nINSTALLED_APPS += ['django.contrib.admin', 'suite', 'django_tasks_db', 'tests']\n"
        "TASKS = {'default': {'BACKEND': 'suite_backends.DatabaseBackend', 'QUEUES': ['default', 'queue-1']}}",
        {
            '"django_tasks_db.DatabaseBackend"': '"suite_backends.DatabaseBackend"',
            "from django_tasks_db import DatabaseBackend, ": "from suite_backends import DatabaseBackend\n"
            "from django_tasks_db import ",
            "from django_tasks_db.models import DBTaskResult, ": "from suite_backends import DBTaskResult\n"
            "from django_tasks_db.models import ",
            "WORKER_STARTUP_TIME = 1\n": "WORKER_STARTUP_TIME = 10\n",
            "sleep_for.enqueue(2)": "sleep_for.enqueue(20)",
            "wait(timeout=0.5)": "wait(timeout=30)",
            "wait(timeout=2)": "wait(timeout=30)",
            "wait(timeout=5)": "wait(timeout=30)",
        },
        {
            "tests/__init__.py": "",
            "tests/tasks.py": (HERE / "suite_tasks.py").read_text(),
            "tests/db_worker_test_settings.py": WORKER_SETTINGS,
            "suite/management/commands/db_worker.py": "from suite_backends import Command",
            "manage.py": MANAGE,
        },
        (
            "AdminTestCase",
            "CompatTestCase",
            "ConnectionExclusiveTranscationTestCase",
            "DBTaskResultOrderingTestCase",
            "DatabaseBackendPruneTaskResultsTestCase",
            "DatabaseTaskResultTestCase",
        ),
    ),
}


def prepare(suite: Suite, source: Path, work: Path) -> None:
    tests = shutil.copytree(source / suite.tests, work / suite.label.partition(".")[0])
    unused = set(suite.replaced)
    for file in tests.rglob("*.py"):
        text = file.read_text()
        for theirs, ours in suite.replaced.items():
            if theirs in text:
                unused.discard(theirs)
                text = text.replace(theirs, ours)
        file.write_text(text)
    assert not unused, f"the suite does not have {unused}"
    for name, text in {"settings.py": f"{SETTINGS}{suite.settings}\n", **suite.added}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    sys.path[:0] = [str(work), str(source)]
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": os.pathsep.join([str(work), str(HERE), str(source), os.environ.get("PYTHONPATH", "")]),
    }
    os.chdir(work)


def cases(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestCase):
            yield each
        else:
            yield from cases(each)


def main(name: str, source: Path, work: Path) -> None:
    suite = SUITES[name]
    prepare(suite, source, work)
    import django

    django.setup()
    from django.test import TransactionTestCase
    from django.test.runner import DiscoverRunner
    from suite_backends import clear  # type: ignore[import-not-found]

    class Cleared(unittest.TextTestResult):
        def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
            clear()
            super().startTest(test)

    class Runner(DiscoverRunner):
        def get_resultclass(self) -> type[unittest.TestResult]:
            return Cleared

    # A store is no database of Django: its statements are not counted.
    TransactionTestCase.assertNumQueries = lambda *_, **__: nullcontext()
    runner = Runner(verbosity=0, interactive=False)
    found = list(cases(runner.build_suite([suite.label])))
    chosen = [case for case in found if type(case).__name__ not in suite.left_out]
    databases = runner.setup_databases()
    outcome = runner.run_suite(unittest.TestSuite(chosen))
    runner.teardown_databases(databases)
    failed: dict[str, str] = {}
    for case, trace in [*outcome.failures, *outcome.errors]:
        whole = getattr(case, "test_case", case)  # a subtest is a part of it
        failed[_short(whole)] = trace.strip().splitlines()[-1][:200]
    skipped = {_short(case): reason for case, reason in outcome.skipped}
    counts = {"run": len(chosen), "left_out": len(found) - len(chosen)}
    sys.stdout.write(json.dumps({**counts, "failed": failed, "skipped": skipped}))


def _short(case: unittest.TestCase) -> str:
    return ".".join(case.id().split(".")[-2:])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve())
