"""Gate metrics: the gates of one queue and one field are added up.

A queue may have a million gates, such as one per subject, and a gate's name may hold a subject or a tenant. Labels
therefore carry the queue and the type of gate, never the value: `cap`, `cap/tenant`, `rate`, `until/<condition>`; a
shared gate has its own name, `cap/@<name>`. At most `MAX_GATES` gates are read, and a gauge shows when there are more.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from forebay.core.limits import MAX_BATCH, MAX_PARKED
from forebay.serve.metrics.tally import OTHER
from forebay.store.protocol import GateUse, Store
from forebay.work.metrics import Family, Labels, gauge

MAX_GATES: Final = 20_000
MAX_CONDITIONS: Final = 50

GATE_FIELDS: Final = {
    "slots": "Slots of these gates; for a rate, the burst.",
    "used": "Slots that running jobs use.",
    "parked": f"Ready jobs whose lanes are parked at these gates; up to {MAX_PARKED:,} are counted a gate.",
}
"""The sums of `GateSum` that are metrics of their own."""

GateLabel = tuple[str, str]
"""A queue, empty for a shared gate, and the type of gate."""


class GateSum(Struct):
    """The gates of one label. `full`: how many of them have no free slot."""

    gates: int = 0
    full: int = 0
    slots: int = 0
    used: int = 0
    parked: int = 0

    def add(self, gate: GateUse) -> None:
        self.gates += 1
        self.full += gate.used >= gate.slots
        self.slots += gate.slots
        self.used += gate.used
        self.parked += gate.parked


class GateSums(Struct, frozen=True):
    """One reading. `more`: there are gates that it has not counted."""

    sums: dict[GateLabel, GateSum] = {}
    more: bool = False


def gate_label(name: str) -> GateLabel:
    """The label of a gate by its name, as `core.gate` builds it; only the last part may hold a slash."""
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


def sum_gates(store: Store) -> GateSums:
    """Read up to `MAX_GATES` gates, page by page."""
    sums: dict[GateLabel, GateSum] = {}
    after, read = "", 0
    while read < MAX_GATES:
        page = store.gates(after, MAX_BATCH)
        for gate in page:
            sums.setdefault(gate_label(gate.name), GateSum()).add(gate)
        read += len(page)
        if len(page) < MAX_BATCH:
            return GateSums(sums)
        after = page[-1].name
    return GateSums(sums, more=bool(store.gates(after, 1)))


def families(seen: GateSums, label: Callable[[str], str]) -> Iterator[Family]:
    """Sums per label; queues and conditions beyond their label limits are added up."""
    known = sorted(sort for queue, sort in seen.sums if not queue)[:MAX_CONDITIONS]
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
    yield gauge("forebay_gates", "Gates in use, by whether they admit one more job.", states)
    for field, text in GATE_FIELDS.items():
        samples = [(labels, float(getattr(each, field))) for labels, each in together.items()]
        yield gauge(f"forebay_gate_{field}", text, samples)
    yield gauge("forebay_gates_uncounted", f"1: there are more than {MAX_GATES} gates.", [((), float(seen.more))])
