"""What an actor may see and control.

What an actor cannot see does not exist: a job of another queue or tenant gets the same 404 as an unknown one. What
belongs to a whole queue (its counts, its spec, its claims) is for actors who see all its tenants.
"""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from forebay.core.content import Conditions, holds
from forebay.core.gate import has_gate
from forebay.core.job import Job
from forebay.core.limits import CONTENT_SCAN
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor, Role
from forebay.serve.metrics.gates import gate_label
from forebay.serve.problems import not_found
from forebay.serve.security.redact import redact_job
from forebay.store.protocol import Query, Store

MAX_SCANNED: Final = 10_000
MAX_BYTES: Final = 8 * 1024 * 1024
_STEP: Final = 100

Found = tuple[list[Job], int, int | None]
"""Jobs, how many were scanned, and the id to continue after; None at the end."""


def sees_all(actor: Actor) -> bool:
    return actor.tenant is None and "*" in actor.queues


def sees_queue(actor: Actor, queue: str) -> bool:
    """Whether the actor sees the whole queue, with every tenant."""
    return actor.sees(queue, None)


def require_queue(actor: Actor, queue: str) -> None:
    if not sees_queue(actor, queue):
        raise not_found(f"queue {queue}")


def sees_job(actor: Actor, job: Job) -> bool:
    return actor.sees(job.home or job.queue, job.tenant)


def sees_secrets(actor: Actor) -> bool:
    """Whether payloads, results and errors are shown to this actor without redaction."""
    return actor.has(Role.PRODUCER) or actor.has(Role.WORKER)


def controls_gate(actor: Actor, gate: str, specs: Iterable[QueueSpec]) -> bool:
    """Whether the actor sees every queue whose jobs the gate may hold back.

    A gate that no known queue has (a condition that no spec names, a shared gate of jobs with an older spec) is for
    actors who see everything.
    """
    queues = {spec.name for spec in specs if has_gate(spec, gate)} | {gate_label(gate)[0]} - {""}
    if not queues:
        return sees_all(actor)
    return all(sees_queue(actor, queue) for queue in queues)


def hide_owner(actor: Actor, job: Job) -> Job:
    """The job without its worker's name for a tenant: a worker serves whole queues and belongs to no tenant."""
    return job if actor.tenant is None else replace(job, owner=None)


def narrowed(actor: Actor, query: Query) -> Query | None:
    """The query within what this actor sees; None: it sees nothing of it."""
    if query.queue is not None and not actor.reaches(query.queue):
        return None
    if actor.tenant is None:
        return query
    return replace(query, tenant=actor.tenant) if query.tenant in (None, actor.tenant) else None


def carries(actor: Actor, meta: Conditions, payload: Conditions, job: Job) -> bool:
    """Whether the job meets the conditions as this actor sees it, so that a search cannot find out a secret."""
    if not holds(job.meta, job.body, meta, payload):
        return False
    shown = job if sees_secrets(actor) else redact_job(job)
    return holds(shown.meta, shown.body, meta, payload)


def find(
    store: Store,
    actor: Actor,
    query: Query,
    after: int,
    limit: int,
    fits: Callable[[Job], bool] | None = None,
) -> Found:
    """Up to `limit` jobs that this actor sees and that fit. It blocks.

    Payloads may be large and a filter may match almost nothing, so it ends after `MAX_SCANNED` jobs or `MAX_BYTES` and
    returns where to continue.
    """
    wanted = narrowed(actor, query)
    found: list[Job] = []
    scanned = size = 0
    position: int | None = after if wanted is not None else None
    while wanted is not None and position is not None:
        page = store.browse(wanted, position, _STEP if fits is not None else min(_STEP, limit))
        scanned += CONTENT_SCAN if wanted.meta or wanted.payload else 0
        for job in page.jobs:
            scanned += 1
            if sees_job(actor, job) and (fits is None or fits(job)):
                found.append(job)
                size += len(job.body) + len(job.result_body or b"")
            if len(found) == limit or scanned >= MAX_SCANNED or size >= MAX_BYTES:
                return found, scanned, page.next if job is page.jobs[-1] else job.id
        position = page.next
        if scanned >= MAX_SCANNED:
            break
    return found, scanned, position
