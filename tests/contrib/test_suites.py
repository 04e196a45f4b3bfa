"""The test suites of other task backends pass on Forebay, but for tests about those backends (`make test-django`)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DJANGO: Final = ROOT / ".venv-django"
SUITES: Final = DJANGO / "suites"

CLASS = "expects the class of another backend"
LESS = "expects that results or run_after are not supported"
DUMMY = "changes objects that a dummy backend returns again"
COMMIT = "expects an enqueue before the commit, which is so in the project's own database alone"
INTERRUPT = "expects the interrupt in the caller: here it fails the task, and the worker goes on"
TABLE = "writes rows of its model, or expects their order"
IDS = "expects its ids, or its option of them"
COMMAND = "expects options or texts of its command"
TEXT = "expects the text of another TypeError"
NAME = "expects the name of its app"
SECOND = "expects that a second interrupt fails the task: here it releases the job for another worker"

BOTH: Final = {
    "DummyBackendTestCase.test_refresh_result": DUMMY,
    "DummyBackendTestCase.test_refresh_result_async": DUMMY,
    "DummyBackendTestCase.test_using_correct_backend": CLASS,
    "ImmediateBackendTestCase.test_cannot_get_result": LESS,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": LESS,
    "ImmediateBackendTestCase.test_cannot_refresh_result": LESS,
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": INTERRUPT,
    "ImmediateBackendTestCase.test_using_correct_backend": CLASS,
    "TaskTestCase.test_get_backend": CLASS,
    "TaskTestCase.test_using_correct_backend": CLASS,
}
DIFFERENT: Final = {
    "django": {
        **BOTH,
        "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": COMMIT,
        "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": COMMIT,
    },
    "django-tasks": {**BOTH, "ImmediateBackendTestCase.test_get_result_from_different_request": LESS},
    "django-tasks-db": {
        "DatabaseBackendTestCase.test_custom_id_function": IDS,
        "DatabaseBackendTestCase.test_database_backend_app_missing": NAME,
        "DatabaseBackendTestCase.test_doesnt_wait_until_transaction_commit": COMMIT,
        "DatabaseBackendTestCase.test_enqueue_task": IDS,
        "DatabaseBackendTestCase.test_enqueue_task_async": IDS,
        "DatabaseBackendTestCase.test_index_scan_for_ready": TABLE,
        "DatabaseBackendTestCase.test_invalid_task_path": TABLE,
        "DatabaseBackendTestCase.test_missing_task_path": TABLE,
        "DatabaseBackendTestCase.test_priority_range_check": TABLE,
        "DatabaseBackendTestCase.test_refresh_result": TABLE,
        "DatabaseBackendTestCase.test_refresh_result_async": TABLE,
        "DatabaseBackendTestCase.test_run_after_null_0016_migration": TABLE,
        "DatabaseBackendTestCase.test_task_name": TABLE,
        "DatabaseBackendTestCase.test_unknown_id_function": IDS,
        "DatabaseBackendWorkerTestCase.test_complex_return_value": TEXT,
        "DatabaseBackendWorkerTestCase.test_doesnt_process_different_backend": COMMAND,
        "DatabaseBackendWorkerTestCase.test_empty_worker_id": COMMAND,
        "DatabaseBackendWorkerTestCase.test_exclude_queues_requires_processing_all_queues": COMMAND,
        "DatabaseBackendWorkerTestCase.test_fractional_interval": COMMAND,
        "DatabaseBackendWorkerTestCase.test_incorrect_backend": COMMAND,
        "DatabaseBackendWorkerTestCase.test_infinite_interval": COMMAND,
        "DatabaseBackendWorkerTestCase.test_invalid_task_path": TABLE,
        "DatabaseBackendWorkerTestCase.test_max_tasks": COMMAND,
        "DatabaseBackendWorkerTestCase.test_missing_task_path": TABLE,
        "DatabaseBackendWorkerTestCase.test_negative_interval": COMMAND,
        "DatabaseBackendWorkerTestCase.test_negative_max_tasks": COMMAND,
        "DatabaseBackendWorkerTestCase.test_run_after": TABLE,
        "DatabaseBackendWorkerTestCase.test_run_after_priority": TABLE,
        "DatabaseBackendWorkerTestCase.test_task_import_string": TABLE,
        "DatabaseBackendWorkerTestCase.test_too_long_worker_id": COMMAND,
        "DatabaseBackendWorkerTestCase.test_unknown_backend": COMMAND,
        "DatabaseBackendWorkerTestCase.test_verbose_logging": COMMAND,
        "DatabaseBackendWorkerTestCase.test_zero_interval": COMMAND,
        "DatabaseBackendWorkerTestCase.test_zero_max_tasks": COMMAND,
        "DatabaseWorkerProcessTestCase.test_multiple_workers": COMMAND,
        "DatabaseWorkerProcessTestCase.test_repeat_ctrl_c": SECOND,
    },
}
"""Tests that do not hold here, and why."""

OTHER = "needs another version of Django"
SERVER = "needs another database than SQLite"
SKIPPED: Final = {
    "django": {},
    "django-tasks": {
        "DjangoCompatTestCase.test_django_using_lib_backend": OTHER,
        "DjangoCompatTestCase.test_lib_using_django_backend": OTHER,
    },
    "django-tasks-db": {
        "DatabaseBackendTestCase.test_postgres_db_id_function": SERVER,
        "DatabaseBackendTestCase.test_postgres_id_function_expression": OTHER,
        "DatabaseBackendWorkerTestCase.test_worker_with_locked_rows": SERVER,
    },
}
COUNTS: Final = {"django": (85, 0), "django-tasks": (101, 0), "django-tasks-db": (69, 26)}
"""Tests that run, and those left out: of its model, its locks, its admin and its pruning."""


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DIFFERENT)
def test_the_tests_of_another_backend_pass(name: str, tmp_path: Path) -> None:
    if not (SUITES / name).is_dir():
        pytest.skip(f"the source of {name} is not there: `make django` gets it")
    # The environment has Django 6; `django-tasks` is for the one before.
    path = [str(ROOT / "src"), *([str(SUITES / "django-5.2")] if name == "django-tasks" else [])]
    program = [str(DJANGO / "bin" / "python"), str(ROOT / "tests" / "contrib" / "suites.py"), name]
    ran = subprocess.run(
        [*program, str(SUITES / name), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=550,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)},
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    answer = json.loads(ran.stdout)
    failed, skipped = answer["failed"], answer["skipped"]
    passed = answer["run"] - len(failed) - len(skipped)
    sys.stdout.write(f"{name}: {answer['run']} tests, {passed} passed, {len(skipped)} skipped\n")
    assert failed.keys() == DIFFERENT[name].keys(), ran.stderr[-8_000:]
    assert skipped.keys() == SKIPPED[name].keys()
    assert (answer["run"], answer["left_out"]) == COUNTS[name]
