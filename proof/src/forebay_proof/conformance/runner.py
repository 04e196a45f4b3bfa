"""Running cases one by one, each on a fresh store, and their results.

A case ends in one of three ways: passed, failed (with the assertion and the values around it), or not claimed by this
store. A case that hangs is a failure after a minute, not the end of the run.
"""

import linecache
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from inspect import getfile
from pathlib import Path
from time import perf_counter
from typing import Final

from forebay_proof.conformance.case import Case
from forebay_proof.conformance.harness import Harness, Opener
from forebay_proof.conformance.racing import RacingCall

_SHOWN: Final = 240


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CLAIMED = "not claimed"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case; `detail` is why it failed, or what the store does not claim."""

    case: Case
    status: Status
    seconds: float
    detail: str = ""


def run_cases(
    chosen: Sequence[Case], opener: Opener, reset: Callable[[], None] | None, virtual_time: bool
) -> Iterator[CaseResult]:
    if not __debug__:
        raise RuntimeError("assertions are switched off, every case would pass: run Python without -O")
    for case in chosen:
        if reset is not None:
            reset()
        started = perf_counter()
        task = RacingCall(lambda case=case: _check(case, opener, virtual_time))  # type: ignore[misc]
        try:
            status, detail = task.result(), ""
            if status is Status.NOT_CLAIMED:
                detail = f"the store does not claim: {case.need}"
        except Exception as error:
            status, detail = Status.FAILED, explain(error, getfile(case.check))
        yield CaseResult(case, status, perf_counter() - started, detail)


def _check(case: Case, opener: Opener, virtual_time: bool) -> Status:
    with Harness(opener, virtual_time=virtual_time) as harness:
        if not case.need.claimed(harness.store.capabilities):
            return Status.NOT_CLAIMED
        case.check(harness)
    return Status.PASSED


def explain(error: Exception, home: str) -> str:
    """Where a case in the file `home` failed, what it demanded there, and the values it had in hand."""
    lines = [f"{type(error).__name__}: {error}".rstrip(": ")]
    steps = list(zip(traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True))
    in_case = [step for step in steps if step[1].filename == home]
    if in_case:
        (frame, line), step = in_case[-1]
        numbers = range(line, (step.end_lineno or line) + 1)
        source = " ".join(linecache.getline(home, number).strip() for number in numbers)
        lines.append(f"  {_place(step)}: {source}")
        lines += [
            f"    {name} = {_shown(value)}" for name, value in frame.f_locals.items() if type(value) is not Harness
        ]
    if steps and not isinstance(error, AssertionError):
        lines.append(f"  raised by {_place(steps[-1][1])}: {steps[-1][1].line}")
    return "\n".join(lines)


def _place(step: traceback.FrameSummary) -> str:
    return f"{Path(step.filename).name}:{step.lineno}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
