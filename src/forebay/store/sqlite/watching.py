"""Waiting for what becomes of jobs: until they have ended, or until their end is requested."""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Final

from forebay.core.instant import Instant, Span
from forebay.core.lease import Fence
from forebay.core.limits import INSTANT_MOST
from forebay.store.sqlite.base import Base
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list

_UNFINISHED: Final = statement("unfinished")
_ASKED: Final = statement("asked")
_LOOK_FOR_REQUESTS: Final[Span] = 100_000
"""How often a worker looks whether other processes changed the file: it does so for as long as it runs jobs."""


class Watching(Base):
    """Verbs that wait for jobs."""

    def wait_ended(self, ids: Sequence[int], span: Span) -> list[int]:
        ended: list[int] = []

        def ready(reader: sqlite3.Connection) -> Instant:
            running = {job_id for (job_id,) in reader.execute(_UNFINISHED, (id_list(ids),))}
            ended[:] = [job_id for job_id in ids if job_id not in running]
            return 0 if ended else INSTANT_MOST

        self._sleepers.until_news_of(ids, self.now() + span, ready)
        return ended

    def wait_cancel_requests(self, owner: str, span: Span, known: Collection[Fence]) -> list[Fence]:
        asked: list[Fence] = []

        def ready(reader: sqlite3.Connection) -> Instant:
            asked[:] = [fence for fence in reader.execute(_ASKED, (owner,)) if fence not in known]
            return 0 if asked else INSTANT_MOST

        self._sleepers.until_news_of([owner], self.now() + span, ready, _LOOK_FOR_REQUESTS)
        return asked
