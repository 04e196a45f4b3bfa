"""The operator log: which operator did what, to which target, when, from where, and with what result.

Actions are stored in the retained log `forebay.operators`: appended, never changed, in the same store as the jobs they
are about. An action is recorded before its response is sent, so that none goes unrecorded. Secrets in `details` are
redacted.
"""

from contextvars import ContextVar
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.limits import TEXT_LENGTH
from forebay.core.payload import Json, clean_text
from forebay.serve.security.keys import ensure_log
from forebay.store.protocol import Store
from forebay.work.redacting import rules

OPERATOR_LOG: Final = "forebay.operators"
MAX_DETAILS_BYTES: Final = 16 * 1024
MAX_PAGE: Final = 1_000

SOURCE: ContextVar[str] = ContextVar("forebay_source", default="terminal")
"""The client address of the request that is being handled; a command has none."""


class OperatorAction(Struct, frozen=True, kw_only=True):
    """One entry. `result` is `ok` or the reason of a failure; `at` is the store's time."""

    actor: str
    action: str
    target: str
    result: str = "ok"
    source: str = ""
    details: dict[str, Json] = {}
    at: Instant = 0
    number: int = 0


_decode: Final = msgspec.json.Decoder(OperatorAction).decode


def record_action(store: Store, actor: str, action: str, target: str, *, result: str = "ok", **details: Json) -> None:
    """Record what an operator does; it blocks."""
    shown = rules().payload("", msgspec.to_builtins(details))
    if len(msgspec.json.encode(shown)) > MAX_DETAILS_BYTES:
        shown = {"details": f"more than {MAX_DETAILS_BYTES} bytes, left out"}
    texts = (actor, action, target, rules().text(result), SOURCE.get())
    actor, action, target, result, source = (clean_text(text, TEXT_LENGTH) for text in texts)
    made = OperatorAction(actor=actor, action=action, target=target, result=result, source=source, details=shown)
    ensure_log(store, OPERATOR_LOG)
    store.append(OPERATOR_LOG, [msgspec.json.encode(made)])


def read_actions(store: Store, before: int | None = None, limit: int = 100) -> tuple[list[OperatorAction], int | None]:
    """Up to `limit` actions with a number below `before`, newest first, and the next `before`; None at the end."""
    if OPERATOR_LOG not in {spec.name for spec in store.specs()}:
        return [], None
    first, following = store.extent(OPERATOR_LOG)[0]
    end = following if before is None else min(before, following)
    start = max(first, end - min(limit, MAX_PAGE))
    if start >= end:
        return [], None
    entries = store.read(OPERATOR_LOG, 0, start - 1, end - start)
    actions = [msgspec.structs.replace(_decode(entry.body), at=entry.at, number=entry.offset) for entry in entries]
    return actions[::-1], start if start > first else None
