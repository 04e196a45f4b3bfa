"""Bulk actions: cancel, redrive or purge all jobs that match a filter. A dry run, a confirmation, then a paced run.

    choosing   matching jobs are collected, up to a limit; nothing is changed
    chosen     their number and a sample are shown; the action waits for the operator's confirmation
    moving     they are cancelled, redriven or purged at the given rate, each step in one store call
    done · stopped · failed

The action applies to the chosen jobs only, so that a job that dies again is not redriven twice. It runs in the
server process that started it: when the process stops, the finished part stays and the rest is unchanged.
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
from forebay.core.limits import MAX_BATCH
from forebay.serve.actor import Actor
from forebay.serve.context import ServerContext
from forebay.serve.dashboard.views.search import Filter, find
from forebay.serve.problems import Problem
from forebay.store.protocol import CancelAnswer, Store

_log = logging.getLogger("forebay.serve")

ActionKind: TypeAlias = Literal["cancel", "redrive", "purge"]
Phase: TypeAlias = Literal["choosing", "chosen", "moving", "done", "stopped", "failed"]

MAX_ACTIONS: Final = 20
MAX_RUNNING: Final = 4
MAX_CHOSEN: Final = 100_000
SAMPLE: Final = 8
MAX_RATE: Final = 10_000.0
_STEPS_A_SECOND: Final = 5
_SEARCH_SECONDS: Final = 0.05


class BulkAction:
    """One action. Only its own task changes it; pages read it."""

    def __init__(
        self, actor: Actor, act: ActionKind, wanted: Filter, limit: int, rate: float, patch: dict[str, Any] | None
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
    def running(self) -> bool:
        return self.phase in ("choosing", "moving")


class BulkActions:
    """The actions of one server, the newest `MAX_ACTIONS` of them."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._actions: OrderedDict[str, BulkAction] = OrderedDict()

    def of(self, actor: Actor) -> list[BulkAction]:
        """The actions that this actor started, newest first."""
        return [action for action in reversed(self._actions.values()) if action.actor.name == actor.name]

    def find(self, action_id: str, actor: Actor) -> BulkAction | None:
        action = self._actions.get(action_id)
        return action if action is not None and action.actor.name == actor.name else None

    def dry_run(self, action: BulkAction) -> None:
        """Start the dry run."""
        if sum(each.running for each in self._actions.values()) >= MAX_RUNNING:
            detail = f"at most {MAX_RUNNING} at once: wait until one has ended, or stop one"
            raise Problem(503, "busy", "Too many bulk actions", detail)
        self._actions[action.id] = action
        over = [each.id for each in self._actions.values() if not each.running]
        for old in over[: max(0, len(self._actions) - MAX_ACTIONS)]:
            del self._actions[old]
        action.task = asyncio.create_task(self._guarded(action, self._choose))

    def check_chosen(self, action: BulkAction) -> None:
        """Refuse an action that does not wait for confirmation."""
        if action.phase != "chosen":
            raise Problem(409, "already-started", "The action has already started", "see its page")

    def start(self, action: BulkAction, finished: Callable[[], object]) -> None:
        """Run the confirmed action; `finished` is called when it ends."""
        self.check_chosen(action)
        action.phase = "moving"

        async def run_and_finish(action: BulkAction) -> None:
            try:
                await self._run(action)
            finally:
                finished()

        action.task = asyncio.create_task(self._guarded(action, run_and_finish))

    def stop(self, action: BulkAction) -> None:
        """Stop after the current step."""
        if not action.over:
            action.phase = "stopped"

    async def _guarded(self, action: BulkAction, work: Callable[[BulkAction], Any]) -> None:
        try:
            await work(action)
        except ForebayError as error:
            action.phase, action.trouble = "failed", str(error)
        except Problem as problem:
            action.phase, action.trouble = "failed", problem.title
        except Exception:
            _log.exception("a bulk action failed")
            action.phase, action.trouble = "failed", "see the server's log"

    async def _choose(self, action: BulkAction) -> None:
        after: int | None = 0
        while after is not None and len(action.ids) < action.limit and action.phase == "choosing":
            room = min(MAX_BATCH, action.limit - len(action.ids))
            found = await self._context.call(
                find, self._context.store, action.actor, action.wanted, after, room, _SEARCH_SECONDS
            )
            jobs = [job for job in found.jobs if _movable(job, action)]
            action.ids += [job.id for job in jobs]
            action.sample += jobs[: SAMPLE - len(action.sample)]
            after = found.next
            await asyncio.sleep(0)
        action.whole = after is None
        if action.phase == "choosing":
            action.phase = "chosen"

    async def _run(self, action: BulkAction) -> None:
        step = max(1, min(MAX_BATCH, int(action.rate / _STEPS_A_SECOND)))
        began = monotonic()
        for start in range(0, len(action.ids), step):
            await asyncio.sleep(max(0.0, began + start / action.rate - monotonic()))
            if action.phase != "moving":
                return
            part = action.ids[start : start + step]
            action.moved += await self._context.call(_step, self._context.store, action, part)
            action.tried += len(part)
        action.phase = "done"


def _movable(job: Job, action: BulkAction) -> bool:
    """Whether the action applies. A quarantined job is redriven only by an action that names its cause."""
    if action.act == "cancel":
        return not job.state.terminal
    if action.act == "purge":
        return job.state is State.DEAD
    return job.state is State.DEAD and (not job.suspect or action.wanted.cause is not None)


def _step(store: Store, action: BulkAction, ids: list[int]) -> int:
    """How many of these jobs were changed; those that no longer match are skipped."""
    if action.act == "cancel":
        return sum(answer is not CancelAnswer.GONE for answer in store.cancel(ids))
    if action.act == "purge":
        return len(store.purge_dead(ids))
    return len(redrive.move(store, redrive.RedrivePlan(patch=action.patch), ids))
