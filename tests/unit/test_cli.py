"""The command line, run in this process against a store in a temporary file: what it prints and how it ends."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from forebay import Draft, QueueSpec, Want, open_store
from forebay.cli import main
from forebay.cli.reference import BEGIN, END, renewed
from forebay.core.humanize import iso
from forebay.core.instant import seconds
from forebay.core.job import Progress
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import AtMost, Bounded, InOrder, KeepFor, Until
from forebay.core.presence import Presence
from forebay.serve.security.operator_log import OperatorAction, read_actions
from forebay.store.protocol import Query, Store
from tests.command_result import CommandResult, Run

ROOT = Path(__file__).parents[2]
TRACE = 'Traceback …\n  File "/srv/app/mail.py", line 88, in send\n    raise SmtpError\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("ls", "--json")` in an empty directory whose default store is ./forebay.db."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments: str) -> CommandResult:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        assert "Traceback (most" not in captured.err
        return CommandResult(code, captured.out, captured.err)

    return call


def open_at() -> Store:
    return open_store("sqlite:///forebay.db")


def fill(*drafts: Draft, spec: QueueSpec | None = None) -> list[int]:
    store = open_at()
    if spec is not None:
        store.put_spec(spec)
    ids = [receipt.id for receipt in store.enqueue(drafts)]
    store.close()
    return ids


def make_dead(count: int, queue: str = "default", error: str = "SmtpError", message: str = "hung up") -> list[int]:
    """Jobs that died of an error."""
    store = open_at()
    store.enqueue([Draft("mail", {"n": n}, queue) for n in range(count)])
    leases = store.claim([Want(queue, count)], "ada", seconds(30))
    store.settle([(lease, DeadLetter(Failure(error, message, TRACE))) for lease in leases])
    store.close()
    return [lease.job.id for lease in leases]


def acts_of_store() -> list[OperatorAction]:
    store = open_at()
    acts, _ = read_actions(store)
    store.close()
    return acts


def test_without_a_command_it_helps_and_says_usage(run: Run) -> None:
    for words in ([], ["dlq"], ["cron"], ["queues"]):
        answer = run(*words)
        assert (answer.code, answer.out) == (2, "")
        assert "usage: forebay" in answer.err


def test_every_command_has_help_with_examples(run: Run) -> None:
    commands = [
        line.split()[0] for line in run("--help").out.splitlines() if line.startswith("    ") and line[4] != " "
    ]
    assert {"dev", "worker", "enqueue", "ls", "top", "doctor", "design", "conformance"} <= set(commands)
    for command in commands:
        answer = run(command, "--help")
        assert answer.code == 0
        assert "examples:\n  " in answer.out or f"forebay {command} [-h] COMMAND" in answer.out, command
    groups = (("dlq", "redrive"), ("cron", "put"), ("queues", "put"), ("ledger", "read"), ("pipeline", "run"))
    for group, command in groups:
        assert f"  forebay {group} {command}" in run(group, command, "--help").out


def test_the_reference_in_the_docs_matches_the_parsers() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert page == renewed(page), "run python -m forebay.cli.reference docs/reference/cli.md"


def test_usage_errors_are_two(run: Run) -> None:
    for words in (
        ["show", "x"],
        ["ls", "--state", "odd"],
        ["ls", "--limit", "0"],
        ["ls", "--sta", "dead"],
    ):
        answer = run(*words)
        assert (answer.code, answer.out) == (2, "")
        assert "usage:" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["show", "1"],
        ["explain", "1"],
        ["stats"],
        ["top", "--once"],
        ["dlq", "ls"],
        ["dlq", "redrive", "1"],
        ["cron", "ls"],
        ["queues", "ls"],
        ["pause", "mail"],
        ["resume", "mail"],
        ["drain"],
        ["cancel", "1"],
    ],
)
def test_a_missing_store_is_not_made_by_looking(run: Run, tmp_path: Path, words: list[str]) -> None:
    answer = run(*words)
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("forebay: no store at sqlite:///forebay.db; create one with `forebay migrate")
    assert list(tmp_path.iterdir()) == []


def test_a_store_out_of_reach_is_three(run: Run, tmp_path: Path) -> None:
    assert run("enqueue", "a", "--store", "sqlite:///nowhere/jobs.db").code == 3
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at" * 100)
    answer = run("ls", "--store", "sqlite:///notes.txt")
    assert answer.code == 3
    assert "cannot open sqlite:///notes.txt" in answer.err
    assert "names a host" in run("ls", "--store", "sqlite://host/jobs.db").err
    assert run("ls", "--store", "").code == 3
    answer = run("ls", "--store", "odd://ada:s3cret@host/db?password=s3cret")
    assert answer.code == 3
    assert "s3cret" not in answer.err


def test_a_store_in_the_memory_of_one_process_is_refused(run: Run) -> None:
    answer = run("ls", "--store", "memory://")
    assert answer.code == 2
    assert "belongs to one process" in answer.err


def test_the_environment_names_the_store(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOREBAY_URL", "sqlite:///other.db")
    assert run("enqueue", "mail").out == "1\n"
    assert (tmp_path / "other.db").exists()
    assert run("enqueue", "mail", "--store", f"memory://{tmp_path}/journal").code == 0
    assert run("stats", "--store", f"memory://{tmp_path}/journal", "--json").json[0]["ready"] == 1


def test_enqueue_prints_the_id_and_takes_every_option(run: Run) -> None:
    run("queues", "put", str(put_spec(QueueSpec(name="media"))))
    words = ["--priority", "5", "--key", "k", "--tenant", "acme", "--subject", "ada", "--max-attempts", "3"]
    answer = run("enqueue", "resize", "n=3", "name=x y", "--queue", "media", *words, 'tags=["a"]', "--delay", "5m")
    assert (answer.code, answer.out, answer.err) == (0, "1\n", "")
    (job,) = run("ls", "media", "--json").json
    assert job["payload"] == {"n": 3, "name": "x y", "tags": ["a"]}
    wanted = {"kind": "resize", "priority": 5, "key": "k", "tenant": "acme", "subject": "ada", "max_attempts": 3}
    assert {name: job[name] for name in wanted} == wanted
    due = datetime.fromisoformat(job["due_at"]) - datetime.fromisoformat(job["enqueued_at"])
    assert due == timedelta(minutes=5)


def put_spec(*specs: QueueSpec) -> Path:
    file = Path("specs.json")
    file.write_text("[" + ",".join(spec.to_json().decode() for spec in specs) + "]")
    return file


def test_enqueue_reads_json_from_the_line_and_from_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("enqueue", "a", '{"x": [1, null]}')
    run("enqueue", "a", "[1]", "--run-at", "2040-01-31T10:30:00+02:00")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
    run("enqueue", "a", "-")
    jobs = run("ls", "--json").json
    assert [job["payload"] for job in jobs] == [{"x": [1, None]}, [1], {"from": "stdin"}]
    assert jobs[1]["due_at"] == "2040-01-31T08:30:00Z"


def test_a_duplicate_is_said_and_a_conflict_fails(run: Run) -> None:
    run("enqueue", "a", "x=1", "--key", "k")
    restart = run("enqueue", "a", "x=1", "--key", "k")
    assert (restart.code, restart.out) == (0, "1\n")
    assert "duplicate" in restart.err
    assert run("enqueue", "a", "x=1", "--key", "k", "--json").json[0]["duplicate"] is True
    conflict = run("enqueue", "a", "x=2", "--key", "k")
    assert conflict.code == 1
    assert "belongs to job 1" in conflict.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["enqueue"], "the kind is missing"),
        (["enqueue", "a b"], "is not a name"),
        (["enqueue", "a", "{secret"], "JSON is malformed"),
        (["enqueue", "a", "x=1", "y"], "is not key=value"),
        (["enqueue", "a", "x=1", "x=2"], "given twice"),
        (["enqueue", "a", "--run-at", "2030-01-01T10:00:00"], "has no time zone"),
        (["enqueue", "a", "--run-at", "soon"], "is not a time"),
        (["enqueue", "a", "--delay", "5m", "--run-at", "+5m"], "a delay is given too"),
        (["enqueue", "a", "--app", "nothing"], "does not name an app"),
        (["enqueue", "a", "--app", "nothing:fb"], "No module named 'nothing'"),
        (["enqueue", "a", "[" * 100_000], "nesting"),
        (["enqueue", "a", "x=\udcff"], "lone surrogate"),
        (["ls", "\udcff"], "is not a name"),
        (["ls", "--kind", ""], "is not a name"),
        (["dlq", "ls", "--queue", "a b"], "is not a name"),
        (["design", "--routing", "0"], "max_attempts: 0 is not"),
        (["dlq", "redrive"], "ids or a filter"),
        (["dlq", "redrive", "1", "--all"], "ids or a filter"),
        (["cron", "put", "n", "99 * * * *", "a"], "rule minute"),
        (["cron", "put", "n", "@daily", "a", "--tz", "Mars/Olympus"], "Mars/Olympus"),
        (["cron", "next", "1 2 3"], "has 3 fields"),
        (["design", "--capacity", "huge"], "use unbounded, bounded:10000"),
        (["design", "--retention", "log:4:7d", "--capacity", "bounded:10"], "a retained log has no"),
        (["design", "--selection", "latest-wins", "--eligibility", "in-order"], "choose one of the two"),
        (["design", "--selection", "fifo + priority"], "sets one thing twice"),
        (["design", "--eligibility", "at-most:3/moon"], "jobs are not counted per"),
    ],
)
def test_bad_input_is_one_line_and_two(run: Run, words: list[str], complaint: str) -> None:
    open_at().close()
    answer = run(*words)
    assert (answer.code, answer.out) == (2, "")
    assert complaint in answer.err
    assert answer.err.count("\n") == 1
    assert "secret" not in answer.err


APP = """
from forebay import Forebay
fb = Forebay()

@fb.job(queue="mail", max_attempts=4)
def send(to: str, copies: int = 1) -> None: ...
"""


def test_an_app_checks_what_is_enqueued(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_app.py").write_text(APP)
    monkeypatch.delitem(sys.modules, "cli_app", raising=False)
    assert run("enqueue", "send", "to=ada", "--app", "cli_app:fb").out == "1\n"
    assert run("ls", "--json").json[0]["queue"] == "mail"
    assert run("ls", "--json").json[0]["max_attempts"] == 4
    wrong = run("enqueue", "send", "to=ada", "copies=many", "--app", "cli_app:fb")
    assert wrong.code == 2
    assert "Expected `int`, got `str`" in wrong.err
    unknown = run("enqueue", "sned", "to=ada", "--app", "cli_app:fb")
    assert "has no job 'sned'; it has send" in unknown.err
    monkeypatch.setenv("FOREBAY_URL", "")
    refused = run("enqueue", "send", "to=ada", "--app", "cli_app:fb", "--store", "sqlite:///other.db")
    assert "has its own store" in refused.err


def test_an_app_that_does_not_import_is_named_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cli_broken.py").write_text("x = 1\nraise RuntimeError('boom')\n")
    answer = run("worker", "cli_broken:fb")
    assert answer.code == 2
    assert "failed on import (cli_broken.py:2): RuntimeError: boom" in answer.err
    (tmp_path / "cli_other.py").write_text("fb = 5\n")
    assert "is of type int, not a Forebay; write there: fb = Forebay()" in run("worker", "cli_other:fb").err
    assert "the module of 'cli_none:fb' was not found" in run("dev", "cli_none:fb").err
    (tmp_path / "cli_needy.py").write_text("import cli_needed_and_not_there\n")
    assert "failed on import (cli_needy.py:1): ModuleNotFoundError: No module" in run("worker", "cli_needy:fb").err


def test_a_name_that_is_no_app_is_answered_with_the_apps(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cli_named.py").write_text(
        "from forebay import Forebay\nshop = Forebay()\n@shop.job\ndef send(): ...\n"
    )
    assert "cli_named has no 'fb'; write cli_named:shop" in run("worker", "cli_named:fb").err
    assert "is of type JobType, not a Forebay; write cli_named:shop" in run("worker", "cli_named:send").err
    answer = run("worker", "cli_elsewhere:fb")
    assert answer.code == 2
    assert f"cannot be loaded from {tmp_path}: No module named 'cli_elsewhere'; run it in the directory" in answer.err


def test_an_option_of_a_worker_is_refused_under_its_own_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cli_small.py").write_text("from forebay import Forebay\nfb = Forebay()\n")
    for words, complaint in (
        (["--visibility-timeout", "1ms"], "--visibility-timeout: 1 ms is not in 10 ms … 7 days; choose a length"),
        (["--concurrency", "100000"], "--concurrency: 100000 is not an integer in 1 … 10000"),
        (["--queues", ""], "queue: '' is not a name"),
    ):
        answer = run("worker", "cli_small:fb", *words)
        assert (answer.code, answer.out) == (2, "")
        assert complaint in answer.err


def test_a_first_word_that_is_no_command(run: Run) -> None:
    for word, remedy in (
        ("lss", "did you mean ls?"),
        ("queue", "did you mean queues"),
        ("nonsense", "see forebay --help"),
    ):
        answer = run(word)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert f"{word!r} is not a command; {remedy}" in answer.err
    early = run("--store=sqlite:///a.db", "ls")
    assert early.err == "forebay: --store is given before the command; write forebay COMMAND --store=sqlite:///a.db …\n"


def test_a_kind_that_no_worker_handles_is_named_at_the_enqueue(run: Run) -> None:
    assert run("enqueue", "sned").err == "", "there is no worker to know"
    with closing(open_at()) as store:
        store.announce(Presence("w", "host", 1, ("default",), ("send", "resize")), seconds(60))
    assert run("enqueue", "send").err == ""
    assert run("enqueue", "sned", "--queue", "other").err == ""
    answer = run("enqueue", "sned")
    assert (answer.code, answer.out) == (0, "4\n")
    assert answer.err == "no worker of its queue has a handler for 'sned'; they have handlers for resize, send\n"
    with closing(open_at()) as store:
        store.announce(Presence("any", "host", 2, ("default",)), seconds(60))
    assert run("enqueue", "sned").err == ""


def test_a_server_that_is_not_there_is_named_with_the_way_out(run: Run) -> None:
    for url in ("postgresql://127.0.0.1:1/x", "redis://127.0.0.1:1/0"):
        answer = run("ls", "--store", url)
        assert (answer.code, answer.err.count(url)) == (3, 1)
        assert "refused; check that the server runs and the URL is right, or choose another store" in answer.err


def lines(*jobs: object) -> str:
    Path("jobs.ndjson").write_text("".join(f"{job if isinstance(job, str) else json.dumps(job)}\n" for job in jobs))
    return "jobs.ndjson"


def test_a_file_of_jobs(run: Run) -> None:
    file = lines({"payload": 1}, "", {"kind": "b", "queue": "media", "priority": 3, "run_at": "+5m"}, {"key": "k"})
    answer = run("enqueue", "a", "--file", file, "--tenant", "acme")
    assert (answer.code, answer.out) == (0, "3 jobs accepted\n")
    jobs = run("ls", "--json").json
    assert [(job["kind"], job["queue"], job["tenant"]) for job in jobs] == [
        ("a", "default", "acme"),
        ("b", "media", "acme"),
        ("a", "default", "acme"),
    ]
    assert run("enqueue", "a", "--file", lines({"key": "k"}), "--json").json == [
        {"accepted": 0, "duplicates": 1, "merged": 0}
    ]


def test_more_lines_than_a_batch_and_a_bad_one(run: Run) -> None:
    file = lines(*({"kind": "a", "payload": n} for n in range(2_100)), {"kind": "a", "when": 1}, {"kind": "a"})
    answer = run("enqueue", "--file", file)
    assert answer.code == 2
    assert "line 2101: Object contains unknown field `when`" in answer.err
    assert "lines up to 2000 are enqueued: continue with --skip 2000" in answer.err
    assert run("stats", "--json").json[0]["ready"] == 2_000
    restart = run("enqueue", "--file", file, "--skip", "2101")
    assert restart.out == "1 job accepted\n"


def test_a_full_queue_stops_a_file(run: Run) -> None:
    run("queues", "put", str(put_spec(QueueSpec(name="default", capacity=Bounded(1)))))
    answer = run("enqueue", "--file", lines({"kind": "a"}, {"kind": "a"}))
    assert answer.code == 1
    assert "is full" in answer.err
    assert "nothing was enqueued" in answer.err
    assert run("enqueue", "--file", "nowhere").code == 1
    assert "it applies to one job" in run("enqueue", "--file", "nowhere", "--key", "k").err


def test_ls_filters_pages_and_sorts(run: Run) -> None:
    fill(Draft("a", delay=9_000_000), Draft("b", tenant="acme"), Draft("a", queue="mail", subject="ada"))
    assert [job["id"] for job in run("ls", "--json").json] == [1, 2, 3]
    assert [job["id"] for job in run("ls", "--oldest", "--json").json] == [2, 3, 1]
    for words, found in (
        (["mail"], [3]),
        (["--state", "waiting"], [1]),
        (["--kind", "b"], [2]),
        (["--tenant", "acme"], [2]),
        (["--subject", "ada"], [3]),
        (["--after", "1", "--limit", "1"], [2]),
    ):
        assert [job["id"] for job in run("ls", *words, "--json").json] == found
    table = run("ls", "--limit", "2")
    head, first, second = table.out.splitlines()
    assert head.split()[:6] == ["id", "queue", "kind", "state", "attempt", "age"]
    assert head.index("kind") == first.index("a ") == second.index("b ")
    assert "--after 2" in table.err
    assert run("ls", "nothing").err == "no jobs match\n"


def test_show_and_explain(run: Run) -> None:
    fill(Draft("mail", {"to": "ada", "secret": "\x1b[2J"}, delay=60_000_000, key="k", meta={"trace": "t1"}))
    shown = run("show", "1")
    for phrase in ("waiting", "0 of 25", '"to": "ada"', "key       k", '{"trace":"t1"}', " in "):
        assert phrase in shown.out
    assert "\x1b" not in shown.out
    assert run("show", "1", "--json").json[0]["payload"]["to"] == "ada"
    explained = run("explain", "1")
    assert explained.out.startswith("job 1 (mail) of queue default is waiting\nit is due in ")
    assert run("explain", "1", "--json").json[0]["sentences"][0] == explained.out.splitlines()[0]
    for command in ("show", "explain"):
        answer = run(command, "7")
        assert (answer.code, answer.out) == (1, "")
        assert "job 7 is unknown" in answer.err


def test_what_a_stranger_wrote_cannot_move_the_cursor(run: Run) -> None:
    make_dead(1, error="Evil\x1b]0;owned\x07", message="\x1b[2J\nsecond line")
    for words in (["ls"], ["show", "1", "--trace"], ["dlq", "ls"], ["dlq", "ls", "--group"], ["explain", "1"]):
        out = run(*words).out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_what_holds_a_queue_up_is_shown(run: Run) -> None:
    store = open_at()
    store.put_spec(QueueSpec(name="line", eligibility=InOrder(dead_head="block")))
    store.put_spec(QueueSpec(name="list", eligibility=Until("room")))
    store.enqueue([Draft("a", queue="line", subject="s")] * 2 + [Draft("a", queue="list")])
    (lease,) = store.claim([Want("line", 1), Want("list", 1)], "me", seconds(30))
    store.settle([(lease, DeadLetter(Failure("E")))])
    store.close()
    report = run("stats").out
    assert "line: 1 line is blocked by a dead job at the head\n" in report
    assert [(line["blocked_lines"], line["held"]) for line in run("stats", "--json").json] == [(1, 0), (0, 1)]
    assert "line: 1 line is blocked by a dead job at the head" in run("top", "--once", "--every", "0.1").out
    assert "line: 1 line is blocked by a dead job at the head" in run("queues", "show", "line").out
    findings = {(each["check"], each["status"]) for each in run("doctor", "--json").json}
    assert {("lines", "warn"), ("gates", "ok")} <= findings


def test_gates_are_listed_set_and_released(run: Run) -> None:
    fill(Draft("a"))
    assert "no gate is in use" in run("gates", "ls").err
    fill(*[Draft("a", queue="mail")] * 3, spec=QueueSpec(name="mail", eligibility=AtMost(1)))
    fill(*[Draft("a", queue="list")] * 3, spec=QueueSpec(name="list", eligibility=Until("room")))
    with closing(open_store("sqlite:///forebay.db")) as store:
        assert len(store.claim([Want("mail", 3), Want("list", 3)], "worker", seconds(60))) == 1
    run("gates", "set", "until/room", "0")
    assert [line.split() for line in run("gates", "ls").out.splitlines()] == [
        ["gate", "slots", "used", "parked"],
        ["cap/mail", "1", "1", "0"],
        ["until/room", "0", "0", "3", "set", "to", "0", "by", "an", "operator"],
    ]
    assert [gate["name"] for gate in run("gates", "ls", "list", "--json").json] == ["until/room"]
    assert "there are more" in run("gates", "ls", "--limit", "1").err
    assert run("gates", "set", "cap/mail", "2").out == "cap/mail has 2 slots\n"
    assert run("gates", "ls", "mail", "--json").json == [
        {"name": "cap/mail", "slots": 2, "used": 1, "given": 2, "parked": 0}
    ]
    assert run("gates", "set", "cap/mail", "0", "--json").json == [{"gate": "cap/mail", "slots": 0}]
    assert run("gates", "set", "cap/mail", "default").out == "cap/mail has the slots of its queue's spec\n"
    assert run("gates", "release", "room", "--count", "2").out == "2 jobs passed until/room\n"
    assert run("gates", "release", "room", "--count", "2", "--json").json == [
        {"condition": "room", "value": None, "released": 1}
    ]
    store = open_at()
    assert [(act.action, act.target) for act in read_actions(store)[0]][:3] == [
        ("gates release", "until/room"),
        ("gates release", "until/room"),
        ("gates set", "cap/mail"),
    ]
    store.close()


def test_mistakes_about_gates_are_explained(run: Run) -> None:
    fill(Draft("a", queue="list"), spec=QueueSpec(name="list", eligibility=Until("room")))
    wrong = run("gates", "set", "mail", "2")
    assert (wrong.code, wrong.out) == (2, "")
    assert "write cap/QUEUE" in wrong.err
    assert "0 closes the gate, `default` resets it" in run("gates", "set", "cap/mail", "many").err
    assert "no configured queue has the gate cap/mail" in run("gates", "set", "cap/mail", "2").err
    assert "no queue waits for 'rom'; conditions: room" in run("gates", "release", "rom").err


def test_show_and_top_show_how_far_a_running_job_is(run: Run) -> None:
    fill(Draft("import", {"token": "s3cr3tvalue"}), Draft("import"))
    with closing(open_store("sqlite:///forebay.db")) as store:
        leases = store.claim([Want("default", 2)], "worker", seconds(60))
        store.report_progress([(leases[0].fence, Progress(0.4, "row 40 of 100, s3cr3tvalue"))])
    shown = run("show", "1").out
    assert re.search(r"^progress +40% row 40 of 100, \*\*\*, ", shown, re.MULTILINE)
    (job,) = run("show", "1", "--json").json
    assert (job["progress"]["portion"], job["progress"]["note"]) == (0.4, "row 40 of 100, ***")
    assert "progress" not in run("show", "2").out
    top = run("top", "--once", "--every", "0.1").out.splitlines()
    assert top[-2].split() == ["job", "queue", "kind", "for", "progress"]
    assert top[-1].split()[:3] == ["1", "default", "import"]
    assert top[-1].endswith("40% row 40 of 100, ***")
    assert len(run("top", "elsewhere", "--once", "--every", "0.1").out.splitlines()) < len(top)


def test_stats_and_top_show_the_same_numbers(run: Run) -> None:
    fill(Draft("a"), Draft("a", queue="mail"), Draft("a", queue="mail", delay=9_000_000))
    run("pause", "mail")
    out = run("stats").out.splitlines()
    assert out[0].split() == "queue waiting ready running done dead cancelled oldest held".split()
    assert out[3].split() == ["(all)", "1", "2", "0", "0", "0", "0"]
    assert out[4] == "mail is paused until `forebay resume`"
    assert [line["queue"] for line in run("stats", "mail", "--json").json] == ["mail"]
    top = run("top", "--once", "--every", "0.1").out.splitlines()
    assert top[0] == "sqlite:///forebay.db · 2 queues · depth 3 · dead 0"
    assert top[2].split()[:3] == ["mail", "2", "+0.0"]
    (mail, other) = run("top", "--once", "--every", "0.1", "--json").json
    assert (mail["depth"], mail["net_rate"], other["queue"]) == (2, 0.0, "default")


def test_cancel_says_what_became_of_each(run: Run) -> None:
    fill(Draft("a"), Draft("a"))
    store = open_at()
    store.claim([Want("default", 1)], "ada", seconds(30))
    store.close()
    answer = run("cancel", "1", "2", "9", "--json")
    assert answer.code == 1
    assert [line["answer"] for line in answer.json] == ["requested", "cancelled", "gone"]
    assert "running, cancel requested" in run("cancel", "1").out


def test_jobs_are_cancelled_by_a_filter_after_a_dry_run(run: Run) -> None:
    ids = fill(*[Draft("news", n, "mail") for n in range(30)], Draft("bill", 1, "mail"), Draft("news", 1, "other"))
    store = open_at()
    store.claim([Want("mail", 2)], "ada", seconds(30))
    dry = run("cancel", "--queue", "mail", "--kind", "news", "--dry-run")
    assert "would cancel 30 jobs; nothing was done" in dry.out
    assert dry.out.count("news") == 20
    assert run("cancel", "--kind", "news", "--limit", "7", "--dry-run", "--json").json[0]["would_cancel"] == 7
    assert run("cancel", str(ids[3]), "999", "--dry-run", "--json").json == [{"would_cancel": 1, "ids": [ids[3]]}]
    refused = run("cancel", "--queue", "mail", "--kind", "news")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert store.backlog(["mail"])[0].depth == 31
    answer = run("cancel", "--queue", "mail", "--kind", "news", "--yes", "--limit", "10")
    assert answer.out == "cancelled: 8 jobs\nrunning, cancel requested: 2 jobs\n"
    assert "--limit 10" in answer.err
    assert run("cancel", "--queue", "mail", "--state", "ready", "--yes", "--json").json == [
        {"cancelled": 21, "requested": 0, "gone": 0}
    ]
    assert [job.kind for job in store.browse(Query(queue="other"), 0, 9).jobs] == ["news"]
    act = read_actions(store)[0][-1]
    assert (act.action, act.target, act.details["filter"]) == (
        "cancel many",
        "10 jobs",
        {"queue": "mail", "kind": "news"},
    )
    store.close()


def test_a_cancel_is_for_ids_or_a_filter_or_all(run: Run) -> None:
    (job_id,) = fill(Draft("news"))
    for words in ((), (str(job_id), "--queue", "default"), ("--all", "--kind", "news"), (str(job_id), "--all")):
        assert run("cancel", *words, "--yes").code == 2
    assert run("cancel", "--all", "--yes").out == "cancelled: 1 job\n"
    assert run("cancel", "--all", "--yes").out == "cancelled: 0 jobs\n"


def test_dead_letters_are_purged_by_ids_and_by_filter(run: Run) -> None:
    ids = make_dead(3) + make_dead(2, error="Timeout", message="slow") + make_dead(2, queue="media")
    (alive,) = fill(Draft("news"))
    dry = run("dlq", "purge", "--where", "timeout", "--dry-run")
    assert "would purge 2 dead letters; nothing was done" in dry.out
    assert dry.out.count("Timeout") == 2
    assert run("dlq", "purge", "--where", "timeout", "--yes").out == "purged: 2 dead letters\n"
    answer = run("dlq", "purge", str(ids[0]), str(alive), "--yes")
    assert (answer.code, answer.out) == (1, "purged: 1 dead letter\n")
    assert f"job {alive} is not dead" in answer.err
    assert run("dlq", "purge", "--queue", "media", "--limit", "1", "--yes", "--json").json == [{"purged": 1}]
    assert run("dlq", "purge", str(ids[1]), "--queue", "media", "--yes").code == 2
    assert run("dlq", "purge", "--older-than", "1h", "--died-before", "1h", "--yes").code == 2
    assert run("dlq", "purge", "--all", "--yes", "--json").json == [{"purged": 3}]
    assert run("dlq", "ls", "--json").json == []
    assert [act.action for act in acts_of_store()] == ["dlq purge"] * 4


def test_dead_letters_are_listed_grouped_and_shown(run: Run) -> None:
    make_dead(3)
    make_dead(1, queue="media", error="OSError", message="disk")
    assert len(run("dlq", "ls", "--json").json) == 4
    assert [job["id"] for job in run("dlq", "ls", "--where", "DISK", "--json").json] == [4]
    assert [job["id"] for job in run("dlq", "ls", "--queue", "media", "--json").json] == [4]
    first, second = run("dlq", "ls", "--group", "--json").json
    assert (first["count"], first["error"], first["place"], first["example"]) == (3, "SmtpError", "mail.py:88", 1)
    assert second["count"] == 1
    assert "SmtpError  mail.py:88" in run("dlq", "ls", "--group").out
    alike = run("dlq", "ls", "--fingerprint", first["fingerprint"], "--json").json
    assert [job["id"] for job in alike] == [1, 2, 3]
    assert run("dlq", "ls", "--died-before", "1h", "--json").json == []
    assert len(run("dlq", "ls", "--died-within", "1h", "--json").json) == 4
    shown = run("dlq", "show", "4")
    assert "OSError: disk" in shown.out
    assert "line 88" in shown.out
    fill(Draft("a", queue="alive"))
    assert "is ready, not dead" in run("dlq", "show", "5").err
    assert run("dlq", "ls", "--limit", "1").err == "there are more: --limit 10, or --group\n"
    assert run("dlq", "ls", "--kind", "none").err == "no dead letters match\n"


def test_redrive_moves_what_was_named_and_no_more(run: Run) -> None:
    make_dead(5)
    make_dead(2, queue="media", error="OSError")
    dry = run("dlq", "redrive", "--where", "smtp", "--dry-run", "--json")
    assert dry.json == [{"would_redrive": 5, "ids": [1, 2, 3, 4, 5]}]
    assert "nothing was done" in run("dlq", "redrive", "--all", "--dry-run").out
    assert run("dlq", "redrive", "--kind", "mail", "--limit", "2", "--json").json == [
        {"redriven": 2, "not_dead": [], "stopped": None}
    ]
    assert run("dlq", "redrive", "--queue", "media", "--rate", "1000/s").out == "redriven: 2 dead letters\n"
    mixed = run("dlq", "redrive", "3", "1", "99")
    assert (mixed.code, mixed.out) == (1, "redriven: 1 dead letter\n")
    assert mixed.err == "not dead, or unknown: 1, 99\n"
    assert sorted(job["id"] for job in run("dlq", "ls", "--json").json) == [4, 5]


def test_a_redrive_by_sample_and_with_a_patch(run: Run) -> None:
    make_dead(20)
    (dry,) = run("dlq", "redrive", "--all", "--sample", "5", "--dry-run", "--json").json
    assert len(dry["ids"]) == 5
    assert dry["ids"] != [1, 2, 3, 4, 5]
    patch = ["--patch", '{"to": "ada"}']
    assert run("dlq", "redrive", "--all", "--sample", "5", *patch).out == "redriven: 5 dead letters\n"
    moved = run("ls", "--state", "ready", "--json").json
    assert {job["payload"]["to"] for job in moved} == {"ada"}
    assert {int(job["meta"]["redriven_from"]) for job in moved} == set(dry["ids"])
    assert "without a rate" in run("dlq", "redrive", "--all", "--stop-at", "0.5").err
    assert "not a JSON object" in run("dlq", "redrive", "--all", "--patch", "[]").err


def test_a_redrive_leaves_the_quarantined_unless_they_are_asked_for(run: Run) -> None:
    make_dead(2)
    make_dead(1, error="forebay.Abandoned")
    assert [job["id"] for job in run("dlq", "ls", "--quarantined", "--json").json] == [3]
    assert run("dlq", "redrive", "--all").out == "redriven: 2 dead letters\n"
    assert run("dlq", "redrive", "--all", "--quarantined").out == "redriven: 1 dead letter\n"


def test_one_queue_is_purged_alone(run: Run) -> None:
    make_dead(2)
    make_dead(1, queue="media")
    answer = run("dlq", "purge", "--older-than", "0s", "--queue", "media", "--yes", "--json")
    assert answer.json == [{"purged": 1}]
    assert len(run("dlq", "ls", "--json").json) == 2


def test_a_purge_wants_an_age_and_a_yes(run: Run) -> None:
    make_dead(3)
    assert run("dlq", "purge").code == 2
    assert run("dlq", "purge", "--older-than", "1h", "--yes").out == "purged: 0 dead letters\n"
    assert run("dlq", "purge", "--older-than", "0s", "--dry-run", "--json").json == [{"would_purge": 3}]
    refused = run("dlq", "purge", "--older-than", "0s")
    assert refused.code == 2
    assert "use --yes" in refused.err
    assert run("dlq", "purge", "--older-than", "0s", "--yes", "--json").json == [{"purged": 3}]
    assert run("dlq", "ls", "--json").json == []


def test_queues_pause_until_a_time_and_resume(run: Run) -> None:
    fill(Draft("a", queue="mail"))
    until = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    assert run("pause", "mail", "--until", until, "--json").json[0]["paused_until"] is not None
    assert run("stats", "--json").json[0]["paused"] is True
    assert "is in the past" in run("pause", "mail", "--until", "2020-01-01T00:00:00Z").err
    typo = run("pause", "mial")
    assert typo.code == 0
    assert "no jobs and no spec yet; known: mail" in typo.err
    assert run("resume", "mail", "mial").out == "mail is resumed\nmial is resumed\n"
    assert [line["paused"] for line in run("stats", "--json").json] == [False]


def test_a_drain_pauses_and_waits_until_nothing_runs(run: Run) -> None:
    fill(Draft("a"), Draft("a", queue="mail"))
    assert run("drain", "mail").out == "drained: nothing is running in mail; `forebay resume` resumes\n"
    store = open_at()
    store.claim([Want("default", 1)], "ada", seconds(30))
    store.close()
    late = run("drain", "--deadline", "200ms", "--json")
    assert (late.code, late.json) == (1, [{"queues": ["default", "mail"], "running": 1, "drained": False}])
    assert "still running at the deadline" in run("drain", "--deadline", "0").err
    assert [line["paused"] for line in run("stats", "--json").json] == [True, True]


def test_queues_are_declared_listed_and_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    mail, media = QueueSpec(name="mail", eligibility=InOrder()), QueueSpec(name="media", capacity=Bounded(5))
    assert run("queues", "put", str(put_spec(mail, media))).out == f"{mail.vector()}\n{media.vector()}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(QueueSpec(name="three").to_json())))
    assert run("queues", "put", "-", "--json").json[0]["name"] == "three"
    fill(Draft("a"))
    listed = run("queues", "ls").out.splitlines()
    assert listed[0].endswith("(default)")
    assert mail.vector() in listed
    assert [line["declared"] for line in run("queues", "ls", "--json").json] == [False, True, True, True]
    shown = run("queues", "show", "mail")
    assert shown.out.startswith(mail.vector())
    assert "settle(Ack) after the effect" in shown.out
    spec = run("queues", "show", "media", "--json").json[0]["spec"]
    assert QueueSpec.from_json(json.dumps(spec)) == media
    assert run("queues", "show", "nothing").code == 1
    assert run("queues", "put", "nowhere.json").code == 1
    Path("bad.json").write_text('{"name": "x", "selection": {"type": "odd"}}')
    assert run("queues", "put", "bad.json").code == 2


def test_schedules_are_put_listed_paused_and_removed(run: Run) -> None:
    put = run("cron", "put", "nightly", "30 1 * * *", "report", "n=1", "--tz", "Europe/Berlin", "--overlap", "skip")
    assert put.out.startswith("nightly: at 01:30 every day (Europe/Berlin); next: ")
    run("cron", "put", "beat", "@every 90s", "tick", "--json")
    beat, nightly = run("cron", "ls", "--json").json
    assert (beat["words"].split(" (")[0], nightly["rule"]) == ("every 90 s", "30 1 * * * ; overlap=skip")
    assert "at 01:30 every day" in run("cron", "ls").out
    assert "nightly is enqueued as job 1" in run("cron", "run", "nightly").out
    assert run("cron", "run", "nightly", "--json").json == [{"name": "nightly", "job_id": 2, "duplicate": False}]
    assert run("cron", "run", "never").code == 1
    assert [job["kind"] for job in run("ls", "--json").json] == ["report", "report"]
    assert run("cron", "pause", "nightly").out == "nightly is paused\n"
    assert run("cron", "ls", "--json").json[1]["paused"] is True
    assert run("cron", "resume", "nightly", "--json").json[0]["paused"] is False
    assert run("cron", "pause", "nightly", "none").code == 1
    assert run("cron", "ls", "--json").json[1]["paused"] is False
    assert len(run("cron", "next", "nightly", "--count", "3").out.splitlines()) == 4
    rule = run("cron", "next", "0 12 * * 1-5", "--tz", "America/New_York")
    assert rule.out.startswith("at 12:00 Monday to Friday (America/New_York)\n")
    assert len(run("cron", "next", "@daily", "--count", "2", "--json").json[0]["next"]) == 2
    removed = run("cron", "rm", "beat", "none")
    assert (removed.code, removed.out, removed.err) == (1, "beat is removed\n", "schedule 'none' is unknown\n")
    assert "known: nightly" in run("cron", "next", "none").err


def test_a_schedule_that_is_put_again_shows_the_tick_that_is_due(run: Run) -> None:
    words = ("cron", "put", "nightly", "30 1 * * *", "report", "--json")
    run(*words)
    with closing(open_store("sqlite:///forebay.db")) as store:
        (made,) = store.schedules()
        store.drop_schedule("nightly")
        store.put_schedule(replace(made, next_at=made.next_at - 86_400_000_000))
        due = iso(store.schedules()[0].next_at)
    assert run(*words).json[0]["next_at"] == due
    assert run("cron", "ls", "--json").json[0]["next_at"] == due


def test_migrate_says_the_schema(run: Run, tmp_path: Path) -> None:
    answer = run("migrate")
    assert answer.code == 0
    assert answer.out.startswith("sqlite:///forebay.db: schema ")
    first = run("migrate", "--json").json[0]
    assert first["schema"] == first["known"] >= 1
    assert "journal" in run("migrate", "--store", f"memory://{tmp_path}/journal").out


def test_version(run: Run) -> None:
    assert run("version").out.startswith("forebay ")
    assert run("--version").out == run("version").out
    assert set(run("version", "--json").json[0]) == {"forebay", "python", "sqlite"}


def test_sim_runs_a_seed() -> None:
    """In a process of its own: threads that other tests left behind would live in simulated time, too."""
    command = [sys.executable, "-m", "forebay", "sim", "--seed", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr, ran.stdout[:7]) == (0, "", "seed 1 "), ran.stdout


def test_conformance_is_passed_on(run: Run) -> None:
    assert run("conformance", "memory://", "--only", "keys/*").out.splitlines()[-1].endswith("1 not claimed")
    assert run("conformance", "memory://", "--only", "keys/*", "--json").json[0]["failed"] == 0
    assert run("conformance", "memory://", "--list", "--only", "keys/*").out.startswith("keys/")
    assert run("conformance", "memory://", "--only", "no such case").code == 2


def test_kept_results_are_shown(run: Run) -> None:
    from forebay.core.outcome import Ack

    fill(Draft("a"), spec=QueueSpec(name="default", retention=KeepFor(timedelta(hours=1))))
    store = open_at()
    store.settle([(lease, Ack(b'{"sum":3}')) for lease in store.claim([Want("default", 1)], "ada", seconds(9))])
    assert store.browse(Query(), 0, 10).jobs[0].result == {"sum": 3}
    store.close()
    assert '"sum": 3' in run("show", "1").out
    assert run("show", "1", "--json").json[0]["result"] == {"sum": 3}


def test_interrupted_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    open_at().close()

    def interrupt(arguments: Sequence[object]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forebay.cli.inspect.job_table", lambda *_: interrupt([]))
    assert run("ls").code == 130
