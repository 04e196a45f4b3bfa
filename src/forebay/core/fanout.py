"""A broker holds nothing: a draft that comes to it becomes one job in each queue that a route leads to, all or none."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.core.spec import QueueSpec


def copies(spec: QueueSpec, draft: Draft) -> list[Draft]:
    """The drafts that take the place of this one, in the order of the routes; the draft itself if there is no broker.

    A queue gets one copy, however many of its routes match. Each copy has all that the draft has, its key too, which
    counts in the copy's own queue.
    """
    if spec.fan_out is None:
        return [draft]
    queues = dict.fromkeys(route.queue for route in spec.fan_out.routes if matches(route.kinds, draft.kind))
    if not queues and spec.fan_out.unmatched == "refuse":
        raise Invalid("kind", f"no route of {spec.name} is for {draft.kind}", 'add one, or say unmatched="drop"')
    return [replace(draft, queue=queue) for queue in queues]


def matches(pattern: str, kind: str) -> bool:
    """Word by word between the dots; `*` is any word, a last `**` any number of them, none included."""
    wanted, found = pattern.split("."), kind.split(".")
    if wanted[-1] == "**":
        wanted.pop()
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(word in ("*", given) for word, given in zip(wanted, found, strict=True))


def check_edges(spec: QueueSpec, others: Iterable[QueueSpec]) -> None:
    """Edges lead to queues that hold jobs: refuse a spec that leads elsewhere, or that others lead to and may not."""
    known = {other.name: other for other in others if other.name != spec.name} | {spec.name: spec}
    for source in known.values():
        for edge, target in _edges(source):
            found = known.get(target)
            if spec.name in (source.name, target) and found is not None and (found.is_log or found.is_broker):
                reason = f"{edge} of {source.name} leads to {target}, which holds no jobs"
                raise Invalid(spec.name, reason, "lead it to a queue")


def _edges(spec: QueueSpec) -> Iterator[tuple[str, str]]:
    for route in spec.fan_out.routes if spec.fan_out else ():
        yield f"the route {route.kinds}", route.queue
    if spec.routing.dead is not None and spec.routing.dead.queue is not None:
        yield "the dead-letter edge", spec.routing.dead.queue
