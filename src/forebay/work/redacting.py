"""The redaction rules of this process, and the logging filter that applies them.

While a handler runs, `running_job` holds its job, so that its log records are also free of the secrets in its payload.

FOREBAY_REDACTION names a JSON file with rules, so that workers, servers and commands share them before a store is open;
without it the built-in rules apply. A file that cannot be read is an error at the start.
"""

import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.redaction import DEFAULT, Redaction

VARIABLE: Final = "FOREBAY_REDACTION"


class JobSecrets:
    """The secrets of the job that runs in this thread or task; computed when the first record is logged."""

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


class RunningBatch(JobSecrets):
    """The secrets of all jobs of a batch."""

    __slots__ = ()

    def __init__(self, jobs: Sequence[JobSecrets | None]) -> None:
        super().__init__(lambda _: {secret for job in jobs if job is not None for secret in job.secrets}, b"")


running_job: ContextVar[JobSecrets | None] = ContextVar("forebay_running_job", default=None)


def rules() -> Redaction:
    """The rules of the file in FOREBAY_REDACTION, which is read once."""
    path = os.environ.get(VARIABLE)
    return _read(path) if path else DEFAULT


@cache
def _read(path: str) -> Redaction:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Redaction)
    except (OSError, msgspec.DecodeError) as error:
        way_out = 'write {"names": ["passport"], "kinds": {"charge": ["customer.email"]}}'
        raise Invalid(VARIABLE, str(error), way_out) from None


class SecretFilter(logging.Filter):
    """Removes secrets from the message and the traceback of every record."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:
            message = f"{record.msg} (its arguments do not match)"
        job = running_job.get()
        known = () if job is None else job.secrets
        record.msg, record.args = self._redaction.text(message, known), None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redaction.text(record.exc_text, known)
        return True


def install_secret_filter() -> None:
    """Add the filter once to every handler of every logger, including the root's and the last resort."""
    redaction = rules()
    loggers = [logging.root, *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    for handler in [*handlers, *([logging.lastResort] if logging.lastResort else [])]:
        if not any(isinstance(each, SecretFilter) for each in handler.filters):
            handler.addFilter(SecretFilter(redaction))
