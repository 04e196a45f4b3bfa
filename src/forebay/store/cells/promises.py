"""What a queue whose partitions are in several cells can promise; checked when it is declared.

A promise that one cell keeps by itself holds: order, caps, rates and merges by the field of the partition. What needs
the whole queue at once (a cap or a rate of the queue, shares, a bound, priorities) is refused, with the way out. So is
what queues in different cells would have to decide together: brokers, queues of dead letters, shared gates, conditions.
"""

from collections.abc import Iterable, Iterator

from forebay.core.errors import Invalid
from forebay.core.policy import AtMost, Fifo, InOrder, Moved, Rate, Term, Unbounded, Until, terms_of
from forebay.core.spec import QueueSpec
from forebay.store.cells.cell_map import CellMap, Placement

_ONE_CELL = "place the whole queue in one cell"


def check_promises(spec: QueueSpec, cells: CellMap, others: Iterable[QueueSpec]) -> None:
    """Refuse a spec that cells cannot keep."""
    placement = cells.placement(spec.name)
    if placement.is_divided:
        for what, way_out in _broken(spec, placement):
            where = f"its {len(placement.cells)} partitions by {placement.by} are in {', '.join(placement.distinct)}"
            raise Invalid(spec.name, f"{what}, but {where}", way_out)
    _check_edges(spec, cells)
    _check_shared(spec, cells, others)


def _broken(spec: QueueSpec, placement: Placement) -> Iterator[tuple[str, str]]:
    by = placement.by
    if spec.is_log:
        yield "a log has partitions of its own", "place the log in one cell"
    if not isinstance(spec.selection, Fifo):
        yield f"{type(spec.selection).__name__} orders the whole queue", f"use a queue for each class, or {_ONE_CELL}"
    if spec.share is not None:
        yield f"shares by {spec.share.by} count the whole queue", _ONE_CELL
    if not isinstance(spec.capacity, Unbounded | Moved):
        yield "its bound counts the whole queue", f"{_ONE_CELL}, or leave it unbounded"
    if spec.merge is not None and by != spec.merge.by:
        yield f"LatestWins merges by {spec.merge.by}", f'partition it by = "{spec.merge.by}"'
    if spec.unique is not None and by != "key" and (by == "id" or placement.keys == "queue"):
        yield "a key is unique in the whole queue", 'partition it by = "key", or say keys = "cell"'
    if spec.routing.dead is not None and spec.routing.dead.limit is not None:
        yield "it keeps a number of dead letters of the whole queue", "use DeadLetters(keep=…)"
    for term in terms_of(spec.eligibility):
        if term.per != by:
            yield _term(term), f'use per="{by}", or {_ONE_CELL}' if by in ("tenant", "subject") else _ONE_CELL


def _term(term: Term) -> str:
    of = "the whole queue" if term.per is None else f"each {term.per}"
    match term:
        case AtMost():
            return f"AtMost counts {of}"
        case Rate():
            return f"Rate counts {of}"
        case InOrder():
            return f"InOrder orders {of}"
        case Until():
            return f"Until({term.condition!r}) holds {of}"


def _check_edges(spec: QueueSpec, cells: CellMap) -> None:
    """A dead letter stays in the cell of its job, and the copies of a draft are accepted in one step."""
    homes = set(cells.homes(spec.name))
    dead = spec.routing.dead.queue if spec.routing.dead else None
    if dead is not None and not homes <= set(cells.homes(dead)):
        reason = f"its dead letters go to {dead!r}, which is not in {', '.join(sorted(homes))}"
        raise Invalid(spec.name, reason, "place both queues in the same cells")
    for route in spec.fan_out.routes if spec.fan_out else ():
        if cells.placement(route.queue) != cells.placement(spec.name):
            reason = f"it is a broker with a route to {route.queue!r}, which is in other cells"
            raise Invalid(spec.name, reason, "place the broker and the queues of its routes alike, in one cell")


def _check_shared(spec: QueueSpec, cells: CellMap, others: Iterable[QueueSpec]) -> None:
    names = set(shared_gates(spec))
    for other in others if names else ():
        if other.name != spec.name and cells.placement(other.name) != cells.placement(spec.name):
            for gate in names.intersection(shared_gates(other)):
                reason = f"it shares {gate} with {other.name!r}, which is in other cells"
                raise Invalid(spec.name, reason, "place the queues that share a gate alike")


def shared_gates(spec: QueueSpec) -> Iterator[str]:
    """Gates that other queues may have too."""
    for term in terms_of(spec.eligibility):
        match term:
            case AtMost(shared=str(name)):
                yield f"the cap {name}"
            case Rate(shared=str(name)):
                yield f"the rate {name}"
            case Until(condition):
                yield f"the condition {condition}"
            case _:
                pass
