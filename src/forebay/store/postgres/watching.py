"""Waiting for what becomes of jobs: until they have ended, or until their end is requested."""

from collections.abc import Collection, Sequence
from typing import Final

from forebay.core.instant import Instant, Span
from forebay.core.lease import Fence
from forebay.core.limits import INSTANT_MOST
from forebay.store.postgres.claims import Claims
from forebay.store.postgres.holders import Holder
from forebay.store.postgres.queries import statement
from forebay.store.postgres.waiting import ending_of, requests_to

_UNFINISHED: Final = statement("unfinished")
_CHANGES: Final = "SELECT changes FROM forebay.holder WHERE id = %s"
_ASKED: Final = statement("asked")


class Watching(Claims):
    """Verbs that wait for jobs."""

    def wait_ended(self, ids: Sequence[int], span: Span) -> list[int]:
        ended: list[int] = []

        def ready() -> Instant:
            running = {job_id for (job_id,) in self._server.query(_UNFINISHED, (list(ids), list(ids)))}
            ended[:] = [job_id for job_id in ids if job_id not in running]
            return 0 if ended else INSTANT_MOST

        end = self.now() + span
        self._sleepers.until_news_of([ending_of(job_id) for job_id in ids], end, ready)
        return ended

    def wait_cancel_requests(self, owner: str, span: Span, known: Collection[Fence]) -> list[Fence]:
        holder = self._holders.get(owner)
        end = self.now() + span
        asked: list[Fence] = []

        def ready() -> Instant:
            if holder is not None:
                asked[:] = [fence for fence in self._requests(holder) if fence not in known]
            return 0 if asked else INSTANT_MOST

        topics = [] if holder is None else [requests_to(holder.id)]
        self._sleepers.until_news_of(topics, end, ready)
        return asked

    def _requests(self, holder: Holder) -> list[Fence]:
        """Which of the jobs in its hands are to end. They are looked at when somebody has touched some of them."""
        held = holder.book()
        changes = self._server.query(_CHANGES, (holder.id,)) if held else []
        if changes and changes[0][0] != holder.looked_at:
            holder.asked = self._server.query(_ASKED, ([job_id for job_id, _ in held],))
            holder.looked_at = changes[0][0]
        return [fence for fence in holder.asked if fence in held]
