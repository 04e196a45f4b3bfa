"""The statements of `*.sql` by name, read once. A name that is missing or given twice is an error when it is imported.

A statement starts with `-- name: word` and a line that says what it is for. `{job}` stands for the columns of a job's
picture, in the order of `Job`'s fields.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PICTURE: Final = (
    "id, queue, kind, body, state, priority, enqueued_at, due_at, attempt, max_attempts, delivery, key, tenant, "
    "subject, deadline, expires_at, meta, owner, claimed_at, lease_until, finished_at, cancel_requested, errors, result"
)


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    found: dict[str, str] = {}
    for file in ("jobs.sql", "queues.sql", "logs.sql"):
        text = (files("forebay.store.sqlite") / file).read_text("utf-8")
        parts = _NAME.split(text)[1:]
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise LookupError(f"{file}: the statement {name!r} is there twice")
            lines = [line for line in body.replace("{job}", _PICTURE).splitlines() if not line.startswith("--")]
            found[name] = "\n".join(lines).strip().rstrip(";")
    return found


def statement(name: str) -> str:
    return statements()[name]
