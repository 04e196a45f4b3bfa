"""The rules of redaction of this process, and the filter that keeps secrets out of its logs.

While a handler runs, `running_job` holds its job, so that what it logs is also free of its payload's secrets.

The rules are a JSON file named by FOREBAY_REDACTION, so that workers, servers and commands have the same ones before a
store is open; without it the built-in ones hold. A file that cannot be read is refused at the start, not at the first
secret.
"""

import logging
import os
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.redaction import DEFAULT, Redaction

VARIABLE: Final = "FOREBAY_REDACTION"


class RunningJob:
    """The secrets of the job that runs in this thread or task, found when the first record is logged."""

    __slots__ = ("_body", "_known", "_secrets_of")

    def __init__(self, secrets_of: Callable[[bytes], Collection[str]], body: bytes) -> None:
        self._secrets_of = secrets_of
        self._body = body
        self._known: Collection[str] | None = None

    @property
    def secrets(self) -> Collection[str]:
        if self._known is None:
            self._known = self._secrets_of(self._body)
        return self._known


running_job: ContextVar[RunningJob | None] = ContextVar("forebay_running_job", default=None)


def rules() -> Redaction:
    """As FOREBAY_REDACTION says; read once a file."""
    place = os.environ.get(VARIABLE)
    return _read(place) if place else DEFAULT


@cache
def _read(place: str) -> Redaction:
    try:
        return msgspec.json.decode(Path(place).read_bytes(), type=Redaction)
    except (OSError, msgspec.DecodeError) as error:
        way_out = 'write {"names": ["passport"], "kinds": {"charge": ["customer.email"]}}'
        raise Invalid(VARIABLE, str(error), way_out) from None


class SecretFilter(logging.Filter):
    """Every record's words, and its trace, without what looks like a secret."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:
            said = f"{record.msg} (its arguments do not fit)"
        job = running_job.get()
        known = () if job is None else job.secrets
        record.msg, record.args = self._redaction.text(said, known), None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redaction.text(record.exc_text, known)
        return True


def guard_logs() -> None:
    """Put the filter on all handlers of all loggers, each once; the root's too, and the last resort."""
    redaction = rules()
    loggers = [logging.root, *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    for handler in [*handlers, *([logging.lastResort] if logging.lastResort else [])]:
        if not any(isinstance(each, SecretFilter) for each in handler.filters):
            handler.addFilter(SecretFilter(redaction))
