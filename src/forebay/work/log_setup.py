"""How a process of Forebay writes its log: FOREBAY_LOG is the level, FOREBAY_LOG_FORMAT the form.

`text` is a line for a person, `json` an object a line for a machine, `console` the text with a coloured line for each
step of a job, as `forebay dev` shows it. An application that has configured logging itself keeps its handlers; the
level still holds for Forebay's own loggers, and a form that was asked for is used for them.
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
from forebay.work.redacting import guard_logs, rules, running_job

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
    """One object a line: time, level, logger, message, the record's own fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
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
            said |= {name: value for name, value in shown.items() if name not in said} if type(shown) is dict else {}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            said["traceback"] = record.exc_text
        return msgspec.json.encode(said).decode()


class ConsoleFormatter(logging.Formatter):
    """A line for each step of a job, coloured where the stream shows colours; other records as text."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        colour = _COLOURS.get(getattr(record, "event", ""))
        if record.name != LOGGER or colour is None:
            return super().format(record)
        fields = vars(record)
        job = f"{fields['kind']} {fields['job_id']}"
        said = clean(rules().text(fields["text"]))
        line = f"{self.formatTime(record, '%H:%M:%S')}  {job}  {painted(said, colour) if self._coloured else said}"
        return f"{line}\n{record.exc_text}" if record.exc_text else line


def log_level() -> str:
    """What FOREBAY_LOG says."""
    level = (os.environ.get(LEVEL) or "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise Invalid(LEVEL, f"{level!r} is no level", "use DEBUG, INFO, WARNING or ERROR")
    return level


def log_format() -> str | None:
    """What FOREBAY_LOG_FORMAT says; None: nothing."""
    form = os.environ.get(FORMAT) or None
    if form is not None and form not in FORMATS:
        raise Invalid(FORMAT, f"{form!r} is no form of a log", f"use {', '.join(FORMATS)}")
    return form


def configure_logging() -> None:
    """For the processes that Forebay starts; after the application was imported, which may have done it itself."""
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
    guard_logs()


def _use(logger: logging.Logger, form: str) -> None:
    """This form for these records, whatever the application does with its own."""
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
