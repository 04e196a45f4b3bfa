"""Attempts: a claim costs one, a release gives it back, a redrive gives all back; no job has more than stamped.

A job that died of failures has used exactly `max_attempts`. Handlers may give up sooner (`Dropped`); the
ledger does not distinguish these deaths, so the caller names the kinds of errors by which handlers gave up.
"""

from collections.abc import Collection, Sequence

from forebay.core.changeset import ChangeSet
from forebay.core.ledger import Change
from forebay_proof.checkers.violation import Violation


def attempts(changes: Sequence[ChangeSet], *, dropped: Collection[str] = ()) -> list[Violation]:
    most: dict[int, int] = {}
    used: dict[int, int] = {}
    found: list[Violation] = []

    def report(place: int, job_id: int, message: str) -> None:
        found.append(Violation("attempts", place, job_id, message))

    for place, change in enumerate(changes):
        most.update((entry.id, entry.max_attempts) for entry in change.entries)
        used.update((entry.id, 0) for entry in change.entries)
        for each in change.jobs:
            for job_id in each.ids:
                spent, allowed = used.get(job_id, 0), most.get(job_id, 0)
                match each.change:
                    case Change.CLAIMED:
                        used[job_id] = spent + 1
                        if spent >= allowed:
                            report(place, job_id, f"attempt {spent + 1} of {allowed}")
                    case Change.RELEASED:
                        used[job_id] = spent - 1
                    case Change.REDRIVEN:
                        used[job_id] = 0
                    case Change.DIED:
                        kind = "" if each.error is None else each.error.kind
                        if kind not in dropped and spent != allowed:
                            report(place, job_id, f"died after {spent} of {allowed} attempts: {kind}")
                    case _:
                        pass
    return found
