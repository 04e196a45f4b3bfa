"""The scripts of the store: each verb is a `.lua` file, made whole by the parts of the library that it needs.

A script is known to the server by its digest. `FLAGS` says what a verb may do where the server is short of memory or
read-only: what takes jobs in is refused by a server without memory, what lets them out is not.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

from msgspec import Struct

_READING: Final = ("keys", "jobs", "streams", "queues")
_GATED: Final = (*_READING, "order", "gates", "lanes")
_MOVING: Final = (*_GATED, "rooms", "lines", "ledger", "tend")
_ACCEPTING: Final = (*_MOVING, "accept")
_LOGS: Final = (*_READING, "logs")
_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "ahead": _READING,
    "announce": ("keys", "workers"),
    "append": _LOGS,
    "asked": _READING,
    "backlog": _GATED,
    "queues": _READING,
    "browse": _READING,
    "cancel": _MOVING,
    "claim": (*_MOVING, "readers", "claims"),
    "commit": _LOGS,
    "discard": _MOVING,
    "disown": _LOGS,
    "drop_schedule": _MOVING,
    "ended": _READING,
    "enqueue": _ACCEPTING,
    "settle_and_claim": (*_MOVING, "readers", "claims", "settle"),
    "extend": _MOVING,
    "extent": _LOGS,
    "ingest": _ACCEPTING,
    "fire": _ACCEPTING,
    "gates": _GATED,
    "get": _READING,
    "groups": _LOGS,
    "hold": _GATED,
    "ledger": (*_READING, "ledger"),
    "replace_dead": _ACCEPTING,
    "offset_at": _LOGS,
    "overdue": _READING,
    "own": _LOGS,
    "pause": _MOVING,
    "position": _LOGS,
    "promote": (*_MOVING, "logs"),
    "pulse": (*_GATED, "logs"),
    "purge": _MOVING,
    "put_rule": _MOVING,
    "put_schedule": _MOVING,
    "put_spec": _MOVING,
    "read": _LOGS,
    "redrive": _MOVING,
    "release": _MOVING,
    "report": _READING,
    "rule": (*_READING, "ledger"),
    "schedules": _READING,
    "set_gate": _MOVING,
    "settle": (*_MOVING, "settle"),
    "trim": _LOGS,
    "trim_ledger": (*_READING, "ledger"),
    "withdraw": ("keys", "workers"),
    "workers": ("keys", "workers"),
}
_ENTERING: Final = frozenset(("append", "enqueue", "ingest", "fire", "replace_dead", "put_schedule", "put_spec"))
_LOOKING: Final = frozenset(
    "ahead asked backlog browse ended extent gates get groups hold ledger offset_at overdue position pulse read rule "
    "schedules workers".split()
)
NAMES: Final = tuple(_NEEDS)


class Script(Struct, frozen=True):
    """One verb. `looks`: it changes nothing."""

    name: str
    text: bytes
    digest: bytes
    looks: bool


@cache
def script(name: str) -> Script:
    parts = [f"lib/{part}.lua" for part in _NEEDS[name]] + [f"{name}.lua"]
    body = "\n".join((files("forebay.store.redis") / "lua" / part).read_text("utf-8") for part in parts)
    text = f"#!lua{_flags(name)}\n{body}".encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode(), name in _LOOKING)


def _flags(name: str) -> str:
    if name in _LOOKING:
        return " flags=no-writes"
    return "" if name in _ENTERING else " flags=allow-oom"
