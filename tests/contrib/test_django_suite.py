"""Django's own tests of task backends pass on Forebay, but for those about another backend (`make test-django`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-django" / "bin" / "python"
SOURCE = ROOT / ".venv-django" / "suite"

CLASS = "expects the class of another backend"
LESS = "expects that results or run_after are not supported"
DUMMY = "changes objects that a dummy backend returns again"
COMMIT = "expects an enqueue before the commit, which is so in the project's own database alone"
INTERRUPT = "expects the interrupt in the caller: here it fails the task, and the worker goes on"
DIFFERENT = {
    "DummyBackendTestCase.test_using_correct_backend": CLASS,
    "ImmediateBackendTestCase.test_using_correct_backend": CLASS,
    "TaskTestCase.test_using_correct_backend": CLASS,
    "TaskTestCase.test_get_backend": CLASS,
    "ImmediateBackendTestCase.test_cannot_get_result": LESS,
    "ImmediateBackendTestCase.test_cannot_refresh_result": LESS,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": LESS,
    "DummyBackendTestCase.test_refresh_result": DUMMY,
    "DummyBackendTestCase.test_refresh_result_async": DUMMY,
    "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": COMMIT,
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": COMMIT,
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": INTERRUPT,
}
"""Tests that do not hold here, and why."""


@pytest.mark.nightly
def test_the_tests_of_django_pass(tmp_path: Path) -> None:
    if not SOURCE.is_dir():
        pytest.skip("the source of Django is not there: `make test-django` gets it")
    program = [str(PYTHON), str(ROOT / "tests" / "contrib" / "django_suite.py"), str(SOURCE), str(tmp_path)]
    ran = subprocess.run(
        program, capture_output=True, text=True, check=False, timeout=250, env={"PYTHONPATH": str(ROOT)}
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    answer = json.loads(ran.stdout)
    failed = {name.split(".", 2)[2]: error for name, error in answer["failed"].items()}
    sys.stdout.write(f"{answer['run']} tests, {len(failed)} failed\n")
    assert failed.keys() == DIFFERENT.keys(), ran.stderr[-8_000:]
    assert answer["run"] >= 85
