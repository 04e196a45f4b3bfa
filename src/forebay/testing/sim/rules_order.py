"""Checks about the order of claims."""

from collections.abc import Iterator

from forebay.core.event import Claimed, Redriven, Released, Retried, SettledAll
from forebay.core.job import State
from forebay.core.rank import LEADING
from forebay.store.memory.facts import Facts
from forebay.testing.sim.case import Case


def taken_back_first(case: Case) -> Iterator[str]:
    """In a FIFO queue no fresh job of a lane is handed out while one is ready that was taken back or released."""
    facts = Facts()
    back: set[int] = set()
    for event in case.book.events:
        if isinstance(event, Claimed):
            yield from _passed(facts, event, back)
            back.difference_update(event.ids)
        if isinstance(event, Redriven):
            # It died meanwhile, and comes back as a new job does.
            back.difference_update(event.ids)
        facts.apply(event)
        if isinstance(event, SettledAll):
            back.update(ending.id for ending in event.endings if _goes_back(ending))


def _passed(facts: Facts, event: Claimed, back: set[int]) -> Iterator[str]:
    fresh: dict[object, int] = {}
    for row in (facts.rows[job_id] for job_id in event.ids):
        if row.entry.rank_timed == LEADING and not row.delivery and row.due_at <= row.enqueued_at:
            fresh[row.entry.queue, row.entry.cls, row.entry.gates] = row.entry.id
    for job_id in sorted(back.difference(event.ids)):
        found = facts.rows.get(job_id)
        if found is None or found.state is not State.READY or found.entry.rank_timed != LEADING:
            continue
        expires_at, lane = found.entry.expires_at, (found.entry.queue, found.entry.cls, found.entry.gates)
        if lane in fresh and (expires_at is None or expires_at > event.at):
            yield f"job {job_id} was taken back and ready at {event.at}, and job {fresh[lane]} was handed out"


def _goes_back(ending: object) -> bool:
    return (isinstance(ending, Retried) and ending.keep_rank) or (isinstance(ending, Released) and ending.leads)
