"""The verbs about gates that are not about one queue: letting some pass a condition, and telling what holds a job."""

from forebay.core.event import LetIn
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import AHEAD_MOST
from forebay.store.checks import check_ids, checked_condition
from forebay.store.memory.engine import TEND_LIMIT
from forebay.store.memory.jobs import JobVerbs
from forebay.store.memory.row import Row
from forebay.store.protocol import Hold


class GateVerbs(JobVerbs):
    """Release, hold, ahead."""

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        name = checked_condition(condition, count, value)
        with self._lock:
            now = self._begin()
            self._tend(now)
            rows = self._let_go(name, count, now)
            if rows:
                self._record(LetIn(now, name, [row.entry.id for row in rows]))
                self._index.passed(name, rows)
                self._tend(now, len(rows) + TEND_LIMIT)
                self._rouse()
            lsn = self._lsn
        self._settle_down(lsn)
        return len(rows)

    def hold(self, job_id: int) -> Hold | None:
        check_ids("hold", [job_id])
        with self._lock:
            now = self._begin()
            row = self._facts.rows.get(job_id)
            held = None if row is None or row.state is not State.WAITING else self._index.gates.holding(row, now)
            lsn = self._lsn
        self._settle_down(lsn)
        return held

    def ahead(self, job_id: int) -> int | None:
        check_ids("ahead", [job_id])
        with self._lock:
            self._begin()
            row = self._facts.rows.get(job_id)
            ready = row is not None and row.state is State.READY
            before = self._index.lines[row.entry.queue].ahead(row, AHEAD_MOST) if row is not None and ready else None
            lsn = self._lsn
        self._settle_down(lsn)
        return before

    def _let_go(self, name: str, count: int, now: Instant) -> list[Row]:
        """The first ones at the gate; those who are past their expiry die, and count for nobody."""
        rows: list[Row] = []
        while len(rows) < count and (some := self._index.gates.let_go(name, count - len(rows))):
            late = [row for row in some if row.entry.expires_at is not None and row.entry.expires_at <= now]
            if late:
                self._index.passed(name, late)
                self._let_expire(late, now)
            rows += [row for row in some if row.state is State.WAITING]
        return rows
