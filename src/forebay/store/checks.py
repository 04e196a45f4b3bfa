"""The checks of a call that every store makes before it reads its state."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.fanout import check_edges
from forebay.core.gate import condition_gate
from forebay.core.instant import Duration, Instant, checked_instant, checked_micros
from forebay.core.job import Draft, Progress, State
from forebay.core.lease import Fence
from forebay.core.ledger import LedgerRule
from forebay.core.limits import (
    BATCH_BYTES,
    MAX_BATCH,
    MAX_INGEST,
    MAX_LEASE,
    MAX_PRESENCE,
    MAX_WAIT,
    MIN_LEASE,
    PAYLOAD_BYTES,
)
from forebay.core.names import check_name, check_text, is_name
from forebay.core.payload import check_body, is_clean
from forebay.core.presence import Presence
from forebay.core.spec import QueueSpec
from forebay.store.protocol import ProgressReport, Want

_GATE_NAME_LENGTH: Final = 1_024

ALWAYS_FIT: Final = BATCH_BYTES // PAYLOAD_BYTES
"""This many items always fit into one call: their sizes need not be added up."""


def check_batch(verb: str, size: int) -> None:
    """Every verb starts with this."""
    if size > MAX_BATCH:
        raise BatchTooLarge(verb, size, MAX_BATCH)


def check_bytes(verb: str, bodies: Sequence[bytes | None]) -> None:
    """What one call carries must also fit into one record of the ledger."""
    size = sum(len(body) for body in bodies if body is not None)
    if size > BATCH_BYTES:
        raise BatchTooLarge(verb, size, BATCH_BYTES, "bytes")


def check_limit(verb: str, limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_BATCH:
        raise Invalid(f"{verb} limit", f"{limit!r} is not an integer in 1 … {MAX_BATCH}", "ask for fewer, more often")


def checked_queues(verb: str, queues: Sequence[str]) -> list[str]:
    """Names of queues. A single string is refused: it would be read as a list of its letters."""
    if isinstance(queues, str):
        raise Invalid(f"{verb} queues", f"{queues!r} is one name, not a list of them", f"write [{queues!r}]")
    check_batch(verb, len(queues))
    return [check_name("queue", queue) for queue in queues]


def check_ids(verb: str, ids: Sequence[int]) -> None:
    """Ids are plain integers; anything else is a mistake of the caller."""
    if not isinstance(ids, list | tuple) or any(type(job_id) is not int for job_id in ids):
        raise Invalid(f"{verb} ids", "they are not a list of integers", "give job ids, as receipts have them")
    check_batch(verb, len(ids))


def checked_reports(reports: Sequence[ProgressReport]) -> dict[Fence, Progress]:
    """The last report of each delivery."""
    check_batch("report_progress", len(reports))
    for fence, progress in reports:
        if type(progress) is not Progress or [type(part) for part in fence] != [int, int]:
            raise Invalid(
                "report_progress", "it takes pairs of a fence and a Progress", "use lease.fence, Progress(0.5)"
            )
    return dict(reports)


def check_ingest(source: str, drafts: Sequence[Draft]) -> str:
    """The name of the source."""
    if len(drafts) > MAX_INGEST:
        raise BatchTooLarge("ingest", len(drafts), MAX_INGEST)
    if any(type(draft) is not Draft for draft in drafts):
        raise Invalid("draft", "not all of them are Drafts", "build a Draft(kind, payload, …)")
    return check_text("source", source)


def checked_wait(timeout: timedelta) -> Duration:
    """How long a verb may sleep."""
    return checked_micros("timeout", timeout, timedelta(0), MAX_WAIT)


def checked_owner(owner: str) -> str:
    return owner if type(owner) is str and _is_owner(owner) else check_text("owner", owner)


def checked_total(wants: Sequence[Want]) -> int:
    """How many jobs a claim requests."""
    total = 0
    for want in wants:
        if type(want.queue) is not str or not is_name(want.queue):
            check_name("queue", want.queue)
        if type(want.count) is not int or want.count < 1:
            raise Invalid("claim count", f"{want.count!r} is not a positive integer", "ask for at least one job")
        total += want.count
    check_batch("claim", total)
    return total


def check_gate(name: str) -> None:
    if type(name) is not str or not 1 <= len(name) <= _GATE_NAME_LENGTH or not is_clean(name):
        raise Invalid("gate", "it is not the name of a gate", "use condition_gate(condition)")


def check_offset(after: int) -> None:
    """Where to continue to read a log or the ledger."""
    if type(after) is not int or after < -1:
        raise Invalid("after", f"{after!r} is not an offset", "-1 reads from the start")


def check_rule(rule: LedgerRule) -> None:
    if type(rule) is not LedgerRule:
        raise Invalid("rule", f"{type(rule).__name__} is not a LedgerRule", "build a LedgerRule(on=…, keep=…)")


LAST: Final = "\U0010ffff"
"""Appended to a prefix, it sorts after every text with that prefix."""


def check_gates_page(after: str, limit: int, prefix: str) -> None:
    check_limit("gates", limit)
    for name in (after, prefix):
        if name != "":
            check_gate(name)


def check_names_page(after: str, limit: int, prefix: str) -> None:
    check_limit("queues", limit)
    for field, name in (("after", after), ("prefix", prefix)):
        if name != "":
            check_name(field, name)


def checked_condition(condition: str, count: int, value: str | None) -> str:
    """The gate of which `release` admits jobs."""
    check_limit("release", count)
    name = check_name("condition", condition)
    return condition_gate(name, None if value is None else check_text("value", value))


def check_spec(spec: QueueSpec) -> None:
    if type(spec) is not QueueSpec:
        raise Invalid("spec", f"{type(spec).__name__} is not a QueueSpec", "build a QueueSpec(name=…)")


def check_neighbours(spec: QueueSpec, others: Iterable[QueueSpec]) -> None:
    """Check that routes and dead-letter targets name queues of jobs; called in the step that stores the spec."""
    check_edges(spec, others)


def check_purge(state: State, before: Instant, limit: int, queue: str | None) -> None:
    check_limit("purge", limit)
    checked_instant("before", before)
    if not isinstance(state, State) or not state.terminal:
        raise Invalid("purge state", f"{state!r} is not finished", "purge done, dead or cancelled jobs")
    if queue is not None:
        check_name("queue", queue)


def checked_member(
    log: str, group: str, member: str, lease_for: timedelta | None = None
) -> tuple[str, str, str, Duration]:
    """The log, group and member of a reader, and for how long; 0 if not given."""
    duration = 0 if lease_for is None else checked_micros("lease_for", lease_for, MIN_LEASE, MAX_LEASE)
    return check_name("log", log), check_name("group", group), checked_owner(member), duration


def checked_presence(presence: Presence, keep_for: timedelta) -> Duration:
    """How long a worker is present, in microseconds."""
    if type(presence) is not Presence:
        raise Invalid("presence", f"{type(presence).__name__} is not a Presence", "build a Presence(owner, host, …)")
    return checked_micros("keep_for", keep_for, MIN_LEASE, MAX_PRESENCE)


def check_workers_page(after: str, limit: int) -> None:
    check_limit("workers", limit)
    if after != "":
        check_text("after", after)


def check_epoch(epoch: int | None) -> None:
    if epoch is not None and (type(epoch) is not int or epoch < 1):
        raise Invalid("epoch", f"{epoch!r} is not an epoch", "give the epoch that `own` returned")


def checked_entries(bodies: Sequence[bytes], keys: Sequence[str | None] | None) -> list[tuple[bytes, str | None]]:
    """What is to be appended to a log: each body with its key."""
    check_batch("append", len(bodies))
    sound = [check_body(body) for body in bodies]
    check_bytes("append", sound)
    names = [None] * len(sound) if keys is None else [None if key is None else check_text("key", key) for key in keys]
    if len(names) != len(sound):
        raise Invalid("keys", f"{len(names)} keys for {len(sound)} entries", "give one key an entry, or none at all")
    return list(zip(sound, names, strict=True))


@lru_cache(maxsize=256)
def _is_owner(owner: str) -> bool:
    """A few owners claim very often."""
    return check_text("owner", owner) == owner
