"""What may be said about one enqueue: `send.using(priority=5, delay=60)`; a wrong option is a type error.

`EnqueueOptions` is for type checkers and `Settings` for the rest: both have the same names.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Duration, Instant, from_datetime, from_seconds, micros
from forebay.core.job import Draft
from forebay.core.payload import Json
from forebay.tracing import carried


class EnqueueOptions(TypedDict, total=False):
    """The options of `using` and `enqueue`; what is left out is left to the handler or the queue.

    run_at      not before this time;  delay: not before so many seconds have passed
    deadline    by when it should be done;  expires_at: after this it becomes a dead letter
    key         idempotency key;  tenant: whose it is;  subject: what it is about
    notify      of an enqueue in a transaction: workers are notified at the commit
    """

    queue: str | None
    priority: int
    run_at: datetime | None
    delay: timedelta | float | None
    deadline: datetime | None
    expires_at: datetime | None
    key: str | None
    tenant: str | None
    subject: str | None
    max_attempts: int | None
    meta: dict[str, str] | None
    cost: int | None
    notify: bool


class Settings(Struct, frozen=True, kw_only=True):
    """What may be said about one enqueue; None leaves it to the handler or the queue."""

    queue: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    deadline: datetime | None = None
    expires_at: datetime | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None
    max_attempts: int | None = None
    meta: dict[str, str] | None = None
    cost: int | None = None
    notify: bool = True
    """Of an enqueue in a transaction: workers are notified at the commit. False costs less, for many."""

    def draft(self, kind: str, payload: Json, queue: str, max_attempts: int | None, cost: int = 1) -> Draft:
        return Draft(
            kind,
            payload,
            queue if self.queue is None else self.queue,
            self.priority,
            as_instant(self.run_at),
            as_duration(self.delay),
            as_instant(self.deadline),
            as_instant(self.expires_at),
            self.key,
            self.tenant,
            self.subject,
            max_attempts if self.max_attempts is None else self.max_attempts,
            carried(self.meta),
            cost=cost if self.cost is None else self.cost,
        )


def settings_of(kind: str, given: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except TypeError as error:
        raise Invalid(kind, str(error), f"use {', '.join(Settings.__struct_fields__)}") from None


def as_instant(moment: datetime | None) -> Instant | None:
    return None if moment is None else from_datetime(moment)


def as_duration(length: timedelta | float | None) -> Duration:
    if length is None:
        return 0
    return micros(length) if isinstance(length, timedelta) else from_seconds("delay", length)
