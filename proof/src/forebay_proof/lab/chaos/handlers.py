"""Faults of handlers: what the jobs themselves do to the process that runs them."""

from random import Random
from typing import Final, Literal

from forebay import State
from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.scene import Bite, Scene
from forebay_proof.load.handler_log import read_records

_MAX_ATTEMPTS: Final = 2
_ENDS: Final = {
    "exits": State.DEAD,
    "crashes": State.DEAD,
    "hungers": State.DEAD,
    "holds_the_interpreter": None,
    "leaks_threads": State.DONE,
    "eats_descriptors": State.DONE,
    "forks": State.DONE,
}
"""How a job of the kind ends; None: the fault may use up its attempts, or not."""


class KillBeforeAck(ChaosFault, frozen=True):
    """kill -9 between the effect and the acknowledgement: it runs again, and is acknowledged once."""

    jobs: int = 1

    def strike(self, scene: Scene, rng: Random) -> Bite:
        ids = scene.send("dies_after_effect", self.jobs)
        ends = scene.ended(ids)
        dead = [job.id for job in ends if job is not None and job.state is State.DEAD]
        if dead:
            scene.report_failure(f"jobs that were killed once are dead letters: {dead}")
        effects = [line for line in read_records(scene.effects) if line.job in set(ids)]
        twice = {line.job for line in effects if line.delivery == 1} & {
            line.job for line in effects if line.delivery > 1
        }
        return Bite(twice == set(ids), f"{len(twice)} of {len(ids)} had their effect, were killed and ran again")


class BadHandler(ChaosFault, frozen=True):
    """A handler that ends its process, starves it or wedges it. It gets what it deserves, the others lose nothing."""

    does: Literal["exits", "crashes", "hungers", "holds_the_interpreter", "leaks_threads", "eats_descriptors", "forks"]

    def strike(self, scene: Scene, rng: Random) -> Bite:
        (job_id,) = scene.send(self.does, max_attempts=_MAX_ATTEMPTS)
        (job,) = scene.ended([job_id], 60)
        state = State.DONE if job is None else job.state
        if (must := _ENDS[self.does]) is not None and state is not must:
            scene.report_failure(f"{self.does}: job {job_id} is {state.value} in the end, it must be {must.value}")
        if job is not None and job.state is State.DEAD and job.attempt != _MAX_ATTEMPTS:
            scene.report_failure(f"{self.does}: job {job_id} died after {job.attempt} of {_MAX_ATTEMPTS} attempts")
        runs = sum(line.job == job_id for line in read_records(scene.starts))
        return Bite(runs > 0, f"{self.does}: {runs} runs, {state.value} in the end")
