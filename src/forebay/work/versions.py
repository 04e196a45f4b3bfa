"""Versions of payloads: `@fb.job(version=2)` and `@job.upgrade(from_version=1)`.

The version travels in the job's meta; without one it is 1. A payload of an older version is upgraded step by step
before the handler runs, and stays in the store as it is. A job of a newer version is released uncharged: a worker with
newer code will take it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from forebay.core.errors import Invalid
from forebay.core.job import Job
from forebay.core.outcome import Failure
from forebay.core.payload import Json
from forebay.core.policy import check_between

VERSION: Final = "forebay.version"
"""The entry of meta that holds the version."""

NEWER: Final = "forebay.NewerVersion"
MAX_VERSION: Final = 1_000_000
_MALFORMED: Final = 0


def version_of(meta: Mapping[str, str] | None) -> int:
    """The version of a job's payload; 0 if it is not a number."""
    if meta is None or VERSION not in meta:
        return 1
    text = meta[VERSION]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_VERSION)) else _MALFORMED


def with_version(meta: dict[str, str] | None, version: int) -> dict[str, str] | None:
    """Meta of a job whose payload has this version, unless it names one itself."""
    return meta if version == 1 or VERSION in (meta or {}) else {**(meta or {}), VERSION: str(version)}


def newer_than(job: Job, version: int) -> Failure | None:
    """Why a worker whose handler has this version cannot run the job yet; None if it can."""
    found = 1 if job.meta is None else version_of(job.meta)
    if found <= version:
        return None
    return Failure(NEWER, f"its payload is version {found} of {job.kind}, and this worker has version {version}")


class Versions:
    """The version of one handler, and the steps from each older one to the next."""

    def __init__(self, kind: str, version: int) -> None:
        check_between("version", version, 1, MAX_VERSION)
        self._kind = kind
        self.current = version
        self._steps: dict[int, Callable[[Any], Any]] = {}

    def add(self, from_version: int, step: Callable[[Any], Any]) -> None:
        if type(from_version) is not int or not 1 <= from_version < self.current:
            what = f"{from_version!r} is not a version older than {self.current}, that of {self._kind}"
            raise Invalid("from_version", what, "give @fb.job(version=…) the new version")
        if from_version in self._steps:
            raise Invalid("from_version", f"{self._kind} has an upgrade from {from_version} already", "remove one")
        self._steps[from_version] = step

    def upgrade(self, payload: Json, version: int) -> Json:
        """The payload in the current version; raises `Invalid` if a step is missing."""
        for number in range(version, self.current):
            step = self._steps.get(number)
            if step is None:
                what = f"the payload is version {version}, and there is no upgrade from {number} to {number + 1}"
                raise Invalid(self._kind, what, "deploy code that has it, then redrive")
            payload = step(payload)
        return payload
