"""Recorded results of benchmarks: `make figures ARGS="memory postgres"` runs them and writes docs/results/figures.json.

A recording holds the command, the last commit that changed `src`, the date, the load of the machine and every figure
that the command printed. The tables of docs/internals/benchmarks.md, docs/guides/stores.md and docs/compare.md are
written from it (`make reference`), and a test compares them. A tree with changes in its sources is not recorded: its
figures would belong to no commit. A run that ends badly or takes too long keeps the figures that it printed, and how it
ended. docs/results/earlier.json has what was noted by hand before; a recording of the same command replaces it.

Not recorded are `trees`, which compares two checkouts, and `lines`, which the tests hold.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from forebay_proof.bench.pg.peers.programs import PEERS as ON_POSTGRES
from forebay_proof.bench.rd.peers.programs import PEERS as ON_REDIS
from forebay_proof.bench.recovery import NEVER

ROOT: Final = Path(__file__).parents[2]
RECORDED: Final = ROOT / "docs" / "results" / "figures.json"
EARLIER: Final = ROOT / "docs" / "results" / "earlier.json"
RUNS: Final = {
    "memory": "forebay bench run memory --json",
    "sqlite": "forebay bench run sqlite --json",
    "postgres": "forebay bench run postgres --json --only drain/,drain_unlike/,defaults/",
    "redis": "forebay bench run redis --json --only drain/",
    "stores": "forebay bench run stores --json",
    "latency": "forebay bench run latency --json",
    "postgres-bulk": "forebay bench run postgres --json --only bulk/",
    "postgres-together": "forebay bench run postgres --json --only end_to_end/,failing/",
    "postgres-failures": "forebay bench run postgres --json --only failure/",
    "postgres-single": "forebay bench run postgres --json --only single/,single_enqueue/,single_claim/,aenqueue/",
    "postgres-fleet": "forebay bench run postgres --json --only fleet/",
    "postgres-depth": "forebay bench run postgres --json --only scale/depth",
    "postgres-breadth": "forebay bench run postgres --json --only scale/queues,scale/tenants,scale/fair",
    "postgres-bloat": "forebay bench run postgres --json --only scale/bloat",
    "postgres-flat": "forebay bench run postgres --json --only flat/",
    "postgres-snapshot": "forebay bench run postgres --json --only snapshot/",
    "postgres-scheduled": "forebay bench run postgres --json --only scheduled/",
    "postgres-latency": "forebay bench run postgres --json --only latency/",
    "redis-cycle": "forebay bench run redis --json --only cycle/",
    "redis-together": "forebay bench run redis --json --only end_to_end/",
    "worker": "forebay bench run worker --quick --json --only worker/",
    "worker-recovery": "forebay bench run worker --json --only recovery",
    "recovery": "forebay bench run recovery --json",
    "async": "forebay bench run async --json",
    "cells": "forebay bench run cells --json",
    "prices": "forebay bench run prices --quick --json",
    "ledger": "forebay bench run ledger --json",
    "http": "forebay bench run http --quick --json",
    "dashboard": "forebay bench run dashboard --json",
    "metrics": "forebay bench run metrics --quick --json",
    "flood": "forebay bench run flood --json",
    "spark": "forebay bench run spark --json",
    "refresh": "forebay bench run refresh --json",
    "audit": "forebay bench run audit --json",
    "audit-12m": "forebay bench run audit --json --jobs 12000000",
}

ABOUT: Final = {
    "memory": "The in-process store, beside a textbook queue (a deque and a dict); `durable` with its journal.",
    "sqlite": "One file, every commit synced, beside bare SQLite and bare syncs. `cycle`: enqueue, claim, acknowledge.",
    "postgres": "A backlog drained by one or two worker processes, beside other queues on the same server.",
    "redis": "A backlog drained by one worker process, beside other queues on the same server.",
    "stores": "The four stores in one run: [Choosing a store](../guides/stores.md#how-fast) explains the rows.",
    "latency": "From the call to the first line of the handler: an idle worker, 50 jobs a second, one call each.",
    "postgres-bulk": "Enqueue of a long stream of drafts.",
    "postgres-together": "A producer and two worker processes at the same time, on one server, and with failures.",
    "postgres-failures": "What a failed attempt costs, to its second acknowledgement.",
    "postgres-single": "One job a call.",
    "postgres-fleet": "Eight worker processes of 64 slots on one server.",
    "postgres-depth": "What a deep backlog costs those who enqueue, claim and acknowledge on it.",
    "postgres-breadth": "What many queues and many tenants cost, beside one of each.",
    "postgres-bloat": "Sizes of tables and indexes while jobs flow, early and late.",
    "postgres-flat": "Enqueue and process together for five minutes.",
    "postgres-snapshot": "The same while another transaction holds a snapshot for twelve minutes.",
    "postgres-scheduled": "How late a scheduled job starts.",
    "postgres-latency": "How long a claim takes under load, and from the call to the handler of an idle worker.",
    "redis-cycle": "Enqueue, claim and acknowledge by one client, beside bare commands and bare designs.",
    "redis-together": "A producer and a worker at the same time, on one server.",
    "worker": "What the worker itself costs: a job that does nothing, a job that fails, no job.",
    "worker-recovery": "How soon the jobs of a killed process run again.",
    "recovery": "Eight jobs of three seconds whose worker is killed and started again, by each queue's own settings.",
    "async": "What a call of a coroutine costs beside a blocking one, alone and among a thousand.",
    "cells": "What several cells cost, what a dead one costs the others, and how fast a queue moves.",
    "prices": "What each guarantee costs: time with it over time without it, in the same run.",
    "ledger": "Enqueue, claim and acknowledge with the ledger, beside the same without it: CPU a job.",
    "http": "The HTTP API on Postgres: one server process, 64 connections.",
    "dashboard": "The 95th percentile of each page of the dashboard, on a million jobs.",
    "metrics": "What a server that counts and polls costs a store, and what redaction costs.",
    "flood": "What valid callers notice of 10,000 connections with invalid keys.",
    "spark": "Jobs and events between Forebay and Spark.",
    "refresh": "`forebay pipeline run` after ten new events.",
    "audit": "`forebay audit` as a command, cold, beside DuckDB on the same files.",
    "audit-12m": "The same for twelve million jobs.",
}
"""What a recording is about."""

DECIDING: Final = {
    "drain_unlike/graphile": ("postgres", "0.6 to 1.0 ×"),
    "drain_unlike/forebay": ("postgres", "15,000 to 19,000 jobs/s"),
    "drain/graphile": ("postgres", "4.3 to 5.0 ×"),
    "end_to_end/pgbench": ("postgres-together", "0.55 ×"),
    "failing/none": ("postgres-together", "0.62 ×"),
    "single_enqueue/pgqueuer": ("postgres-single", "0.65 ×"),
    "single_claim/forebay/server-cpu": ("postgres-single", "450 µs"),
    "latency/graphile": ("postgres-latency", "4.6 ×"),
    "defaults/tuned": ("postgres", "0.32 ×"),
}
"""The figures that decide about Postgres, with their recording, and what they were before a claim was one row."""

BUSY: Final = 8.0
"""A load at the start above which a recording is not the last word: benchmarks themselves cause less."""

_MAX_SECONDS: Final = 4 * 3_600

PEERS: Final = {"postgres": ON_POSTGRES, "redis": ON_REDIS}
"""Benchmarks that run other queues, too."""

PIVOTS: Final = ("stores", "prices", "dashboard")
"""A row for each figure and a column for each store."""

_MET, _MISSED = ", met", ", **missed**"

STORES: Final = ("memory", "sqlite", "postgres", "redis-everysec", "redis-always", "redis", "runs")


class NoFigures(Exception):
    """Nothing to record."""


def record(name: str) -> dict[str, Any]:
    """Run one benchmark and return its recording."""
    command = RUNS[name]
    commit = _git("log", "-1", "--format=%h", "--abbrev=12", "--", "src")
    if _git("status", "--porcelain", "--", "src", "proof"):
        raise SystemExit("src or proof has changes that are not committed; commit them first")
    load = os.getloadavg()[0]
    output, ended = printed(command.split(), _MAX_SECONDS)
    figures = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not figures:
        raise NoFigures(f"`{command}` {ended or 'printed no figure'}")
    about = {"command": command, "commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count()}
    about |= {"ended": ended} if ended else {}
    return {**about, "load": [round(load, 1), round(os.getloadavg()[0], 1)], "figures": figures}


def printed(command: Sequence[str], seconds: float) -> tuple[str, str]:
    """All that a command prints within this time, and how it ended; nothing if it ended well."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Unbuffered: what was measured before the time was up counts.
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, start_new_session=True) as run,
    ):
        try:
            code = run.wait(seconds)
            ended = f"ended with code {code}" if code else ""
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {seconds:,.0f} s"
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGTERM)
                run.wait()
        output.seek(0)
        return output.read(), ended


def table() -> str:
    """All recordings as Markdown, and what was noted earlier where there is none from a quiet machine."""
    recorded = read()
    parts = [_goals(recorded)]
    for name in RUNS:
        tables = [f"{_source(recorded[name])}:\n\n{table_of(name, recorded[name])}"] if name in recorded else []
        tables += _noted(name, recorded.get(name))
        parts += [f"### {name}\n\n{ABOUT[name]}\n\n" + "\n".join(tables)] if tables else []
    return "\n".join(parts)


def _goals(recorded: dict[str, Any]) -> str:
    """How many goals each recording met, and which it missed."""
    rows = []
    for name in filter(recorded.__contains__, RUNS):
        judged = [(f"`{each['name']}`", _judged(each)) for each in recorded[name]["figures"]]
        missed = [figure for figure, goal in judged if goal.endswith(_MISSED)]
        met = sum(goal.endswith(_MET) for _, goal in judged)
        load = recorded[name]["load"][0]
        busy = f", load {load}" if load > BUSY else ""
        rows += [f"| [{name}](#{name}){busy} | {met} | {', '.join(missed)} |\n"] if met or missed else []
    return "### Goals\n\n| recording | met | missed |\n|---|---|---|\n" + "".join(rows)


def _noted(name: str, found: dict[str, Any] | None) -> list[str]:
    """What was noted by hand, unless there is a recording from a machine that had little else to do."""
    earlier = json.loads(EARLIER.read_text()).get(name)
    if earlier is None or (found is not None and found["load"][0] <= BUSY):
        return []
    about = ", ".join(filter(None, [f"`{earlier['command']}`", f"noted {earlier['date']}", earlier["note"]]))
    columns = ["", *earlier["columns"]] if "columns" in earlier else ["figure", "value", "goal"]
    rows = earlier["rows"] if "columns" in earlier else [(*row, _noted_goal(goal)) for *row, goal in earlier["rows"]]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return [f"{about}:\n\n" + "\n".join(lines) + "\n"]


def _noted_goal(goal: str) -> str:
    return goal if not goal or goal.endswith("**") else goal + _MET


def deciding() -> str:
    """The figures that decide, as they were and as they are recorded."""
    recorded, rows = read(), []
    for name, (recording, before) in DECIDING.items():
        found = recorded.get(recording, {"figures": []})
        measured = [f"{_measured(each)} | {_judged(each)}" for each in found["figures"] if each["name"] == name]
        now = measured[0] if measured else "not recorded | "
        rows.append(f"| `{name}` | {before} | {now} | [{recording}](#{recording}) |\n")
    return "| figure | before | now | goal | recording |\n|---|---|---|---|---|\n" + "".join(rows)


def pivot(name: str) -> str:
    """One recording with its stores side by side, and what was noted earlier as `table` has it."""
    found = read().get(name)
    parts = [] if found is None else [f"{_source(found)}:\n\n{table_of(name, found)}"]
    parts += _noted(name, found)
    assert parts, f"{name}: neither recorded nor noted"
    return "\n".join(parts)


def compared() -> str:
    """The rates of drains, Forebay's and its peers', by the store they ran on."""
    parts, recorded = [], read()
    for name in PEERS:
        found = recorded.get(name)
        if found is not None:
            rates = [each for each in found["figures"] if each["unit"] == "jobs/s" and _shown(name, each)]
            rows = "".join(f"| `{_queue(each['name'])}` | {_measured(each)} | {_ratio(each)} |\n" for each in rates)
            heading = "| queue | rate | of Forebay's |\n|---|---|---|\n"
            parts.append(f"{name.title()}, {_source(found)}:\n\n{heading}{rows}")
        noted = _noted(name, found)
        shown = json.dumps(found) + "".join(noted)
        missing = sorted(project for project in PEERS[name].projects if not re.search(rf"\b{project}\b", shown))
        parts += [*noted, f"Not measured yet in `{RUNS[name]}`: {', '.join(missing)}.\n"] if missing else noted
    return "\n".join(parts)


def _queue(figure: str) -> str:
    return figure.removeprefix("drain/").removesuffix("-rate")


def read() -> dict[str, dict[str, Any]]:
    return dict(json.loads(RECORDED.read_text()))


def _source(found: dict[str, Any]) -> str:
    before, after = found["load"]
    about = (
        f"commit `{found['commit']}`, {found['date']}, {found['cores']} cores, load {before} before and {after} after"
    )
    return f"`{found['command']}`, {about}" + (f"; it {found['ended']}" if "ended" in found else "")


def table_of(name: str, found: dict[str, Any]) -> str:
    figures = [figure for figure in found["figures"] if _shown(name, figure)]
    if name == "recovery":
        return _recovered(figures)
    if name not in PIVOTS:
        heading = "| figure | value | beside | goal |\n|---|---|---|---|\n"
        return heading + "".join(map(_row, figures))
    rows: dict[str, dict[str, str]] = {}
    for figure in figures:
        store = next((store for store in STORES if re.search(rf"\b{store}\b", figure["name"])), "")
        row = re.sub(rf"\b{store}\b[-/]?", "", figure["name"]).strip("/") if store else figure["name"]
        rows.setdefault(f"`{row}`, {figure['unit']}", {})[store] = _written(figure["value"]) + _range(figure)
    stores = [store for store in STORES if any(store in cells for cells in rows.values())]
    lines = [f"| | {' | '.join(stores)} |", f"|---|{'---|' * len(stores)}"]
    lines += [f"| {row} | {' | '.join(cells.get(store, '') for store in stores)} |" for row, cells in rows.items()]
    return "\n".join(lines) + "\n"


def _recovered(figures: list[dict[str, Any]]) -> str:
    """A row for each queue whose worker was killed."""
    queues: dict[str, dict[str, str]] = {}
    for figure in figures:
        _, queue, key = figure["name"].split("/")
        seconds, unit = _written(figure["value"]), figure["unit"]
        counted = f", not within {seconds} s" if unit == NEVER else f", after {seconds} s" if unit == "s" else seconds
        queues.setdefault(queue, {})[key] = counted
    heading = (
        "| queue | jobs that ran, their next start | jobs that waited, their first start | ended once, twice, not |\n"
    )
    rows = [
        f"| {queue} | {each['interrupted']}{each['again']} | {each['waited']}{each.get('waiting', '')} "
        f"| {each['once']}, {each['repeated']}, {each['unfinished']} |\n"
        for queue, each in queues.items()
    ]
    return heading + "|---|---|---|---|\n" + "".join(rows)


def _shown(name: str, figure: dict[str, Any]) -> bool:
    """Whether the page has it: parts of a figure (`drain/forebay/put`) without a goal are in the recording alone."""
    return not name.startswith(tuple(PEERS)) or str(figure["name"]).count("/") < 2 or bool(figure["goal"])


def _row(figure: dict[str, Any]) -> str:
    beside = f"{_ratio(figure)} `{figure['baseline']}`" if figure["ratio"] else ""
    return f"| `{figure['name']}` | {_measured(figure)} | {beside} | {_judged(figure)} |\n"


def _ratio(figure: dict[str, Any]) -> str:
    ratio = figure["ratio"]
    return "" if not ratio else f"{ratio:.2f} ×" if ratio >= 0.01 else "< 0.01 ×"


def _measured(figure: dict[str, Any]) -> str:
    return f"{_written(figure['value'])} {figure['unit']}{_range(figure)}"


def _range(figure: dict[str, Any]) -> str:
    """The lowest and the highest round; nothing where there was one."""
    low, high = (_written(each) for each in figure["spread"])
    return "" if low == high else f" [{low} … {high}]"


def _judged(figure: dict[str, Any]) -> str:
    """The goal, and whether it was met. A goal beside a peer that was not installed is not judged."""
    goal = str(figure["goal"])
    found = re.match(r"(≥|≤|>=|<=|<) ([\d.,]+)( ×)?", goal)
    if found is None or (found[3] and str(figure["baseline"]).startswith("bound/")):
        return goal
    value, bound = figure["ratio"] if found[3] else figure["value"], float(found[2].replace(",", ""))
    reached = value >= bound if found[1] in ("≥", ">=") else value <= bound
    return goal + (_MET if reached else _MISSED)


def _written(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.3g}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    failed = []
    for name in sys.argv[1:] or RUNS:
        try:
            recording = record(name)
        except NoFigures as error:
            failed.append(f"{name}: {error}; its former recording stays")
            continue
        if "ended" in recording:
            failed.append(f"{name}: {recording['ended']}; the figures until then are recorded")
        known = read() if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**known, name: recording}, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(f"{name}: {len(recording['figures'])} figures\n")
    sys.exit("\n".join(failed) or 0)
