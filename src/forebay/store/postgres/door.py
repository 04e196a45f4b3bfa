"""Plain drafts of many threads, put together: calls that come while a commit is under way share the next one.

A thread puts its call into the queue; if nobody leads, it does. Whoever leads puts the drafts of all who wait as runs
that they share, in one call of one function, and only then lets anyone answer. Each put carries a token, so that one
whose reply was lost is simply made again and adds nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final
from uuid import uuid4

from forebay.core.errors import ForebayError, StoreFailed
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, BATCH_MOST
from forebay.store.postgres.connect import Server, array_of
from forebay.store.postgres.runs import Stamp, group
from forebay.store.postgres.specs import Known, Specs

_PUT: Final = (
    "SELECT * FROM forebay.put(%s::bigint, %s::uuid, %s::text[], %s::integer[], %s::integer[], %s::text[], "
    "%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::smallint[], %s::integer[], %s::bigint[], "
)
_MANY: Final = _PUT + "%b::json[], %b::json[])"
_ONE: Final = _PUT + "ARRAY[%b::json], ARRAY[%b::json])"
_STALE: Final = -1


class _Call:
    """Drafts of one caller; `baton` is let go when they are in, or when its thread is to lead."""

    __slots__ = ("baton", "done", "drafts", "error", "first", "leads", "weight")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.weight = sum(len(draft.body) for draft in drafts)
        self.baton = Lock()
        self.baton.acquire()
        self.first: int | None = None
        self.error: BaseException | None = None
        self.done = False
        self.leads = False


class Door:
    """Where plain drafts of this process come in."""

    def __init__(self, server: Server, specs: Specs, at: Callable[[], Instant | None]) -> None:
        self._server = server
        self._specs = specs
        self._at = at
        self._guard = Lock()
        self._waiting: deque[_Call] = deque()
        self._led = False

    def put(self, drafts: Sequence[Draft]) -> int | None:
        """The id of the first job, once all are durable; None: a spec has changed, and nothing was put."""
        call = _Call(drafts)
        with self._guard:
            self._waiting.append(call)
            call.leads = not self._led
            self._led = True
        if not call.leads:
            self._follow(call)
        if call.leads:
            try:
                while not call.done:
                    self._commit()
            finally:
                self._pass_on()
        if call.error is not None:
            raise call.error
        return call.first

    def _follow(self, call: _Call) -> None:
        """Until the call is done or its thread is to lead; a thread that is interrupted here leaves no gap."""
        try:
            call.baton.acquire()
        except BaseException:
            with self._guard:
                if call in self._waiting:
                    self._waiting.remove(call)
            if call.leads:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._guard:
            self._led = bool(self._waiting)
            if self._led:
                self._waiting[0].leads = True
                self._waiting[0].baton.release()

    def _commit(self) -> None:
        calls = self._gather()
        error: BaseException | None = StoreFailed(self._server.name, "the thread that led the commit was interrupted")
        try:
            first = self._put([draft for call in calls for draft in call.drafts])
            error = None
            for call in calls:
                call.first = first
                first = None if first is None else first + len(call.drafts)
        except ForebayError as failed:
            error = failed
        finally:
            for call in calls:
                call.error = error
                call.done = True
                if not call.leads:
                    call.baton.release()

    def _gather(self) -> list[_Call]:
        """Those who wait, as many as fit into one call of the function."""
        calls: list[_Call] = []
        jobs = weight = 0
        with self._guard:
            while self._waiting:
                call = self._waiting[0]
                jobs, weight = jobs + len(call.drafts), weight + call.weight
                if calls and (jobs > BATCH_MOST or weight > BATCH_BYTES):
                    break
                calls.append(self._waiting.popleft())
        return calls

    def _put(self, drafts: Sequence[Draft]) -> int | None:
        known: dict[str, Known] = {}

        def stamp(draft: Draft) -> Stamp:
            queue = known.get(draft.queue)
            if queue is None:
                queue = known[draft.queue] = self._specs.of(draft.queue)
            return queue.stamp(draft)

        *columns, facts, bodies = zip(*[run.columns() for run in group(drafts, stamp)], strict=True)
        alone = len(bodies) == 1
        payloads = (facts[0], bodies[0]) if alone else (list(facts), list(bodies))
        versions = array_of([queue.version for queue in known.values()])
        parameters = (self._at(), uuid4(), array_of(known), versions, *map(array_of, columns), *payloads)
        first = int(self._server.query(_ONE if alone else _MANY, parameters, certain=True)[0][0])
        return None if first == _STALE else first
