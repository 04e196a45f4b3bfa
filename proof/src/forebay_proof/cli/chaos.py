"""`chaos`: a plan of faults on real processes, servers and wires under load, and the verdict.

Exit codes: 0 PASS · 1 FAIL, a promise was broken · 2 INVALID, it proves nothing: too few faults or jobs, or the fault
cannot be made on this machine. Of several runs, FAIL counts before INVALID.
"""

import shutil
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.cli.argtypes import duration
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK
from forebay.core.errors import Invalid

if TYPE_CHECKING:
    from forebay_proof.lab.chaos.plan import ChaosPlan, Kept
    from forebay_proof.lab.chaos.run import ChaosResult

_HEADS: Final = ("plan", "store", "faults", "bit", "acks", "again", "p50 s", "p99 s", "took s", "verdict", "what")
_RIGHT: Final = "faults bit acks again p50 s p99 s took s"
_SCHEMES: Final = {"postgresql": "postgres", "postgres": "postgres", "redis": "redis", "rediss": "redis"}


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("plans", nargs="*", metavar="PLAN", help="names, files of TOML, or all: f01 … f24")
    parser.add_argument(
        "--store", metavar="STORE", help="sqlite, postgres, redis, memory or a URL (default: the plan's)"
    )
    parser.add_argument(
        "--scale", choices=("quick", "nightly", "release"), default="quick", help="how often (default: quick)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed: the same jobs, moments, victims")
    parser.add_argument("--rate", type=float, metavar="N", help="jobs a second (default: the plan's)")
    parser.add_argument(
        "--every", type=float, metavar="SECONDS", help="from one fault to the next, on average (default: the plan's)"
    )
    parser.add_argument(
        "--for", type=duration, dest="limit", metavar="DURATION", help="so long, instead of the plan's counts"
    )
    parser.add_argument(
        "--audit", choices=("quick", "spark"), default="quick", help="the audit besides (default: quick)"
    )
    parser.add_argument(
        "--report", metavar="DIR", help="leave every strike, receipts, effects, logs and the table there"
    )
    parser.add_argument(
        "--list", action="store_true", help="the plans, where they make sense, and how often they strike"
    )


def _chaos(call: Invocation) -> int:
    from forebay_proof.lab.chaos.plan import adjust, find, matrix, names

    args = call.args
    if args.list:
        return _list(call)
    if not args.plans:
        raise Invalid("plan", "none is named", f"use all, or some of {', '.join(names())}")
    words = [word for given in args.plans for word in (matrix() if given == "all" else [given])]
    plans = [adjust(find(word), seed=args.seed, rate=args.rate, every=args.every) for word in words]
    todo = [(plan, kept, where) for plan in plans for kept, where in _stores_of(plan, args.store)]
    if not todo:
        raise Invalid(
            "--store", f"no plan named is for {args.store}", "`forebay chaos --list` shows where each makes sense"
        )
    with _folder(args.report) as folder:
        outcomes = [_run(call, folder, *each) for each in todo]
        table = _table(call, outcomes)
        if args.report is not None:
            (folder / "outcomes.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
            (folder / "table.md").write_text(markdown(outcomes))
    if call.screen.as_json:
        for outcome in outcomes:
            call.screen.emit(outcome)
    else:
        for line in table:
            call.screen.say(line)
    answers = {outcome.answer for outcome in outcomes}
    return 1 if "FAIL" in answers else 2 if "INVALID" in answers else OK


def _stores_of(plan: "ChaosPlan", store: str | None) -> "list[tuple[Kept, str]]":
    """The kinds of store to run it on, and where those are."""
    if store is None:
        return [(kept, kept) for kept in plan.stores]
    kept = _SCHEMES.get(store.partition(":")[0], store.partition(":")[0])
    return [(each, store) for each in plan.stores if each == kept]


@contextmanager
def _folder(report: str | None) -> Iterator[Path]:
    """Without the option, the evidence is kept only if something was broken."""
    if report is not None:
        Path(report).mkdir(parents=True, exist_ok=True)
        yield Path(report)
        return
    folder = Path(tempfile.mkdtemp(prefix="forebay-chaos-"))
    yield folder
    if not any(folder.iterdir()):
        folder.rmdir()


def _run(call: Invocation, folder: Path, plan: "ChaosPlan", kept: "Kept", where: str) -> "ChaosResult":
    from forebay_proof.lab.chaos.run import Runner

    args = call.args
    directory = folder / f"{plan.name}-{kept}"
    if directory.exists():
        shutil.rmtree(directory)
    label = f"{plan.name} {kept}"
    call.screen.note(f"{label}: {plan.title} (seed {plan.seed}, {args.scale})")
    limit = None if args.limit is None else args.limit.total_seconds()
    runner = Runner(
        plan,
        kept,
        where,
        directory,
        scale=args.scale,
        limit=limit,
        proof=args.audit,
        say=lambda text: call.screen.note(f"{label} {text}"),
    )
    outcome = runner.run()
    for reason in outcome.reasons:
        call.screen.note(f"{label} {outcome.answer}: {reason}")
    call.screen.note(f"{label}: {outcome.answer} in {outcome.seconds:.1f} s")
    if args.report is None:
        if outcome.answer == "FAIL":
            call.screen.note(f"{label}: what is left of it is in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _cells(outcome: "ChaosResult") -> list[Any]:
    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    what = outcome.title if outcome.answer == "PASS" else f"{outcome.title}: {outcome.reasons[0]}"
    return [
        outcome.plan,
        outcome.store,
        outcome.made,
        outcome.bit,
        f"{outcome.accepted:,}",
        outcome.redelivered,
        seconds(outcome.recovery_p50),
        seconds(outcome.recovery_p99),
        f"{outcome.seconds:.0f}",
        outcome.answer,
        what,
    ]


def _table(call: Invocation, outcomes: "list[ChaosResult]") -> list[str]:
    return call.screen.table_lines(_HEADS, [_cells(outcome) for outcome in outcomes], _RIGHT)


def markdown(outcomes: "list[ChaosResult]") -> str:
    cells = [[str(cell).replace("|", "\\|") for cell in _cells(outcome)] for outcome in outcomes]
    return "".join(f"| {' | '.join(row)} |\n" for row in [_HEADS, ["---" for _ in _HEADS], *cells])


def _list(call: Invocation) -> int:
    from forebay_proof.lab.chaos.plan import SCALES, find, names

    plans = [find(name) for name in names()]
    if call.screen.as_json:
        for plan in plans:
            call.screen.emit({"plan": plan.name, "title": plan.title, "stores": plan.stores, "left_out": plan.left_out})
        return OK
    rows = [
        [plan.name, ", ".join(plan.stores), *(plan.strikes(scale) for scale in SCALES), plan.title] for plan in plans
    ]
    call.screen.table(("plan", "stores", *SCALES, "what"), rows, " ".join(SCALES))
    return OK


COMMANDS = (
    Command(
        "chaos",
        "break processes, servers and wires under load by a plan, and judge: exit code 0, 1 or 2",
        _chaos,
        """
forebay chaos --list
forebay chaos f01 --store sqlite
forebay chaos all --scale nightly --report out
forebay chaos my-plan.toml --store postgres --for 10m --audit spark
forebay chaos kills --store postgres --rate 1500 --every 5 --for 5m
""",
        _arguments,
        takes_store=False,
    ),
)
