"""Recorded results of benchmarks: `make figures ARGS="memory postgres"` runs them and writes docs/results/figures.json.

A recording holds the command, the last commit that changed `src`, the date, the load of the machine and every figure
that the command printed. The tables of docs/internals/benchmarks.md and docs/compare.md are written from it (`make
reference`), and a test compares them. A tree with changes in its sources is not recorded: its figures would belong to
no commit.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RECORDED: Final = ROOT / "docs" / "results" / "figures.json"
RUNS: Final = {
    "memory": "forebay bench run memory --quick --json",
    "sqlite": "forebay bench run sqlite --quick --json",
    "worker": "forebay bench run worker --quick --json --only worker/",
    "postgres": "forebay bench run postgres --quick --json --only drain/",
    "redis": "forebay bench run redis --quick --json --only drain/",
}

PEERS: Final = ("postgres", "redis")
"""Benchmarks that run other queues, too."""


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
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    about = {"command": command, "commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count()}
    return {**about, "load": [round(load, 1), round(os.getloadavg()[0], 1)], "figures": figures}


def table() -> str:
    """All recordings as Markdown."""
    parts = []
    for name, found in sorted(read().items()):
        before, after = found["load"]
        parts.append(
            f"### {name}\n\n`{found['command']}`, commit `{found['commit']}`, {found['date']}, {found['cores']} cores, "
            f"load {before} before and {after} after:\n\n"
            "| figure | median | spread | beside it | goal |\n|---|---|---|---|---|\n"
            + "".join(_row(figure) for figure in found["figures"] if _shown(figure))
        )
    return "\n".join(parts)


def compared() -> str:
    """The rates of drains, Forebay's and its peers', by the store they ran on."""
    parts = []
    for name, found in sorted(read().items()):
        rates = [each for each in found["figures"] if each["unit"] == "jobs/s" and _shown(each)]
        if name in PEERS:
            rows = "".join(_row({**each, "name": each["name"].removeprefix("drain/")}) for each in rates)
            title = f"{name.title()}: `{found['command']}`, {found['date']}, load {found['load'][0]}"
            parts.append(
                f"{title}.\n\n| queue | median | spread | beside Forebay | goal |\n|---|---|---|---|---|\n{rows}"
            )
    return "\n".join(parts)


def read() -> dict[str, dict[str, Any]]:
    return dict(json.loads(RECORDED.read_text()))


def _shown(figure: dict[str, Any]) -> bool:
    """Whether the page has it: parts of a figure (`drain/forebay/put`) are in the recording alone."""
    return str(figure["name"]).count("/") < 2


def _row(figure: dict[str, Any]) -> str:
    low, high = figure["spread"]
    beside = f"{figure['ratio']:.2f} × `{figure['baseline']}`" if figure["ratio"] else ""
    value, least, most = (_written(each) for each in (figure["value"], low, high))
    return f"| `{figure['name']}` | {value} {figure['unit']} | {least} … {most} | {beside} | {figure['goal']} |\n"


def _written(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.3g}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    for name in sys.argv[1:] or RUNS:
        recording = record(name)
        known = read() if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**known, name: recording}, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(f"{name}: {len(recording['figures'])} figures\n")
