"""What `doctor` has found: one line a check."""

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`status` is ok, warn or fail; `remedy` is empty where nothing is to be done."""

    status: str
    check: str
    fact: str
    remedy: str = ""
