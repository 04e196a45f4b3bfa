"""Real threads for cases: start together, end in time, and let no failure go unseen."""

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Final, Generic, TypeVar

from forebay.core.errors import ForebayError

PATIENCE_SECONDS: Final = 60.0

T = TypeVar("T")


class RacingCall(Generic[T]):
    """A call on its own thread. `result` is what it returned or raised, `TimeoutError` if it hangs."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._answers: list[T] = []
        self._error: BaseException | None = None
        # A store that hangs must not keep the suite from ending.
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self, patience: float = PATIENCE_SECONDS) -> T:
        if not self.ends_within(patience):
            raise TimeoutError(f"still running after {patience:g} s")
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._action())
        except BaseException as error:
            self._error = error


def race(count: int, action: Callable[[int], T]) -> list[T | ForebayError]:
    """Call `action(number)` on so many threads at once; a `ForebayError` counts as an answer."""
    barrier = Barrier(count)

    def run(number: int) -> T | ForebayError:
        barrier.wait(PATIENCE_SECONDS)
        try:
            return action(number)
        except ForebayError as error:
            return error

    tasks = [RacingCall(lambda number=number: run(number)) for number in range(count)]  # type: ignore[misc]
    return [task.result() for task in tasks]


def answers(outcome: list[T | ForebayError]) -> list[T]:
    """The answers of a race in which no call may be refused."""
    for answer in outcome:
        if isinstance(answer, ForebayError):
            raise answer
    return [answer for answer in outcome if not isinstance(answer, ForebayError)]
