"""Recorded results of benchmarks: `make figures ARGS="memory postgres"` runs them and writes docs/results/figures.json.

A recording holds the command, the last commit that changed `src`, the date, the load of the machine and every figure
that the command printed. The tables of docs/internals/benchmarks.md, docs/guides/stores.md and docs/compare.md are
written from it (`make reference`), and a test compares them. A tree with changes in its sources is not recorded: its
figures would belong to no commit. docs/results/earlier.json has what was noted by hand before; a recording of the same
command replaces it.
"""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RECORDED: Final = ROOT / "docs" / "results" / "figures.json"
EARLIER: Final = ROOT / "docs" / "results" / "earlier.json"
RUNS: Final = {
    "memory": "forebay bench run memory --quick --json",
    "sqlite": "forebay bench run sqlite --quick --json",
    "postgres": "forebay bench run postgres --quick --json --only drain/",
    "redis": "forebay bench run redis --quick --json --only drain/",
    "stores": "forebay bench run stores --json",
    "latency": "forebay bench run latency --quick --json",
    "postgres-bulk": "forebay bench run postgres --quick --json --only bulk/",
    "postgres-together": "forebay bench run postgres --quick --json --only end_to_end/",
    "postgres-single": "forebay bench run postgres --quick --json --only single",
    "postgres-fleet": "forebay bench run postgres --quick --json --only fleet/",
    "postgres-scale": "forebay bench run postgres --quick --json --only scale/",
    "postgres-scheduled": "forebay bench run postgres --quick --json --only scheduled/",
    "postgres-latency": "forebay bench run postgres --quick --json --only latency/",
    "redis-cycle": "forebay bench run redis --quick --json --only cycle/",
    "redis-together": "forebay bench run redis --quick --json --only end_to_end/",
    "worker": "forebay bench run worker --quick --json --only worker/",
    "worker-recovery": "forebay bench run worker --json --only recovery",
    "prices": "forebay bench run prices --quick --json",
    "ledger": "forebay bench run ledger --json",
    "http": "forebay bench run http --quick --json",
    "dashboard": "forebay bench run dashboard --json",
    "metrics": "forebay bench run metrics --quick --json",
    "flood": "forebay bench run flood --json",
    "spark": "forebay bench run spark --quick --json",
    "refresh": "forebay bench run refresh --quick --json",
    "audit": "forebay bench run audit --json",
}

BUSY: Final = 8.0
"""A load at the start above which a recording is not the last word: benchmarks themselves cause less."""

PEERS: Final = ("postgres", "redis")
"""Benchmarks that run other queues, too."""

PIVOTS: Final = ("stores", "prices", "dashboard")
"""A row for each figure and a column for each store."""

STORES: Final = ("memory", "sqlite", "postgres", "redis-everysec", "redis-always", "redis", "runs")


def record(name: str) -> dict[str, Any]:
    """Run one benchmark and return its recording."""
    command = RUNS[name]
    commit = _git("log", "-1", "--format=%h", "--abbrev=12", "--", "src")
    if _git("status", "--porcelain", "--", "src", "proof"):
        raise SystemExit("src or proof has changes that are not committed; commit them first")
    load = os.getloadavg()[0]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command.split(), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=3_600
    )
    figures = [_figure(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    about = {"command": command, "commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count()}
    return {**about, "load": [round(load, 1), round(os.getloadavg()[0], 1)], "figures": figures}


def table() -> str:
    """All recordings as Markdown, and what was noted earlier where there is none from a quiet machine."""
    recorded = read()
    parts = []
    for name in RUNS:
        tables = [f"{_source(recorded[name])}:\n\n{table_of(name, recorded[name])}"] if name in recorded else []
        tables += _noted(name, recorded.get(name))
        parts += [f"### {name}\n\n" + "\n".join(tables)] if tables else []
    return "\n".join(parts)


def _noted(name: str, found: dict[str, Any] | None) -> list[str]:
    """What was noted by hand, unless there is a recording from a machine that had little else to do."""
    earlier = json.loads(EARLIER.read_text()).get(name)
    if earlier is None or (found is not None and found["load"][0] <= BUSY):
        return []
    command = RUNS[name].replace(" --json", "")
    command = command.replace(" --quick", "") if "full length" in earlier["note"] else command
    about = ", ".join(filter(None, [f"`{command}`", f"noted {earlier['date']}", earlier["note"]]))
    rows = "".join(f"| {' | '.join(row)} |\n" for row in earlier["rows"])
    return [f"{about}:\n\n| figure | value | goal |\n|---|---|---|\n{rows}"]


def pivot(name: str) -> str | None:
    """One recording with its stores side by side; None if it was not recorded."""
    found = read().get(name)
    return None if found is None else f"{_source(found)}:\n\n{table_of(name, found)}"


def compared() -> str:
    """The rates of drains, Forebay's and its peers', by the store they ran on."""
    parts = []
    for name, found in sorted(read().items()):
        rates = [each for each in found["figures"] if each["unit"] == "jobs/s" and _shown(name, each)]
        if name in PEERS:
            rows = "".join(_row({**each, "name": each["name"].removeprefix("drain/")}) for each in rates)
            heading = "| queue | median | spread | beside Forebay | goal |\n|---|---|---|---|---|\n"
            parts += [f"{name.title()}, {_source(found)}:\n\n{heading}{rows}", *_noted(name, found)]
    return "\n".join(parts)


def read() -> dict[str, dict[str, Any]]:
    return dict(json.loads(RECORDED.read_text()))


def _source(found: dict[str, Any]) -> str:
    before, after = found["load"]
    about = (
        f"commit `{found['commit']}`, {found['date']}, {found['cores']} cores, load {before} before and {after} after"
    )
    return f"`{found['command']}`, {about}"


def table_of(name: str, found: dict[str, Any]) -> str:
    figures = [figure for figure in found["figures"] if _shown(name, figure)]
    if name not in PIVOTS:
        heading = "| figure | median | spread | beside it | goal |\n|---|---|---|---|---|\n"
        return heading + "".join(map(_row, figures))
    rows: dict[str, dict[str, str]] = {}
    for figure in figures:
        store = next((store for store in STORES if re.search(rf"\b{store}\b", figure["name"])), "")
        row = re.sub(rf"\b{store}\b[-/]?", "", figure["name"]).strip("/") if store else figure["name"]
        rows.setdefault(f"`{row}`, {figure['unit']}", {})[store] = _spread(figure)
    stores = [store for store in STORES if any(store in cells for cells in rows.values())]
    lines = [f"| | {' | '.join(stores)} |", f"|---|{'---|' * len(stores)}"]
    lines += [f"| {row} | {' | '.join(cells.get(store, '') for store in stores)} |" for row, cells in rows.items()]
    return "\n".join(lines) + "\n"


def _shown(name: str, figure: dict[str, Any]) -> bool:
    """Whether the page has it: parts of a figure (`drain/forebay/put`) without a goal are in the recording alone."""
    return not name.startswith(PEERS) or str(figure["name"]).count("/") < 2 or bool(figure["goal"])


def _row(figure: dict[str, Any]) -> str:
    low, high = figure["spread"]
    beside = f"{figure['ratio']:.2f} × `{figure['baseline']}`" if figure["ratio"] else ""
    value, least, most = (_written(each) for each in (figure["value"], low, high))
    return f"| `{figure['name']}` | {value} {figure['unit']} | {least} … {most} | {beside} | {_judged(figure)} |\n"


def _spread(figure: dict[str, Any]) -> str:
    low, high = figure["spread"]
    return f"{_written(figure['value'])} [{_written(low)} … {_written(high)}]"


def _judged(figure: dict[str, Any]) -> str:
    """The goal, and whether it was missed. A goal beside a peer that was not installed is not judged."""
    goal = str(figure["goal"])
    found = re.match(r"(≥|≤|>=|<=|<) ([\d.,]+)( ×)?", goal)
    if found is None or (found[3] and str(figure["baseline"]).startswith("bound/")):
        return goal
    value, bound = figure["ratio"] if found[3] else figure["value"], float(found[2].replace(",", ""))
    reached = value >= bound if found[1] in ("≥", ">=") else value <= bound
    return goal if reached else f"{goal}, **missed**"


def _written(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.3g}"


def _figure(printed: dict[str, Any]) -> dict[str, Any]:
    """What a benchmark printed; the audit prints whole runs, of which the CPU of the executors is recorded."""
    if "unit" in printed:
        return printed
    cpu, name = printed["cpu"], f"{printed['name']}, {printed['jobs']:,} jobs"
    return {
        "name": name,
        "value": cpu,
        "unit": "CPU s",
        "spread": [cpu, cpu],
        "baseline": None,
        "ratio": None,
        "goal": "",
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    failed = []
    for name in sys.argv[1:] or RUNS:
        try:
            recording = record(name)
        except subprocess.SubprocessError as error:
            failed.append(f"{name}: {error}; its former recording stays")
            continue
        known = read() if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**known, name: recording}, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(f"{name}: {len(recording['figures'])} figures\n")
    sys.exit("\n".join(failed) or 0)
