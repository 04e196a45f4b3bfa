"""The ten experiments, by their numbers: what is believed, what was measured, what that says, and what bounds it."""

from typing import Final

from forebay.core.errors import Invalid
from forebay_proof.lab.experiments import (
    e01_workers,
    e02_ceiling,
    e03_batches,
    e04_loss,
    e05_drain,
    e06_flapping,
    e07_poison,
    e08_scheduled,
    e09_shutdown,
    e10_renewal,
)
from forebay_proof.lab.experiments.base import Experiment

EXPERIMENTS: Final[tuple[Experiment, ...]] = tuple(
    module.EXPERIMENT
    for module in (
        e01_workers,
        e02_ceiling,
        e03_batches,
        e04_loss,
        e05_drain,
        e06_flapping,
        e07_poison,
        e08_scheduled,
        e09_shutdown,
        e10_renewal,
    )
)


def experiment(number: int) -> Experiment:
    for each in EXPERIMENTS:
        if each.number == number:
            return each
    raise Invalid("experiment", f"there is none of the number {number}", f"use 1 … {len(EXPERIMENTS)}")
