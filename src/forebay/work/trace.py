"""Formats the traceback of an exception like `traceback`, without the position markers, and much cheaper.

Failing handlers usually fail at the same few lines, so each source line is read once. `traceback` checks the file's
modification time for every frame and parses every line, which costs more than most jobs. The last `MAX_FRAMES` calls of
each exception and the last `MAX_CHAIN` exceptions of a chain are kept. Exception groups are left to `traceback`.
"""

import linecache
import traceback
from itertools import takewhile
from os.path import dirname
from types import FrameType, TracebackType
from typing import Final

MAX_FRAMES: Final = 100
MAX_CHAIN: Final = 20

_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
_HOME: Final = dirname(__file__)
_MAX_LINES: Final = 10_000
_WITH_HINTS: Final = (SyntaxError, NameError, AttributeError, ImportError)
"""For these `traceback` adds the position, or a suggestion."""

_lines: dict[tuple[str, int, str], str] = {}


def format_trace(error: BaseException) -> str:
    """The chain of exceptions, oldest first, each with its calls."""
    parts: list[str] = []
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen and len(seen) < MAX_CHAIN:
        if isinstance(now, BaseExceptionGroup):
            return "".join(traceback.format_exception(error))
        seen.add(id(now))
        parts.append(_format_one(now))
        before = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
        if before is not None and id(before) not in seen and len(seen) < MAX_CHAIN:
            parts.append(_CAUSE if now.__cause__ is before else _CONTEXT)
        now = before
    return "".join(reversed(parts))


def error_name(error: BaseException) -> str:
    """The class of the exception, qualified by its module."""
    module, name = type(error).__module__, type(error).__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _format_one(error: BaseException) -> str:
    calls = _calls(error.__traceback__)
    summary = _summary(error)
    if not calls:
        return summary
    left_out = f"  [{len(calls) - MAX_FRAMES} earlier calls]\n" if len(calls) > MAX_FRAMES else ""
    shown = "".join(_line(frame, number) for frame, number in calls[-MAX_FRAMES:])
    return f"Traceback (most recent call last):\n{left_out}{shown}{summary}"


def _summary(error: BaseException) -> str:
    """The last line, as `traceback` writes it; plain exceptions are formatted here, which is much cheaper."""
    if isinstance(error, _WITH_HINTS) or getattr(error, "__notes__", None) is not None:
        return "".join(traceback.format_exception_only(error))
    try:
        message = str(error)
    except Exception:
        message = "<exception str() failed>"
    return f"{error_name(error)}: {message}\n" if message else f"{error_name(error)}\n"


def _calls(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The calls from the handler on, without the worker's own calls before it."""
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
        if len(_lines) >= _MAX_LINES:
            _lines.clear()
        source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
        head = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n'
        found = _lines[key] = head + (f"    {source}\n" if source else "")
    return found
