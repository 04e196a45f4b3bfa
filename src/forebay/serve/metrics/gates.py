"""Gates by what they hold back: those of one queue that look at one field are added up.

A gate may be one of a million, as one for each subject is, and its name may hold a subject or a tenant. So labels carry
the queue and the sort of gate, never the value: `cap`, `cap/tenant`, `rate`, `until/<condition>`; what queues share
has its own name, `cap/@<name>`. At most `GATES_MOST` gates are read, and a gauge says when there are more.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from forebay.core.limits import BATCH_MOST
from forebay.serve.metrics.names import OTHER
from forebay.store.protocol import GateUse, Store
from forebay.work.meter import Family, Labels, gauge

GATES_MOST: Final = 20_000
CONDITIONS_MOST: Final = 50

Sort = tuple[str, str]
"""A queue, empty for what holds back several, and what sort of gate it is there."""


class GateSum(Struct):
    """Gates of one sort. `full`: so many of them have no slot left."""

    gates: int = 0
    full: int = 0
    slots: int = 0
    used: int = 0

    def add(self, gate: GateUse) -> None:
        self.gates += 1
        self.full += gate.used >= gate.slots
        self.slots += gate.slots
        self.used += gate.used


class GatesSeen(Struct, frozen=True):
    """One look. `more`: there are gates that it has not counted."""

    sums: dict[Sort, GateSum] = {}
    more: bool = False


def sort_of(name: str) -> Sort:
    """As `core.gate` builds the names; none of its parts but the last may hold a slash."""
    sort, *rest = name.split("/", 3)
    match sort, rest:
        case "until", [condition, *_]:
            return "", f"until/{condition}"
        case "cap" | "rate", [shared, *per] if shared.startswith("@"):
            return "", "/".join([sort, shared, *per[:1]])
        case "cap" | "rate", [queue, per, _]:
            return queue, f"{sort}/{per}"
        case "cap" | "rate", [queue, *_]:
            return queue, sort
        case _:
            return "", OTHER


def gates_of(store: Store) -> GatesSeen:
    """A bounded look, in pages."""
    sums: dict[Sort, GateSum] = {}
    after, read = "", 0
    while read < GATES_MOST:
        page = store.gates(after, BATCH_MOST)
        for gate in page:
            sums.setdefault(sort_of(gate.name), GateSum()).add(gate)
        read += len(page)
        if len(page) < BATCH_MOST:
            return GatesSeen(sums)
        after = page[-1].name
    return GatesSeen(sums, more=bool(store.gates(after, 1)))


def families(seen: GatesSeen, label: Callable[[str], str]) -> Iterator[Family]:
    """Sums per label: queues beyond the cap, and conditions beyond theirs, are added up."""
    known = sorted(sort for queue, sort in seen.sums if not queue)[:CONDITIONS_MOST]
    together: dict[Labels, GateSum] = {}
    for (queue, sort), each in seen.sums.items():
        where, what = (label(queue), sort) if queue else ("", sort if sort in known else OTHER)
        whole = together.setdefault((("queue", where), ("gate", what)), GateSum())
        for field in GateSum.__struct_fields__:
            setattr(whole, field, getattr(whole, field) + getattr(each, field))
    states = [
        ((*labels, ("state", state)), float(count))
        for labels, each in together.items()
        for state, count in (("open", each.gates - each.full), ("full", each.full))
    ]
    yield gauge("forebay_gates", "Gates in use, by whether one more job may pass.", states)
    for field, told in (
        ("slots", "Slots of these gates; of a rate, what may start at once."),
        ("used", "Slots that running jobs use."),
    ):
        samples = [(labels, float(getattr(each, field))) for labels, each in together.items()]
        yield gauge(f"forebay_gate_{field}", told, samples)
    yield gauge("forebay_gates_uncounted", f"1: there are more than {GATES_MOST} gates.", [((), float(seen.more))])
