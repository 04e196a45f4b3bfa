"""The statements of `*.sql` by name, read once. `{job}` stands for the columns of a job's picture, in `Job`'s order."""

from functools import cache
from typing import Final

from forebay.store.statements import read_statements

_PICTURE: Final = (
    "id, queue, kind, body, state, priority, enqueued_at, due_at, attempt, max_attempts, delivery, key, tenant, "
    "subject, deadline, expires_at, meta, owner, claimed_at, lease_until, finished_at, cancel_requested, errors, "
    "result, cost, home"
)


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    return read_statements("forebay.store.sqlite", ("jobs.sql", "queues.sql", "logs.sql"), {"job": _PICTURE})


def statement(name: str) -> str:
    return statements()[name]
