"""The statements of `*.sql` by name, read once. `{run}` and `{ended}` stand for what makes a picture of a job."""

from functools import cache
from typing import Final

from forebay.store.statements import read_statements

_RUN: Final = (
    "r.single, r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at, r.enqueued_at, r.delivery, r.attempt, "
    "r.max_attempts, r.claimed_at, forebay.leased_until(r.beat, r.lease_until, r.holder), r.expires_at, "
    "r.gates IS NOT NULL, r.errors, r.facts, r.bodies, r.gone::text, r.asked::text, "
    "(SELECT h.owner FROM forebay.holder AS h WHERE h.id = r.holder), r.beat"
)
_ENDED: Final = (
    "e.id, e.state, e.queue, e.kind, e.due_at, e.enqueued_at, e.delivery, e.attempt, e.max_attempts, e.expires_at, "
    "e.finished_at, e.cancel_requested, e.errors, e.facts, e.body, e.result, e.home"
)


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    names = ("jobs.sql", "queues.sql", "logs.sql")
    return read_statements("forebay.store.postgres", names, {"run": _RUN, "ended": _ENDED})


def statement(name: str) -> str:
    return statements()[name]
