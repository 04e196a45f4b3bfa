"""Evidence: parts run once for a state of the sources, results of another state are refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.core.errors import Invalid
from forebay_proof import evidence
from forebay_proof.evidence import ProofLayer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("src", "proof/src"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "--message", "x")


def part(script: str) -> ProofLayer:
    command = (sys.executable, "-c", script)
    return ProofLayer("p", "what", "things", 10, command, command, evidence._printed("things"))


def test_a_part_is_counted_kept_and_not_run_again(root: Path) -> None:
    script = "open('ran', 'a').write('x'); print('evidence: 7 things'); print('evidence: 5 things')"
    folder = root / "results"
    results = [each for _ in range(2) for each in evidence.run(root, folder, [part(script)], "quick")]
    assert [(each.count, each.passed, each.unit) for each in results] == [(12, True, "things")] * 2
    assert (root / "ran").read_text() == "x"
    assert evidence.stale(root, results) == []
    list(evidence.run(root, folder, [part(script)], "full"))
    assert (root / "ran").read_text() == "xx", "another scale is another result"


@pytest.mark.parametrize("script", ["print('evidence: 7 things'); raise SystemExit(1)", "print('nothing')", "pass"])
def test_a_part_that_fails_or_counts_nothing_has_not_passed_and_is_run_again(root: Path, script: str) -> None:
    (result,) = evidence.run(root, root / "results", [part(script)], "quick")
    assert not result.passed
    (again,) = evidence.run(root, root / "results", [part("print('evidence: 1 things')")], "quick")
    assert again.passed


def test_results_of_other_sources_are_named(root: Path) -> None:
    (result,) = evidence.run(root, root / "results", [part("print('evidence: 1 things')")], "quick")
    commit(root)
    assert evidence.stale(root, [result]) == [], "committing the result itself changes no source"
    (root / "src" / "a.py").write_text("2\n")
    with pytest.raises(Invalid, match="uncommitted"):
        evidence.sources(root)
    commit(root)
    assert evidence.stale(root, [result]) == ["p"]


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="nonsense"):
        evidence.chosen(["nonsense"])
    assert [each.name for each in evidence.chosen([])] == [each.name for each in evidence.PARTS]
