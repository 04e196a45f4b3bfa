"""Moves: an operator's action on all jobs that match a filter. First the dry run, then the word, then a pace.

    choosing   jobs that match are looked for, up to a bound; nothing is changed
    chosen     how many, and a sample; it waits for the operator's word
    moving     cancelled, redriven or purged at the pace that was asked for, each step in one call of the store
    done · stopped · failed

What moves is what was chosen, so that a job which dies again is not moved twice. A move lives in the server process
that began it: when that stops, what was moved stays moved, and the rest is as it was.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

from forebay import redrive
from forebay.core.errors import ForebayError
from forebay.core.job import Job, State
from forebay.core.limits import BATCH_MOST
from forebay.serve.actor import Actor
from forebay.serve.dashboard.views.finding import Filter, find
from forebay.serve.ground import Ground
from forebay.serve.problems import Problem
from forebay.store.protocol import CancelAnswer, Store

_log = logging.getLogger("forebay.serve")

Act: TypeAlias = Literal["cancel", "redrive", "purge"]
Phase: TypeAlias = Literal["choosing", "chosen", "moving", "done", "stopped", "failed"]

MOVES_MOST: Final = 20
UNDER_WAY_MOST: Final = 4
CHOSEN_MOST: Final = 100_000
SAMPLE: Final = 8
RATE_MOST: Final = 10_000.0
_STEPS_A_SECOND: Final = 5
_LOOK_SECONDS: Final = 0.05


class Move:
    """One of them. Changed by its own task alone; pages read it."""

    def __init__(
        self, actor: Actor, act: Act, wanted: Filter, limit: int, rate: float, patch: dict[str, Any] | None
    ) -> None:
        self.id = secrets.token_hex(6)
        self.actor = actor
        self.act = act
        self.wanted = wanted
        self.limit = limit
        self.rate = rate
        self.patch = patch
        self.phase: Phase = "choosing"
        self.ids: list[int] = []
        self.sample: list[Job] = []
        self.whole = False
        self.tried = 0
        self.moved = 0
        self.trouble = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self.phase in ("done", "stopped", "failed")

    @property
    def under_way(self) -> bool:
        return self.phase in ("choosing", "moving")


class Moves:
    """The moves of one server, the newest `MOVES_MOST` of them."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._moves: OrderedDict[str, Move] = OrderedDict()

    def of(self, actor: Actor) -> list[Move]:
        """Those that this actor began, the newest first."""
        return [move for move in reversed(self._moves.values()) if move.actor.name == actor.name]

    def find(self, move_id: str, actor: Actor) -> Move | None:
        move = self._moves.get(move_id)
        return move if move is not None and move.actor.name == actor.name else None

    def begin(self, move: Move) -> None:
        """Look for what it is about; nothing is changed yet."""
        if sum(each.under_way for each in self._moves.values()) >= UNDER_WAY_MOST:
            raise Problem(503, "busy", "Enough is being moved already", "wait until a move has ended, or stop one")
        self._moves[move.id] = move
        over = [each.id for each in self._moves.values() if not each.under_way]
        for old in over[: max(0, len(self._moves) - MOVES_MOST)]:
            del self._moves[old]
        move.task = asyncio.create_task(self._guarded(move, self._choose))

    def check_chosen(self, move: Move) -> None:
        """Whether it waits for the word."""
        if move.phase != "chosen":
            raise Problem(409, "moved", "This move has begun already", "look at its page")

    def go(self, move: Move, moved: Callable[[], object]) -> None:
        """The operator's word; `moved` is called when it ended."""
        self.check_chosen(move)
        move.phase = "moving"

        async def carry_out(move: Move) -> None:
            try:
                await self._carry(move)
            finally:
                moved()

        move.task = asyncio.create_task(self._guarded(move, carry_out))

    def stop(self, move: Move) -> None:
        """After the step under way."""
        if not move.over:
            move.phase = "stopped"

    async def _guarded(self, move: Move, work: Callable[[Move], Any]) -> None:
        try:
            await work(move)
        except ForebayError as error:
            move.phase, move.trouble = "failed", str(error)
        except Problem as problem:
            move.phase, move.trouble = "failed", problem.title
        except Exception:
            _log.exception("a move failed")
            move.phase, move.trouble = "failed", "the server's log says why"

    async def _choose(self, move: Move) -> None:
        after: int | None = 0
        while after is not None and len(move.ids) < move.limit and move.phase == "choosing":
            room = min(BATCH_MOST, move.limit - len(move.ids))
            found = await self._ground.call(
                find, self._ground.store, move.actor, move.wanted, after, room, _LOOK_SECONDS
            )
            jobs = [job for job in found.jobs if _movable(job, move)]
            move.ids += [job.id for job in jobs]
            move.sample += jobs[: SAMPLE - len(move.sample)]
            after = found.next
            await asyncio.sleep(0)
        move.whole = after is None
        if move.phase == "choosing":
            move.phase = "chosen"

    async def _carry(self, move: Move) -> None:
        step = max(1, min(BATCH_MOST, int(move.rate / _STEPS_A_SECOND)))
        began = monotonic()
        for start in range(0, len(move.ids), step):
            await asyncio.sleep(max(0.0, began + start / move.rate - monotonic()))
            if move.phase != "moving":
                return
            part = move.ids[start : start + step]
            move.moved += await self._ground.call(_step, self._ground.store, move, part)
            move.tried += len(part)
        move.phase = "done"


def _movable(job: Job, move: Move) -> bool:
    """A job whose worker died with it is not redriven unless the move names what killed it."""
    if move.act == "cancel":
        return not job.state.terminal
    if move.act == "purge":
        return job.state is State.DEAD
    return job.state is State.DEAD and (not job.suspect or move.wanted.cause is not None)


def _step(store: Store, move: Move, ids: list[int]) -> int:
    """How many of these were moved; what changed meanwhile is left alone."""
    if move.act == "cancel":
        return sum(answer is not CancelAnswer.GONE for answer in store.cancel(ids))
    if move.act == "purge":
        return len(store.discard(ids))
    return len(redrive.move(store, redrive.Plan(patch=move.patch), ids))
