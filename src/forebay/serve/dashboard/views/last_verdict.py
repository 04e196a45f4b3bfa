"""The last verdict of `forebay audit`, as the audited lake keeps it."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError


class LastVerdict(Struct, frozen=True):
    """The part of it that the overview shows."""

    answer: str
    at: int = 0
    reasons: list[str] = []


def last_verdict(read: Callable[[], bytes | None]) -> LastVerdict | None:
    """None: there is none yet, or it cannot be read now."""
    try:
        content = read()
        return None if content is None else msgspec.json.decode(content, type=LastVerdict)
    except (OSError, ForebayError, msgspec.DecodeError):
        return None
