"""The simulated world: one virtual clock, one heap of events, one random source, one trace.

Promise: everything that happens follows from the seed. Time stands still while an action runs and jumps to the next
one; two actions of the same instant come in an order drawn from the seed. `linger` lets time pass in the middle of a
call: others act meanwhile, as they would while one thread waits for its answer. Lingering nests, so the call
that began to wait last continues first; it never makes a call faster.

Authority: the seed. No decision depends on a wall clock, a thread or the order of a set.

What can go wrong: an exception that is neither a connection's nor Forebay's own is a bug where it was raised, and is
recorded as a violation; a process that died in the middle of a call is unwound by `Killed` when its turn comes.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Final

from forebay.core.errors import ForebayError
from forebay.core.instant import Duration, Instant

SECOND: Final = 1_000_000
EPOCH: Final[Instant] = 1_700_000_000_000_000
_DEEPEST: Final = 3
_CHUNK: Final = 512
_MIN_STEP: Final = 200
_MAX_STEP: Final = 1_000
_MAX_STEPS: Final = 300
_FIRST_PAUSE: Final = 50_000
_LONGEST_PAUSE: Final = SECOND


class Killed(BaseException):
    """The process that waits here was killed."""


class CannotContinue(BaseException):
    """A violation after which there is nothing left to simulate."""


class Task:
    """Something to come; `live` is taken from it when it is called off."""

    __slots__ = ("action", "at", "live", "process")

    def __init__(self, at: int, action: Callable[[], None], process: "Process | None") -> None:
        self.at = at
        self.action = action
        self.process = process
        self.live = True


class Process:
    """Something that can die, be stopped for a while, or be cut off; `trouble` is when its connection was not well.

    `ambush` is a verb and what happens in the middle of its next call, after it was performed and before its answer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stalled_until = 0
        self.cut_until = 0
        self.trouble: list[tuple[int, int]] = []
        self.ambush: tuple[str, Callable[[], None]] | None = None


class Trace:
    """What happened, line by line: its hash, its last lines, and all of them if they are kept."""

    def __init__(self, keep: bool) -> None:
        self.last: deque[str] = deque(maxlen=None if keep else 200)
        self.count = 0
        self._hash = sha256()
        self._chunk: list[str] = []

    def add(self, line: str) -> None:
        self.count += 1
        self.last.append(line)
        self._chunk.append(line)
        if len(self._chunk) >= _CHUNK:
            self._flush()

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("\n".join(self._chunk).encode())
        self._chunk.clear()


class World:
    """The state that all actors share. `skew`: how far the store's clock is ahead of the others, since `jumped_at`."""

    def __init__(self, seed: int, *, keep: bool = False) -> None:
        self.random = Random(seed)
        self.now = 0
        self.skew = 0
        self.jumped_at = -1
        self.trace = Trace(keep)
        self.violations: list[tuple[str, str]] = []
        self.trouble: list[tuple[int, int]] = []
        self.acting: SteppedRole | None = None
        self._heap: list[tuple[int, float, int, Task]] = []
        self._count = 0
        self._records = 0
        self._depth = 0

    def between(self, least: int, most: int) -> int:
        return least + int(self.random.random() * (most - least + 1))

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def after(self, duration: Duration, action: Callable[[], None], process: Process | None = None) -> Task:
        task = Task(self.now + duration, action, process)
        self._push(task)
        return task

    def next_record(self) -> int:
        """Numbers the records of all stores in the order in which they are written."""
        self._records += 1
        return self._records

    def record(self, line: str) -> None:
        actor = "" if self.acting is None else self.acting.name
        self.trace.add(f"{self.now} {actor} {line}")

    def violation(self, rule: str, text: str) -> None:
        self.record(f"VIOLATION {rule}: {text}")
        self.violations.append((rule, text))

    def run_until(self, instant: int) -> None:
        """Let everything happen up to this instant."""
        heap = self._heap
        acting = self.acting
        while heap and heap[0][0] <= instant:
            task = heappop(heap)[3]
            if not task.live:
                continue
            process = task.process
            if process is not None:
                if not process.alive:
                    continue
                if process.stalled_until > self.now and process.stalled_until > task.at:
                    task.at = process.stalled_until
                    self._push(task)
                    continue
            self.now = max(self.now, task.at)
            task.live = False
            self.acting = None
            try:
                task.action()
            except Killed:
                continue
        self.acting = acting
        self.now = max(self.now, instant)

    @property
    def can_linger(self) -> bool:
        """Whether a call may take time now: not too many others wait in the middle of theirs."""
        return self._depth < _DEEPEST

    def linger(self, process: Process, duration: Duration) -> None:
        """Wait in the middle of something, at least this long; `Killed` if the process does not live to see it."""
        if self.can_linger:
            self._depth += 1
            try:
                self.run_until(self.now + duration)
                while process.alive and process.stalled_until > self.now:
                    self.run_until(process.stalled_until)
            finally:
                self._depth -= 1
        if not process.alive:
            raise Killed

    def _push(self, task: Task) -> None:
        self._count += 1
        heappush(self._heap, (task.at, self.random.random(), self._count, task))


class SteppedRole:
    """A role that is stepped by the world as `RoleThread` steps it in a thread: rests, errors, ever longer pauses."""

    def __init__(self, world: World, process: Process, role: str, step: Callable[[], float]) -> None:
        self.name = f"{process.name}/{role}"
        self.role = role
        self.process = process
        self.busy = False
        self.began = 0
        self.nap = 0
        self._steps = 0
        self._second = 0
        self._world = world
        self._step = step
        self._nudged = False
        self._stopped = False
        self._pause = _FIRST_PAUSE
        self._task: Task | None = None

    def start(self, duration: Duration = 0) -> None:
        self._task = self._world.after(duration, self._run, self.process)

    def stop(self) -> None:
        """Finish the step under way, and no more."""
        self._stopped = True
        if self._task is not None:
            self._task.live = False

    def nudge(self, duration: Duration = 0) -> None:
        """End a rest early."""
        if self.busy:
            self._nudged = True
        elif self._task is not None and self._task.live and self._task.at > self._world.now + duration:
            self._task.live = False
            self.start(duration)

    def rest(self, seconds: float) -> None:
        """Called within a step that would have slept: the sleep comes after the step instead."""
        self.nap = max(self.nap, int(seconds * SECOND))

    def _run(self) -> None:
        world = self._world
        world.acting = self
        self.busy, self._nudged, self.nap = True, False, 0
        self.began = world.now
        self._watch(world.now)
        try:
            rest = int(self._step() * SECOND)
            self._pause = _FIRST_PAUSE
        except (ConnectionError, ForebayError) as error:
            world.record(f"failed {type(error).__name__}")
            rest = int(self._pause * (0.5 + world.random.random()))
            self._pause = min(_LONGEST_PAUSE, self._pause * 2)
        except Exception as error:
            world.violation("a role does not break", f"{self.name}: {type(error).__name__}: {error}")
            rest = SECOND
        self.busy = False
        if self.process.alive and not self._stopped:
            rest = 0 if self._nudged else max(rest, self.nap)
            self.start(rest or world.between(_MIN_STEP, _MAX_STEP))

    def _watch(self, now: int) -> None:
        """A role that neither rests nor gets anywhere burns a core: so many steps in a second are a violation."""
        if now >= self._second + SECOND:
            self._second, self._steps = now, 0
        self._steps += 1
        if self._steps == _MAX_STEPS:
            self._world.violation("a role does not spin", f"{self.name}: {_MAX_STEPS} steps in a second")
