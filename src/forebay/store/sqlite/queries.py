"""The statements of `*.sql` by name, read once.

`{job}` stands for the columns of a job's picture, in `Job`'s order; `{row}` for those of a `Row`; `{in_line}` for the
jobs that a line still has: unfinished ones, and dead ones that keep it shut.
"""

from functools import cache
from typing import Final

from forebay.store.sqlite.row import Row
from forebay.store.statements import read_statements

_PICTURE: Final = (
    "id, queue, kind, body, state, priority, enqueued_at, due_at, attempt, max_attempts, delivery, key, tenant, "
    "subject, deadline, expires_at, meta, owner, claimed_at, lease_until, finished_at, cancel_requested, errors, "
    "result, cost, home"
)
_ROW: Final = ", ".join(Row._fields).removesuffix(", home, errors") + ", coalesce(home, queue)"
_IN_LINE: Final = "line IS NOT NULL AND (state < 3 OR state = 4 AND blocks = 1)"


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    words = {"job": _PICTURE, "row": _ROW, "in_line": _IN_LINE}
    return read_statements("forebay.store.sqlite", ("jobs.sql", "queues.sql", "logs.sql"), words)


def statement(name: str) -> str:
    return statements()[name]
