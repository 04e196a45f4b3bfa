"""The trace of an exception as text: what `traceback` prints, without marks under the lines, and much cheaper.

A handler that fails fails at the same few lines again and again, so a line is looked up in its file once. `traceback`
looks at the file's date for every frame and parses every line to place its marks, which costs more than most jobs do.
The last `FRAMES_MOST` calls of each exception are told, and the last `CHAIN_MOST` exceptions of a chain. Groups of
exceptions are left to `traceback`.
"""

import linecache
import traceback
from itertools import takewhile
from os.path import dirname
from types import FrameType, TracebackType
from typing import Final

FRAMES_MOST: Final = 100
CHAIN_MOST: Final = 20

_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
_HOME: Final = dirname(__file__)
_LINES_MOST: Final = 10_000
_SAYS_MORE: Final = (SyntaxError, NameError, AttributeError, ImportError)
"""Of these `traceback` tells the place, or what may have been meant."""

_lines: dict[tuple[str, int, str], str] = {}


def trace_of(error: BaseException) -> str:
    """The chain of exceptions that led here, oldest first, each with its calls."""
    parts: list[str] = []
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen and len(seen) < CHAIN_MOST:
        if isinstance(now, BaseExceptionGroup):
            return "".join(traceback.format_exception(error))
        seen.add(id(now))
        parts.append(_alone(now))
        before = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
        if before is not None and id(before) not in seen and len(seen) < CHAIN_MOST:
            parts.append(_CAUSE if now.__cause__ is before else _CONTEXT)
        now = before
    return "".join(reversed(parts))


def kind_of(error: BaseException) -> str:
    """The name of its class, with the module that it is from."""
    module, name = type(error).__module__, type(error).__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _alone(error: BaseException) -> str:
    calls = _calls(error.__traceback__)
    said = _said(error)
    if not calls:
        return said
    left_out = f"  [{len(calls) - FRAMES_MOST} earlier calls]\n" if len(calls) > FRAMES_MOST else ""
    shown = "".join(_line(frame, number) for frame, number in calls[-FRAMES_MOST:])
    return f"Traceback (most recent call last):\n{left_out}{shown}{said}"


def _said(error: BaseException) -> str:
    """What `traceback` says last, which takes it longer than most handlers take."""
    if isinstance(error, _SAYS_MORE) or getattr(error, "__notes__", None) is not None:
        return "".join(traceback.format_exception_only(error))
    try:
        message = str(error)
    except Exception:
        message = "<exception str() failed>"
    return f"{kind_of(error)}: {message}\n" if message else f"{kind_of(error)}\n"


def _calls(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The calls from the handler on: the worker's own, which lead to it, say nothing about the failure."""
    calls: list[tuple[FrameType, int]] = []
    while trace is not None:
        calls.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    own = sum(1 for _ in takewhile(lambda call: dirname(call[0].f_code.co_filename) == _HOME, calls))
    return calls[own:] or calls


def _line(frame: FrameType, number: int) -> str:
    code = frame.f_code
    key = (code.co_filename, number, code.co_name)
    found = _lines.get(key)
    if found is None:
        if len(_lines) >= _LINES_MOST:
            _lines.clear()
        source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
        said = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n'
        found = _lines[key] = said + (f"    {source}\n" if source else "")
    return found
