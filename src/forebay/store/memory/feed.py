"""Drafts from a source that repeats itself, and dead jobs that give way to new ones. See `store.feeding`."""

from collections.abc import Sequence

from forebay.core.changeset import Tables
from forebay.core.entries import Ingested
from forebay.core.job import Draft, State
from forebay.core.record_builder import TEND
from forebay.store.feeding import Place
from forebay.store.memory.queues import QueueVerbs
from forebay.store.protocol import Receipt, Tally


class FeedVerbs(QueueVerbs):
    """Exactly once, however often it comes."""

    def fed(self, source: str) -> Place | None:
        with self._lock:
            self._begin()
            place = self._place(source)
            lsn = self._lsn
        self._settle_down(lsn)
        return place

    def feed(self, source: str, before: Place | None, after: Place, drafts: Sequence[Draft]) -> Tally | None:
        with self._lock:
            now = self._begin()
            tally: Tally | None = None
            if self._place(source) == before:
                plan = self._intake.plan(drafts, now)
                fed = Ingested(source, after.batch, after.taken, after.digest)
                verb = "enqueue" if plan.is_new else TEND
                self._take_in(plan, now, verb, tables=Tables(feeds={source: fed}))
                tally = Tally.of(plan.receipts)
            lsn = self._lsn
        self._settle_down(lsn)
        return tally

    def mend(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        with self._lock:
            now = self._begin()
            rows = self._facts.rows
            dead = [row for job_id in drafts if (row := rows.get(job_id)) is not None and row.state is State.DEAD]
            ids = [row.entry.id for row in dead]
            receipts: dict[int, Receipt] = {}
            if dead:
                plan = self._intake.plan([drafts[job_id] for job_id in ids], now)
                receipts = dict(zip(ids, plan.receipts, strict=True))
                self._take_in(plan, now, "mend", replaced=ids)
            lsn = self._lsn
        self._settle_down(lsn)
        return receipts

    def _place(self, source: str) -> Place | None:
        known = self._facts.feeds.get(source)
        return None if known is None else Place(known[0].batch, known[0].taken, known[0].digest)
