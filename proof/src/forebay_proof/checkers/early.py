"""Never early: no job is made ready or handed out before it is due, and none is handed out after it has expired.

Due times come from the ledger itself: acceptance, retry, release and redrive each write a new one. A redrive lifts
the expiry.
"""

from collections.abc import Sequence

from forebay.core.changeset import PROMOTED, ChangeSet
from forebay.core.instant import Instant
from forebay.core.ledger import Change
from forebay.core.limits import MAX_INSTANT
from forebay_proof.checkers.violation import Violation


def early(changes: Sequence[ChangeSet]) -> list[Violation]:
    due: dict[int, Instant] = {}
    expires: dict[int, Instant] = {}
    found: list[Violation] = []
    for place, change in enumerate(changes):
        due.update((entry.id, entry.due_at) for entry in change.entries)
        expires.update((e.id, e.expires_at) for e in change.entries if e.expires_at is not None)
        for job_id, newer in ((merge.id, merge.newer) for merge in change.merges):
            if newer is not None:
                due[job_id] = newer.due_at or due.get(job_id, 0)
                expires[job_id] = newer.expires_at or MAX_INSTANT
        ready = [(entry.id, "accepted as ready") for entry in change.entries if entry.ready]
        for each in change.jobs:
            if each.change in (PROMOTED, Change.CLAIMED):
                ready += [(job_id, each.change) for job_id in each.ids]
            elif each.change in (Change.RETRIED, Change.RELEASED, Change.REDRIVEN):
                due.update(dict.fromkeys(each.ids, each.until))
            if each.change == Change.REDRIVEN:
                expires.update(dict.fromkeys(each.ids, MAX_INSTANT))
        for job_id, name in ready:
            if due.get(job_id, 0) > change.at:
                message = f"{name} {due[job_id] - change.at} µs before it is due"
                found.append(Violation("early", place, job_id, message))
            if name == Change.CLAIMED and expires.get(job_id, change.at + 1) <= change.at:
                message = f"claimed {change.at - expires[job_id]} µs after it expired"
                found.append(Violation("early", place, job_id, message))
    return found
