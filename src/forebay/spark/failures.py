"""Errors of Spark without the stack traces of three languages."""

import re

from pyspark.errors import PySparkException

from forebay.core.errors import ForebayError

_OURS = re.compile(r"forebay\.core\.errors\.\w+: (.+)")
_MAX_LINE = 400


def unwrapped(error: Exception) -> Exception:
    """The error that Forebay raised in a task, if that is the cause; else the error itself."""
    ours = _OURS.findall(str(error))
    return ForebayError(ours[-1].strip()) if ours else error


def one_line(error: Exception) -> str:
    """The error condition and its first line."""
    own = unwrapped(error)
    if own is not error:
        return str(own)
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    lines = [line.strip() for line in (text or str(error)).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]*(Error|Exception)\b", line)]
    return f"{type(error).__name__}: {(causes or lines or ['no reason was given'])[-1 if causes else 0][:_MAX_LINE]}"
