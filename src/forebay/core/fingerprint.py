"""Fingerprints of failures: an error's text without the parts that differ from one occurrence to the next.

Quoted strings, UUIDs, URLs, addresses, paths, hexadecimal and decimal numbers become a placeholder, in this order, and
runs of blanks become one. The patterns mean the same in Python and in Java (`re.ASCII`), so that the lake and the
dashboard form the same groups.
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
    """The message with its variable parts replaced."""
    for pattern, word in _SORTS:
        message = pattern.sub(word, message)
    return message.strip()


def fingerprint(*parts: str) -> str:
    """A short name for the group with these parts."""
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def cause_of(job: Job) -> tuple[str, str, str, str]:
    """What dead jobs of one cause have in common: queue, kind, error, and the text without its variable parts.

    The queue is the one that the job died in, even if its dead letter is in another one.
    """
    queue = job.home or job.queue
    if not job.errors:
        return queue, job.kind, "", ""
    return queue, job.kind, job.errors[-1].kind, normalised(job.errors[-1].message)


def fingerprint_of(job: Job) -> str:
    """The short name of its cause."""
    return fingerprint(*cause_of(job))
