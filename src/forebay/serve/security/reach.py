"""How far an actor reaches into what it shares with others: gates, and the workers that run its jobs."""

from collections.abc import Iterable

from msgspec.structs import replace

from forebay.core.gate import has_gate
from forebay.core.job import Job
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor
from forebay.serve.metrics.gates import sort_of


def sees_all(actor: Actor) -> bool:
    return actor.tenant is None and "*" in actor.queues


def touches(actor: Actor, gate: str, specs: Iterable[QueueSpec]) -> bool:
    """Whether all whom the gate may hold back are this actor's: every queue whose jobs may be stamped with it.

    What no queue is known for (a condition of nobody, a shared word of jobs of an older spec) is only for those who
    see everything.
    """
    queues = {spec.name for spec in specs if has_gate(spec, gate)} | {sort_of(gate)[0]} - {""}
    if not queues:
        return sees_all(actor)
    return all(actor.sees(queue, None) for queue in queues)


def as_seen(actor: Actor, job: Job) -> Job:
    """The job without the name of its worker for a tenant: workers serve queues, and no tenant has any of its own."""
    return job if actor.tenant is None else replace(job, owner=None)
