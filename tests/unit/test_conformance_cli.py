"""`python -m forebay_proof.conformance`: what it prints, what it leaves behind, how it ends."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from forebay.core.clock import Clock
from forebay.core.job import Draft
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Receipt, Store
from forebay_proof.conformance import __main__ as cli
from forebay_proof.conformance import cases

ONE = "settling/an_acknowledged_job_is_gone"


class Forgetful(MemoryStore):
    """Accepts and stores nothing."""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return [Receipt(number, durable=False) for number, _ in enumerate(drafts, 1)]


def forgetful(url: str, *, clock: Clock | None = None) -> Store:
    return Forgetful(clock=clock)


def test_it_prints_a_line_a_theme_and_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory://", "--only", "keys/*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("keys ")
    assert lines[-1].endswith(" passed, 0 failed, 1 not claimed")
    assert len(lines) == 2


def test_a_failure_is_named_with_its_assertion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "open_store", forgetful)
    assert cli.main(["memory://", "--only", "ids_grow_from_batch_to_batch"]) == 1
    out = capsys.readouterr().out
    assert "FAILED acceptance/ids_grow_from_batch_to_batch\n" in out
    assert "assert ids == sorted(set(ids))" in out
    assert out.endswith("0 passed, 1 failed\n")


def test_each_case_works_in_a_directory_of_its_own_and_passed_ones_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a b"
    assert cli.main([f"memory://{place}", "--only", "settling/*outlive*"]) == 0
    assert "not claimed" not in capsys.readouterr().out
    assert list(place.iterdir()) == []


def test_what_failed_on_disk_is_left_for_inspection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cli.Location(f"memory://{tmp_path}")
    place.open(None).close()
    place.tidy(failed=True)
    place.close()
    assert place.directory is not None
    assert any(place.directory.iterdir())


def test_list_shows_the_cases_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(cases())
    assert ONE in lines
    assert "leases/a_lease_outlives_a_reopening  (for stores that claim: durable)" in lines


@pytest.mark.parametrize("pattern", [ONE, "an_acknowledged_job_is_gone", "settling/an_ack*", "acknowledged_job_is_gon"])
def test_only_takes_names_patterns_and_parts(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list", "--only", pattern]) == 0
    assert capsys.readouterr().out == f"{ONE}\n"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory://", "--only", "settling/*", "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out)
    assert (document["store"], document["failed"]) == ("memory://", 0)
    assert len(document["cases"]) == document["passed"] + document["not_claimed"]
    assert {case["theme"] for case in document["cases"]} == {"settling"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["memory://", "--only", "no such thing"], "no case matches 'no such thing'; --list shows them all"),
        ([], "name a store to check"),
        (["carrier-pigeon://"], "cannot open carrier-pigeon://: store URL"),
        (["memory://host/path"], "cannot open memory://host/path"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_two(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert "python -m forebay_proof.conformance memory://" in out
    assert "run(lambda clock: MyStore(clock=clock))" in out


def test_real_time_uses_the_stores_own_clock(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory://", "--only", "promote_is_bounded", "--real-time"]) == 0
    assert capsys.readouterr().out.endswith("1 passed, 0 failed\n")


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["-O"], 2)])
def test_it_runs_as_a_module_and_not_without_assertions(flags: list[str], code: int) -> None:
    command = [sys.executable, *flags, "-m", "forebay_proof.conformance", "memory://", "--only", ONE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("1 passed, 0 failed" in done.stdout) is (code == 0)
    assert ("without -O" in done.stderr) is (code == 2)
