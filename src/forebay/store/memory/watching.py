"""Waiting for what becomes of jobs: until they have ended, or until their end is requested.

A watcher is known by what it waits for: a job by its id, an owner by its name. A change says whom it concerns
(`changes.topics`); they are woken, and look again.
"""

from collections.abc import Callable, Collection, Sequence
from threading import Event as Sleeper
from typing import TypeVar

from forebay.core.instant import Duration, Instant
from forebay.core.job import State
from forebay.core.lease import Fence
from forebay.store.memory.changes import Topic
from forebay.store.memory.engine import Engine

T = TypeVar("T")


class WatchVerbs(Engine):
    """Verbs that wait for jobs."""

    def wait_ended(self, ids: Sequence[int], span: Duration) -> list[int]:
        return self._watch(ids, span, lambda: [job_id for job_id in ids if self._has_ended(job_id)])

    def wait_cancel_requests(self, owner: str, span: Duration, known: Collection[Fence]) -> list[Fence]:
        return self._watch([owner], span, lambda: self._requests(owner, known))

    def _has_ended(self, job_id: int) -> bool:
        row = self._facts.rows.get(job_id)
        return row is None or row.state.terminal

    def _requests(self, owner: str, known: Collection[Fence]) -> list[Fence]:
        """Fences of jobs that this owner runs and whose end is requested; those that ended are forgotten here."""
        rows, asked, found = self._facts.rows, self._index.asked, []
        for job_id in list(asked):
            row = rows.get(job_id)
            if row is None or not row.cancel_requested or row.state.terminal:
                asked.discard(job_id)
            elif row.state is State.RUNNING and row.owner == owner and (job_id, row.delivery) not in known:
                found.append((job_id, row.delivery))
        return found

    def _watch(self, topics: Sequence[Topic], span: Duration, found: Callable[[], list[T]]) -> list[T]:
        """What is found, now or once something that concerns these topics happened; nothing: the time passed."""
        sleeper = Sleeper()
        end: Instant | None = None
        while True:
            with self._lock:
                now = self._begin()
                end = now + span if end is None else end
                answer, lsn = found(), self._lsn
                if not answer and now < end:
                    sleeper.clear()
                    for topic in topics:
                        self._watchers.setdefault(topic, set()).add(sleeper)
            if answer or now >= end:
                self._settle_down(lsn)
                return answer
            self._clock.wait(sleeper, end - now)
            with self._lock:
                for topic in topics:
                    watchers = self._watchers.get(topic, set())
                    watchers.discard(sleeper)
                    if not watchers:
                        self._watchers.pop(topic, None)
