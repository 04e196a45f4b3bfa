"""What a worker writes to the log about jobs: logger `forebay.jobs`, one record for each failed attempt.

A record is made of the failure as it is stored, which is redacted already, never of the exception itself: it is safe
with any handler that an application installs. Failures are rate-limited by kind of job and of error, and what was left
out is counted in a record of its own. A handler of the log that raises costs the record, never the verdict.

Fields of the records (`extra`): docs/worker.md.
"""

import logging
import re
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Any, Final

from forebay.core.job import Job
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.words import SECOND, many, span
from forebay.work.console import clean
from forebay.work.throttle import Throttle

LOGGER: Final = "forebay.jobs"
_log = logging.getLogger(LOGGER)

BURST: Final = 10
RATE: Final = 1.0
KINDS_AT_ONCE: Final = 5
"""Failures of one kind: ten at once, then one a second; of all kinds together five times as many."""

UNHANDLED_EVERY: Final = 60.0
UNHANDLED_AT_ONCE: Final = 20
VERBOSE_BURST: Final = 1_000
SUMMARY_EVERY: Final = 10.0
_SUMMARY_NAMES: Final = 5


class JobLog:
    """One for a process. `verbose`: records at DEBUG are wanted; looked up by `refresh`, not for every job."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures = Throttle(BURST, RATE, KINDS_AT_ONCE, clock)
        self._unhandled = Throttle(1, 1 / UNHANDLED_EVERY, UNHANDLED_AT_ONCE, clock)
        self._steps = Throttle(VERBOSE_BURST, VERBOSE_BURST, 1, clock)
        self._guard = Lock()
        self._summary_at = clock() + SUMMARY_EVERY
        self.verbose = False
        self.refresh()

    def refresh(self) -> None:
        self.verbose = _log.isEnabledFor(logging.DEBUG)

    def started(self, job: Job) -> None:
        self._step(job, "started", f"started, attempt {job.attempt} of {job.max_attempts}")

    def ended(self, job: Job, verdict: Verdict, seconds: float | None = None) -> None:
        """What became of a run, and how long it took where that is known."""
        if type(verdict) is Ack and not self.verbose:
            return
        took = {} if seconds is None else {"duration_seconds": round(seconds, 6)}
        match verdict:
            case Ack():
                self._step(job, "done", "done" if seconds is None else f"done in {_length(seconds)}", **took)
            case Release(_, Failure() as error):
                text = f"was taken back, which is not counted as an attempt: {clean(error.message)}"
                self._failure(logging.WARNING, job, "released", text, error, **took)
            case Release(after):
                wait = after / SECOND
                text = f"goes back unharmed{f', again in {_length(wait)}' if after else ''}"
                self._step(job, "released", text, retry_in_seconds=wait, **took)
            case Cancel():
                self._step(job, "cancelled", "cancelled", **took)
            case Retry(after, error):
                wait = after / SECOND
                text = f"{_failed(job, error, seconds)}; retry {f'in {_length(wait)}' if after else 'at once'}"
                self._failure(logging.WARNING, job, "failed", text, error, retry_in_seconds=wait, **took)
            case DeadLetter(error):
                text = f"is a dead letter now: it {_failed(job, error, seconds)}"
                self._failure(logging.ERROR, job, "dead", text, error, **took)

    def lost(self, job: Job) -> None:
        """Its lease ended before its run did."""
        if self._admitted(job.kind, "lost"):
            self._write(logging.WARNING, job, "lost", "lost its lease: what came of this run is dropped")

    def unhandled(self, job: Job, verdict: Verdict) -> None:
        """A job of a kind that has no handler here; told once a minute of each queue and kind."""
        if not self._unhandled.admit((job.queue, job.kind)):
            return
        others = self._unhandled.take_refused_of((job.queue, job.kind))
        more = f"; {many(others, 'other')} of them went back since this was last said" if others else ""
        wait = verdict.after / SECOND if isinstance(verdict, Release) else 0.0
        text = (
            f"goes back to queue {job.queue}, uncharged: this worker has no handler for kind {job.kind}; "
            f"again in {_length(wait)}{more}"
        )
        self._write(logging.WARNING, job, "unhandled", text, retry_in_seconds=wait, suppressed=others)

    def flush(self, *, now: bool = False) -> None:
        """Write how many records were left out, if there are any, and if that was not said just before."""
        with self._guard:
            if not now and self._clock() < self._summary_at:
                return
            self._summary_at = self._clock() + SUMMARY_EVERY
        refused = {**self._failures.take_refused(), **self._steps.take_refused()}
        if not refused:
            return
        count = sum(refused.values())
        most = sorted(refused, key=lambda key: -refused[key])[:_SUMMARY_NAMES]
        named = ", ".join(f"{' '.join(key) if isinstance(key, tuple) else key} {refused[key]:,}" for key in most)
        text = f"{many(count, 'record')} of jobs were left out, to spare the disk: {named}"
        _handle(logging.WARNING, text, {"event": "suppressed", "suppressed": count})

    def _step(self, job: Job, event: str, text: str, **fields: Any) -> None:
        if self.verbose and self._steps.admit("started and done"):
            self._write(logging.DEBUG, job, event, text, **fields)

    def _failure(self, level: int, job: Job, event: str, text: str, error: Failure, **fields: Any) -> None:
        if self._admitted(job.kind, error.kind):
            trace = error.trace if self.verbose or level >= logging.ERROR else ""
            fields |= {"error": error.kind, "error_message": error.message}
            self._write(level, job, event, text, trace, **fields)

    def _admitted(self, kind: str, why: str) -> bool:
        return self._steps.admit("failures") if self.verbose else self._failures.admit((kind, why))

    def _write(self, level: int, job: Job, event: str, text: str, trace: str = "", **fields: Any) -> None:
        about = {
            "event": event,
            "job_id": job.id,
            "kind": job.kind,
            "queue": job.queue,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "delivery": job.delivery,
        }
        if job.tenant is not None:
            about["tenant"] = job.tenant
        _handle(level, f"job {job.id} ({job.kind}) {text}", about | fields | {"text": text}, trace)


def _handle(level: int, message: str, fields: dict[str, Any], trace: str = "") -> None:
    try:
        if not _log.isEnabledFor(level):
            return
        record = _log.makeRecord(LOGGER, level, __file__, 0, message, (), None, extra=fields)
        record.exc_text = trace.rstrip() or None
        _log.handle(record)
    except Exception:
        # Whatever an application's handler does, a verdict is on its way and must not be lost.
        if logging.raiseExceptions and logging.lastResort is not None:
            logging.lastResort.handleError(logging.makeLogRecord({"msg": message}))


def _failed(job: Job, error: Failure, seconds: float | None) -> str:
    after = "" if seconds is None else f" after {_length(seconds)}"
    why = f"{error.kind}: {error.message}" if error.message else error.kind
    return f"failed on attempt {job.attempt} of {job.max_attempts}{after}: {clean(why)}"


def _length(seconds: float) -> str:
    """ "0.31 ms", "12 ms", "3.2 s"."""
    if seconds < 1:
        return f"{seconds * 1_000:.{2 if seconds < 0.01 else 3}g} ms"
    return re.sub(r"(?<=\d)(?=[a-z])", " ", span(int(seconds * SECOND)))
