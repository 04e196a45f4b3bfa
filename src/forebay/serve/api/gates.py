"""Gates: list them, override their slots, release jobs from a condition.

Queues can share a gate, and always share a condition. A key for some queues controls only the gates that hold back no
other queue (`security.visibility`); any other gate is a 404.
"""

from typing import Annotated

from fastapi import Path, Query

from forebay.core.gate import checked_gate, condition_gate, gate_names
from forebay.core.limits import MAX_BATCH
from forebay.core.spec import QueueSpec
from forebay.explain import gates_page
from forebay.serve.actor import Actor
from forebay.serve.api.requests import ReleaseJobs, SetGate
from forebay.serve.api.responses import GateSet, GatesView, GateView, Released
from forebay.serve.api.routing import ContextDep, JsonBody, NameFilter, OperatorActor, PathName, ViewerActor, api_router
from forebay.serve.api.schema import problems
from forebay.serve.problems import not_found
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.visibility import controls_gate, require_queue, sees_all, sees_queue
from forebay.store.protocol import GateUse, Store

router = api_router("gates")

GateName = Annotated[str, Path(min_length=1, max_length=700)]


@router.get("/gates", responses=problems(404))
def browse(
    context: ContextDep,
    actor: ViewerActor,
    queue: NameFilter = None,
    after: Annotated[str, Query(max_length=700, pattern=r"^[^\x00]*$")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_BATCH)] = 100,
) -> GatesView:
    """Gates in use by name, of all queues or of one: slots, how many are used, and jobs parked there."""
    if queue is not None:
        require_queue(actor, queue)
    found, end = _page(context.store, actor, queue, after, limit)
    return GatesView([GateView(each.name, each.slots, each.used, each.given, each.parked) for each in found], end)


@router.post("/gates/{name:path}", responses=problems(404))
def put(context: ContextDep, actor: OperatorActor, body: JsonBody[SetGate], name: GateName) -> GateSet:
    """Override a gate's slots; 0 closes it, null restores the number of the queue's spec."""
    _require_gate(context.store, actor, checked_gate(name))
    context.store.set_gate(name, body.slots)
    record_action(context.store, actor.name, "gates set", name, slots=body.slots)
    return GateSet(name, body.slots)


@router.post("/conditions/{name}/release", responses=problems(404))
def release(context: ContextDep, actor: OperatorActor, body: JsonBody[ReleaseJobs], name: PathName) -> Released:
    """Release the first jobs that wait for a condition; a surplus is not saved for later jobs."""
    gate = condition_gate(name, body.value)
    _require_gate(context.store, actor, gate)
    passed = context.store.release(name, body.count, body.value)
    record_action(context.store, actor.name, "gates release", gate, passed=passed)
    return Released(name, body.value, passed)


def _require_gate(store: Store, actor: Actor, name: str) -> None:
    if not controls_gate(actor, name, store.specs()):
        raise not_found(f"gate {name}")


def _page(store: Store, actor: Actor, queue: str | None, after: str, limit: int) -> tuple[list[GateUse], str | None]:
    """One page of the gates that the actor may see, and the next `after`."""
    if queue is None and sees_all(actor):
        found = store.gates(after, limit)
        return found, found[-1].name if len(found) == limit else None
    specs = store.specs()
    wanted = [spec for spec in specs if queue in (None, spec.name) and sees_queue(actor, spec.name)]
    if queue is not None and not wanted:
        wanted = [QueueSpec(name=queue)]
    page, end = gates_page(store, (name for spec in wanted for name in gate_names(spec)), after, limit)
    return [each for each in page if controls_gate(actor, each.name, specs)], end
