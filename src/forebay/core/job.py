"""What a producer hands in (`Draft`), what callers see (`Job`), and the states between the two.

A `Draft` is checked and its payload encoded when it is made: a draft that exists can be stored, on every store alike.
A `Job` is an immutable snapshot of the record; only the store changes the record.

    waiting → ready → running → done | dead | cancelled
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, Instant, checked_instant, micros
from forebay.core.limits import MAX_ATTEMPTS, MAX_COST, MAX_DURATION, MAX_NOTE, MAX_PRIORITY, META_BYTES, META_ENTRIES
from forebay.core.names import check_name, check_text, is_name
from forebay.core.outcome import Failure
from forebay.core.payload import Json, check_body, clean_text, decode_payload, encode_payload

_MAX_DELAY = micros(MAX_DURATION)


class State(StrEnum):
    """Where a job is. "Failed" is an outcome, not a state."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (State.DONE, State.DEAD, State.CANCELLED)


class Draft(Struct, frozen=True):
    """A job as its producer describes it.

    priority    higher is sooner, if the queue's selection uses it
    run_at      not before this instant;  delay: not before this long after acceptance (they exclude each other)
    deadline    the instant by which it should be done: the order of a `Deadline` queue
    expires_at  a job that was not claimed by this instant becomes a dead letter
    key         idempotency key: within the queue's window the same key is the same job
    tenant      the customer it belongs to: the class of fair shares
    subject     what it is about: per-subject order, caps and coalescing
    meta        small strings that travel along, such as a trace id
    body        the payload as JSON bytes, for callers that have it encoded already; then `payload` is not read
    cost        how much it takes of each cap, rate and condition, and of its worker's slots
    """

    kind: str
    payload: Json = None
    queue: str = "default"
    priority: int = 0
    run_at: Instant | None = None
    delay: Duration = 0
    deadline: Instant | None = None
    expires_at: Instant | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None
    max_attempts: int | None = None
    meta: dict[str, str] | None = None
    body: bytes = b""
    cost: int = 1

    def __post_init__(self) -> None:
        kind, queue = self.kind, self.queue
        if type(kind) is not str or not is_name(kind):
            force_setattr(self, "kind", check_name("kind", kind))
        if type(queue) is not str or not is_name(queue):
            force_setattr(self, "queue", check_name("queue", queue))
        force_setattr(self, "body", check_body(self.body) if self.body else encode_payload(self.payload))
        if type(self.priority) is not int or self.priority:
            _check_count("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if type(self.delay) is not int or self.delay:
            _check_count("delay", self.delay, 0, _MAX_DELAY)
        if type(self.cost) is not int or self.cost != 1:
            _check_count("cost", self.cost, 1, MAX_COST)
        if self.run_at is not None:
            checked_instant("run_at", self.run_at)
            if self.delay:
                raise Invalid("run_at", "a delay is given too", "give one of the two")
        if self.tenant is not None:
            force_setattr(self, "tenant", check_name("tenant", self.tenant))
        if self.subject is not None:
            force_setattr(self, "subject", check_text("subject", self.subject))
        if self.key is not None:
            force_setattr(self, "key", check_text("key", self.key))
        if self.max_attempts is not None:
            _check_count("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        if self.deadline is not None:
            checked_instant("deadline", self.deadline)
        if self.expires_at is not None:
            checked_instant("expires_at", self.expires_at)
        if self.meta is not None:
            force_setattr(self, "meta", _checked_meta(self.meta))


class Progress(Struct, frozen=True):
    """The progress that a running job reported: a fraction from 0 to 1 and a short text. `at`: when."""

    portion: float
    note: str = ""
    at: Instant = 0

    def __post_init__(self) -> None:
        if type(self.portion) not in (int, float) or not 0 <= self.portion <= 1:
            raise Invalid("portion", f"{self.portion!r:.40} is not a number from 0 to 1", "say which part is done")
        force_setattr(self, "portion", float(self.portion))
        force_setattr(self, "note", clean_text(self.note, MAX_NOTE))


class Job(Struct, frozen=True):
    """One job as a caller sees it. `attempt` counts the attempts used; `delivery` counts claims and only ever grows.

    `home`: the queue it died in, where its dead letter is in another one (`queue`); a redrive sends it back there.
    `progress`: what the holder of this delivery last reported; only for a running job, and only from `get`.
    """

    id: int
    queue: str
    kind: str
    body: bytes
    state: State
    priority: int
    enqueued_at: Instant
    due_at: Instant
    attempt: int
    max_attempts: int
    delivery: int
    key: str | None
    tenant: str | None
    subject: str | None
    deadline: Instant | None
    expires_at: Instant | None
    meta: dict[str, str] | None
    owner: str | None
    claimed_at: Instant | None
    lease_until: Instant | None
    finished_at: Instant | None
    cancel_requested: bool
    errors: tuple[Failure, ...]
    result_body: bytes | None
    cost: int = 1
    home: str | None = None
    progress: Progress | None = None

    @property
    def payload(self) -> Json:
        """The payload, decoded at each call: changing it has no effect on the job."""
        return decode_payload(self.body)

    @property
    def result(self) -> Json:
        return None if self.result_body is None else decode_payload(self.result_body)

    @property
    def suspect(self) -> bool:
        """Its last holder died with it."""
        return bool(self.errors) and self.errors[-1].abandoned

    @property
    def needs_quarantine(self) -> bool:
        """Whether this delivery of a claimed job runs in a process of its own."""
        return is_suspicious(self.errors, self.attempt, self.max_attempts)


def is_suspicious(errors: Sequence[Failure], attempt: int, max_attempts: int) -> bool:
    """Whether a job that is claimed for this attempt runs in quarantine: its last holder failed, and one of these.

    - the holder before it failed too
    - this is its last attempt
    - it was not known whether it had begun, so the attempt was given back: the error has the number of this attempt

    So a job that kills its process is found without charging the jobs beside it, and a job that was beside a single
    crash runs again at once.
    """
    if not errors or not errors[-1].abandoned:
        return False
    return attempt >= max_attempts or errors[-1].attempt >= attempt or (len(errors) > 1 and errors[-2].abandoned)


def with_progress(job: Job | None, delivery: int, progress: Progress) -> Job | None:
    """The job with what was reported of this delivery, if it still runs in it."""
    if job is None or job.state is not State.RUNNING or job.delivery != delivery:
        return job
    return replace(job, progress=progress)


def _check_count(field: str, value: int, minimum: int, maximum: int) -> None:
    if type(value) is not int or not minimum <= value <= maximum:
        raise Invalid(field, f"{value!r} is not an integer in {minimum} … {maximum}", "choose one inside these bounds")


def _checked_meta(meta: dict[str, str]) -> dict[str, str]:
    """A copy: the producer's own dict may change afterwards."""
    if not isinstance(meta, dict) or len(meta) > META_ENTRIES:
        raise Invalid("meta", "it is not a dict of few strings", f"use at most {META_ENTRIES} entries")
    copy = {
        check_name("meta", name): text if type(text) is str and not text else check_text(f"meta {name}", text)
        for name, text in meta.items()
    }
    size = sum(len(name) + len(text.encode()) for name, text in copy.items())
    if size > META_BYTES:
        raise Invalid("meta", f"{size} bytes in all", f"the limit is {META_BYTES}: use the payload")
    return copy
