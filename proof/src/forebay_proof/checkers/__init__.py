"""What must hold of every history of every store, one file each. Pure functions: changes in, violations out.

    conservation  every accepted job ends once, in one state, and nothing ends that was never accepted
    owners        one holder at a time, fences only grow, and only the current holder settles
    attempts      attempts are counted exactly: never more than `max_attempts`, and none are left when a failure kills
    key_order     in a line one at a time, smallest unfinished id first
    shares        while all classes have work, each gets its weight, to one start
    early         nothing is handed out before it is due, nor after it has expired
    caps          no claim takes more than the slots that its gates have
    rates         in no stretch of time do more start than the burst and what it earned
    readers       a partition of a log has one owner a group at a time, and a new epoch with each

`check_all` runs them in this order. An empty list is a clean history. These read the changes of the in-process store;
`ledger` judges the records that every durable store keeps.
"""

from collections.abc import Collection, Sequence

from forebay.core.changeset import ChangeSet
from forebay_proof.checkers.attempts import attempts
from forebay_proof.checkers.conservation import conservation
from forebay_proof.checkers.early import early
from forebay_proof.checkers.gates import caps, rates
from forebay_proof.checkers.key_order import key_order
from forebay_proof.checkers.ledger import ledger
from forebay_proof.checkers.owners import owners
from forebay_proof.checkers.readers import readers
from forebay_proof.checkers.shares import shares
from forebay_proof.checkers.violation import Violation

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


def check_all(changes: Sequence[ChangeSet], *, drained: bool = False, dropped: Collection[str] = ()) -> list[Violation]:
    """`drained`: nothing may be open at the end. `dropped`: kinds of errors by which handlers give up at once."""
    return [
        *conservation(changes, drained=drained),
        *owners(changes),
        *attempts(changes, dropped=dropped),
        *key_order(changes),
        *shares(changes),
        *early(changes),
        *caps(changes),
        *rates(changes),
        *readers(changes),
    ]
