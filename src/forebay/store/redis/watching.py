"""Waiting for what becomes of jobs: until they have ended, or until their end is requested."""

from collections.abc import Collection, Sequence

from forebay.core.instant import Instant, Span
from forebay.core.lease import Fence
from forebay.core.limits import INSTANT_MOST
from forebay.store.redis.base import Base
from forebay.store.redis.row import packed, sid, sids
from forebay.store.redis.waiting import ending_of, requests_to


class Watching(Base):
    """Verbs that wait for jobs."""

    def wait_ended(self, ids: Sequence[int], span: Span) -> list[int]:
        names = sids(ids)
        ended: list[int] = []

        def ready() -> Instant:
            told = {each.decode() for each in self._call("ended", packed(names))} if names else set()
            ended[:] = [job_id for job_id in ids if not sids([job_id]) or sid(job_id) in told]
            return 0 if ended else INSTANT_MOST

        end = self.now() + span
        self._sleepers.until_news_of([ending_of(name) for name in names], end, ready)
        return ended

    def wait_cancel_requests(self, owner: str, span: Span, known: Collection[Fence]) -> list[Fence]:
        asked: list[Fence] = []

        def ready() -> Instant:
            told = self._call("asked", owner)
            fences = [(int(told[place]), int(told[place + 1])) for place in range(0, len(told), 2)]
            asked[:] = [fence for fence in fences if fence not in known]
            return 0 if asked else INSTANT_MOST

        self._sleepers.until_news_of([requests_to(owner)], self.now() + span, ready)
        return asked
