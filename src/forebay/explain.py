"""Why a job is where it is: what holds it, and when that may end."""

from forebay.core.gate import gates_for
from forebay.core.instant import Instant, to_datetime
from forebay.core.job import Draft, Job, State
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Backlog, Store

_SECOND = 1_000_000


def explain(store: Store, job_id: int) -> list[str]:
    """Sentences, the deciding one first. An unknown id is said to be so."""
    job = store.get([job_id])[0]
    if job is None:
        return [f"job {job_id} is unknown: it never existed, or it was done and removed, or purged"]
    spec = next((spec for spec in store.specs() if spec.name == job.queue), QueueSpec(name=job.queue))
    return [*reasons(job, spec, store.backlog([job.queue])[0], store.now()), spec.vector()]


def reasons(job: Job, spec: QueueSpec, backlog: Backlog, now: Instant, *, others: bool = True) -> list[str]:
    """The same for one who knows the job, its queue and the time; `others`: who may also hear of the others there."""
    lines = [f"job {job.id} ({job.kind}) of queue {job.queue} is {job.state.value}"]
    if backlog.paused_until is not None and not job.state.terminal:
        lines.append(f"the queue is paused until {to_datetime(backlog.paused_until).isoformat()}")
    match job.state:
        case State.WAITING:
            lines += _waiting(job, spec, now)
        case State.READY:
            beside = f"; {backlog.ready - 1} other jobs of the queue are ready too" if others else ""
            lines.append(f"it may be claimed at any time{beside}")
        case State.RUNNING:
            left = ((job.lease_until or 0) - now) / _SECOND
            lines.append(
                f"{job.owner} holds it, delivery {job.delivery}; the lease ends in {left:.1f} s unless renewed"
            )
        case State.DEAD:
            lines.append(f"it used {job.attempt} of {job.max_attempts} attempts; redrive it to give them back")
        case State.DONE | State.CANCELLED:
            lines.append("it has ended")
    return lines + [f"attempt {error.attempt} failed: {error.kind}: {error.message}" for error in job.errors]


def _waiting(job: Job, spec: QueueSpec, now: int) -> list[str]:
    if job.due_at > now:
        why = "its retry" if job.errors else "it"
        return [f"{why} is due in {(job.due_at - now) / _SECOND:.1f} s, at {to_datetime(job.due_at).isoformat()}"]
    stamp = Draft(job.kind, None, job.queue, tenant=job.tenant, subject=job.subject)
    gates = [
        f"{gate.name} ({'in order, one at a time' if gate.ordered else f'{gate.limit} slots'})"
        for gate in gates_for(spec, stamp)
    ]
    if gates:
        return [f"it is due and one of its gates is closed: {', '.join(gates)}"]
    return ["it is due and becomes ready with the next claim or promotion"]
