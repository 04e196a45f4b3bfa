"""The parts of the evidence: what has to be run before a release, how often, and in which rounds."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, Final

import msgspec

from forebay.core.errors import Invalid
from forebay_proof.evidence import EvidencePart, printed
from forebay_proof.lab.chaos.plan import STORES, find, matrix

_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_FOREBAY: Final = (sys.executable, "-m", "forebay")
_CHAOS: Final = (*_FOREBAY, "chaos", "--json", "--scale")
_SIM: Final = (*_FOREBAY, "sim", "--json", "--seeds")
_CRASHES: Final = (*_PYTEST, "-s", "--timeout", "86400", "tests/stores/test_crash_points.py")
_CRON: Final = (*_PYTEST, "-s", "tests/unit/test_cron_zones.py")
_ZONES: Final = "tests/unit/test_cron_zones.py::test_every_zone_and_every_change"
_SCHEMA: Final = (*_PYTEST, "-s", "--timeout", "86400", "tests/serve/test_schema.py")
_POWER: Final = (*_FOREBAY, "power-cuts", "--json", "--cuts")
_MUTANTS: Final = (sys.executable, "tests/mutants/run.py")
_QUICK: Final = ("-m", "not nightly")

_SEEDS: Final = 1_000
_CELLS_EVERY: Final = 10
_MODEL_ROUNDS: Final = {"sqlite": 10, "postgres": 10}
"""The others have two kinds of a store in each round: half of the rounds will do."""
_CRON_ROUNDS: Final = 12
_MUTANT_ROUNDS: Final = 20
_HEALTHY_RATES: Final = {"postgres": 5_000, "redis": 3_000, "sqlite": 2_000}
_HEALTHY_ROUNDS: Final = {"postgres": 16, "redis": 4, "sqlite": 5}


def _objects(output: str) -> Iterable[dict[str, Any]]:
    return (msgspec.json.decode(line) for line in output.splitlines() if line.startswith("{"))


def _last(output: str) -> dict[str, Any]:
    return list(_objects(output))[-1]


def _summed(field: str) -> Callable[[str], int]:
    """The sum over all objects that have this field."""
    return lambda output: sum(int(each[field]) for each in _objects(output) if field in each)


def _passed(output: str) -> int:
    """How many passed, by all summaries."""
    return sum(map(int, re.findall(r"(\d+) passed", output)))


def _seeds() -> Iterable[tuple[str, ...]]:
    """Every tenth round over four cells."""
    for number in range(100):
        cells = ("--cells", "4") if number % _CELLS_EVERY == 0 else ()
        yield (*_SIM, f"{number * _SEEDS}:{(number + 1) * _SEEDS}", *cells)


def _chaos(*plans: str, scale: str = "release", seeds: Iterable[int] = (1,)) -> tuple[tuple[str, ...], ...]:
    """A round for each seed and plan on each of its stores."""
    return tuple(
        (*_CHAOS, scale, plan, "--store", store, "--seed", str(seed))
        for seed in seeds
        for plan in plans
        for store in find(plan).stores
    )


def _healthy(store: str, seconds: int, seed: int) -> tuple[str, ...]:
    load = ("--on", store, "--rate", str(_HEALTHY_RATES[store]), "--for", f"{seconds}s", "--seed", str(seed))
    fleet = ("--batch", "500", "--concurrency", "500", "--claim-batch", "500")
    return (*_FOREBAY, "lab", "load", "--json", "--mix", "idle", *load, *fleet)


def _run_once(output: str) -> int:
    """The jobs of a trial of which none ran twice; 0 if one did."""
    verdict = _last(output)["verdict"]
    again = verdict["redelivered"] + verdict["doubled"] + verdict["lost"] + verdict["unfinished"]
    return 0 if again else int(verdict["accepted"])


def _model(store: str, hours: float) -> EvidencePart:
    """Each round draws other histories; `ROUND` makes it another command."""
    file = f"tests/stores/test_{store}_model.py".replace("memory_", "")
    command = (*_PYTEST, "-s", "--timeout", "86400", file)

    def drawn(profile: str, number: int) -> tuple[str, ...]:
        return ("env", f"FOREBAY_HYPOTHESIS_PROFILE={profile}", f"ROUND={number}", *command)

    return EvidencePart(
        name=f"model-{store}",
        title=f"random histories of the store on {store} in step with the reference model",
        unit="histories",
        goal=20_000,
        hours=hours,
        quick=drawn("ci", 0),
        full=tuple(drawn("evidence", number) for number in range(_MODEL_ROUNDS.get(store, 5))),
        count=printed("histories"),
    )


def _python(version: str) -> EvidencePart:
    command = (sys.executable, "-m", "tests.process.pythons", version)
    return EvidencePart(
        name=f"python-{version}",
        title=f"tests of pure code and of the embedded stores on Python {version}",
        unit="tests",
        goal=5_000,
        hours=0.06,
        quick=command,
        full=(command,),
        count=_passed,
        alone=True,
    )


_MATRIX: Final = [name for name in matrix() if name != "f17"]

PARTS: Final = (
    EvidencePart(
        name="simulation",
        title="simulated histories with faults, every guarantee checked",
        unit="seeds",
        goal=100_000,
        hours=1.9,
        quick=(*_SIM, "0:300"),
        full=tuple(_seeds()),
        count=lambda output: int(_last(output)["seeds"]),
    ),
    EvidencePart(
        name="crash-points",
        title="recoveries of a journal cut at every byte, with every damage",
        unit="recoveries",
        goal=262_144,
        hours=0.25,
        quick=(*_CRASHES, *_QUICK, "-k", "not bit"),
        full=(
            (*_CRASHES, *_QUICK, "-k", "not bit"),
            *((*_CRASHES, "-k", words) for words in ("long_log and whole", "long_log and compacted", "tail")),
        ),
        count=printed("recoveries"),
    ),
    EvidencePart(
        name="bit-flips",
        title="journals and snapshots with one flipped bit: refused or harmless",
        unit="flips",
        goal=65_536,
        hours=0.02,
        quick=(*_CRASHES, *_QUICK, "-k", "bit"),
        full=((*_CRASHES, *_QUICK, "-k", "bit"), (*_CRASHES, "-k", "every_bit")),
        count=printed("flips"),
    ),
    EvidencePart(
        name="cron",
        title="ticks compared with an oracle, over rules, zones and clock changes",
        unit="comparisons",
        goal=1_000_000,
        hours=0.03,
        quick=(*_CRON, *_QUICK),
        full=(
            (*_CRON, *_QUICK),
            *((*_PYTEST, "-s", f"{_ZONES}[{number}]") for number in range(_CRON_ROUNDS)),
        ),
        count=printed("comparisons"),
    ),
    EvidencePart(
        name="fuzz",
        title="requests drawn from the OpenAPI document: no 5xx, every answer as described",
        unit="cases",
        goal=20_000,
        hours=0.03,
        quick=(*_SCHEMA, *_QUICK),
        full=((*_SCHEMA, "-m", "nightly"),),
        count=printed("cases"),
    ),
    EvidencePart(
        name="authorisation",
        title="every route by no key and by each role, on an own and a foreign queue",
        unit="requests",
        goal=1_200,
        hours=0.01,
        quick=(*_PYTEST, "-s", "tests/serve/test_matrix.py"),
        full=((*_PYTEST, "-s", "tests/serve/test_matrix.py"),),
        count=printed("requests"),
    ),
    *starmap(_model, (("memory", 0.2), ("sqlite", 0.12), ("postgres", 1.2), ("redis", 0.4), ("cells", 0.3))),
    *map(_python, ("3.12", "3.13")),
    EvidencePart(
        name="faults",
        title="real faults under load, on every store they apply to",
        unit="faults",
        goal=5_000,
        hours=3,
        quick=(*_CHAOS, "quick", "f01", "--store", "sqlite"),
        full=_chaos(*_MATRIX, scale="nightly", seeds=range(1, 5)),
        count=_summed("bit"),
        alone=True,
    ),
    EvidencePart(
        name="faulty-jobs",
        title="jobs accepted while a worker is killed every half minute: none lost",
        unit="jobs",
        goal=5_000_000,
        hours=0.6,
        quick=(*_CHAOS, "quick", "headline"),
        full=_chaos("headline"),
        count=_summed("accepted"),
        alone=True,
    ),
    EvidencePart(
        name="ticks",
        title="workers killed within 50 ms of a tick: every slot fires once",
        unit="kills",
        goal=500,
        hours=0.9,
        quick=(*_CHAOS, "quick", "f17", "--store", "sqlite"),
        full=_chaos("f17"),
        count=_summed("bit"),
        alone=True,
    ),
    EvidencePart(
        name="no-duplicates",
        title="jobs on healthy stores: each effect once, no job run twice",
        unit="jobs",
        goal=10_000_000,
        hours=0.8,
        quick=_healthy("sqlite", 3, 0),
        full=tuple(_healthy(store, 100, seed) for store, rounds in _HEALTHY_ROUNDS.items() for seed in range(rounds)),
        count=_run_once,
        alone=True,
    ),
    EvidencePart(
        name="held-transaction",
        title="twelve minutes beside a transaction and a replication slot that are held: throughput, latency, doctor",
        unit="transactions",
        goal=1,
        hours=0.25,
        quick=(*_CHAOS, "quick", "held"),
        full=_chaos("held"),
        count=_summed("bit"),
        alone=True,
    ),
    EvidencePart(
        name="deploys",
        title="signals of deploys to eight commands under load; no claim afterwards, attempts are starts",
        unit="signals",
        goal=150,
        hours=0.15,
        quick=(*_CHAOS, "quick", "storm", "--store", "sqlite"),
        full=_chaos("storm"),
        count=_summed("bit"),
        alone=True,
    ),
    EvidencePart(
        name="power-cuts",
        title="power cuts under load, on a file system that drops what was not synced (root)",
        unit="cuts",
        goal=800,
        hours=0.35,
        quick=(*_POWER, "3", "--kind", "sqlite"),
        full=tuple((*_POWER, "50", "--kind", store, "--seed", str(seed)) for store in STORES for seed in range(4)),
        count=_summed("bit"),
        alone=True,
    ),
    EvidencePart(
        name="mutants",
        title="guards removed on purpose; each removal fails a test",
        unit="mutants",
        goal=200,
        hours=1,
        quick=(*_MUTANTS, "--only", "draft"),
        full=tuple((*_MUTANTS, "--share", f"{number}/{_MUTANT_ROUNDS}") for number in range(_MUTANT_ROUNDS)),
        count=_passed,
        alone=True,
    ),
    EvidencePart(
        name="mutants-twice",
        title="mutants that a second layer kills besides the tests that each names: nine of ten",
        unit="mutants",
        goal=700,
        hours=6,
        quick=(*_MUTANTS, "--twice", "--only", "draft"),
        full=tuple((*_MUTANTS, "--twice", "--share", f"{number}/{_MUTANT_ROUNDS}") for number in range(_MUTANT_ROUNDS)),
        count=printed("mutants"),
        alone=True,
    ),
)


def chosen(names: Sequence[str]) -> list[EvidencePart]:
    """The parts of these names, or all."""
    known = {part.name: part for part in PARTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Invalid("part", f"there is none called {', '.join(unknown)}", f"use {', '.join(known)}")
    return [known[name] for name in names] or list(PARTS)
