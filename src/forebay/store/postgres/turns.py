"""A claim of queues whose classes take turns: dealt first, then asked for class by class, all in one call.

The server tells which classes have work, `core.share` deals; each process keeps its own turns. A class is counted as
far as one turn reaches, and whoever has more is dealt as if it had enough. What then does not come, because it was not
there or somebody else was faster, is `left`, to be dealt again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress, islice
from typing import Any, Final

from forebay.core.instant import Instant
from forebay.core.lease import Lease
from forebay.store.postgres.connect import Rows, array_of
from forebay.store.postgres.specs import Specs
from forebay.store.protocol import Want

_CLASSES: Final = "SELECT * FROM forebay.classes(%s::bigint, %s, %s::text[], %s::integer[], %s::integer[])"

Fetch = Callable[[str, tuple[Any, ...]], Rows]

Taken = dict[int, list[Lease]]
"""What a claim brought, by the number of the want, the first being 1."""


class Deal:
    """What is asked for, and in which order the answers take turns.

    `looked`: whoever told of the classes has seen that nothing is to be looked after first in any of the queues.
    """

    def __init__(self) -> None:
        self.asked: list[Want] = []
        self._order: list[tuple[int, int]] = []
        self._dealt: list[tuple[str, range]] = []
        self.looked = True

    @property
    def made(self) -> bool:
        """Whether somebody takes turns at all."""
        return bool(self._dealt)

    def add(self, want: Want) -> None:
        self.looked = False
        self.asked.append(want)
        self._order.append((len(self.asked), want.count))

    def add_dealt(self, queue: str, turns: Sequence[tuple[str, int]]) -> None:
        """Classes of a queue with what they give, in this order; some may have several turns."""
        totals: Counter[str] = Counter()
        for name, count in turns:
            totals[name] += count
        numbers = {name: number for number, name in enumerate(totals, len(self.asked) + 1)}
        self.asked += [Want(queue, count, name) for name, count in totals.items()]
        self._order += [(numbers[name], count) for name, count in turns]
        self._dealt.append((queue, range(len(self.asked) - len(totals) + 1, len(self.asked) + 1)))

    def in_turn(self, taken: Mapping[int, Sequence[Lease]]) -> list[Lease]:
        if not self.made:
            return list(chain.from_iterable(taken.values()))
        parts = {number: iter(leases) for number, leases in taken.items()}
        return [lease for number, count in self._order if number in parts for lease in islice(parts[number], count)]

    def left(self, taken: Mapping[int, Sequence[Lease]]) -> list[Want]:
        """What classes were to give and did not."""
        short = [
            (queue, sum(self.asked[number - 1].count - len(taken.get(number, ())) for number in numbers))
            for queue, numbers in self._dealt
        ]
        return [Want(queue, count) for queue, count in short if count > 0]


class Turns:
    """The turns of one process."""

    def __init__(self, specs: Specs) -> None:
        self._specs = specs

    def are_taken(self, wants: Sequence[Want]) -> bool:
        """Whether classes take turns in one of these queues."""
        return any(want.cls is None and self._specs.of(want.queue).shared for want in wants)

    def deal(
        self,
        fetch: Fetch,
        at: Instant | None,
        wants: Sequence[Want],
        number: int,
        started: Sequence[Sequence[str] | None] | None = None,
        classed: bool = False,
    ) -> tuple[int, Deal]:
        """Who gives how many; or, as a claim would say it, why that cannot be told. `number` is this process's own.

        `fetch` asks the server, in a turn by its own connection.
        `started`: everything was looked after, and for some wants the server told whose turn it is.
        `classed`: there are classes whatever the specs say, of jobs that came when they said something else.
        """
        known = [self._specs.of(want.queue) for want in wants]
        dealt = started or [None] * len(wants)
        shared = [
            turns is None and want.cls is None and (classed or each.shared)
            for want, each, turns in zip(wants, known, dealt, strict=True)
        ]
        asked = list(compress(wants, shared))
        flag, ready = self._ready(fetch, at, asked, started is not None) if asked else (0, [])
        deal, left = Deal(), iter(ready)
        if not flag:
            for want, each, turns, told in zip(wants, known, shared, dealt, strict=True):
                if told is not None:
                    deal.add_dealt(want.queue, [(name, 1) for name in told])
                elif turns:
                    deal.add_dealt(want.queue, each.deal(number, want.count, next(left)))
                else:
                    deal.add(want)
        return flag, deal

    def _ready(
        self, fetch: Fetch, at: Instant | None, wants: Sequence[Want], tended: bool
    ) -> tuple[int, list[dict[str, int]]]:
        """How many jobs each class could give to each want."""
        known = [self._specs.of(want.queue) for want in wants]
        names = array_of([want.queue for want in wants])
        versions = array_of([each.version for each in known])
        mosts = array_of([min(want.count, each.turn_most) for want, each in zip(wants, known, strict=True)])
        rows = fetch(_CLASSES, (at, tended, names, versions, mosts))
        if rows and rows[0][0]:
            return rows[0][0], []
        ready: list[dict[str, int]] = [{} for _ in wants]
        for _, number, name, count, more in rows:
            ready[number - 1][name] = wants[number - 1].count + 1 if more else int(count)
        return 0, ready
