"""What must hold of every history of every store, one file each. Pure functions: ledger in, violations out.

    conservation  every accepted job ends once, in one state, and nothing ends that was never accepted
    owners        one holder at a time, fences only grow, and only the current holder settles
    attempts      lives are counted exactly: never more than `max_attempts`, and none are left when a failure kills
    key_order     in a line one at a time, smallest unfinished id first
    shares        while all classes have work, each gets its weight, to one start
    early         nothing is handed out before it is due, nor after it has expired
    caps          no claim takes more than the slots that its gates have
    rates         in no stretch of time do more start than the burst and what it earned
    readers       a partition of a log has one owner a group at a time, and a new epoch with each

`check_all` runs them in this order. An empty list is a clean history. These read the events of the in-process store;
`ledger` judges the records that every durable store keeps.
"""

from collections.abc import Collection, Sequence

from forebay.core.event import Event
from forebay.testing.checkers.attempts import attempts
from forebay.testing.checkers.conservation import conservation
from forebay.testing.checkers.early import early
from forebay.testing.checkers.gates import caps, rates
from forebay.testing.checkers.key_order import key_order
from forebay.testing.checkers.ledger import ledger
from forebay.testing.checkers.owners import owners
from forebay.testing.checkers.readers import readers
from forebay.testing.checkers.shares import shares
from forebay.testing.checkers.violation import Violation

__all__ = [
    "Violation",
    "attempts",
    "caps",
    "check_all",
    "conservation",
    "early",
    "key_order",
    "ledger",
    "owners",
    "rates",
    "readers",
    "shares",
]


def check_all(events: Sequence[Event], *, drained: bool = False, dropped: Collection[str] = ()) -> list[Violation]:
    """`drained`: nothing may be open at the end. `dropped`: kinds of errors by which handlers give up at once."""
    return [
        *conservation(events, drained=drained),
        *owners(events),
        *attempts(events, dropped=dropped),
        *key_order(events),
        *shares(events),
        *early(events),
        *caps(events),
        *rates(events),
        *readers(events),
    ]
