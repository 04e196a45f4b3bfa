"""Evidence: rounds run once for a state of the sources, what is interrupted goes on, and other states are refused."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import forebay
from forebay.cli import main
from forebay.core.errors import Invalid
from forebay_proof import evidence, evidence_parts
from forebay_proof.evidence import EvidencePart, EvidenceRun, PartResult, printed
from forebay_proof.evidence_parts import PARTS, _run_once, chosen
from forebay_proof.processes import alive
from tests.mutants.catalogue import ALL
from tests.waiting import eventually


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module, folder in ((forebay, "src"), (evidence, "proof/src")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("1\n")
        monkeypatch.setattr(module, "__file__", str(tmp_path / folder / "a.py"))
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    return subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "--message", "x")


def part(*scripts: str, name: str = "p", alone: bool = False) -> EvidencePart:
    rounds = tuple((sys.executable, "-c", script) for script in scripts)
    return EvidencePart(
        name=name,
        title="what",
        unit="things",
        goal=10,
        quick=rounds[0],
        full=rounds,
        count=printed("things"),
        alone=alone,
    )


def ran(root: Path, *parts: EvidencePart, scale: str = "full", seconds: float = 60.0) -> list[PartResult]:
    work = EvidenceRun(root, root / "results", parts, scale)
    list(work.carry_out(seconds))
    return [work.result(part.name) for part in parts]


def things(count: int, after: str = "") -> str:
    return f"open('ran', 'a').write('x'); print('evidence: {count} things'); {after}"


def test_rounds_are_added_up_kept_and_not_run_again(root: Path) -> None:
    whole = part(things(7), things(5))
    first, result = (ran(root, whole)[0] for _ in range(2))
    assert (first.count, result.count) == (12, 12)
    assert (result.verdict(12), result.verdict(13)) == ("passed", "below goal")
    assert (root / "ran").read_text() == "xx"
    assert not result.stale(evidence.sources(root))
    assert evidence.recorded(root / "results", "full")["p"].versions["sqlite"]
    (quick,) = ran(root, whole, scale="quick")
    assert (quick.count, (root / "ran").read_text()) == (7, "xxx"), "another scale is another result"


def test_what_was_cut_short_goes_on_with_the_next_round(root: Path) -> None:
    whole = part(things(1), things(2), things(3), alone=True)
    work = EvidenceRun(root, root / "results", [whole], "full")
    rounds = work.carry_out()
    assert next(rounds)[1].count == 1
    rounds.close()
    known = evidence.recorded(root / "results", "full")["p"]
    assert (known.count, known.verdict(6)) == (1, "1 of 3 rounds")
    (result,) = ran(root, whole)
    assert (result.count, len(result.rounds)) == (6, 3)


def test_no_round_begins_after_the_time_is_over(root: Path) -> None:
    (result,) = ran(root, part(things(1), things(2)), seconds=0.0)
    assert (result.count, (root / "ran").exists()) == (0, False)


def test_a_round_that_is_stopped_ends_with_all_that_it_started_and_leaves_no_result(root: Path) -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); open('pid', 'w').write(str(p.pid)); p.wait()"
    )
    rounds = EvidenceRun(root, root / "results", [part(script), part(things(1), name="q")], "full").carry_out()
    assert next(rounds)[0].part == "q"
    eventually(lambda: (root / "pid").exists() and (root / "pid").read_text())
    rounds.close()
    pid = int((root / "pid").read_text())
    eventually(lambda: not alive(pid))
    assert list(evidence.recorded(root / "results", "full")) == ["q"]


def test_two_rounds_run_side_by_side_and_one_that_is_alone_does_not(root: Path) -> None:
    meet = """
import os, time
open("at-{0}", "w")
end = time.time() + 60
while not os.path.exists("at-{1}"):
    assert time.time() < end
    time.sleep(0.01)
print("evidence: 1 things")
"""
    alone = "import os; assert os.path.exists('done'); print('evidence: 1 things')"
    late = "import time; time.sleep(0.2); open('done', 'w'); print('evidence: 1 things')"
    first = [part(alone, name="alone", alone=True), part(meet.format(1, 2), meet.format(2, 1), late)]
    assert [result.count for result in ran(root, *first)] == [1, 3]


@pytest.mark.parametrize("script", [things(7, "raise SystemExit(1)"), "print('nothing')", "pass"])
def test_a_round_that_fails_or_counts_nothing_has_not_passed_and_is_run_again(root: Path, script: str) -> None:
    (result,) = ran(root, part(script, things(10)))
    assert (result.count, result.verdict(10)) == (10, "FAILED")
    log = root / "results" / "p.failed.log"
    assert log.read_text().startswith("$ python -c ")
    (again,) = ran(root, part(things(1), things(10)))
    assert (again.count, again.verdict(10)) == (11, "passed"), "a round that is no longer planned is left out"
    assert not log.exists()


def test_results_of_other_sources_stay_and_count_for_nothing(root: Path) -> None:
    whole = part(things(1), things(2), alone=True)
    (result,) = ran(root, whole)
    commit(root)
    assert not result.stale(evidence.sources(root)), "committing the result itself changes no source"
    (root / "src" / "a.py").write_text("2\n")
    with pytest.raises(Invalid, match="uncommitted"):
        evidence.sources(root)
    commit(root)
    identity = evidence.sources(root)
    assert result.stale(identity)
    work = EvidenceRun(root, root / "results", [whole], "full")
    assert len(work.open_rounds(whole)) == 2
    rounds = work.carry_out()
    now, _ = next(rounds)
    rounds.close()
    assert (now.count, now.verdict(1)) == (1, "1 of 2 rounds")
    mixed = evidence.recorded(root / "results", "full")["p"]
    assert (mixed.count, mixed.of(identity).count, mixed.stale(identity)) == (3, 1, True)
    assert len(mixed.commits) == 2


@pytest.mark.parametrize(("module", "package"), [(forebay, "forebay"), (evidence, "forebay_proof")])
def test_sources_of_another_tree_are_no_evidence_for_this_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, package: str
) -> None:
    monkeypatch.setattr(module, "__file__", str(root.parent / "other" / "src" / "a.py"))
    with pytest.raises(Invalid, match=rf"{package} is imported from .*other.*make setup"):
        EvidenceRun(root, root / "results", [part(things(1))], "full")


@pytest.mark.parametrize(("after", "why"), [("pass", "uncommitted"), ("commit", "were .* and are")])
def test_a_round_during_which_the_sources_changed_is_not_recorded(root: Path, after: str, why: str) -> None:
    """Such a result would be of neither."""
    script = "import pathlib, subprocess\npathlib.Path('src/a.py').write_text('2')\n"
    if after == "commit":
        script += "subprocess.run('git -c user.name=x -c user.email=x@x commit -qam x', shell=True, check=True)\n"
    with pytest.raises(Invalid, match=why):
        ran(root, part(script + things(1)))
    assert evidence.recorded(root / "results", "full") == {}


def test_what_is_left_is_estimated_by_the_rounds_that_ran(root: Path) -> None:
    whole = part(things(1), things(2), "import time; time.sleep(0.3)" + "\n" + things(3), alone=True)
    work = EvidenceRun(root, root / "results", [whole], "full")
    left = [work.seconds_left() for _ in work.carry_out()]
    assert left[0] > 0
    assert left[-1] == 0.0
    guessed = EvidenceRun(root, root / "other", [msgspec.structs.replace(whole, hours=1.0)], "full")
    assert guessed.seconds_left() == pytest.approx(3_600)


def test_parts_have_names_and_rounds_of_their_own() -> None:
    with pytest.raises(Invalid, match="nonsense"):
        chosen(["nonsense"])
    assert [each.name for each in chosen([])] == [each.name for each in PARTS]
    assert len({each.name for each in PARTS}) == len(PARTS)
    (twice,) = chosen(["mutants-twice"])
    assert twice.goal >= 0.9 * len(ALL)
    for each in PARTS:
        assert len(set(each.full)) == len(each.full), each.name


def test_the_commands_run_and_show(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(evidence_parts, "PARTS", (part(things(7), things(5)),))
    assert main(["evidence", "show"]) == 2
    assert "not run" in capsys.readouterr().out
    assert main(["evidence", "run", "--scale", "full", "--for", "1m"]) == 0
    noted = capsys.readouterr().err.splitlines()
    assert noted[0].startswith("2 rounds, ")
    assert noted[-1].startswith("p 2/2: passed, ")
    assert noted[-1].endswith("12 of 10; 0.0 h left")
    assert main(["evidence", "show"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("p ")]
    assert row.split()[:4] == ["p", "12", "10", "things"]
    assert row.split()[6:8] == [git(root, "rev-parse", "HEAD")[:8], "passed"]
    (root / "src" / "a.py").write_text("2\n")
    commit(root)
    assert main(["evidence", "show"]) == 2
    shown = capsys.readouterr()
    (row,) = [line for line in shown.out.splitlines() if line.startswith("p ")]
    assert row.split()[1:5:3] == ["0", "12"]
    assert " stale " in row
    assert "results of other sources: p;" in shown.err
    assert main(["evidence", "run", "--scale", "full", "--parallel", "1"]) == 0
    assert main(["evidence", "show"]) == 0


def test_a_trial_in_which_a_job_ran_twice_counts_for_nothing() -> None:
    verdict = '{{"verdict": {{"accepted": 9, "redelivered": {}, "doubled": 0, "lost": 0, "unfinished": 0}}}}'
    assert [_run_once(verdict.format(again)) for again in (0, 1)] == [9, 0]
