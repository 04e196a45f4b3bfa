"""What stays the same when the same thing goes wrong again: an error's text without what differs from case to case.

Quoted strings, UUIDs, URLs, addresses, paths, hexadecimal and decimal numbers become a word for their sort, in this
order, and runs of blanks become one. The patterns mean the same to Python and to Java, so that the lake and the
dashboard group alike; Python is told to take letters as Java does.
"""

import re
from hashlib import blake2b
from typing import Final

from forebay.core.job import Job

SORTS: Final = (
    (r"\"[^\"]*\"|'[^']*'|`[^`]*`", "<text>"),
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\b[a-z][a-z0-9+.-]*://\S+", "<url>"),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<mail>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-fA-F:]*::?[0-9a-fA-F:]*\](?::\d+)?", "<address>"),
    (r"(?:[A-Za-z]:)?(?:[/\\][\w.@%+~-]+)+[/\\]?", "<path>"),
    (r"(?i)\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{6,}\b", "<hex>"),
    (r"[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?", "<n>"),
    (r"\s+", " "),
)
_SORTS: Final = tuple((re.compile(pattern, re.ASCII), word) for pattern, word in SORTS)


def normalised(message: str) -> str:
    """The message with its particulars replaced."""
    for pattern, word in _SORTS:
        message = pattern.sub(word, message)
    return message.strip()


def fingerprint(*parts: str) -> str:
    """A short name for a group that has these parts in common."""
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def cause_of(job: Job) -> tuple[str, str, str, str]:
    """What a dead job has in common with others that died alike: queue, kind, error, its text without particulars.

    The queue is the one that it died in, wherever it lies.
    """
    queue = job.home or job.queue
    if not job.errors:
        return queue, job.kind, "", ""
    return queue, job.kind, job.errors[-1].kind, normalised(job.errors[-1].message)


def fingerprint_of(job: Job) -> str:
    """The short name of what killed it."""
    return fingerprint(*cause_of(job))
