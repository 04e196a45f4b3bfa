"""The guarantees that have a price, each as a spec and what its jobs need. All limits are wide enough to hold nothing:
what is measured is the bookkeeping, not the waiting that was asked for."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from forebay.core.instant import hours, seconds
from forebay.core.policy import AtMost, Bounded, Fair, InOrder, Priority, Rate
from forebay.core.spec import QueueSpec

_TENANTS: Final = 10
_SUBJECTS: Final = 200
_ROOM: Final = 1_000_000


class Guarantee(Struct, frozen=True):
    """`axes` of the queue's spec, and the fields of its nth draft."""

    name: str
    promise: str
    axes: dict[str, Any]
    fields: Callable[[int], dict[str, Any]]

    def spec(self, queue: str) -> QueueSpec:
        return QueueSpec(name=queue, **self.axes)


PLAIN: Final = Guarantee("plain", "fifo, at least once", {}, lambda _: {})
UNLIKE: Final = Guarantee("unlike", "none, and no two neighbours alike", {}, lambda n: {"max_attempts": 24 + n % 2})
"""A store may keep neighbours that are alike in one row; real jobs seldom are."""

GUARANTEES: Final[dict[str, Guarantee]] = {
    each.name: each
    for each in (
        UNLIKE,
        Guarantee("fair", "tenants take turns", {"share": Fair()}, lambda n: {"tenant": f"t{n % _TENANTS}"}),
        Guarantee("fair_500", "500 tenants take turns", {"share": Fair()}, lambda n: {"tenant": f"t{n % 500}"}),
        Guarantee(
            "rate",
            "at most so many starts in a time",
            {"eligibility": Rate(10_000, seconds(1), burst=_ROOM)},
            lambda _: {},
        ),
        Guarantee(
            "order",
            "one at a time per subject, in order",
            {"eligibility": InOrder()},
            lambda n: {"subject": f"s{n % _SUBJECTS}"},
        ),
        Guarantee("cap", "at most so many at once", {"eligibility": AtMost(_ROOM)}, lambda _: {}),
        Guarantee(
            "cap_200",
            "at most so many at once for each of 200 subjects",
            {"eligibility": AtMost(_ROOM, per="subject")},
            lambda n: {"subject": f"s{n % _SUBJECTS}"},
        ),
        Guarantee(
            "cap_5000",
            "the same for 5,000 subjects",
            {"eligibility": AtMost(_ROOM, per="subject")},
            lambda n: {"subject": f"s{n % 5_000}"},
        ),
        Guarantee("key", "the same key is the same job", {"key_window": hours(1)}, lambda n: {"key": f"k{n}"}),
        Guarantee("bounded", "never more than so many", {"capacity": Bounded(_ROOM)}, lambda _: {}),
        Guarantee("priority", "the highest goes first", {"selection": Priority()}, lambda n: {"priority": n % 10}),
    )
}
