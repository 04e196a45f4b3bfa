"""The job log: logger `forebay.jobs`, one record for each failed attempt.

A record is built from the failure as it is stored, which is already redacted, not from the exception, so it is safe
with any logging handler of the application. Failures are rate-limited by kind of job and of error; a summary record
counts what was left out. A logging handler that raises loses the record, never the verdict.

Fields of the records (`extra`): docs/internals/worker.md.
"""

import logging
import re
from collections.abc import Callable, Hashable
from threading import Lock
from time import monotonic
from typing import Any, Final

from forebay.core.humanize import SECOND, format_duration, many
from forebay.core.job import Job
from forebay.core.outcome import Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.work.console import clean

LOGGER: Final = "forebay.jobs"
_log = logging.getLogger(LOGGER)

BURST: Final = 10
RATE: Final = 1.0
KINDS_AT_ONCE: Final = 5
"""Failures of one kind: a burst of ten, then one a second; all kinds together five times as many."""

UNHANDLED_EVERY: Final = 60.0
UNHANDLED_AT_ONCE: Final = 20
VERBOSE_BURST: Final = 1_000
SUMMARY_EVERY: Final = 10.0
_SUMMARY_NAMES: Final = 5
MAX_KEYS: Final = 200
"""Keys with a bucket of their own; all others share one."""

_OTHERS: Final = "others"


class _Bucket:
    """A token bucket: `burst` tokens, `rate` new ones a second."""

    def __init__(self, burst: int, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = float(burst)
        self._at = now

    def tokens(self, now: float) -> float:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens

    def full(self, now: float) -> bool:
        return self.tokens(now) >= self._burst

    def take(self) -> None:
        self._tokens -= 1


class Throttle:
    """Rate limit by key: `burst` events, then `rate` a second; for all keys together `total` times as many.

    Thread-safe. Refused events are counted.
    """

    def __init__(self, burst: int, rate: float, total: int = 1, clock: Callable[[], float] = monotonic) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._guard = Lock()
        self._buckets: dict[Hashable, _Bucket] = {}
        self._all = _Bucket(burst * total, rate * total, clock())
        self._refused: dict[Hashable, int] = {}

    def admit(self, key: Hashable) -> bool:
        """Whether this event may be logged."""
        now = self._clock()
        with self._guard:
            key = self._known(key, now)
            bucket = self._buckets.setdefault(key, _Bucket(self._burst, self._rate, now))
            if bucket.tokens(now) < 1 or self._all.tokens(now) < 1:
                self._refused[key] = self._refused.get(key, 0) + 1
                return False
            bucket.take()
            self._all.take()
            return True

    def take_refused(self) -> dict[Hashable, int]:
        """The number of events refused since the last call, by key."""
        with self._guard:
            refused, self._refused = self._refused, {}
        return refused

    def take_refused_of(self, key: Hashable) -> int:
        with self._guard:
            return self._refused.pop(key, 0)

    def _known(self, key: Hashable, now: float) -> Hashable:
        if key in self._buckets or len(self._buckets) < MAX_KEYS:
            return key
        self._buckets = {known: bucket for known, bucket in self._buckets.items() if not bucket.full(now)}
        return key if len(self._buckets) < MAX_KEYS else _OTHERS


class JobLog:
    """The job log of one process. `verbose`: DEBUG is enabled; cached by `refresh`, not checked for every job."""

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
        """Log the end of a run, and its duration if known. The text of a record that is left out is never built."""
        if type(verdict) is Ack and not self.verbose:
            return
        failure = verdict.error if isinstance(verdict, Retry | DeadLetter | Release) else None
        if failure is not None and not self._admitted(job.kind, failure.kind):
            return
        took = {} if seconds is None else {"duration_seconds": round(seconds, 6)}
        match verdict:
            case Ack():
                self._step(job, "done", "done" if seconds is None else f"done in {_duration(seconds)}", **took)
            case Release(_, Failure() as error):
                text = f"was released, not counted as an attempt: {clean(error.message)}"
                self._failure(logging.WARNING, job, "released", text, error, **took)
            case Release(after):
                wait = after / SECOND
                text = f"was released{f', again in {_duration(wait)}' if after else ''}"
                self._step(job, "released", text, retry_in_seconds=wait, **took)
            case Cancel():
                self._step(job, "cancelled", "cancelled", **took)
            case Retry(after, error):
                wait = after / SECOND
                text = f"{_failed(job, error, seconds)}; retry {f'in {_duration(wait)}' if after else 'at once'}"
                self._failure(logging.WARNING, job, "failed", text, error, retry_in_seconds=wait, **took)
            case DeadLetter(error):
                text = f"is a dead letter now: it {_failed(job, error, seconds)}"
                self._failure(logging.ERROR, job, "dead", text, error, **took)

    def lost(self, job: Job) -> None:
        """Log that the lease ended before the run."""
        if self._admitted(job.kind, "lost"):
            self._write(logging.WARNING, job, "lost", "lost its lease; the outcome of this run is discarded")

    def unhandled(self, job: Job, verdict: Verdict) -> None:
        """Log a job without a handler here, once a minute for each queue and kind."""
        if not self._unhandled.admit((job.queue, job.kind)):
            return
        others = self._unhandled.take_refused_of((job.queue, job.kind))
        more = f"; {many(others, 'more job')} since the last such record" if others else ""
        wait, reason = 0.0, f"this worker has no handler for kind {job.kind}"
        if isinstance(verdict, Release):
            wait = verdict.after / SECOND
            reason = reason if verdict.error is None else verdict.error.message
        text = f"was released to queue {job.queue}, uncharged: {reason}; again in {_duration(wait)}{more}"
        self._write(logging.WARNING, job, "unhandled", text, retry_in_seconds=wait, suppressed=others)

    def flush(self, *, now: bool = False) -> None:
        """Log how many records were left out, if any, at most once in `SUMMARY_EVERY` seconds."""
        with self._guard:
            if not now and self._clock() < self._summary_at:
                return
            self._summary_at = self._clock() + SUMMARY_EVERY
        refused = {**self._failures.take_refused(), **self._steps.take_refused()}
        if not refused:
            return
        count = sum(refused.values())
        top = sorted(refused, key=lambda key: -refused[key])[:_SUMMARY_NAMES]
        named = ", ".join(f"{' '.join(key) if isinstance(key, tuple) else key} {refused[key]:,}" for key in top)
        text = f"{many(count, 'job record')} left out by the rate limit: {named}"
        _handle(logging.WARNING, text, {"event": "suppressed", "suppressed": count})

    def _step(self, job: Job, event: str, text: str, **fields: Any) -> None:
        if self.verbose and self._steps.admit("started and done"):
            self._write(logging.DEBUG, job, event, text, **fields)

    def _failure(self, level: int, job: Job, event: str, text: str, error: Failure, **fields: Any) -> None:
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
        # An error in an application's logging handler must not lose the verdict.
        if logging.raiseExceptions and logging.lastResort is not None:
            logging.lastResort.handleError(logging.makeLogRecord({"msg": message}))


def _failed(job: Job, error: Failure, seconds: float | None) -> str:
    after = "" if seconds is None else f" after {_duration(seconds)}"
    why = f"{error.kind}: {error.message}" if error.message else error.kind
    return f"failed on attempt {job.attempt} of {job.max_attempts}{after}: {clean(why)}"


def _duration(seconds: float) -> str:
    """ "0.31 ms", "12 ms", "3.2 s"."""
    if seconds < 1:
        return f"{seconds * 1_000:.{2 if seconds < 0.01 else 3}g} ms"
    return re.sub(r"(?<=\d)(?=[a-z])", " ", format_duration(int(seconds * SECOND)))
