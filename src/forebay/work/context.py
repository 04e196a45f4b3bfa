"""What a handler may know about its job, and say about it."""

from collections.abc import Callable
from typing import Protocol

from forebay.core.errors import Invalid
from forebay.core.instant import Instant, Span
from forebay.core.job import Job, Progress
from forebay.core.lease import Fence, Lease
from forebay.core.limits import MAX_NOTE
from forebay.store.protocol import Store
from forebay.work.transaction import Transaction


class Rules(Protocol):
    """What a context needs of its handler: how results are kept, for how long (0: not at all), what nobody may read."""

    @property
    def keep_for(self) -> Span: ...

    def encode_result(self, value: object) -> bytes | None: ...

    def redact(self, text: str, body: bytes) -> str: ...


class Context:
    """Given to a handler that has a parameter annotated `Context` (or named `ctx`).

    fence      (job id, delivery): only ever grows; write it beside your effect and refuse a smaller one
    deadline   the instant at which the handler is stopped, in microseconds; None without a timeout
    cancelled  someone asked for the job to end
    lost       the lease is gone: whatever you do now, someone else may be doing too
    reported   what it last said of its progress
    """

    __slots__ = ("_rules", "_store", "_transaction", "cancelled", "deadline", "lease", "lost", "reported")

    def __init__(
        self,
        lease: Lease,
        deadline: Instant | None = None,
        store: Callable[[], Store] | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._transaction: Transaction | None = None
        self.lease = lease
        self.deadline = deadline
        self.reported: Progress | None = None
        self.cancelled = False
        self.lost = False

    @property
    def job(self) -> Job:
        return self.lease.job

    @property
    def attempt(self) -> int:
        return self.lease.job.attempt

    @property
    def fence(self) -> Fence:
        return self.lease.fence

    @property
    def settled(self) -> bool:
        """The job is done: it ended with its transaction."""
        return self._transaction is not None and self._transaction.committed

    def transaction(self) -> Transaction:
        """`with ctx.transaction() as connection:` what is done on it and the end of the job commit together.

        A connection of psycopg, on Postgres alone; in an async handler `async with`. See docs/transactions.md.
        """
        if self._transaction is None:
            store = None if self._store is None else self._store()
            keep_for = 0 if self._rules is None else self._rules.keep_for
            self._transaction = Transaction(self.lease, store, self._lose, keep_for)
        return self._transaction

    def set_result(self, value: object) -> None:
        """Keep this as the result, said inside `ctx.transaction()`: what the handler returns comes too late."""
        if self._rules is None or not self._rules.keep_for:
            raise Invalid("ctx.set_result", "this job keeps no result", "write @fb.job(keep_result=True)")
        self.transaction().result = self._rules.encode_result(value)

    def _lose(self) -> None:
        self.lost = True

    def progress(self, portion: float, note: str = "") -> None:
        """How far it is, from 0 to 1, and a few words; shown wherever the job is, about a second later.

        It never waits: of what is said within a second, the last is written.
        """
        shown = note if self._rules is None or not note else self._rules.redact(note[:MAX_NOTE], self.job.body)
        self.reported = Progress(min(1.0, max(0.0, portion)), shown)
