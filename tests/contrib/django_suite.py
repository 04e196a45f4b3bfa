"""Django's own tests of task backends (`tests/tasks` of its source), run on Forebay with a SQLite store.

A program for a Python with Django 6: `django_suite.py SOURCE WORK`, with an unpacked source of Django and an empty
directory. Only settings are replaced. In the place of the dummy backend is Forebay without a worker, whose list of
results is a view of the store; in the place of the immediate one, Forebay with a worker that runs each job right after
its enqueue. It prints how many tests ran, and the last line of the error of each that failed.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.test.runner import DiscoverRunner

HERE = "tests.contrib.django_suite_backends"
REPLACED = {
    '"django.tasks.backends.dummy.DummyBackend"': f'"{HERE}.Waiting"',
    '"django.tasks.backends.immediate.ImmediateBackend"': f'"{HERE}.Immediate"',
}


def main(source: Path, work: Path) -> None:
    shutil.copytree(source / "tests" / "tasks", work / "tasks")
    for file in (work / "tasks").glob("*.py"):
        text = file.read_text()
        for theirs, ours in REPLACED.items():
            text = text.replace(theirs, ours)
        file.write_text(text)
    sys.path.insert(0, str(work))
    os.chdir(work)
    settings.configure(
        SECRET_KEY="only for tests",
        TIME_ZONE="UTC",
        USE_TZ=False,
        INSTALLED_APPS=["forebay.contrib.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        FOREBAY={"URL": "sqlite:///jobs.db"},
    )
    django.setup()
    runner = DiscoverRunner(verbosity=0, interactive=False)
    suite = runner.build_suite(["tasks"])
    count = suite.countTestCases()
    databases = runner.setup_databases()
    outcome: Any = runner.run_suite(suite)
    runner.teardown_databases(databases)
    failed: dict[str, str] = {}
    for case, trace in [*outcome.failures, *outcome.errors]:
        whole = getattr(case, "test_case", case)  # a subtest is a part of it
        failed[whole.id()] = trace.strip().splitlines()[-1][:200]
    sys.stdout.write(json.dumps({"run": count, "failed": failed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
