"""Evidence: what was run against one state of the sources, how often, for how long, and what it found.

A part is a command and a way to count what it did. `run` executes the parts that have no result for this state of the
sources yet, so an interrupted run continues where it was; each result is one JSON file. `table` prints them, and
refuses results of another state: the identity is that of the trees `src` and `proof/src` in git, so that committing a
result does not make it stale.

Tests count what they did (recoveries, comparisons, histories) by `happened`; a run prints the sums when it ends.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid

_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_FOREBAY: Final = (sys.executable, "-m", "forebay")
_COUNTED: Final = re.compile(r"^evidence: (\d+) ([\w -]+)$", re.MULTILINE)

_HAPPENED: Final[Counter[str]] = Counter()


def happened(unit: str, count: int = 1) -> None:
    _HAPPENED[unit] += count


def happenings() -> list[str]:
    """What this process counted, as lines that `run` reads."""
    return [f"evidence: {count} {unit}" for unit, count in sorted(_HAPPENED.items())]


class ProofLayer(Struct, frozen=True):
    """One layer of the proof. `goal`: how often it has to happen for a release."""

    name: str
    title: str
    unit: str
    goal: int
    quick: tuple[str, ...]
    full: tuple[str, ...]
    count: Callable[[str], int]


class LayerResult(Struct, frozen=True):
    part: str
    sources: str
    commit: str
    scale: str
    command: str
    count: int
    unit: str
    passed: bool
    seconds: float
    at: str


def _last_json(field: str) -> Callable[[str], int]:
    return lambda output: int(json.loads(output.strip().splitlines()[-1])[field])


def _every_json(field: str) -> Callable[[str], int]:
    """The sum over all lines: one object a run."""
    return lambda output: sum(int(json.loads(line)[field]) for line in output.splitlines() if line.startswith("{"))


def _printed(unit: str) -> Callable[[str], int]:
    """The sum of the lines `evidence: N unit` that tests print."""
    return lambda output: sum(int(number) for number, found in _COUNTED.findall(output) if found == unit)


def _passed(output: str) -> int:
    found = re.findall(r"(\d+) passed", output)
    return int(found[-1]) if found else 0


_CHAOS: Final = (*_FOREBAY, "chaos", "--json", "--scale")
_CRASHES: Final = (*_PYTEST, "-s", "tests/stores/test_crash_points.py")
_POWER: Final = (*_FOREBAY, "power-cuts", "--json", "--cuts")


def _model(profile: str, store: str) -> tuple[str, ...]:
    file = "test_model.py" if store == "memory" else f"test_{store}_model.py"
    return (
        "env",
        f"FOREBAY_HYPOTHESIS_PROFILE={profile}",
        *_PYTEST,
        "-s",
        "--timeout",
        "86400",
        f"tests/stores/{file}",
    )


PARTS: Final = (
    ProofLayer(
        "simulation",
        "simulated histories with faults, every guarantee checked",
        "seeds",
        100_000,
        (*_FOREBAY, "sim", "--json", "--seeds", "0:300"),
        (*_FOREBAY, "sim", "--json", "--seeds", "0:100000"),
        _last_json("seeds"),
    ),
    ProofLayer(
        "crash-points",
        "recoveries of a journal cut at every byte, with every damage",
        "recoveries",
        262_144,
        (*_CRASHES, "-m", "not nightly"),
        _CRASHES,
        _printed("recoveries"),
    ),
    ProofLayer(
        "bit-flips",
        "journals and snapshots with one flipped bit: refused or harmless",
        "flips",
        65_536,
        (*_CRASHES, "-m", "not nightly", "-k", "flip"),
        (*_CRASHES, "-k", "flip or bit"),
        _printed("flips"),
    ),
    ProofLayer(
        "cron",
        "ticks compared with an oracle, over rules, zones and clock changes",
        "comparisons",
        1_000_000,
        (*_PYTEST, "-s", "tests/unit/test_cron_zones.py", "-m", "not nightly"),
        (*_PYTEST, "-s", "tests/unit/test_cron_zones.py"),
        _printed("comparisons"),
    ),
    ProofLayer(
        "fuzz",
        "requests drawn from the OpenAPI document: no 5xx, every answer as described",
        "cases",
        20_000,
        (*_PYTEST, "-s", "tests/serve/test_schema.py", "-m", "not nightly"),
        (*_PYTEST, "-s", "tests/serve/test_schema.py"),
        _printed("cases"),
    ),
    ProofLayer(
        "faults",
        "real faults under load, on every store they apply to",
        "faults",
        5_000,
        (*_CHAOS, "quick", "f01"),
        (*_CHAOS, "release", "all"),
        _every_json("bit"),
    ),
    ProofLayer(
        "deploys",
        "signals of deploys to eight commands under load; no claim afterwards, attempts are starts",
        "signals",
        150,
        (*_CHAOS, "quick", "storm", "--store", "sqlite"),
        (*_CHAOS, "release", "storm"),
        _every_json("bit"),
    ),
    ProofLayer(
        "power-cuts",
        "power cuts under load, on a file system that drops what was not synced (root)",
        "cuts",
        800,
        (*_POWER, "3", "--kind", "sqlite"),
        (*_POWER, "200"),
        _every_json("bit"),
    ),
    *(
        ProofLayer(
            f"model-{store}",
            f"random histories of the store on {store} in step with the reference model",
            "histories",
            20_000,
            _model("ci", store),
            _model("evidence", store),
            _printed("histories"),
        )
        for store in ("memory", "sqlite", "postgres", "redis")
    ),
    ProofLayer(
        "mutants",
        "guards removed on purpose; each removal fails a test",
        "mutants",
        200,
        (sys.executable, "tests/mutants/run.py", "--only", "draft"),
        (sys.executable, "tests/mutants/run.py"),
        _passed,
    ),
)


def sources(root: Path) -> str:
    """The identity of the sources as committed; sources with uncommitted changes have none."""
    changed = _git(root, "status", "--porcelain", "--", "src", "proof/src")
    if changed:
        raise Invalid("evidence", "src or proof/src has uncommitted changes", "commit them first")
    return "-".join(_git(root, "rev-parse", f"HEAD:{tree}")[:12] for tree in ("src", "proof/src"))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Invalid("evidence", done.stderr.strip() or "git failed", "run it in a checkout of the repository")
    return done.stdout.strip()


def chosen(names: Sequence[str]) -> list[ProofLayer]:
    """The parts of these names, or all."""
    known = {part.name: part for part in PARTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Invalid("part", f"there is none called {', '.join(unknown)}", f"use {', '.join(known)}")
    return [known[name] for name in names] or list(PARTS)


def recorded(folder: Path) -> dict[str, LayerResult]:
    """All results, of whatever state of the sources, by part."""
    found = (msgspec.json.decode(file.read_bytes(), type=LayerResult) for file in sorted(folder.glob("*.json")))
    return {result.part: result for result in found}


def run(root: Path, folder: Path, parts: Sequence[ProofLayer], scale: str) -> Iterator[LayerResult]:
    """Run the parts without a passed result for these sources at this scale; a result is written when its part ends."""
    identity, commit = sources(root), _git(root, "rev-parse", "HEAD")
    folder.mkdir(parents=True, exist_ok=True)
    known = recorded(folder)
    for part in parts:
        before = known.get(part.name)
        if before is not None and before.passed and (before.sources, before.scale) == (identity, scale):
            yield before
            continue
        command = part.full if scale == "full" else part.quick
        began = monotonic()
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
        count = part.count(done.stdout) if done.stdout.strip() else 0
        shown = " ".join(["python" if word == sys.executable else word for word in command])
        result = LayerResult(
            part=part.name,
            sources=identity,
            commit=commit,
            scale=scale,
            command=shown,
            count=count,
            unit=part.unit,
            passed=done.returncode == 0 and count > 0,
            seconds=round(monotonic() - began, 1),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        (folder / f"{part.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        yield result


def stale(root: Path, results: Sequence[LayerResult]) -> list[str]:
    """The parts whose results belong to other sources."""
    identity = sources(root)
    return [result.part for result in results if result.sources != identity]
