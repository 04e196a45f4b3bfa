"""Fan-out: a draft for a broker becomes one job in each queue that a route names, all or none."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.core.spec import QueueSpec


def copies(spec: QueueSpec, draft: Draft) -> list[Draft]:
    """The copies of a draft, in the order of the routes; the draft itself if the queue is not a broker.

    A queue gets one copy, however many of its routes match. A copy has all fields of the draft; its key counts in its
    own queue.
    """
    if spec.fan_out is None:
        return [draft]
    queues = dict.fromkeys(route.queue for route in spec.fan_out.routes if matches(route.kinds, draft.kind))
    if not queues and spec.fan_out.unmatched == "refuse":
        raise Invalid("kind", f"no route of {spec.name} matches {draft.kind}", 'add one, or set unmatched="drop"')
    return [replace(draft, queue=queue) for queue in queues]


def matches(pattern: str, kind: str) -> bool:
    """Compare word by word between dots; `*` matches one word, a final `**` any number of words, including none."""
    wanted, found = pattern.split("."), kind.split(".")
    if wanted[-1] == "**":
        wanted.pop()
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(word in ("*", given) for word, given in zip(wanted, found, strict=True))


def check_edges(spec: QueueSpec, others: Iterable[QueueSpec]) -> None:
    """Refuse a spec with a route or dead-letter target, its own or that of another queue, that cannot hold jobs."""
    known = {other.name: other for other in others if other.name != spec.name} | {spec.name: spec}
    for source in known.values():
        for edge, target in _edges(source):
            found = known.get(target)
            if spec.name in (source.name, target) and found is not None and (found.is_log or found.is_broker):
                reason = f"{edge} of {source.name} targets {target}, which holds no jobs"
                raise Invalid(spec.name, reason, "target a queue of jobs")


def _edges(spec: QueueSpec) -> Iterator[tuple[str, str]]:
    for route in spec.fan_out.routes if spec.fan_out else ():
        yield f"the route {route.kinds}", route.queue
    if spec.routing.dead is not None and spec.routing.dead.queue is not None:
        yield "the dead-letter edge", spec.routing.dead.queue
