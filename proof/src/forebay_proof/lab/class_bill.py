"""The CPU bill of a job of each class of a mix, and what it says about the rate that the machine carries.

    trial = Trial(store="postgres", rate=2_000, seconds=20)
    bill = measure_class_bill(trial, cores=2, rounds=2, directory=folder, say=print)
    bill.mix.microseconds, bill.rate(), bill.lost()

Each class is a load of its own, at the rate of the trial, and the mix itself is one more beside them. CPU is of an
accepted job, with all of its attempts, and has what producer, workers and server take beside jobs: at a low rate that
is a large part of it. So `rate` is where the cores are full, not what is held: `forebay lab headline` shows that.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay_proof.lab.trial import Trial
from forebay_proof.load.mix import Mix

PARTS: Final = ("fleet", "producers", "server")


class ClassCost(Struct, frozen=True, kw_only=True):
    """Microseconds of CPU a job, by part; `share` is how many of all jobs are of this class."""

    name: str
    share: float
    cpu: dict[str, float]

    @property
    def microseconds(self) -> float:
        return sum(self.cpu.values())


class ClassBill(Struct, frozen=True, kw_only=True):
    """The classes of a mix, and the mix as it was measured in one load."""

    classes: list[ClassCost]
    measured: ClassCost
    cores: int

    @property
    def mix(self) -> ClassCost:
        """By the shares of its classes."""
        cpu = {part: sum(each.share * each.cpu[part] for each in self.classes) for part in PARTS}
        return ClassCost(name="sum of the classes", share=1.0, cpu=cpu)

    def rate(self, further: float = 0.0) -> float:
        """Jobs a second at which the cores are full, if a job takes so many microseconds more."""
        return 1e6 * self.cores / (self.mix.microseconds + further)

    @property
    def measured_rate(self) -> float:
        return 1e6 * self.cores / self.measured.microseconds

    def lost(self, share: float = 1.0) -> float:
        """Jobs a second less for one further microsecond of this share of the jobs."""
        return self.rate() - self.rate(share)


def measure_class_bill(
    trial: Trial, *, cores: int, rounds: int, directory: Path, say: Callable[[str], None]
) -> ClassBill:
    """`Invalid` if a load is not held at the rate of the trial."""

    def cost(name: str, share: float, mix: Mix) -> ClassCost:
        say(f"{name}: {rounds} × {trial.seconds:g} s at {trial.rate:g} jobs/s")
        found = [_cpu(replace(trial, mix=mix), directory / f"{name}-{number}") for number in range(rounds)]
        return ClassCost(
            name=name, share=share, cpu={part: statistics.median(each[part] for each in found) for part in PARTS}
        )

    whole = trial.mix
    classes = [cost(kind, share / 100, Mix(((kind, 100),), whole.scale)) for kind, share in whole.shares]
    return ClassBill(classes=classes, measured=cost(whole.name, 1.0, whole), cores=cores)


def _cpu(trial: Trial, directory: Path) -> dict[str, float]:
    outcome = trial.run(directory)
    if outcome.verdict.exit_code or not outcome.flat:
        first, last = outcome.depth
        reason = f"{outcome.verdict.answer}, {first:g} jobs open, then {last:g}"
        raise Invalid(
            "rate", f"{trial.rate:g} jobs/s of {trial.mix} are not held here: {reason}", "measure at a lower --rate"
        )
    return {part: 1e6 * outcome.cpu[part] / outcome.accepted_rate for part in PARTS}
