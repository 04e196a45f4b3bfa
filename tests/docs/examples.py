"""Runs single commands that a page shows without output, each in a copy of one prepared directory.

The directory holds a store with jobs 1 to 60 in every state, the queues, schedules, gates, logs and files that the
examples name, and an app. `forebay …` runs in this process; what follows a pipe runs in a shell. A command that never
ends, needs a machine of its own or takes minutes is not run. Its page says "not run by the tests" (the reference of
commands says it once for all examples), and `RUN_ELSEWHERE` names a test that runs the command with other arguments.
"""

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import pytest

from forebay import Draft, QueueSpec, Want, open_store
from forebay.cli import main
from forebay.core.instant import days, seconds
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.policy import AtMost, Rate, Retained, Until

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = f"{Path(sys.executable).parent}:{ROOT / '.venv' / 'tools'}"

RUN_ELSEWHERE: Final = {
    "dev": "tests/process/test_readme.py",
    "worker": "tests/process/test_cli.py",
    "serve": "tests/process/test_prometheus.py",
    "demo": "tests/process/test_examples.py",
    "pipeline": "tests/spark/test_pipeline_run.py",
    "audit": "tests/spark/test_commands.py",
    "report": "tests/spark/test_commands.py",
    "gen": "tests/spark/test_commands.py",
    "lab": "tests/lab/test_run.py",
    "bench": "tests/unit/test_bench.py",
    "chaos": "tests/process/test_chaos.py",
    "sim": "tests/unit/test_cli.py",
    "power-cuts": "tests/process/test_power_cuts.py",
    "evidence": "tests/unit/test_evidence.py",
    "conformance": "tests/unit/test_cli.py",
}
_LISTS: Final = re.compile(r"^forebay (chaos --list|lab list)$")
_ENDLESS: Final = re.compile(r"--watch|--follow|^forebay top(?!.*--once)")

# Refused in the prepared directory, by these words: the example needs a choice, a server or a key of the reader's own.
REFUSED: Final = {
    "forebay cancel 41": "already ended",
    "forebay cancel 41 42 43 --json": "gone",
    "forebay dlq purge 41 42": "needs a confirmation",
    "forebay cells add c --store cells:cells.toml": "it is in the agreed map",
    "forebay capacity --rate 50000 --mix s1 --bill bill.json": "make one: forebay lab bill",
    "forebay keys revoke 357ceb21e585": "is unknown",
    "forebay design": "What is the queue's name?",
    "forebay migrate --store postgresql://app@db.example/app --phase pre": "cannot open",
    "forebay ledger status --store memory:///srv/jobs --json": "no store at",
}

APP: Final = """
from forebay import Forebay

fb = Forebay(blobs="memory://examples")


@fb.job
def send_email(to: str, subject: str = "") -> None: ...


@fb.job
def nightly_report() -> None: ...
"""


def prepare(directory: Path) -> None:
    """The directory that every example starts from."""
    (directory / "app.py").write_text(APP)
    (directory / "jobs.ndjson").write_text('{"kind": "resize", "payload": {"image": 7}}\n')
    (directory / "mail.json").write_text('{"name": "mail"}')
    cells = "".join(
        f'[cells.{name}]\nnumber = {place}\nurl = "sqlite:///{name}.db"\n' for place, name in enumerate("abc")
    )
    queues = 'mail = "a"\norders = { partitions = 8, by = "id", cells = ["a", "b"] }'
    (directory / "cells.toml").write_text(f'version = 1\n{cells}[queues]\n"*" = "a"\n{queues}\n')
    open_store("cells:cells.toml").close()
    with closing(open_store("sqlite:///forebay.db")) as store:
        mail = AtMost(10) & Rate(100, seconds(1), shared="payments") & Until("checked-in") & Until("paid", per="tenant")
        store.put_spec(QueueSpec(name="mail", eligibility=mail))
        store.put_spec(QueueSpec(name="clicks", retention=Retained(window=days(7))))
        store.enqueue([Draft("send_email", {"customer": {"id": 7}}, "default")] * 40)
        store.enqueue([Draft("charge", {"n": n}, "orders") for n in range(20)])
        leases = store.claim([Want("orders", 20)], "ada", seconds(30))
        failure = Failure("SMTPAuthError", "timeout", "Traceback …\n")
        store.settle([(lease, DeadLetter(failure)) for lease in leases])
        store.own("clicks", "billing", "reader-1", seconds(30))
    for name in ("nightly", "report"):
        _call(["cron", "put", name, "30 1 * * *", "nightly_report"])
    for _ in range(43):
        _call(["logs", "append", "clicks", "page=home"])
    shutil.copy("forebay.db", "jobs.db")


def run(command: str) -> tuple[int, str]:
    """Exit code and output of one example; of the first command where one depends on another."""
    first = re.sub(r"^id=\$\((.*)\)$", r"\1", re.split(r" (?:&&|\|\||> (?=\w+\.)) ?", command)[0])
    own, *pipe = re.split(r" \| ", first, maxsplit=1)
    code, out = _call(shlex.split(own)[1:])
    if not pipe or code:
        return code, out
    environment = {"PATH": f"{TOOLS}:/usr/bin:/bin"}
    shell = ["bash", "-c", pipe[0]]
    done = subprocess.run(
        shell, input=out, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env=environment
    )
    return done.returncode, done.stdout


def runs_elsewhere(command: str) -> bool:
    listed = _LISTS.search(command) is not None
    return (command.split()[1] in RUN_ELSEWHERE and not listed) or _ENDLESS.search(command) is not None


def _call(arguments: Sequence[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [".", *sys.path])
        sys.modules.pop("app", None)
        code = main(list(arguments))
    return code, out.getvalue() + err.getvalue()


def copy(prepared: Path, target: Path) -> None:
    shutil.copytree(prepared, target, dirs_exist_ok=True)
