"""What an actor may see and control of what it shares with others: gates, and the workers that run its jobs."""

from collections.abc import Iterable

from msgspec.structs import replace

from forebay.core.gate import has_gate
from forebay.core.job import Job
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.metrics.gates import gate_label


def sees_all(actor: Actor) -> bool:
    return actor.tenant is None and "*" in actor.queues


def controls_gate(actor: Actor, gate: str, specs: Iterable[QueueSpec]) -> bool:
    """Whether the actor sees every queue whose jobs the gate may hold back.

    A gate that no known queue has (a condition that no spec names, a shared gate of jobs with an older spec) is for
    actors who see everything.
    """
    queues = {spec.name for spec in specs if has_gate(spec, gate)} | {gate_label(gate)[0]} - {""}
    if not queues:
        return sees_all(actor)
    return all(actor.sees(queue, None) for queue in queues)


def hide_owner(actor: Actor, job: Job) -> Job:
    """The job without its worker's name for a tenant: a worker serves whole queues and belongs to no tenant."""
    return job if actor.tenant is None else replace(job, owner=None)
