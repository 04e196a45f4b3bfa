"""What Spark says when something failed, without the traces of three languages around it."""

import re

from pyspark.errors import PySparkException

from forebay.core.errors import ForebayError

_OURS = re.compile(r"forebay\.core\.errors\.\w+: (.+)")
_MAX_LINE = 400


def plain(error: Exception) -> Exception:
    """What Forebay said on the far side of Spark, where it was Forebay that refused; else the error itself."""
    said = _OURS.findall(str(error))
    return ForebayError(said[-1].strip()) if said else error


def in_a_line(error: Exception) -> str:
    """For people: the condition and its first line."""
    own = plain(error)
    if own is not error:
        return str(own)
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    lines = [line.strip() for line in (text or str(error)).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]*(Error|Exception)\b", line)]
    return f"{type(error).__name__}: {(causes or lines or ['no reason was given'])[-1 if causes else 0][:_MAX_LINE]}"
