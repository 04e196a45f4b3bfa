"""What holds due jobs back: look at gates, give them another number of slots, let some pass a condition.

A gate may be shared by queues, and a condition always may: a key for some queues touches only what holds back nobody
else (`security.reach`); for the others there is no such gate.
"""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.core.gate import checked_gate, condition_gate, gate_names
from forebay.core.limits import BATCH_MOST
from forebay.core.spec import QueueSpec
from forebay.explain import gates_page
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import Count
from forebay.serve.api.bodies import NAME_PATTERN, Release, SetGate
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, must_rule, rules
from forebay.serve.api.jobs import NameFilter
from forebay.serve.ground import Ground
from forebay.serve.problems import absent
from forebay.serve.security.acts import record_act
from forebay.serve.security.door import need
from forebay.serve.security.reach import sees_all, touches
from forebay.store.protocol import GateUse

router = APIRouter(tags=["gates"])


class GateView(Struct, frozen=True):
    """A gate in use. `slots`: what may run, or of a rate start, at once; `given`: the operator's number, or null."""

    name: str
    slots: Count
    used: Count
    given: Count | None


class GatesView(Struct, frozen=True):
    """Go on with `after=next`; null: that was all."""

    gates: list[GateView]
    next: str | None


class GateSet(Struct, frozen=True):
    name: str
    slots: Count | None


class Released(Struct, frozen=True):
    """So many passed the condition."""

    condition: str
    value: str | None
    released: Count


GateName = Annotated[str, Path(min_length=1, max_length=700)]
_set: Final = msgspec.json.Decoder(SetGate)
_release: Final = msgspec.json.Decoder(Release)


@router.get("/gates", **described(GatesView, problems=(404,)))
async def browse(
    request: Request,
    actor: Annotated[Actor, need(Role.VIEWER)],
    queue: NameFilter = None,
    after: Annotated[str, Query(max_length=700, pattern=r"^[^\x00]*$")] = "",
    limit: Annotated[int, Query(ge=1, le=BATCH_MOST)] = 100,
) -> Response:
    """Gates in use, by name and page by page: slots, slots held, jobs parked; of all queues, or of one."""
    ground: Ground = request.app.state.ground
    if queue is not None:
        must_rule(actor, queue)
    found, end = await ground.call(_looked, ground, actor, queue, after, limit)
    views = [GateView(each.name, each.slots, each.used, each.given) for each in found]
    return Answer(GatesView(views, end))


@router.post("/gates/{name:path}", **described(GateSet, body=SetGate, sent={"slots": 20}, problems=(404,)))
async def put(request: Request, actor: Annotated[Actor, need(Role.OPERATOR)], name: GateName) -> Response:
    """Give a gate another number of slots; 0 closes it, null goes back to what its jobs are stamped with."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _set, ground.settings.body_most)
    await _must_touch(ground, actor, checked_gate(name))
    await ground.call(ground.store.set_gate, name, asked.slots)
    await record_act(ground, actor, "gates set", name, slots=asked.slots)
    return Answer(GateSet(name, asked.slots))


@router.post(
    "/conditions/{name}/release",
    **described(Released, body=Release, sent={"count": 20}, problems=(404,)),
)
async def release(
    request: Request,
    actor: Annotated[Actor, need(Role.OPERATOR)],
    name: Annotated[str, Path(pattern=NAME_PATTERN)],
) -> Response:
    """Let the first ones that wait for a condition pass it, once and for good; nothing is saved up."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _release, ground.settings.body_most)
    gate = condition_gate(name, asked.value)
    await _must_touch(ground, actor, gate)
    passed: int = await ground.call(ground.store.release, name, asked.count, asked.value)
    await record_act(ground, actor, "gates release", gate, passed=passed)
    return Answer(Released(name, asked.value, passed))


async def _must_touch(ground: Ground, actor: Actor, name: str) -> None:
    if not touches(actor, name, await ground.call(ground.store.specs)):
        raise absent(f"gate {name}")


def _looked(
    ground: Ground, actor: Actor, queue: str | None, after: str, limit: int
) -> tuple[list[GateUse], str | None]:
    """What is there to be seen, and where to go on."""
    store = ground.store
    if queue is None and sees_all(actor):
        found = store.gates(after, limit)
        return found, found[-1].name if len(found) == limit else None
    specs = store.specs()
    wanted = [spec for spec in specs if queue in (None, spec.name) and rules(actor, spec.name)]
    if queue is not None and not wanted:
        wanted = [QueueSpec(name=queue)]
    page, end = gates_page(store, (name for spec in wanted for name in gate_names(spec)), after, limit)
    return [each for each in page if touches(actor, each.name, specs)], end
