"""Every error names the thing, the bound and the way out in its message, and carries the facts as fields."""

import inspect
from typing import Any

import pytest

from forebay.core import errors
from forebay.core.errors import (
    BatchTooLarge,
    BlobDamaged,
    BlobFailed,
    BlobMissing,
    Closed,
    ForebayError,
    HalfIngested,
    Invalid,
    JobCancelled,
    JobFailed,
    JobGone,
    JournalDamaged,
    KeyConflict,
    LeaseLost,
    OffsetGone,
    PartitionLost,
    PartlyDone,
    PayloadInvalid,
    QueueFull,
    QueueMoved,
    ResultPending,
    SealBroken,
    StoreFailed,
    StoreLocked,
    Unsupported,
    WrongQueueKind,
)

EXAMPLES: list[tuple[ForebayError, dict[str, Any], list[str]]] = [
    # the error, its fields, and what its message must contain: the thing, the fact, the way out
    (
        Invalid("delay", "-1 is negative", "give a positive one"),
        {"field": "delay", "reason": "-1 is negative", "remedy": "give a positive one"},
        ["delay", "-1 is negative", "give a positive one"],
    ),
    (
        PayloadInvalid("$.a", "set is not a JSON type", "use a list"),
        {"path": "$.a", "field": "payload at $.a", "reason": "set is not a JSON type"},
        ["payload at $.a", "set is not a JSON type", "use a list"],
    ),
    (
        BatchTooLarge("enqueue", 1_001, 1_000),
        {"verb": "enqueue", "size": 1_001, "limit": 1_000},
        ["enqueue", "1001 items", "1000", "split the call"],
    ),
    (
        BatchTooLarge("append", 17, 16, "bytes"),
        {"verb": "append", "size": 17, "limit": 16},
        ["append", "17 bytes", "16", "split the call"],
    ),
    (
        PartlyDone([1, None], StoreFailed("cell b", "no answer")),
        {"answers": [1, None], "what": "a call over several cells"},
        ["several cells", "1 of 2", "cell b", "no answer", "repeat it for the items without an answer"],
    ),
    (
        HalfIngested("lake/1", "b", 7, 100),
        {"source": "lake/1", "cell": "b", "batch": 7, "taken": 100},
        ["lake/1", "cell b", "batch 7, draft 100", "repeat the same drafts up to there"],
    ),
    (JobGone(7), {"job_id": 7}, ["job 7", "gone", "result_ttl="]),
    (
        JobFailed(7, 3, "ValueError", "no such user"),
        {"job_id": 7, "attempt": 3, "kind": "ValueError", "message": "no such user"},
        ["job 7", "attempt 3", "ValueError: no such user", "redrive"],
    ),
    (JobCancelled(7), {"job_id": 7}, ["job 7", "cancelled", "enqueue it anew"]),
    (
        ResultPending(7, "running", 2.5),
        {"job_id": 7, "state": "running", "timeout": 2.5},
        ["job 7", "running", "2.5 s", "wait longer"],
    ),
    (WrongQueueKind("orders", True), {"name": "orders", "is_log": True}, ["orders", "retained log", "append and read"]),
    (
        WrongQueueKind("orders", False),
        {"name": "orders", "is_log": False},
        ["orders", "remove-on-ack queue", "enqueue and claim"],
    ),
    (
        QueueMoved("email", 7),
        {"queue": "email", "version": 7},
        ["queue email", "left this cell", "version 7", "put its spec through cells:"],
    ),
    (
        QueueFull("email", 100, 100, 1, 2.5),
        {"queue": "email", "depth": 100, "limit": 100, "requested": 1, "retry_after": 2.5},
        ["'email'", "100 of 100", "1 more", "retry in 2.5 s"],
    ),
    (
        QueueFull("email", 0, 10, 11, 1.0),
        {"queue": "email", "depth": 0, "limit": 10, "requested": 11},
        ["'email'", "0 of 10", "send at most 10 at once", "11 can never fit"],
    ),
    (
        KeyConflict("email", "k-1", 7),
        {"queue": "email", "key": "k-1", "job_id": 7},
        ["'k-1'", "'email'", "job 7", "use a new key"],
    ),
    (
        LeaseLost(7, 2),
        {"job_id": 7, "delivery": 2},
        ["job 7, delivery 2", "rolled back", "end the handler"],
    ),
    (
        PartitionLost("clicks", "billing", 3, 7),
        {"log": "clicks", "group": "billing", "partition": 3, "epoch": 7},
        ["partition 3", "'clicks'", "'billing'", "epoch 7", "call own again"],
    ),
    (
        SealBroken("charge", "2026-11", "this process has no key '2026-11', only 2025-01"),
        {"kind": "charge", "key": "2026-11"},
        ["charge", "only 2025-01", "give this process the key '2026-11'", "redrive"],
    ),
    (
        BlobMissing("charge", "2026-11-18/1", "it does not exist"),
        {"kind": "charge", "name": "2026-11-18/1"},
        ["charge", "2026-11-18/1", "does not exist", "Forebay(blobs=…)", "redrive"],
    ),
    (
        BlobDamaged("charge", "2026-11-18/1", "its bytes changed"),
        {"kind": "charge", "name": "2026-11-18/1"},
        ["charge", "2026-11-18/1", "its bytes changed", "restore the blob", "redrive"],
    ),
    (
        BlobFailed("charge", 300_000, "OSError"),
        {"kind": "charge", "size": 300_000},
        ["charge", "300000 bytes", "OSError", "nothing was enqueued", "call again"],
    ),
    (
        Unsupported("sqlite", "order by deadline", "use Fifo"),
        {"store": "sqlite", "feature": "order by deadline"},
        ["sqlite", "order by deadline", "use Fifo"],
    ),
    (Closed("the queue"), {"what": "the queue"}, ["the queue is closed", "open it again"]),
    (
        StoreFailed("journal j", "no space left"),
        {"what": "journal j", "reason": "no space left"},
        ["journal j", "no space left", "nothing was acknowledged since", "open the store again"],
    ),
    (
        StoreLocked("j/lock", "4711"),
        {"path": "j/lock", "holder": "4711"},
        ["j/lock", "4711", "stop that one, or use another path"],
    ),
    (
        JournalDamaged("j/wal-1.log", 42, "its crc does not match"),
        {"file": "j/wal-1.log", "offset": 42, "reason": "its crc does not match"},
        ["j/wal-1.log", "byte 42", "its crc does not match", "restore the directory from a copy"],
    ),
    (
        OffsetGone("clicks", 3, 5, 100),
        {"log": "clicks", "partition": 3, "requested": 5, "first": 100},
        ["'clicks'", "partition 3", "offset 100", "5 was trimmed", "read after 99"],
    ),
]


@pytest.mark.parametrize(("error", "fields", "reported"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_says_and_carries_everything(error: ForebayError, fields: dict[str, Any], reported: list[str]) -> None:
    for text in reported:
        assert text in str(error)
    assert {name: getattr(error, name) for name in fields} == fields
    assert "\n" not in str(error)


def test_no_error_is_left_out() -> None:
    known = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ForebayError)}
    assert known == {type(error) for error, _, _ in EXAMPLES} | {ForebayError}


def test_one_except_catches_them_all() -> None:
    assert all(isinstance(error, ForebayError) for error, _, _ in EXAMPLES)
    assert issubclass(Invalid, ValueError)
    assert all(issubclass(kind, Invalid) for kind in (PayloadInvalid, BatchTooLarge, QueueMoved, WrongQueueKind))


def test_what_is_refused_before_anything_is_written_is_invalid_and_the_rest_is_not() -> None:
    invalid = {type(error) for error, _, _ in EXAMPLES if isinstance(error, Invalid)}
    assert invalid == {Invalid, PayloadInvalid, BatchTooLarge, QueueMoved, WrongQueueKind}
