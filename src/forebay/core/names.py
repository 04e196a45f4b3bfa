"""Names are made of `[A-Za-z0-9_.:-]`, 1 to 128 of them: safe in SQL, Lua, URLs, labels and file names."""

import re
from functools import lru_cache
from typing import Final

from forebay.core.errors import Invalid
from forebay.core.limits import NAME_LENGTH, TEXT_LENGTH
from forebay.core.payload import is_clean

RESERVED: Final = "forebay."
"""Queues and logs with this prefix are Forebay's own, such as the keys of a server and the operators' log."""

_NAME = re.compile(rf"[A-Za-z0-9_.:-]{{1,{NAME_LENGTH}}}", re.ASCII)


@lru_cache(maxsize=4096)
def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


def check_name(field: str, name: str) -> str:
    """The name as a plain string (an enum's value, say), or `Invalid`."""
    if not isinstance(name, str) or not is_name(name):
        raise Invalid(field, f"{_shown(name)} is not a name", f"use 1 to {NAME_LENGTH} of A-Z a-z 0-9 _ . : -")
    return str.__str__(name)


def check_pattern(field: str, pattern: str) -> str:
    """Words between dots, of which any may be `*` and the last one `**`."""
    *words, last = pattern.split(".") if isinstance(pattern, str) and len(pattern) <= NAME_LENGTH else ("",)
    if not all(word == "*" or is_name(word) for word in (*words, "*" if last == "**" else last)):
        raise Invalid(
            field, f"{_shown(pattern)} is not a pattern", "use words between dots, * for one, ** for the rest"
        )
    return str.__str__(pattern)


def check_text(field: str, text: str) -> str:
    """Free text that identifies something, such as an idempotency key or a subject."""
    if not isinstance(text, str) or not 1 <= len(text) <= TEXT_LENGTH or not is_clean(text):
        raise Invalid(
            field,
            f"{_shown(text)} is empty, longer than {TEXT_LENGTH}, or holds NUL or a lone surrogate",
            f"use 1 to {TEXT_LENGTH} characters",
        )
    return str.__str__(text)


def _shown(value: object) -> str:
    return ascii(value) if len(ascii(value)) <= 60 else ascii(value)[:59] + "…"
