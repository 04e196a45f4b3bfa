"""Gates: list them, override their slots, release jobs from a condition.

Queues can share a gate, and always share a condition. A key for some queues controls only the gates that hold back no
other queue (`security.visibility`); any other gate is a 404.
"""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.core.gate import checked_gate, condition_gate, gate_names
from forebay.core.limits import MAX_BATCH
from forebay.core.spec import QueueSpec
from forebay.explain import gates_page
from forebay.serve.actor import Actor, Role
from forebay.serve.api.jobs import NameFilter
from forebay.serve.api.messages import Answer, body_of, require_queue, sees_queue
from forebay.serve.api.openapi import described
from forebay.serve.api.requests import NAME_PATTERN, Release, SetGate
from forebay.serve.api.responses import Count
from forebay.serve.context import ServerContext
from forebay.serve.problems import not_found
from forebay.serve.security.auth import require_role
from forebay.serve.security.operator_log import record_action
from forebay.serve.security.visibility import controls_gate, sees_all
from forebay.store.protocol import GateUse

router = APIRouter(tags=["gates"])


class GateView(Struct, frozen=True):
    """A gate in use. `slots`: jobs that may run (for a rate: start) at once. `given`: the operator's override."""

    name: str
    slots: Count
    used: Count
    given: Count | None


class GatesView(Struct, frozen=True):
    """Continue with `after=next` until it is null."""

    gates: list[GateView]
    next: str | None


class GateSet(Struct, frozen=True):
    name: str
    slots: Count | None


class Released(Struct, frozen=True):
    """How many jobs passed the condition."""

    condition: str
    value: str | None
    released: Count


GateName = Annotated[str, Path(min_length=1, max_length=700)]
_set: Final = msgspec.json.Decoder(SetGate)
_release: Final = msgspec.json.Decoder(Release)


@router.get("/gates", **described(GatesView, problems=(404,)))
async def browse(
    request: Request,
    actor: Annotated[Actor, require_role(Role.VIEWER)],
    queue: NameFilter = None,
    after: Annotated[str, Query(max_length=700, pattern=r"^[^\x00]*$")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_BATCH)] = 100,
) -> Response:
    """Gates in use by name, of all queues or of one: slots, and how many are used."""
    context: ServerContext = request.app.state.context
    if queue is not None:
        require_queue(actor, queue)
    found, end = await context.call(_page, context, actor, queue, after, limit)
    views = [GateView(each.name, each.slots, each.used, each.given) for each in found]
    return Answer(GatesView(views, end))


@router.post("/gates/{name:path}", **described(GateSet, body=SetGate, sent={"slots": 20}, problems=(404,)))
async def put(request: Request, actor: Annotated[Actor, require_role(Role.OPERATOR)], name: GateName) -> Response:
    """Override a gate's slots; 0 closes it, null restores the number of the queue's spec."""
    context: ServerContext = request.app.state.context
    asked = await body_of(request, _set, context.settings.max_body)
    await _require_gate(context, actor, checked_gate(name))
    await context.call(context.store.set_gate, name, asked.slots)
    await record_action(context, actor, "gates set", name, slots=asked.slots)
    return Answer(GateSet(name, asked.slots))


@router.post(
    "/conditions/{name}/release",
    **described(Released, body=Release, sent={"count": 20}, problems=(404,)),
)
async def release(
    request: Request,
    actor: Annotated[Actor, require_role(Role.OPERATOR)],
    name: Annotated[str, Path(pattern=NAME_PATTERN)],
) -> Response:
    """Release the first jobs that wait for a condition; a surplus is not saved for later jobs."""
    context: ServerContext = request.app.state.context
    asked = await body_of(request, _release, context.settings.max_body)
    gate = condition_gate(name, asked.value)
    await _require_gate(context, actor, gate)
    passed: int = await context.call(context.store.release, name, asked.count, asked.value)
    await record_action(context, actor, "gates release", gate, passed=passed)
    return Answer(Released(name, asked.value, passed))


async def _require_gate(context: ServerContext, actor: Actor, name: str) -> None:
    if not controls_gate(actor, name, await context.call(context.store.specs)):
        raise not_found(f"gate {name}")


def _page(
    context: ServerContext, actor: Actor, queue: str | None, after: str, limit: int
) -> tuple[list[GateUse], str | None]:
    """One page of the gates that the actor may see, and the next `after`."""
    store = context.store
    if queue is None and sees_all(actor):
        found = store.gates(after, limit)
        return found, found[-1].name if len(found) == limit else None
    specs = store.specs()
    wanted = [spec for spec in specs if queue in (None, spec.name) and sees_queue(actor, spec.name)]
    if queue is not None and not wanted:
        wanted = [QueueSpec(name=queue)]
    page, end = gates_page(store, (name for spec in wanted for name in gate_names(spec)), after, limit)
    return [each for each in page if controls_gate(actor, each.name, specs)], end
