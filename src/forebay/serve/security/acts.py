"""The operators' log: who did what, to what, when, from where, and how it went.

Acts live in the store, in the retained log `forebay.operators`: they are appended and never changed, and stand beside
the jobs they are about. An act is written before its answer is given: what nobody could write down was not done
silently. `record_act` is for routes and pages, `write_act` for commands; secrets in the facts are hidden.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from forebay.core.instant import Instant
from forebay.core.limits import TEXT_LENGTH
from forebay.core.payload import Json, clean_text
from forebay.serve.actor import Actor
from forebay.serve.security.keys import make_log
from forebay.serve.security.sources import SOURCE
from forebay.store.protocol import Store
from forebay.work.redacting import rules

ACTS_LOG: Final = "forebay.operators"
FACTS_BYTES: Final = 16 * 1024
PAGE_MOST: Final = 1_000


class Act(Struct, frozen=True, kw_only=True):
    """One act. `result` is `ok` or the reason why not; `at` is the store's time."""

    who: str
    act: str
    about: str
    result: str = "ok"
    source: str = ""
    facts: dict[str, Json] = {}
    at: Instant = 0
    number: int = 0


class _Ground(Protocol):
    store: Store

    @property
    def call(self) -> Callable[..., Awaitable[Any]]: ...


async def record_act(ground: _Ground, actor: Actor, act: str, about: str, *, result: str = "ok", **facts: Json) -> None:
    """Write down what an operator did, over HTTP; before the answer."""
    made = _act(actor.name, act, about, result, SOURCE.get(), facts)
    await ground.call(_append, ground.store, made)


def write_act(store: Store, who: str, act: str, about: str, *, result: str = "ok", **facts: Json) -> None:
    """Write down what somebody did from a terminal."""
    _append(store, _act(who, act, about, result, "terminal", facts))


def read_acts(store: Store, before: int | None = None, limit: int = 100) -> tuple[list[Act], int | None]:
    """Newest first: up to `limit` acts with a number below `before`, and where to go on; None at the end."""
    if ACTS_LOG not in {spec.name for spec in store.specs()}:
        return [], None
    first, following = store.extent(ACTS_LOG)[0]
    end = following if before is None else min(before, following)
    start = max(first, end - min(limit, PAGE_MOST))
    if start >= end:
        return [], None
    entries = store.read(ACTS_LOG, 0, start - 1, end - start)
    acts = [
        msgspec.structs.replace(msgspec.json.decode(entry.body, type=Act), at=entry.at, number=entry.offset)
        for entry in entries
    ]
    return acts[::-1], start if start > first else None


def _act(who: str, act: str, about: str, result: str, source: str, facts: dict[str, Json]) -> Act:
    shown = rules().payload("", msgspec.to_builtins(facts))
    if len(msgspec.json.encode(shown)) > FACTS_BYTES:
        shown = {"facts": f"more than {FACTS_BYTES} bytes, left out"}
    texts = [clean_text(text, TEXT_LENGTH) for text in (who, act, about, rules().text(result), source)]
    return Act(who=texts[0], act=texts[1], about=texts[2], result=texts[3], source=texts[4], facts=shown)


def _append(store: Store, act: Act) -> None:
    make_log(store, ACTS_LOG)
    store.append(ACTS_LOG, [msgspec.json.encode(act)])
