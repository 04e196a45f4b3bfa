"""Drafts from a source that repeats itself, and dead jobs that give way to new ones. See `protocol.Checkpoint`."""

from collections.abc import Sequence

from forebay.core.changeset import Tables
from forebay.core.entries import Ingested
from forebay.core.job import Draft, State
from forebay.core.record_builder import TEND
from forebay.store.memory.queues import QueueVerbs
from forebay.store.protocol import Checkpoint, Receipt, Tally


class FeedVerbs(QueueVerbs):
    """Exactly once, however often it comes."""

    def ingested(self, source: str) -> Checkpoint | None:
        with self._lock:
            self._begin()
            place = self._place(source)
            lsn = self._lsn
        self._settle_down(lsn)
        return place

    def ingest(
        self, source: str, before: Checkpoint | None, after: Checkpoint, drafts: Sequence[Draft]
    ) -> Tally | None:
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

    def replace_dead(self, drafts: dict[int, Draft]) -> dict[int, Receipt]:
        with self._lock:
            now = self._begin()
            rows = self._facts.rows
            dead = [row for job_id in drafts if (row := rows.get(job_id)) is not None and row.state is State.DEAD]
            ids = [row.entry.id for row in dead]
            receipts: dict[int, Receipt] = {}
            if dead:
                plan = self._intake.plan([drafts[job_id] for job_id in ids], now)
                receipts = dict(zip(ids, plan.receipts, strict=True))
                self._take_in(plan, now, "replace_dead", replaced=ids)
            lsn = self._lsn
        self._settle_down(lsn)
        return receipts

    def _place(self, source: str) -> Checkpoint | None:
        known = self._facts.feeds.get(source)
        return None if known is None else Checkpoint(known[0].batch, known[0].taken, known[0].digest)
