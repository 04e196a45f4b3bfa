"""Conservation: every accepted job ends in exactly one of done, dead, cancelled or still open.

Found here: a job accepted twice, an event about a job that was never accepted or is gone already, a change that its
state does not allow (a claim of something done, a redrive of something alive), and, after a drain, what is still open.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from forebay.core.changeset import PASSED, PROMOTED, WITHDRAWN, ChangeSet
from forebay.core.job import State
from forebay.core.ledger import Change
from forebay_proof.checkers.violation import Violation

_WAITING, _READY, _RUNNING = State.WAITING, State.READY, State.RUNNING
_UNHELD, _HELD = (_WAITING, _READY), (_RUNNING,)

_MOVES: Final[Mapping[str, tuple[Collection[State], State | None]]] = {
    PROMOTED: ((_WAITING,), _READY),
    WITHDRAWN: (_UNHELD, _WAITING),
    PASSED: (_UNHELD, _READY),
    Change.MERGED: (_UNHELD, _WAITING),
    Change.CLAIMED: (_UNHELD, _RUNNING),
    Change.EXTENDED: (_HELD, _RUNNING),
    Change.CANCEL_REQUESTED: (_HELD, _RUNNING),
    Change.ACKED: (_HELD, State.DONE),
    Change.RETRIED: (_HELD, _WAITING),
    Change.RELEASED: (_HELD, _WAITING),
    Change.DIED: (_HELD, State.DEAD),
    Change.DISCARDED: (_HELD, State.CANCELLED),
    Change.CANCELLED: (_UNHELD, State.CANCELLED),
    Change.EXPIRED: (_UNHELD, State.DEAD),
    Change.SHED: (_UNHELD, State.DEAD),
    Change.REDRIVEN: ((State.DEAD,), _WAITING),
    Change.PURGED: ((State.DONE, State.DEAD, State.CANCELLED), None),
}
"""The states that a job may come from, and where it goes; None: it is gone."""


def conservation(changes: Sequence[ChangeSet], *, drained: bool = False) -> list[Violation]:
    states: dict[int, State | None] = {}
    found: list[Violation] = []
    for place, change in enumerate(changes):
        for entry in change.entries:
            if entry.id in states:
                found.append(Violation("conservation", place, entry.id, "accepted twice"))
            states[entry.id] = _READY if entry.ready else _WAITING
        moves = [(Change.MERGED, merge.id, 0) for merge in change.merges]
        for name, job_id, until in [*moves, *((e.change, job_id, e.until) for e in change.jobs for job_id in e.ids)]:
            allowed, state = _MOVES[name]
            was = states.get(job_id)
            if was not in allowed:
                known = (was or "gone") if job_id in states else "never accepted"
                message = f"{name} finds it {known}, not {' or '.join(allowed)}"
                found.append(Violation("conservation", place, job_id, message))
            states[job_id] = None if state in (State.DONE, State.CANCELLED) and not until else state
    if drained:
        still = [(job_id, state) for job_id, state in states.items() if state in (_WAITING, _READY, _RUNNING)]
        found += [
            Violation("conservation", len(changes), job_id, f"still {state} at the end") for job_id, state in still
        ]
    return found
