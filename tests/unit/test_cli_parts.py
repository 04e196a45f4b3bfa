"""The parts of the command line: lengths and moments, tables, axes as text, designs, the doctor, reload."""

import io
import json
import os
import runpy
import sqlite3
from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from forebay import NAMED, Draft, QueueSpec, Want
from forebay.cli import main
from forebay.cli.argtypes import duration, moment, rate
from forebay.cli.axes import AXES
from forebay.cli.design import resembling, source
from forebay.cli.diagnosis import Diagnosis
from forebay.cli.doctor import examine
from forebay.cli.reload import changes, home_of, snapshot
from forebay.cli.resolve_store import masked
from forebay.cli.screen import ProgressBar, Screen, cut, width_of
from forebay.cli.stats import StatsSample, rates
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.humanize import format_duration, iso, many, when
from forebay.core.instant import days, from_datetime, minutes, seconds
from forebay.core.job import State
from forebay.core.limits import MAX_INSTANT
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import (
    AtMost,
    Bounded,
    DeadLetters,
    Exponential,
    Fair,
    FanOut,
    InOrder,
    LatestWins,
    Rate,
    Retained,
    Route,
    Routing,
    Shed,
    Until,
    While,
)
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.serve.dashboard.views.queue import axes_of
from forebay.store.clock import SystemClock
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Backlog
from forebay.testing.clock import ManualClock
from forebay.work.console import clean
from forebay.work.cron import NEVER

NOON = from_datetime(datetime(2030, 1, 31, 12, tzinfo=UTC))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("0.5", 0.5), ("90s", 90), ("1h30m", 5_400), ("500ms", 0.5), ("2d", 172_800)]
)
def test_lengths(text: str, expected: float) -> None:
    assert duration(text).total_seconds() == expected


@pytest.mark.parametrize("text", ["", "soon", "5 m", "-5", "5y", "1e9", "99999d", "5m!"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        duration(text)


def test_rates_a_second() -> None:
    assert (rate("20"), rate("20/s"), rate("600/m"), rate("36/h")) == (20, 20, 10, 0.01)
    for text in ("0", "fast", "20/d", "-1"):
        with pytest.raises(ArgumentTypeError):
            rate(text)


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert moment("t", "2030-01-31T13:00:00+01:00", NOON) == NOON
    assert moment("t", "+5m", NOON) == moment("t", "5m", NOON) == NOON + 300_000_000
    here = datetime.fromtimestamp(NOON / 1_000_000).astimezone()
    soon, past = here + timedelta(minutes=1), here - timedelta(minutes=1)
    assert moment("t", f"{soon:%H:%M}", NOON) == from_datetime(soon)
    assert moment("t", f"{past:%H:%M}", NOON) == from_datetime(past + timedelta(days=1))
    for text in ("25:00", "2030-01-31T13:00:00", "never"):
        with pytest.raises(Invalid):
            moment("t", text, NOON)


def test_ages_and_counts() -> None:
    micros = (0, 500, 20_000, 3_200_000, 250_000_000, 7_200_000_000, 93_600_000_000)
    assert [format_duration(length) for length in micros] == ["0s", "0s", "20ms", "3.2s", "4m 10s", "2h", "1d 2h"]
    assert (many(1, "job"), many(0, "job"), many(1_204, "job")) == ("1 job", "0 jobs", "1,204 jobs")
    assert when(None, NOON) == "–"
    assert when(MAX_INSTANT, NOON) == "never"
    assert when(NOON + 1_000_000, NOON) == "2030-01-31 12:00:01 UTC, in 1.0s"
    assert when(NOON - 1_000_000, NOON) == "2030-01-31 11:59:59 UTC, 1.0s ago"
    assert (iso(NOON), iso(None), iso(MAX_INSTANT)) == ("2030-01-31T12:00:00Z", None, None)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@db/jobs",
        "postgresql://ada:s3/cr@et@db:5432/jobs",
        "redis://:s3cret@cache",
        "postgresql://db/jobs?user=ada&password=s3cret&x=1",
    ],
)
def test_passwords_are_masked(url: str) -> None:
    shown = masked(url)
    assert "***" in shown
    assert not any(part in shown for part in ("s3cret", "s3/cr", "et@"))
    assert shown.partition("://")[0] == url.partition("://")[0]


def test_urls_without_secrets_are_left_alone() -> None:
    for url in ("sqlite:///jobs.db", "sqlite:////var/a:b@c.db", "memory:///d", "postgresql://ada@db/jobs"):
        assert masked(url) == url


def test_tables_align_wide_signs_and_cut_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Screen(out=io.StringIO()).table_lines(("name", "n"), [("日本", 5), ("a", 1_000)], "n")
    assert lines == ["name     n", "日本     5", "a     1000"]
    assert {width_of(line) for line in lines} == {10}
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    wide = Screen(out=Terminal()).table_lines(("id", "error"), [(1, "x" * 50)])
    assert wide[1] == "1   " + "x" * 15 + "…"
    assert cut("日本語", 4) == "日…"
    assert clean("a\x1b[0m\nb\u202e") == "a\\x1b[0m\\nb\\u202e"


def test_colours_only_on_a_terminal_and_not_against_the_users_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Screen(out=Terminal()).paint("x", "red") == "\033[31mx\033[0m"
    assert Screen(out=io.StringIO()).paint("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen(out=Terminal()).paint("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Screen(out=Terminal()).paint("x", "red") == "x"


def test_progress_is_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        progress = ProgressBar(Screen(out=io.StringIO()), "redrive", 10, stream)
        progress.show(5, "5 of 10")
        progress.show(6, "not yet: too soon after the last")
        progress.show(10, "10 of 10")
        progress.close()
    assert pipe.getvalue() == ""
    assert " 50% 5 of 10" in terminal.getvalue()
    assert "100% 10 of 10" in terminal.getvalue()
    assert "too soon" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")


def test_every_usual_answer_is_the_plain_queue() -> None:
    fields = {name: value for axis in AXES for name, value in axis.parse(axis.usual).items()}
    assert QueueSpec(name="q", **fields) == QueueSpec(name="q")


def parsed(flag: str, text: str) -> dict[str, object]:
    return next(axis for axis in AXES if axis.flag == flag).parse(text)


def test_answers_mean_what_they_say() -> None:
    assert parsed("selection", "fifo + fair:kind + latest-wins")["share"] == Fair("kind")
    assert parsed("selection", "latest-wins") == {"merge": LatestWins()}
    both = parsed("eligibility", "at-most:3/tenant + until:approved + in-order:block/kind")["eligibility"]
    assert both == AtMost(3, "tenant") & Until("approved") & InOrder("kind", "block")
    assert parsed("routing", "8 + exponential:1s:10m") == {
        "routing": Routing(8, Exponential(timedelta(seconds=1), timedelta(minutes=10)))
    }
    wrong = (
        *(("routing", "many"), ("routing", "fan-out:a"), ("routing", "unmatched:drop"), ("routing", "dead-max:x")),
        *(("capacity", "bounded:x"), ("capacity", "bounded:9:shed"), ("retention", "keep:long"), ("selection", "")),
        *(("selection", "unique:lost"), ("selection", "fair:tenant:gold"), ("eligibility", "rate:5")),
    )
    for flag, text in wrong:
        with pytest.raises(Invalid):
            parsed(flag, text)


@pytest.mark.parametrize(
    ("flag", "text", "fields"),
    [
        ("retention", "log:4:7d:block", {"retention": Retained(4, days(7), "block")}),
        ("selection", "fair:tenant:gold=5,silver=3", {"share": Fair("tenant", {"gold": 5, "silver": 3})}),
        ("selection", "latest-wins:5s", {"merge": LatestWins(quiet=seconds(5))}),
        ("selection", "latest-wins:5s:1m", {"merge": LatestWins(quiet=seconds(5), at_most=minutes(1))}),
        ("selection", "unique", {"unique": While()}),
        ("selection", "unique:ready,waiting", {"unique": While((State.WAITING, State.READY))}),
        ("eligibility", "rate:100:1m/tenant", {"eligibility": Rate(100, minutes(1), "tenant")}),
        ("eligibility", "rate:100@api:1m:10", {"eligibility": Rate(100, minutes(1), None, 10, "api")}),
        ("eligibility", "at-most:8@gpu", {"eligibility": AtMost(8, shared="gpu")}),
        ("routing", "8 + dead:letters", {"routing": Routing(8, dead=DeadLetters("letters"))}),
        ("routing", "dead-keep:30d + dead-max:9", {"routing": Routing(dead=DeadLetters(keep=days(30), limit=9))}),
        (
            "routing",
            "fan-out:orders.*=billing,**=audit + unmatched:drop",
            {"routing": Routing(), "fan_out": FanOut((Route("orders.*", "billing"), Route("**", "audit")), "drop")},
        ),
        ("capacity", "bounded:9:shed:oldest", {"capacity": Bounded(9, Shed("oldest"))}),
    ],
)
def test_an_answer_is_a_value_and_its_python_makes_it(
    flag: str, text: str, fields: dict[str, object], tmp_path: Path
) -> None:
    assert parsed(flag, text) == fields
    spec = QueueSpec(name="q", **fields)  # type: ignore[arg-type]
    script = tmp_path / "spec.py"
    script.write_text(source(spec))
    assert runpy.run_path(str(script))["spec"] == spec
    assert len(axes_of(spec)) == 5
    assert all(0 <= axis.place < len(axis.points) for axis in axes_of(spec))


@pytest.mark.parametrize("name", NAMED)
def test_the_python_of_a_design_makes_the_same_queue(name: str, tmp_path: Path) -> None:
    spec = NAMED[name]("mail")
    script = tmp_path / "spec.py"
    script.write_text(source(spec))
    assert runpy.run_path(str(script))["spec"] == spec
    assert resembling(spec)[0] == name


def test_a_mixture_resembles_its_parts() -> None:
    fields = {**parsed("selection", "aging:5m + fair:tenant"), **parsed("capacity", "bounded:9")}
    assert {"priority", "bounded"} <= set(resembling(QueueSpec(name="q", **fields)))  # type: ignore[arg-type]


def test_a_design_by_flags_and_by_questions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--name", "mail", "--selection", "aging:1m", "--capacity", "bounded:100:block:5s"]
    assert main(["design", *flags, "--json"]) == 0
    by_flags = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.StringIO("mail\n\naging:1m\n\n\nbounded:100:block:5s\n"))
    assert main(["design", "--json"]) == 0
    requested = capsys.readouterr()
    assert json.loads(requested.out) == by_flags
    assert requested.err.count("?") == 6
    assert main(["design", *flags]) == 0
    out = capsys.readouterr().out
    for phrase in (
        "vector\n  mail = {",
        "commit point",
        "starvation",
        "    selection=Aging(),",
        '"name":"mail"',
        "waits for itself",
    ):
        assert phrase in out
    assert main(["design", "--like", "waitlist", "--name", "w", "--capacity", "unbounded", "--json"]) == 0
    waitlist = json.loads(capsys.readouterr().out)
    assert waitlist["spec"]["eligibility"]["type"] == "until"
    assert {"the gate is never opened: jobs wait for ever", "nothing bounds the jobs that are held"} <= {
        each["fails_by"] for each in waitlist["watch"]
    }


def statuses(diagnoses: list[Diagnosis]) -> dict[str, str]:
    return {diagnosis.check: diagnosis.status for diagnosis in diagnoses}


class Unwritable(MemoryStore):
    def set_gate(self, name: str, limit: int | None) -> None:
        raise StoreFailed("it", "the disk is full")


def test_the_doctor_finds_what_is_wrong() -> None:
    clock = ManualClock(SystemClock().now())
    store = MemoryStore(clock=clock)
    store.enqueue([Draft("a"), Draft("a", queue="late"), Draft("a", queue="held"), Draft("a", queue="dead")])
    store.pause("held")
    (lease,) = store.claim([Want("dead", 1)], "ada", seconds(30))
    store.settle([(lease, DeadLetter(Failure("E")))])
    store.claim([Want("late", 1)], "ada", seconds(1))
    store.put_schedule(Schedule("never", "0 0 1 1 *", NEVER, Draft("a")))
    store.put_schedule(Schedule("odd", "no rule at all", clock.now(), Draft("a")))
    store.put_schedule(Schedule("asleep", "@daily", clock.now(), Draft("a"), paused=True))
    store.put_schedule(Schedule("behind", "@daily", clock.now(), Draft("a")))
    clock.advance(400_000_000)
    store.announce(Presence("w", "host", 1, ("mail",), ("send",), unhandled=(("mail", "resize"),)), seconds(60))
    found = list(examine("memory://", lambda: store))
    assert statuses(found) == {
        "versions": "ok",
        "opens": "ok",
        "durable": "warn",
        "writable": "ok",
        "clock": "fail",
        "ready": "warn",
        "kinds": "warn",
        "gates": "ok",
        "dead": "warn",
        "leases": "warn",
        "paused": "warn",
        "schedules": "ok",
        "schema": "ok",
    }
    (kinds,) = [diagnosis.fact for diagnosis in found if diagnosis.check == "kinds"]
    assert kinds == "no worker has a handler for kind resize of queue mail: its jobs are released and wait"
    schedules = [diagnosis for diagnosis in found if diagnosis.check == "schedules"]
    assert sorted(diagnosis.status for diagnosis in schedules) == ["fail", "ok", "warn", "warn", "warn"]
    assert all(diagnosis.remedy for diagnosis in found if diagnosis.status != "ok")


def test_the_doctor_leaves_nothing_behind_and_says_when_it_cannot_write() -> None:
    assert statuses(list(examine("memory://", Unwritable)))["writable"] == "fail"


def test_doctor_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    assert main(["doctor"]) == 1
    assert "fail  opens" in capsys.readouterr().out
    assert main(["migrate"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {diagnosis["status"] for diagnosis in found} == {"ok"}
    assert {"versions", "opens", "private", "disk", "clock", "schema", "schedules"} <= {one["check"] for one in found}
    connection = sqlite3.connect("forebay.db")
    assert connection.execute("SELECT count(*) FROM gate").fetchone() == (0,)
    connection.close()
    os.chmod("forebay.db", 0o644)
    assert main(["doctor"]) == 0
    assert "chmod go-rwx forebay.db" in capsys.readouterr().out


def test_rates_are_differences_between_looks() -> None:
    before = StatsSample(1_000_000, {"q": backlog(ready=10, done=5, dead=1)})
    now = backlog(ready=4, done=9, dead=2)
    assert rates(now, before, 3_000_000) == (-3.0, 2.0, 0.5)
    assert rates(now, None, 3_000_000) is None
    assert rates(now, before, 1_000_000) is None
    assert rates(now, StatsSample(0, {}), 1_000_000) is None


def backlog(ready: int, done: int, dead: int) -> Backlog:
    return Backlog("q", 0, ready, 0, done, dead, 0, 0, None, 0)


def test_reload_watches_the_package_or_the_folder_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("")
    (tmp_path / "beside.py").write_text("")
    for folder in ("shop", "shop/inner", "shop/__pycache__", "shop/.hidden", "loose"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("")
    (tmp_path / "shop" / "__init__.py").write_text("")
    path = [str(tmp_path)]
    module, package = home_of("app:fb", path), home_of("shop.inner:fb", path)
    assert (module, package) == (tmp_path / "app.py", tmp_path / "shop")
    assert home_of("none:fb", path) is None
    shop = {"shop/__init__.py", "shop/code.py", "shop/inner/code.py"}
    assert names(tmp_path, cast(Path, package)) == shop
    assert names(tmp_path, cast(Path, module)) == {"app.py", "beside.py", *shop}
    before = snapshot(cast(Path, module))
    (tmp_path / "app.py").write_text("x = 1")
    (tmp_path / "beside.py").unlink()
    (tmp_path / "new.py").write_text("")
    assert changes(before, snapshot(cast(Path, module))) == ["app.py", "beside.py", "new.py"]


def names(root: Path, home: Path) -> set[str]:
    return {file.relative_to(root).as_posix() for file in snapshot(home)}
