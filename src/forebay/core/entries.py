"""Values that all stores share: an accepted job, a merge, a dead letter, an entry of a log.

They are part of stored records (`core.changeset`), so a new version only adds fields at the end.
"""

from msgspec import Struct

from forebay.core.instant import Instant

UNTIMED, TIMED, LEADING = range(3)
"""How a rank follows from the due time (`core.stamp`); the numbers are part of the ledger and of the stores' tables."""


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A job when it is accepted. `ready`: due at once and in no line. `gates`: the names of the gates of its lane.

    `line`: only the smallest unfinished id of it is exposed; `blocks`: a dead head keeps that line shut.
    """

    id: int
    queue: str
    kind: str
    body: bytes
    due_at: Instant
    ready: bool
    max_attempts: int
    priority: int = 0
    rank_base: int = 0
    rank_timed: int | bool = TIMED
    key: str | None = None
    key_digest: bytes = b""
    key_until: Instant = 0
    tenant: str | None = None
    subject: str | None = None
    deadline: Instant | None = None
    expires_at: Instant | None = None
    meta: dict[str, str] | None = None
    cls: str = ""
    merges: bool = False
    gates: tuple[str, ...] = ()
    cost: int = 1
    line: str | None = None
    blocks: bool = False


class Replaced(Struct, frozen=True, array_like=True):
    """What a waiting job takes over from a newer draft besides its payload: its urgency and its meta.

    It keeps its id, tenant, subject, class, gates, cost, attempts and due time. With `due_at` None the due time stays
    and the rank moves by the change of `rank_base`; otherwise both are written again.
    """

    priority: int = 0
    rank_base: int = 0
    deadline: Instant | None = None
    expires_at: Instant | None = None
    meta: dict[str, str] | None = None
    due_at: Instant | None = None


class Merge(Struct, frozen=True, array_like=True):
    """A waiting job took over a newer draft, and that draft's key points at it. `newer` None: its payload alone."""

    id: int
    kind: str
    body: bytes
    key: str | None = None
    key_digest: bytes = b""
    key_until: Instant = 0
    newer: Replaced | None = None


class DeadLetterRule(Struct, frozen=True, array_like=True):
    """The queue of a dead letter, if not the job's own, and the end of its time (0: until it is redriven or purged)."""

    queue: str | None = None
    kept_until: Instant = 0


class Ingested(Struct, frozen=True, array_like=True):
    """The position of a source."""

    source: str
    batch: int
    taken: int
    digest: bytes


class LogEntry(Struct, frozen=True, array_like=True, gc=False):
    """One entry of a retained log."""

    partition: int
    offset: int
    at: Instant
    body: bytes
    key: str | None = None
