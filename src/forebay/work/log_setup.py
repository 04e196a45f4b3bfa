"""Logging configuration of a Forebay process: FOREBAY_LOG sets the level, FOREBAY_LOG_FORMAT the format.

`text` writes plain lines, `json` one object per line, and `console` text with a coloured line for each step of a job,
as in `forebay dev`. An application that has configured logging keeps its handlers; the level, and a format if one is
set, still apply to Forebay's own loggers.
"""

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.payload import plain_json
from forebay.work.console import clean, painted, shows_colours
from forebay.work.job_log import LOGGER
from forebay.work.redacting import install_secret_filter, rules, running_job

LEVEL: Final = "FOREBAY_LOG"
FORMAT: Final = "FOREBAY_LOG_FORMAT"
FORMATS: Final = ("text", "json", "console")

_COLOURS: Final = {
    "started": "dim",
    "done": "green",
    "failed": "yellow",
    "lost": "yellow",
    "unhandled": "yellow",
    "released": "cyan",
    "cancelled": "dim",
    "dead": "red",
}
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "text"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, extra fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if fields:
            plain = plain_json(msgspec.to_builtins(fields, str_keys=True, enc_hook=str))
            job = running_job.get()
            shown = rules().payload("", plain, () if job is None else job.secrets)
            line |= {name: value for name, value in shown.items() if name not in line} if type(shown) is dict else {}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["traceback"] = record.exc_text
        return msgspec.json.encode(line).decode()


class ConsoleFormatter(logging.Formatter):
    """A line for each step of a job, coloured on a terminal; other records as text."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        colour = _COLOURS.get(getattr(record, "event", ""))
        if record.name != LOGGER or colour is None:
            return super().format(record)
        fields = vars(record)
        job = f"{fields['kind']} {fields['job_id']}"
        text = clean(rules().text(fields["text"]))
        line = f"{self.formatTime(record, '%H:%M:%S')}  {job}  {painted(text, colour) if self._coloured else text}"
        return f"{line}\n{record.exc_text}" if record.exc_text else line


def log_level() -> str:
    """The level in FOREBAY_LOG; WARNING by default."""
    level = (os.environ.get(LEVEL) or "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise Invalid(LEVEL, f"{level!r} is not a log level", "use DEBUG, INFO, WARNING or ERROR")
    return level


def log_format() -> str | None:
    """The format in FOREBAY_LOG_FORMAT, if set."""
    form = os.environ.get(FORMAT) or None
    if form is not None and form not in FORMATS:
        raise Invalid(FORMAT, f"{form!r} is not a log format", f"use {', '.join(FORMATS)}")
    return form


def configure_logging() -> None:
    """Configure a process that Forebay started, after the import of an app that may have configured logging."""
    level, form = log_level(), log_format()
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_handler(form))
        root.setLevel(level)
    elif form is not None:
        _use(logging.getLogger("forebay"), form)
    if os.environ.get(LEVEL):
        logging.getLogger("forebay").setLevel(level)
    if form == "console":
        _use(logging.getLogger(LOGGER), form)
        logging.getLogger(LOGGER).setLevel(logging.DEBUG)
    install_secret_filter()


def _use(logger: logging.Logger, form: str) -> None:
    """Use this format for the logger, independent of the application's handlers."""
    if not logger.handlers:
        logger.addHandler(_handler(form))
        logger.propagate = False


def _handler(form: str | None) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    match form:
        case "json":
            handler.setFormatter(JsonFormatter())
        case "console":
            handler.setFormatter(ConsoleFormatter(coloured=shows_colours(sys.stderr)))
        case _:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    return handler
