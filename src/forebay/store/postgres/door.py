"""Plain drafts of many threads, put together as runs that they share, in one call of one function and one commit.

Each put carries a token, so that one whose reply was lost is simply made again and adds nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, BATCH_MOST
from forebay.store.postgres.connect import Server, array_of
from forebay.store.postgres.runs import Stamp, group
from forebay.store.postgres.specs import Known, Specs
from forebay.store.together import Call, Together

_PUT: Final = (
    "SELECT * FROM forebay.put(%s::bigint, %s::uuid, %s::integer[], %s::text[], %s::integer[], %s::integer[], "
    "%s::text[], %s::text[], %s::text[], %s::text[], %s::integer[], %s::text[], %s::bigint[], %s::bigint[], "
    "%s::bigint[], %s::smallint[], %s::integer[], %s::bigint[], "
)
_MANY: Final = _PUT + "%b::json[], %b::json[])"
_ONE: Final = _PUT + "ARRAY[%b::json], ARRAY[%b::json])"
_STALE: Final = -1


class _Call(Call):
    """Drafts of one caller, and the id of the first of them once they are in."""

    __slots__ = ("drafts", "first", "weight")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        super().__init__()
        self.drafts = drafts
        self.weight = sum(len(draft.body) for draft in drafts)
        self.first: int | None = None


class _Room:
    """What one call of the function takes."""

    def __init__(self) -> None:
        self._jobs = BATCH_MOST
        self._bytes = BATCH_BYTES

    def takes(self, call: _Call) -> bool:
        self._jobs -= len(call.drafts)
        self._bytes -= call.weight
        return self._jobs >= 0 and self._bytes >= 0


class Door:
    """Where plain drafts of this process come in."""

    def __init__(self, server: Server, specs: Specs, at: Callable[[], Instant | None]) -> None:
        self._server = server
        self._specs = specs
        self._at = at
        self.callers: Together[_Call] = Together(server.name, self._commit)

    def put(self, drafts: Sequence[Draft]) -> int | None:
        """The id of the first job, once all are durable; None: a spec has changed, and nothing was put."""
        call = _Call(drafts)
        self.callers.make(call)
        return call.first

    def _commit(self) -> None:
        with self.callers.group(_Room().takes) as calls:
            try:
                first = self._put([draft for call in calls for draft in call.drafts])
            except Exception as error:
                for call in calls:
                    call.error = error
                return
            for call in calls:
                call.first = first
                first = None if first is None else first + len(call.drafts)

    def _put(self, drafts: Sequence[Draft]) -> int | None:
        known: dict[str, Known] = {}
        alone: set[int] = set()

        def stamp(draft: Draft) -> Stamp:
            queue = known.get(draft.queue)
            if queue is None:
                queue = known[draft.queue] = self._specs.of(draft.queue)
                if queue.laned:
                    alone.update(queue.keys)
            return queue.stamp(draft)

        counts, queues, classes, lanes, gates, *columns, facts, bodies = zip(
            *[run.columns() for run in group(drafts, stamp)], strict=True
        )
        one = len(bodies) == 1
        payloads = (facts[0], bodies[0]) if one else (list(facts), list(bodies))
        versions = array_of([queue.version for queue in known.values()])
        said = (self._at(), uuid4(), array_of(sorted(alone)), array_of(known), versions)
        named = (array_of(counts), array_of(queues), array_of(classes), list(lanes), list(gates))
        parameters = (*said, *named, *map(array_of, columns), *payloads)
        first = int(self._server.query(_ONE if one else _MANY, parameters, certain=True)[0][0])
        return None if first == _STALE else first
