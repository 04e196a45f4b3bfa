"""Checks about the order of claims."""

from collections.abc import Iterator

from forebay.core.changeset import ChangeSet, JobChange
from forebay.core.entries import LEADING
from forebay.core.job import State
from forebay.core.ledger import Change
from forebay.store.memory.changes import apply
from forebay.store.memory.facts import Facts
from forebay_proof.sim.case import Case


def taken_back_first(case: Case) -> Iterator[str]:
    """In a FIFO queue no fresh job of a lane is handed out while one is ready that was taken back or released."""
    facts = Facts()
    back: set[int] = set()
    for change in case.index.changes:
        for each in change.jobs:
            if each.change == Change.CLAIMED:
                yield from _passed(facts, change, each, back)
            if each.change in (Change.CLAIMED, Change.REDRIVEN):
                # One that is redriven died meanwhile, and comes back as a new job does.
                back.difference_update(each.ids)
        apply(facts, change)
        for each in change.jobs:
            if each.change == Change.RELEASED or (each.change == Change.RETRIED and each.keep_rank):
                back.update(each.ids)


def _passed(facts: Facts, change: ChangeSet, claimed: JobChange, back: set[int]) -> Iterator[str]:
    fresh: dict[object, int] = {}
    for row in (facts.rows[job_id] for job_id in claimed.ids):
        if row.entry.rank_timed == LEADING and not row.delivery and row.due_at <= row.enqueued_at:
            fresh[row.entry.queue, row.entry.cls, row.entry.gates] = row.entry.id
    for job_id in sorted(back.difference(claimed.ids)):
        found = facts.rows.get(job_id)
        if found is None or found.state is not State.READY or found.entry.rank_timed != LEADING:
            continue
        expires_at, lane = found.entry.expires_at, (found.entry.queue, found.entry.cls, found.entry.gates)
        if lane in fresh and (expires_at is None or expires_at > change.at):
            yield f"job {job_id} was taken back and ready at {change.at}, and job {fresh[lane]} was handed out"
