"""Long polls for work: any number of workers wait, and hold nothing while they do but their sockets.

Whoever waits stands in the lines of the queues it wants. A few threads sleep for all of them, each for some of the
queues (`store.wait`); when one wakes, the longest waiting worker of each of its queues gets a claim in its own name,
and so on until a claim brings nothing. A worker that asks anew while the line is known to be empty costs no claim. A
hint may get lost: each line is tried once a second anyway.

Polls that are over at nearly the same time end together, a hundredth too early at most: answered one by one, with other
things in between, thousands of them cost more than twice as much.

A worker that is gone before its jobs come is taken out of the lines; jobs that were claimed for it go back unharmed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from math import frexp
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from forebay.core.lease import Lease
from forebay.core.outcome import Release
from forebay.serve.problems import Problem
from forebay.store.protocol import Want

if TYPE_CHECKING:
    from forebay.serve.ground import Ground

Gone: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Returns when the caller has left."""

LANES_MOST: Final = 16
"""Threads that sleep; queues beyond that share them."""

_NAP: Final = timedelta(seconds=1)
_FRUITLESS_REST: Final = 0.02
_AWAY_REST: Final = 0.5
_ABREAST_MOST: Final = 8
"""Claims at once in one line, while every one of them brings something."""

_CLAIM_MOST: Final = 5.0
_BEAT_LEAST: Final = 0.001
"""Seconds of the shortest poll that has a beat of its own."""

_EARLY: Final = 7
"""A poll may end early by one part in two to the power of this."""


class Poller:
    """One worker that waits. `busy`: a claim is being made for it. `left`: it waits no longer than for that claim."""

    __slots__ = ("answer", "busy", "lease_for", "left", "owner", "queues", "wants")

    def __init__(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> None:
        self.wants = wants
        self.queues = [want.queue for want in wants]
        self.owner = owner
        self.lease_for = lease_for
        self.answer: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()
        self.busy = False
        self.left = False


class Lane:
    """Some queues, who stands in their lines, and the task that sleeps for them. `handing`: it is awake."""

    def __init__(self) -> None:
        self.lines: dict[str, OrderedDict[Poller, None]] = {}
        self.task: asyncio.Task[None] | None = None
        self.handing = False

    def take(self, queue: str, count: int) -> list[Poller]:
        """Who has waited longest, and is not being served in another line; from now on they are."""
        taken = list(islice((poller for poller in self.lines.get(queue, ()) if not poller.busy), count))
        for poller in taken:
            poller.busy = True
        return taken


class Waiting:
    """Those who wait for work, of one event loop."""

    def __init__(self, ground: "Ground") -> None:
        self._ground = ground
        self._lanes = [Lane() for _ in range(LANES_MOST)]
        self._home: dict[str, Lane] = {}
        self._ends: dict[float, set[Poller]] = {}
        self._sleepers = ThreadPoolExecutor(LANES_MOST, "forebay-claims")
        self._closed = False
        self.pollers = 0

    async def claim(
        self, wants: Sequence[Want], owner: str, lease_for: timedelta, wait: float, gone: Gone
    ) -> list[Lease]:
        """Leases as soon as there are any, none when the time is up. `gone` returns when the caller has left."""
        wait = min(wait, self._ground.settings.wait_most)
        if wait <= 0 or not all(self._known_empty(want.queue) for want in wants):
            leases = await self._ground.call(self._ground.store.claim, wants, owner, lease_for)
            if leases or wait <= 0:
                return leases
        if self._closed:
            return []
        if self.pollers >= self._ground.settings.pollers_most:
            raise Problem(503, "busy", "Too many wait for work already", "try again later", {"Retry-After": "5"})
        return await self._wait(Poller(wants, owner, lease_for), wait, gone)

    def dismiss(self) -> None:
        """Everyone is answered at once, empty-handed, and nobody waits any more."""
        self._closed = True
        for poller in {poller for lane in self._lanes for line in lane.lines.values() for poller in line}:
            self._let_go(poller)

    async def close(self) -> None:
        self.dismiss()
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        # A claim under way may bring something, which is to go back; those who only sleep are not waited for.
        busy = [lane.task for lane in self._lanes if lane.task is not None and lane.handing]
        if busy:
            await asyncio.wait(busy, timeout=_CLAIM_MOST)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._sleepers.shutdown(wait=False, cancel_futures=True)

    def _known_empty(self, queue: str) -> bool:
        """Somebody waits there whose claim brought nothing, and the lane sleeps."""
        home = self._home.get(queue)
        return home is not None and queue in home.lines and not home.handing

    async def _wait(self, poller: Poller, wait: float, gone: Gone) -> list[Lease]:
        self.pollers += 1
        self._join(poller)
        together = self._end_after(wait)
        together.add(poller)
        leaving = asyncio.get_running_loop().create_task(gone())
        leaving.add_done_callback(lambda _: self._let_go(poller))
        try:
            leases = await poller.answer
            if leases and leaving.done():
                await self._hand_back(leases)
                return []
            return leases
        finally:
            self.pollers -= 1
            together.discard(poller)
            leaving.cancel()
            self._let_go(poller)

    def _end_after(self, wait: float) -> "set[Poller]":
        """Those who are let go then, or a little earlier."""
        loop = asyncio.get_running_loop()
        at = end_of(loop.time(), wait)
        if at not in self._ends:
            self._ends[at] = set()
            loop.call_at(at, self._let_all_go, at)
        return self._ends[at]

    def _let_all_go(self, at: float) -> None:
        for poller in self._ends.pop(at):
            self._let_go(poller)

    def _join(self, poller: Poller) -> None:
        for queue in poller.queues:
            lane = self._home.get(queue)
            if lane is None:
                lane = self._home[queue] = min(self._lanes, key=lambda each: (len(each.lines), each.task is not None))
            lane.lines.setdefault(queue, OrderedDict())[poller] = None
            if lane.task is None:
                lane.task = asyncio.create_task(self._look_after(lane))

    def _let_go(self, poller: Poller) -> None:
        """Out of all lines. Without a claim under way it is answered now, else when that comes back."""
        poller.left = True
        for queue in poller.queues:
            lines = self._home[queue].lines if queue in self._home else {}
            if queue in lines:
                lines[queue].pop(poller, None)
                if not lines[queue]:
                    del lines[queue]
        if not poller.busy and not poller.answer.done():
            poller.answer.set_result([])

    async def _look_after(self, lane: Lane) -> None:
        """Sleep, hand out, and so on while anybody stands in one of the lines."""
        loop = asyncio.get_running_loop()
        fruitless = 0
        try:
            while lane.lines and not self._closed:
                queues = list(lane.lines)
                try:
                    news = await loop.run_in_executor(self._sleepers, self._ground.store.wait, queues, _NAP)
                    found = await self._hand_out(lane, queues)
                except Exception as error:
                    # A store that is away must not end the lane: those who wait would be forgotten.
                    self._ground.meters.met(error)
                    self._ground.voice.warn("claims", error)
                    await asyncio.sleep(_AWAY_REST)
                    continue
                fruitless = fruitless + 1 if news and not found else 0
                if fruitless > len(queues):
                    await asyncio.sleep(_FRUITLESS_REST)
        finally:
            lane.task = None
            # Until here a queue kept its lane, so that two threads never slept for one queue.
            self._home = {queue: home for queue, home in self._home.items() if home is not lane}

    async def _hand_out(self, lane: Lane, queues: Sequence[str]) -> int:
        """Claims for those who waited longest, queue by queue, until nothing is left or nobody."""
        lane.handing = True
        try:
            found = 0
            for queue in queues:
                abreast = 1
                while (pollers := lane.take(queue, abreast)) and not self._closed:
                    brought = await asyncio.gather(*map(self._serve, pollers))
                    found += sum(map(len, brought))
                    if not all(brought):
                        break
                    abreast = min(_ABREAST_MOST, 2 * abreast)
            return found
        finally:
            lane.handing = False

    async def _serve(self, poller: Poller) -> list[Lease]:
        """One claim in a worker's own name; it was marked as busy before."""
        leases: list[Lease] = []
        try:
            leases = await self._ground.call(self._ground.store.claim, poller.wants, poller.owner, poller.lease_for)
        finally:
            poller.busy = False
            if poller.answer.cancelled():
                # Its request was cut off.
                await self._hand_back(leases)
            elif leases or poller.left:
                poller.answer.set_result(leases)
                self._let_go(poller)
        return leases

    async def _hand_back(self, leases: Sequence[Lease]) -> None:
        """As they were: whoever was to have them is gone."""
        await self._ground.call(self._ground.store.settle, [(lease, Release()) for lease in leases])


def end_of(now: float, wait: float) -> float:
    """When a poll that begins now is over: on the beat before its time is up. The longer it waits, the slower the beat.

    Beats are powers of two, so that short polls end on those of the long ones too.
    """
    beat: float = 2.0 ** (frexp(max(wait, _BEAT_LEAST))[1] - 1 - _EARLY)
    return (now + wait) // beat * beat
