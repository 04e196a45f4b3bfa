"""What happened to a job (`Outcome`), what to write about it (`Verdict`), and how a failure is described.

Both are closed sums: `decide()` maps every outcome to a verdict, and the type checker proves that none is left out.
Verdicts carry durations, never instants: the store adds them to its own clock.
"""

from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, Instant, micros
from forebay.core.limits import ERROR_MESSAGE_LENGTH, ERROR_TRACE_LENGTH, MAX_DURATION
from forebay.core.payload import check_body, clean_text

ABANDONED = "forebay.Abandoned"
EXPIRED = "forebay.Expired"
SHED = "forebay.Shed"
_MAX_AFTER = micros(MAX_DURATION)


class Failure(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One failed attempt: the kind of error, its message, perhaps a trace; safe to store and bounded."""

    kind: str
    message: str = ""
    trace: str = ""
    attempt: int = 0
    at: Instant = 0

    def __post_init__(self) -> None:
        force_setattr(self, "kind", clean_text(self.kind, 200))
        force_setattr(self, "message", clean_text(self.message, ERROR_MESSAGE_LENGTH))
        force_setattr(self, "trace", clean_text(self.trace, ERROR_TRACE_LENGTH))
        if type(self.attempt) is not int or type(self.at) is not int:
            raise Invalid("failure", "attempt and at are not integers", "leave them out: the store fills them in")

    @property
    def abandoned(self) -> bool:
        return self.kind == ABANDONED


LEASE_RAN_OUT: Final = "its lease ran out: the worker died, hung or was cut off"
"""It names no worker: errors are shown to callers who may not see the workers."""

OUT_OF_TIME: Final = Failure(EXPIRED, "not claimed before it expired")


class Succeeded(Struct, frozen=True):
    """The handler returned; `result` is JSON bytes when the result is to be kept, with its job, for `keep_for`."""

    result: bytes | None = None
    keep_for: Duration = 0


class Failed(Struct, frozen=True):
    """The handler raised; `after` overrides the queue's backoff."""

    error: Failure
    after: Duration | None = None

    def __post_init__(self) -> None:
        _check_error(self.error)


class Dropped(Struct, frozen=True):
    """The handler declared that a retry is useless."""

    error: Failure

    def __post_init__(self) -> None:
        _check_error(self.error)


class Snoozed(Struct, frozen=True):
    """The handler requested to run again later; no attempt is used."""

    after: Duration


class Abandoned(Struct, frozen=True):
    """Its process failed while it ran the job; `cause` says how, and never names the worker.

    `expired`, here and below: this follows from an expired lease, and is void if the holder renews it.
    """

    cause: str = LEASE_RAN_OUT
    expired: bool = False


class Unaccounted(Struct, frozen=True):
    """Its worker is gone or stalled, and it is unknown whether the handler had begun."""

    cause: str = LEASE_RAN_OUT


class Displaced(Struct, frozen=True):
    """Its worker failed while the job ran in quarantine, in a process of its own, so the job is hardly the cause."""

    cause: str = LEASE_RAN_OUT


class Interrupted(Struct, frozen=True):
    """The job is released uncharged: its worker shuts down, or its handler had not begun when the worker failed."""

    expired: bool = False


class Unhandled(Struct, frozen=True):
    """The worker has no handler for the job's kind. Another worker may have it, especially during a deploy.

    `elsewhere`: another worker is known to have it, so the delay is short. `error`: the reason, if the kind is known
    here; it is recorded.
    """

    elsewhere: bool = False
    error: Failure | None = None


class Withdrawn(Struct, frozen=True):
    """The job was cancelled while it ran, and its handler stopped."""

    keep_for: Duration = 0


Outcome: TypeAlias = (
    Succeeded | Failed | Dropped | Snoozed | Abandoned | Unaccounted | Displaced | Interrupted | Unhandled | Withdrawn
)


class Ack(Struct, frozen=True):
    """Done; a result to be kept is JSON, under the rules of payloads.

    The finished job stays readable for `keep_for`, or for as long as its queue keeps it if that is longer.
    """

    result: bytes | None = None
    keep_for: Duration = 0

    def __post_init__(self) -> None:
        if type(self.keep_for) is not int or self.keep_for:
            _check_after(self.keep_for, "keep_for")
        if self.result is not None:
            force_setattr(self, "result", check_body(self.result))


class Retry(Struct, frozen=True):
    """Run again after this delay; an attempt was used.

    `keep_rank`: the job keeps its place in the queue, as after a `Release`; otherwise it gets a new rank.
    `expired`, here and below: void if the lease was renewed meanwhile.
    """

    after: Duration
    error: Failure
    keep_rank: bool = False
    expired: bool = False

    def __post_init__(self) -> None:
        _check_after(self.after)
        _check_error(self.error)


class DeadLetter(Struct, frozen=True):
    """Never again, unless it is redriven."""

    error: Failure
    expired: bool = False

    def __post_init__(self) -> None:
        _check_error(self.error)


class Release(Struct, frozen=True):
    """Return the job to its place in the queue (`core.stamp.rank_back`), perhaps later; the attempt is given back.

    `error` is recorded nevertheless, with the number of the attempt that was given back.
    """

    after: Duration = 0
    error: Failure | None = None
    expired: bool = False

    def __post_init__(self) -> None:
        _check_after(self.after)
        if self.error is not None:
            _check_error(self.error)


class Cancel(Struct, frozen=True):
    """Ended on request; `keep_for` as in `Ack`."""

    keep_for: Duration = 0

    def __post_init__(self) -> None:
        _check_after(self.keep_for, "keep_for")


Verdict: TypeAlias = Ack | Retry | DeadLetter | Release | Cancel


def _check_error(error: Failure) -> None:
    if type(error) is not Failure:
        raise Invalid("error", f"{type(error).__name__} is not a Failure", "build a Failure(kind, message)")


def is_duration(after: object) -> bool:
    """Whether a verdict may have this duration."""
    return type(after) is int and 0 <= after <= _MAX_AFTER


def _check_after(after: Duration, field: str = "after") -> None:
    if not is_duration(after):
        raise Invalid(field, f"{after!r} µs is not in 0 … {_MAX_AFTER}", "give a duration in microseconds")
