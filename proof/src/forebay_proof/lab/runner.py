"""Cases one after the other: what is done already is left out, what fails is reported and the next one goes on.

A case that ends is in the results, by a rename; so a run that was killed goes on where it stopped. The estimate of the
time left is that of the definitions, corrected by how long the cases so far have really taken.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from forebay_proof.lab.experiments.base import STORES, Experiment, ExperimentCase, ExperimentScale
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.lab.results import Results
from forebay_proof.servers.process import ServerUnavailable

SEED: Final = 7


class RunStep(Struct, frozen=True):
    experiment: Experiment
    case: ExperimentCase
    round: int

    @property
    def key(self) -> tuple[str, str, int]:
        return name_of(self.experiment), self.case.name, self.round

    def __str__(self) -> str:
        rounds = f", round {self.round} of {self.case.rounds}" if self.case.rounds > 1 else ""
        return f"{self.experiment.number} {self.experiment.title}: {self.case.name}{rounds}"


class Remaining(Struct, frozen=True):
    """How far it has come: steps that are over, of how many, and the seconds that the others will take."""

    done: int
    steps: int
    seconds: float


def name_of(experiment: Experiment) -> str:
    """In the results."""
    return f"e{experiment.number:02}"


def steps_of(
    experiments: Iterable[Experiment], scale: ExperimentScale, stores: Sequence[str] = STORES
) -> list[RunStep]:
    """Rounds of all cases before the next round, so that a machine that changes its mood changes it for all."""
    made: list[RunStep] = []
    for experiment in experiments:
        cases = [case for case in experiment.cases(scale) if case.store in stores]
        for number in range(1, max((case.rounds for case in cases), default=0) + 1):
            made += [RunStep(experiment, case, number) for case in cases if number <= case.rounds]
    return made


def results_at(directory: Path, scale: ExperimentScale, seed: int) -> Results:
    """Each scale has a folder of its own: the same case is another measurement there."""
    return Results(directory / scale, seed=seed, facts={"scale": scale})


class ExperimentRunner:
    def __init__(
        self,
        results: Results,
        seed: int,
        say: Callable[[str], None],
        begin: Callable[[RunStep, Remaining], None] | None = None,
    ) -> None:
        self._results = results
        self._seed = seed
        self._say = say
        self._begin = begin

    def run(self, steps: Sequence[RunStep]) -> list[str]:
        """What failed, in words."""
        todo = [step for step in steps if not self._results.done(*step.key)]
        if len(todo) < len(steps):
            self._say(f"{len(steps) - len(todo)} of {len(steps)} are done already")
        failed: list[str] = []
        spent = planned = 0.0
        for place, step in enumerate(todo):
            pace = (spent + 5) / (planned + 5)
            left = pace * sum(each.case.seconds for each in todo[place:])
            if self._begin is not None:
                self._begin(step, Remaining(len(steps) - len(todo) + place, len(steps), left))
            began = time.monotonic()
            reason = self._measured(step)
            took = time.monotonic() - began
            spent, planned = spent + took, planned + step.case.seconds
            if reason is None:
                self._say(f"{step}: {took:.0f} s")
            else:
                failed.append(f"{step}: {reason}")
                self._say(f"failed: {failed[-1]}")
        return failed

    def _measured(self, step: RunStep) -> str | None:
        """Why it failed, if it did."""
        key = step.key
        try:
            with Stage(*key[:1], step.case, step.round, self._seed, self._results, self._say) as stage:
                step.experiment.run(step.case, stage)
        except ServerUnavailable:
            raise
        except Exception as error:
            # Whatever a case met, the others may still be measured; it is reported, and the command fails.
            self._results.drop(*key)
            return f"{type(error).__name__}: {error}"
        self._results.finish(*key)
        return None
