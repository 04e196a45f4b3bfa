"""The result of one check of `doctor`."""

from msgspec import Struct


class Diagnosis(Struct, frozen=True):
    """`status` is ok, warn or fail; `remedy` is empty where nothing needs to be done."""

    status: str
    check: str
    fact: str
    remedy: str = ""
