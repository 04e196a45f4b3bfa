"""A plan: which faults, when, how often, under which load, and how many faults and jobs a run needs at least.

    title = "kill -9 of a worker in the middle of its jobs"
    stores = ["sqlite", "postgres", "redis"]          where it makes sense
    seed = 1                                          the same seed: the same jobs, moments and victims

    [load]                                            rate 0: no load, no fleet; the fault brings its own
    rate = 50
    [fleet]
    processes = 2
    lease = 2.0

    [[fault]]                                         any number of them, with other settings of the kind
    kind = "kill_worker"
    at = 1.0                                          seconds after the warm-up
    every = 1.0                                       and again, on average
    times = {quick = 4, nightly = 50, release = 1000} or one number for all scales

    [proof]                                           less than this proves nothing: INVALID
    acks = {quick = 100, nightly = 2_000, release = 50_000}
    share = 1.0                                       of the faults, so many must have bitten
    recovery = 4.0                                    and none may have taken longer: FAIL
    restart_p50 = 0.5                                 seconds until jobs that were interrupted start again: FAIL
    restart_p99 = 6.0
    max_unstarted = 3                                 hand-outs of one job without a start: FAIL
    release_p99 = 1.0                                 seconds until jobs that a drain released are claimed again: FAIL
    max_late_claim = 0.2                              seconds after its signal in which a command may claim: FAIL
    attempts_are_starts = true                        a job's attempts are the starts of its handler: FAIL

What can go wrong: everything that is not as above is `Invalid`, which names the key and the way out.
"""

import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay_proof.load.mix import parse_mix

ChaosScale = Literal["quick", "nightly", "release"]
Kept = Literal["memory", "sqlite", "postgres", "redis"]
"""The kinds of store. `memory` is the journal: a directory that belongs to one process."""

SCALES: Final[tuple[ChaosScale, ...]] = get_args(ChaosScale)
STORES: Final[tuple[Kept, ...]] = get_args(Kept)

_MAX_TIMES: Final = 100_000
_MAX_SECONDS: Final = 86_400.0
_MAX_BYTES: Final = 100_000
_TIMING: Final = ("kind", "at", "every", "times")
_PLANS: Final = files("forebay_proof.lab") / "plans"


class Scaled(Struct, frozen=True, forbid_unknown_fields=True):
    """A count for each scale."""

    quick: int
    nightly: int
    release: int

    def at(self, scale: ChaosScale) -> int:
        found: int = getattr(self, scale)
        return found


class LoadPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """`rate` jobs a second by so many producers; `mix` as `lab.draw` reads it.

    With `keys`, a call whose answer was lost is repeated; without, its outcome stays unknown.
    """

    rate: float = 50.0
    mix: str = "s1@0.1"
    batch: int = 5
    processes: int = 1
    keys: bool = True


class FleetPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """`commands` of `processes` workers each; 0 processes: each command does the work itself."""

    commands: int = 1
    processes: int = 2
    concurrency: int = 16
    claim_batch: int = 32
    lease: float = 2.0
    drain: float = 10.0
    ticks: bool = False
    """With a schedule that fires every second."""
    tallies: bool = False
    """Each process counts its claims, their latencies and its jobs."""


class ProofPlan(Struct, frozen=True, forbid_unknown_fields=True):
    acks: Scaled | int = 100
    share: float = 1.0
    recovery: float = 30.0
    drain: float = 60.0
    """Seconds after which what is left counts as stuck."""
    restart_p50: float | None = None
    restart_p99: float | None = None
    max_unstarted: int | None = None
    release_p99: float | None = None
    max_late_claim: float | None = None
    attempts_are_starts: bool = False


class Timed(Struct, frozen=True):
    """One fault of a plan: its kind, when, how often, and its parameters."""

    kind: str
    at: float
    every: float
    times: Scaled
    args: dict[str, Any]

    def moments(self, scale: ChaosScale, rng: Random, limit: float | None = None) -> list[float]:
        """Seconds after the warm-up, in order. With a limit: as many as fit into it."""
        moments = [self.at]
        while len(moments) < (_MAX_TIMES if limit is not None else self.times.at(scale)):
            moments.append(moments[-1] + self.every * rng.uniform(0.5, 1.5))
            if limit is not None and moments[-1] > limit:
                return moments[:-1]
        return moments if self.times.at(scale) else []


class ChaosPlan(Struct, frozen=True):
    name: str
    title: str
    stores: tuple[Kept, ...]
    faults: tuple[Timed, ...]
    seed: int = 1
    load: LoadPlan = LoadPlan()
    fleet: FleetPlan = FleetPlan()
    proof: ProofPlan = ProofPlan()
    through: Literal["proxy", "pooler"] | None = None
    left_out: str | None = None
    """What belongs to the fault and is not made, and why."""

    def acks(self, scale: ChaosScale) -> int:
        return _scaled(self.proof.acks).at(scale)

    def strikes(self, scale: ChaosScale) -> int:
        return sum(fault.times.at(scale) for fault in self.faults)


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file may hold at its top."""

    title: str
    stores: list[Kept]
    fault: list[dict[str, Any]]
    seed: int = 1
    load: LoadPlan = LoadPlan()
    fleet: FleetPlan = FleetPlan()
    proof: ProofPlan = ProofPlan()
    through: Literal["proxy", "pooler"] | None = None
    left_out: str | None = None


def names() -> list[str]:
    """The plans that come with Forebay."""
    return sorted(entry.name.removesuffix(".toml") for entry in _PLANS.iterdir() if entry.name.endswith(".toml"))


def matrix() -> list[str]:
    """The plans of single faults, f01 … f24: what `all` means."""
    return [name for name in names() if name[:1] == "f" and name[1:].isdigit()]


def find(word: str) -> ChaosPlan:
    """A plan by its name, or from a file."""
    path: Path | Traversable = Path(word) if word.endswith(".toml") else _PLANS / f"{word}.toml"
    if not path.is_file():
        remedy = f"use one of {', '.join(names())}, or a path that ends in .toml"
        raise Invalid("plan", f"there is none called {word!r}", remedy)
    data = path.read_bytes()
    if len(data) > _MAX_BYTES:
        raise Invalid("plan", f"{word} has {len(data)} bytes, the limit is {_MAX_BYTES}", "write less")
    return parse(data.decode("utf-8", errors="replace"), Path(word).stem)


def adjust(
    plan: ChaosPlan, *, seed: int | None = None, rate: float | None = None, every: float | None = None
) -> ChaosPlan:
    """The plan with another seed, another rate of its load, and another period of its faults, where given."""
    load, faults = plan.load, plan.faults
    if rate is not None:
        if not load.rate:
            raise Invalid("rate", f"plan {plan.name} has no load", "leave it out")
        load = msgspec.structs.replace(load, rate=rate)
    if every is not None:
        _number(f"plan {plan.name}", "every", every, 0.0, _MAX_SECONDS)
        faults = tuple(msgspec.structs.replace(fault, every=every) for fault in faults)
    changed = msgspec.structs.replace(plan, seed=plan.seed if seed is None else seed, load=load, faults=faults)
    _check(changed)
    return changed


def parse(text: str, name: str) -> ChaosPlan:
    try:
        written = msgspec.convert(tomllib.loads(text), _Written)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"plan {name}", f"it is not TOML: {error}", "correct that line") from None
    except msgspec.ValidationError as error:
        raise Invalid(f"plan {name}", str(error), "see docs/internals/chaos.md for what a plan may say") from None
    if not written.fault:
        raise Invalid(f"plan {name}: fault", "there is none", "add a [[fault]]")
    faults = tuple(_timed(name, number, fault) for number, fault in enumerate(written.fault, 1))
    plan = ChaosPlan(
        name,
        written.title,
        tuple(written.stores),
        faults,
        written.seed,
        written.load,
        written.fleet,
        written.proof,
        written.through,
        written.left_out,
    )
    _check(plan)
    return plan


def _timed(name: str, number: int, fault: dict[str, Any]) -> Timed:
    where = f"plan {name}: fault {number}"
    if not isinstance(fault.get("kind"), str):
        raise Invalid(where, "it has no kind", 'say which: kind = "kill_worker"')
    try:
        times = msgspec.convert(fault.get("times", 1), Scaled | int)
    except msgspec.ValidationError:
        remedy = "write a number, or {quick = 4, nightly = 50, release = 1000}"
        raise Invalid(f"{where}: times", f"{fault['times']!r} is no count", remedy) from None
    at, every = (_number(where, key, fault.get(key, 1.0), 0.0, _MAX_SECONDS) for key in ("at", "every"))
    for scale in SCALES:
        _number(where, f"times.{scale}", _scaled(times).at(scale), 0, _MAX_TIMES)
    args = {key: value for key, value in fault.items() if key not in _TIMING}
    return Timed(fault["kind"], at, every, _scaled(times), args)


def _check(plan: ChaosPlan) -> None:
    where = f"plan {plan.name}"
    if not plan.stores:
        raise Invalid(f"{where}: stores", "none is named", f"use some of {', '.join(STORES)}")
    if plan.load.rate and "memory" in plan.stores:
        raise Invalid(f"{where}: stores", "memory belongs to one process", "set load.rate to 0, or leave it out")
    bounds = {
        "load.rate": (plan.load.rate, 0, 1_000_000),
        "load.batch": (plan.load.batch, 1, 1_000),
        "load.processes": (plan.load.processes, 1, 64),
        "fleet.commands": (plan.fleet.commands, 1, 64),
        "fleet.processes": (plan.fleet.processes, 0, 256),
        "fleet.concurrency": (plan.fleet.concurrency, 1, 10_000),
        "fleet.claim_batch": (plan.fleet.claim_batch, 1, 1_000),
        "fleet.lease": (plan.fleet.lease, 0.1, 3_600),
        "fleet.drain": (plan.fleet.drain, 0, 3_600),
        "proof.share": (plan.proof.share, 0.01, 1.0),
        "proof.recovery": (plan.proof.recovery, 0.1, 3_600),
        "proof.drain": (plan.proof.drain, 1, 86_400),
        "proof.restart_p50": (plan.proof.restart_p50, 0.01, 3_600),
        "proof.restart_p99": (plan.proof.restart_p99, 0.01, 3_600),
        "proof.max_unstarted": (plan.proof.max_unstarted, 0, 1_000),
        "proof.release_p99": (plan.proof.release_p99, 0.01, 3_600),
        "proof.max_late_claim": (plan.proof.max_late_claim, 0.01, 60),
    }
    for key, (value, least, most) in bounds.items():
        if value is not None:
            _number(where, key, value, least, most)
    parse_mix(plan.load.mix)


def _number(where: str, key: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Invalid(f"{where}: {key}", f"{value!r} is no number in {least:g} … {most:g}", "choose one inside them")
    return value


def _scaled(count: Scaled | int) -> Scaled:
    return count if isinstance(count, Scaled) else Scaled(count, count, count)
