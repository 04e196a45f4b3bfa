"""`forebay ledger` against real stores: what it prints, how it ends, and beside a process that owns the store."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay.cli import main
from forebay.core.job import Draft
from forebay.core.ledger import LedgerRule
from forebay.core.outcome import Failure, Retry
from forebay.store.memory.journaled import open_journaled
from forebay.store.open import open_store
from forebay.store.protocol import Want
from tests.command_result import CommandResult, Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)

    def call(*arguments: str) -> CommandResult:
        capsys.readouterr()
        code = main(arguments)
        output = capsys.readouterr()
        return CommandResult(code, output.out, output.err)

    return call


def records(answer: CommandResult) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    return answer.json


def test_records_are_lines_of_json(run: Run) -> None:
    store = open_store("sqlite:///forebay.db")
    store.enqueue([Draft("mail", tenant="acme"), Draft("mail")])
    leases = store.claim([Want("default", 2)], "ada", timedelta(seconds=30))
    store.settle([(leases[0], Retry(0, Failure("Boom", "it broke")))])
    store.close()
    accepted, claimed, settled = records(run("ledger", "read"))
    assert accepted["verb"] == "enqueue"
    (job_range,) = accepted["ranges"]
    assert (job_range["change"], job_range["first"], job_range["n"]) == ("accepted", 1, 2)
    assert job_range["traits"] == [{"tenant": "acme"}, None]
    assert claimed["owner"] == "ada"
    (job_range,) = settled["ranges"]
    assert job_range["traits"] == [{"error_kind": "Boom", "error": "it broke"}]
    assert job_range["claimed_at"] == claimed["at"]
    assert [record["offset"] for record in records(run("ledger", "read", "--after", "0", "--limit", "1"))] == [1]
    assert records(run("ledger", "read", "--after", "2")) == []


def test_the_rule_is_put_and_shown(run: Run) -> None:
    run("enqueue", "mail")
    assert "keeps   7d, 1,073,741,824 bytes" in run("ledger", "status").out
    assert run("ledger", "keep", "--days", "30", "--bytes", "2G").code == 0
    assert run("ledger", "keep", "--days", "90m").code == 0
    status = json.loads(run("ledger", "status", "--json").out)
    assert (status["keep_seconds"], status["keep_bytes"]) == (5_400, 2 * 1024**3)
    assert (status["on"], status["first"], status["next"]) == (True, 0, 1)
    assert "off" in run("ledger", "off").out
    run("enqueue", "mail")
    assert json.loads(run("ledger", "off", "--json").out)["on"] is False
    assert "on" in run("ledger", "on").out
    assert [record["verb"] for record in records(run("ledger", "read"))] == ["enqueue", *["put_ledger_rule"] * 2]


def test_bad_input_is_one_line_with_a_way_out(run: Run) -> None:
    assert run("ledger", "read").code == 3
    run("enqueue", "mail")
    for arguments in (
        ("keep",),
        ("keep", "--bytes", "many"),
        ("keep", "--days", "soon"),
        ("keep", "--days", "99999"),
        ("read", "--after", "-2"),
        ("read", "--limit", "0"),
        ("status", "--store", "memory://"),
    ):
        answer = run("ledger", *arguments)
        assert (answer.code, answer.out) == (2, ""), arguments
        assert answer.err.strip()


def test_what_was_trimmed_is_reported_with_the_first_offset(run: Run) -> None:
    store = open_store("sqlite:///forebay.db")
    for _ in range(3):
        store.enqueue([Draft("mail")])
    store.put_ledger_rule(LedgerRule(keep_bytes=0))
    store.trim_ledger(2)
    store.close()
    assert [record["offset"] for record in records(run("ledger", "read"))] == [2]
    answer = run("ledger", "read", "--after", "-1")
    assert answer.code == 1
    assert "begins at offset 2" in answer.err


def test_a_journal_is_read_beside_its_owner_and_ruled_by_it_alone(run: Run, tmp_path: Path) -> None:
    store = open_journaled(str(tmp_path / "j"))
    store.enqueue([Draft("mail")])
    url = f"memory:///{tmp_path}/j"
    store.put_ledger_rule(LedgerRule(on=False))
    assert [record["verb"] for record in records(run("ledger", "read", "--store", url))] == [
        "enqueue",
        "put_ledger_rule",
    ]
    assert json.loads(run("ledger", "status", "--json", "--store", url).out)["on"] is False
    refused = run("ledger", "on", "--store", url)
    assert refused.code == 3
    assert "is in use by" in refused.err
    store.close()
    assert run("ledger", "on", "--store", url).code == 0


def test_following_shows_what_comes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url)
    store.enqueue([Draft("first")])
    follower = subprocess.Popen(
        [sys.executable, "-m", "forebay", "ledger", "read", "--follow", "--limit", "3", "--store", url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["offset"] == 0
    store.enqueue([Draft("second")])
    assert json.loads(follower.stdout.readline())["offset"] == 1
    store.enqueue([Draft("third")])
    assert json.loads(follower.stdout.readline())["offset"] == 2
    assert follower.wait(10) == 0
    follower.stdout.close()
    store.close()
