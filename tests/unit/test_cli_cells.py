"""`forebay cells`, and other commands on a file of cells."""

import json
from pathlib import Path

import pytest

from forebay import Draft, QueueSpec, open_store
from forebay.cli import main
from forebay.core.instant import minutes
from forebay.core.job import State
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import InOrder
from forebay.store.protocol import Query, Want
from tests.stores.openers import cells_file

FILE = "cells.toml"


@pytest.fixture(autouse=True)
def two_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREBAY_URL", f"cells:{FILE}")
    Path(FILE).write_text(cells_file({"a": "sqlite:///a.db", "b": "sqlite:///b.db"}, ["a"], 'mail = "b"'))
    store = open_store(f"cells:{FILE}")
    store.enqueue([Draft("work", queue="mail")] * 3)
    store.enqueue([Draft("work")])
    store.close()


def test_cells_are_listed_with_what_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cells", "ls", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = [(each["cell"], each["store"], each["queues"], each["depth"]) for each in found]
    assert shown == [("a", "sqlite", 1, 1), ("b", "sqlite", 1, 3)]
    assert main(["cells", "ls"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["cell", "store", "queues", "depth", "done", "dead"]


def test_cells_are_listed_while_one_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    text = cells_file({"a": "sqlite:///a.db", "b": "postgresql://me:s3cr3t@127.0.0.1:1/db"}, ["a"], 'mail = "b"')
    Path(FILE).write_text(text)
    assert main(["cells", "ls", "--json"]) == 1
    out = capsys.readouterr().out
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["cell"], each["queues"], each["depth"]) for each in found] == [("a", 1, 1), ("b", 0, 0)]
    assert "Connection refused" in found[1]["down"]
    assert "s3cr3t" not in out


def test_a_store_without_cells_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cells", "ls", "--store", "sqlite:///a.db"]) != 0
    assert "it has no cells" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["stats"], "mail"),
        (["ls"], "8796093022209"),
        (["show", "8796093022209"], "mail"),
        (["explain", "8796093022209"], "ready"),
        (["doctor"], "cell b: schema"),
        (["doctor"], "cell b: the store's clock is"),
        (["explain", "8796093022209"], "it is in cell b"),
        (["top", "--once"], "2 queues"),
    ],
)
def test_commands_see_all_cells(command: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 0
    assert shown in capsys.readouterr().out


def test_a_queue_moves_with_progress_and_its_jobs_finish_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cells", "move", "mail", "--from", "b", "--to", "a", "--no-wait"]) == 0
    assert capsys.readouterr().out == "mail b → a: draining, 3 jobs unfinished and 0 kept in b\n"
    assert main(["cells", "ls"]) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("mail → a (draining)")
    store = open_store(f"cells:{FILE}")
    store.cancel([job.id for job in store.browse(Query(queue="mail"), 0, 10).jobs])
    store.close()
    assert main(["cells", "move", "mail", "--from", "b", "--to", "a", "--json"]) == 0
    (state,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (state["step"], state["unfinished"], state["kept"]) == ("leaving", 0, 0)


def test_doctor_names_every_cell_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/db"
    Path(FILE).write_text(cells_file({"a": "sqlite:///a.db", "b": nowhere, "c": nowhere.replace("db", "other")}, ["a"]))
    assert main(["doctor", "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    failed = [each["fact"].partition(": ")[0] for each in found if each["status"] == "fail"]
    assert failed == ["cell b", "cell c"]


def test_explain_says_what_a_move_holds(capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(f"cells:{FILE}")
    store.put_spec(QueueSpec(name="mail", eligibility=InOrder(per="tenant")))
    assert main(["cells", "move", "mail", "--from", "b", "--to", "a", "--no-wait"]) == 0
    held = store.enqueue([Draft("work", queue="mail")])[0].id
    capsys.readouterr()
    assert main(["explain", str(held)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "it is in cell a, and starts when cell b, which its queue leaves, has no job of it"
    store.cancel([job.id for job in store.browse(Query(queue="mail"), 0, 10).jobs if job.id != held])
    assert main(["cells", "move", "mail", "--from", "b", "--to", "a"]) == 0
    assert main(["explain", str(held)]) == 0
    assert "it may be claimed at any time" in capsys.readouterr().out
    store.close()


def test_a_cell_is_added_and_drained(capsys: pytest.CaptureFixture[str]) -> None:
    with open(FILE, "a") as file:
        file.write('\n[cells.c]\nnumber = 2\nurl = "sqlite:///c.db"\n')
    assert main(["cells", "add", "c"]) == 0
    assert capsys.readouterr().err == "cell c is in version 2 of the map\n"
    assert main(["cells", "drain", "a", "--to", "c", "--no-wait"]) == 0
    assert capsys.readouterr().out == "default a → c: draining, 1 job unfinished and 0 kept in a\n"
    store = open_store(f"cells:{FILE}")
    assert store.enqueue([Draft("work", queue="another")])[0].id >> 43 == 2
    store.close()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["mail", "--to", "a"], "--from: it is missing"),
        (["mail", "--partition", "0", "--from", "a", "--to", "a"], "name one queue, no --from"),
        (["mail", "--from", "b", "--to", "x"], "there is no cell 'x'"),
        (["mial", "--from", "a", "--to", "b"], "queue mial: cell a has no such queue"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cells", "move", *arguments]) != 0
    assert complaint in capsys.readouterr().err


def test_a_cell_that_the_file_lacks_is_not_added(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cells", "add", "c"]) != 0
    assert "write [cells.c] into it first" in capsys.readouterr().err


def test_dead_letters_of_all_cells_are_redriven(capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(f"cells:{FILE}")
    leases = store.claim([Want("mail", 1), Want("default", 1)], "w", minutes(1))
    store.settle([(lease, DeadLetter(Failure("E", "no"))) for lease in leases])
    assert main(["dlq", "redrive", "--all"]) == 0, capsys.readouterr().err
    assert {job.state for job in store.get([lease.job.id for lease in leases]) if job} <= {State.WAITING, State.READY}
    assert {lease.job.id >> 43 for lease in leases} == {0, 1}
    store.close()
