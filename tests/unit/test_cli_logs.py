"""`forebay logs`: what a log holds, its groups, and moving a group's place."""

import time
from pathlib import Path

import pytest

from forebay.cli import main
from forebay.core.instant import days, micros, seconds
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.sqlite.store import SqliteStore
from forebay.testing.clock import ManualClock
from tests.command_result import CommandResult, Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    store = SqliteStore("forebay.db")
    store.put_spec(QueueSpec(name="clicks", retention=Retained(2, window=days(7))))
    store.close()

    def call(*arguments: str) -> CommandResult:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        assert "Traceback (most" not in captured.err
        return CommandResult(code, captured.out, captured.err)

    return call


def test_entries_go_in_and_come_out(run: Run) -> None:
    for number in range(3):
        assert "offset" in run("logs", "append", "clicks", f"n={number}", "password=x", "--key", "ada").out
    assert "holds 3 of 3" in run("logs", "ls").out
    shown = run("logs", "read", "clicks", "--limit", "2")
    assert shown.out.count("ada") == 2
    assert '"n":0' in shown.out
    assert '"x"' not in shown.out
    assert '"x"' in run("logs", "read", "clicks", "--raw").out
    assert [entry["body"]["n"] for entry in run("logs", "read", "clicks", "--after", "1", "--json").json] == [2]
    assert run("logs", "read", "clicks", "--since", "+1h").out == ""
    assert run("logs", "read", "clicks", "--partition", "2").code == 1


def test_a_group_is_shown_and_moved(run: Run) -> None:
    assert "no group" in run("logs", "groups", "clicks").err
    for number in range(4):
        run("logs", "append", "clicks", f"n={number}")
    store = SqliteStore("forebay.db")
    store.own("clicks", "billing", "reader-1", seconds(30))
    store.commit("clicks", "billing", 0, 1)
    store.close()
    shown = run("logs", "groups", "clicks").out
    assert "billing: 2 behind, 0 lost" in shown
    assert "reader-1" in shown
    assert "in 6d 23h" in shown
    lags = [standing["lag"] for standing in run("logs", "groups", "clicks", "--json").json]
    assert lags == [0, 2]
    assert "billing continues with 0/0" in run("logs", "seek", "clicks", "billing", "start").out
    assert "billing: 4 behind" in run("logs", "groups", "clicks").out
    run("logs", "seek", "clicks", "billing", "end")
    assert "billing: 0 behind" in run("logs", "groups", "clicks").out
    run("logs", "seek", "clicks", "billing", "1", "--partition", "1")
    run("logs", "seek", "clicks", "billing", "+1h", "--partition", "0")
    assert "billing: 1 behind" in run("logs", "groups", "clicks").out
    assert run("logs", "seek", "clicks", "billing", "9").code == 2
    assert run("logs", "groups", "unknown").code != 0


def test_the_doctor_warns_before_a_group_loses_something(run: Run) -> None:
    """Six days after an entry was written, in the last quarter of a window of a week."""
    clock = ManualClock(time.time_ns() // 1_000 - micros(days(6)))
    earlier = SqliteStore("old.db", clock=clock)
    earlier.put_spec(QueueSpec(name="clicks", retention=Retained(window=days(30))))
    earlier.append("clicks", [b"{}"])
    earlier.commit("clicks", "billing", 0, -1)
    earlier.close()
    assert "billing" not in run("doctor", "--store", "sqlite:///old.db").out
    store = SqliteStore("old.db")
    store.put_spec(QueueSpec(name="clicks", retention=Retained(window=days(7))))
    store.close()
    assert "group billing is 1 behind and loses the next" in run("doctor", "--store", "sqlite:///old.db").out
