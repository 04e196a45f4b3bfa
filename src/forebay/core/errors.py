"""Every error that Forebay raises on purpose, in one file.

An error names the thing, the fact, the bound and the way out, and carries them as fields, so that an HTTP
layer, a metric or a test never parses a message. `ForebayError` is the root; nothing here is raised for a bug.
No message carries a payload: what a producer hands in may be secret.
"""

from collections.abc import Sequence
from typing import Final


class ForebayError(Exception):
    """The root of everything Forebay raises on purpose.

    accepted  if it ended a stream of drafts: how many were accepted; continue with the next one
    """

    accepted: int | None = None


class Invalid(ForebayError, ValueError):
    """A value was refused before anything was written."""

    def __init__(self, field: str, reason: str, remedy: str) -> None:
        super().__init__(f"{field}: {reason}; {remedy}")
        self.field = field
        self.reason = reason
        self.remedy = remedy


class PayloadInvalid(Invalid):
    """The payload is not JSON that every store and every language keeps alike."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"payload at {path}", reason, remedy)
        self.path = path


class BatchTooLarge(Invalid):
    """One call has too many items, or too many bytes of payload."""

    def __init__(self, verb: str, size: int, limit: int, unit: str = "items") -> None:
        super().__init__(verb, f"{size} {unit} in one call, the limit is {limit}", "split the call")
        self.verb = verb
        self.size = size
        self.limit = limit


class WrongQueueKind(Invalid):
    """A log was used as a queue, or a queue as a log."""

    def __init__(self, name: str, is_log: bool) -> None:
        verb = "append and read" if is_log else "enqueue and claim"
        super().__init__(name, f"it is a {'retained log' if is_log else 'remove-on-ack queue'}", f"use {verb}")
        self.name = name
        self.is_log = is_log


class QueueMoved(Invalid):
    """The queue has left this cell: a spec that would open it again was refused.

    version  of the map of cells by which it was closed
    """

    def __init__(self, queue: str, version: int) -> None:
        reason = f"it has left this cell by version {version} of the map of cells"
        super().__init__(f"queue {queue}", reason, "put its spec through cells:, not in the cell itself")
        self.queue = queue
        self.version = version


class QueueFull(ForebayError):
    """A bounded queue has no room; the call had no effect."""

    def __init__(self, queue: str, depth: int, limit: int, requested: int, retry_after: float) -> None:
        way_out = (
            f"retry in {retry_after:g} s"
            if requested <= limit
            else f"send at most {limit} at once: {requested} can never fit"
        )
        super().__init__(f"queue {queue!r} is full: {depth} of {limit} jobs, {requested} more requested; {way_out}")
        self.queue = queue
        self.depth = depth
        self.limit = limit
        self.requested = requested
        self.retry_after = retry_after


class KeyConflict(ForebayError):
    """An idempotency key came back with another kind or payload; the call had no effect."""

    def __init__(self, queue: str, key: str, job_id: int) -> None:
        super().__init__(
            f"key {key!r} of queue {queue!r} belongs to job {job_id} with another kind or payload; "
            "use a new key for new work, or send the first payload again"
        )
        self.queue = queue
        self.key = key
        self.job_id = job_id


class Unsupported(ForebayError):
    """The store does not support this feature. It is raised when the queue is configured, not at run time."""

    def __init__(self, store: str, feature: str, remedy: str) -> None:
        super().__init__(f"{store} does not support {feature}; {remedy}")
        self.store = store
        self.feature = feature


class Closed(ForebayError):
    """The store or queue was closed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed; open it again to go on")
        self.what = what


REOPEN: Final = "nothing was acknowledged since; fix the cause and open the store again"


class StoreFailed(ForebayError):
    """The store failed, or its reply was lost: nothing of the call was acknowledged.

    An embedded store stops for good; one on a server continues by itself once the server is reachable again.
    """

    def __init__(self, what: str, reason: str, remedy: str = REOPEN) -> None:
        super().__init__(f"{what} failed: {reason}; {remedy}")
        self.what = what
        self.reason = reason
        self.remedy = remedy


class PartlyDone(StoreFailed):
    """A call over several cells: some did their part, others did not.

    answers  one for each item of the call, in order; None: nothing is known to be done
    causes   why, for each item without an answer; unless it is a `StoreFailed`, nothing is done
    """

    def __init__(
        self, answers: Sequence[object], cause: ForebayError, causes: Sequence[ForebayError | None] = ()
    ) -> None:
        done = sum(answer is not None for answer in answers)
        reason = f"{done} of {len(answers)} items are done, then: {cause}"
        super().__init__("a call over several cells", reason, "repeat it for the items without an answer")
        self.answers = answers
        self.cause = cause
        self.causes = causes or [cause if answer is None else None for answer in answers]


class HalfIngested(ForebayError):
    """A batch of a source was interrupted between two cells, and this call has other drafts than that batch.

    batch, taken  the position up to which it has to be repeated
    """

    def __init__(self, source: str, cell: str, batch: int, taken: int) -> None:
        super().__init__(
            f"source {source!r} was interrupted: cell {cell} has its drafts up to batch {batch}, draft {taken}, others "
            "have not; repeat the same drafts up to there, then go on"
        )
        self.source = source
        self.cell = cell
        self.batch = batch
        self.taken = taken


class JobGone(ForebayError):
    """The job whose result was awaited does not exist, or no longer does."""

    def __init__(self, job_id: int) -> None:
        super().__init__(
            f"job {job_id} is gone: it was cancelled before it ran, it was purged, or it is done and kept no result; "
            "keep_result=True and result_ttl= say how long a finished job is kept"
        )
        self.job_id = job_id


class JobFailed(ForebayError):
    """The job whose result was awaited is dead."""

    def __init__(self, job_id: int, attempt: int, kind: str, message: str) -> None:
        super().__init__(
            f"job {job_id} is dead after attempt {attempt}: {kind}: {message}; look at it, then redrive it"
        )
        self.job_id = job_id
        self.attempt = attempt
        self.kind = kind
        self.message = message


class JobCancelled(ForebayError):
    """The job whose result was awaited was cancelled."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job {job_id} was cancelled, and has no result; enqueue it anew if it is wanted after all")
        self.job_id = job_id


class ResultPending(ForebayError, TimeoutError):
    """The job whose result was awaited did not end in time."""

    def __init__(self, job_id: int, state: str, timeout: float) -> None:
        super().__init__(f"job {job_id} is still {state} after {timeout:g} s; wait longer, or call again later")
        self.job_id = job_id
        self.state = state
        self.timeout = timeout


class LeaseLost(ForebayError):
    """A handler's transaction came too late: another worker holds the job, and the transaction was rolled back."""

    def __init__(self, job_id: int, delivery: int) -> None:
        super().__init__(
            f"the lease of job {job_id}, delivery {delivery}, is gone: its transaction was rolled back; "
            "end the handler, the job is in other hands"
        )
        self.job_id = job_id
        self.delivery = delivery


class PartitionLost(ForebayError):
    """A reader came too late: another member owns the partition, and nothing was committed."""

    def __init__(self, log: str, group: str, partition: int, epoch: int) -> None:
        super().__init__(
            f"partition {partition} of log {log!r} is no longer owned in epoch {epoch} by this member of {group!r}: "
            "stop reading it, and call own again"
        )
        self.log = log
        self.group = group
        self.partition = partition
        self.epoch = epoch


class StoreLocked(ForebayError):
    """Another process owns the journal directory."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path} is in use by {holder}; one process owns a journal: stop that one, or use another path"
        )
        self.path = path
        self.holder = holder


class JournalDamaged(ForebayError):
    """Acknowledged records cannot be read back; the journal is left as it is."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {reason}; restore the directory from a copy, nothing was changed"
        )
        self.file = file
        self.offset = offset
        self.reason = reason


class SealBroken(ForebayError):
    """A sealed payload or result cannot be opened here: no key for it, or it was changed. It is kept as it is."""

    def __init__(self, kind: str, key: str, reason: str) -> None:
        super().__init__(
            f"a sealed payload of {kind} cannot be opened: {reason}; give this process the key {key!r}, then redrive"
        )
        self.kind = kind
        self.key = key


class BlobMissing(ForebayError):
    """The payload or result of a job cannot be read from the blob store now; a later attempt may find it."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(
            f"a blob of {kind} cannot be read: {name}: {reason}; give this process the blob store that all others of "
            f"the app have (Forebay(blobs=…)), then call again or redrive"
        )
        self.kind = kind
        self.name = name


class BlobDamaged(ForebayError):
    """The blob is not the payload or result that was written. It reaches no handler and no caller, and no retry."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"a blob of {kind} is damaged: {name}: {reason}; restore the blob, then call again or redrive")
        self.kind = kind
        self.name = name


class BlobFailed(ForebayError):
    """A large payload or result could not be written to the blob store; the job was not enqueued, or has failed."""

    def __init__(self, kind: str, size: int, reason: str, what: str = "payload") -> None:
        after = "nothing was enqueued, call again" if what == "payload" else "the run counts as failed, and is retried"
        super().__init__(
            f"{size} bytes of {what} of {kind} could not be written to the blob store: {reason}; "
            f"{after} once it is reachable"
        )
        self.kind = kind
        self.size = size


class OffsetGone(ForebayError):
    """A log no longer holds the offset that a reader requested."""

    def __init__(self, log: str, partition: int, requested: int, first: int) -> None:
        super().__init__(
            f"log {log!r} partition {partition} begins at offset {first}, {requested} was trimmed; "
            f"read after {first - 1}, and count what was skipped"
        )
        self.log = log
        self.partition = partition
        self.requested = requested
        self.first = first
