"""The matrix of docs/internals/chaos.md: `make matrix` runs every plan and records it in docs/results/chaos.json.

A recording holds the command, the last commit that changed `src`, the date, the load of the machine and the result of
each plan on each store; those that are not PASS, with their reason.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from forebay_proof.cli.chaos import markdown
from forebay_proof.lab.chaos.run import ChaosResult
from tests.docs import figures

RECORDED: Final = figures.ROOT / "docs" / "results" / "chaos.json"
COMMAND: Final = "forebay chaos all --scale quick"
_MAX_SECONDS: Final = 2 * 3_600


def table() -> str:
    return table_of(json.loads(RECORDED.read_text()))


def table_of(recording: dict[str, Any]) -> str:
    results = msgspec.convert(recording["results"], list[ChaosResult])
    return f"{figures._source(recording)}:\n\n{markdown(results)}"


def record(command: str = COMMAND) -> dict[str, Any]:
    """Run the plans; a run that ends with FAIL or INVALID is recorded as well."""
    if figures._git("status", "--porcelain", "--", "src", "proof"):
        raise SystemExit("src or proof has changes that are not committed; commit them first")
    commit, load = figures._git("log", "-1", "--format=%h", "--abbrev=12", "--", "src"), os.getloadavg()[0]
    with TemporaryDirectory(prefix="forebay-") as folder:
        words = [sys.executable, "-m", *command.split(), "--report", folder]
        subprocess.run(words, cwd=figures.ROOT, stdout=subprocess.DEVNULL, check=False, timeout=_MAX_SECONDS)
        results = json.loads(Path(folder, "outcomes.json").read_bytes())
    about = {"command": command, "commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count()}
    return {**about, "load": [round(load, 1), round(os.getloadavg()[0], 1)], "results": without_verdicts(results)}


def without_verdicts(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The counts of the audit are in the other fields."""
    return [{name: value for name, value in each.items() if name != "verdict"} for each in results]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(), indent=1, sort_keys=True) + "\n")
