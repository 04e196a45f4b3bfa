"""Commands record what they change in the operator log, under the name of the logged-in user."""

import getpass

from forebay.core.payload import Json
from forebay.serve.security import operator_log
from forebay.store.protocol import Store


def terminal_user() -> str:
    """`cli:<user>`, or `cli:unknown` where the machine has no name for the user."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli:unknown"


def record_action(store: Store, action: str, target: str, **details: Json) -> None:
    operator_log.record_action(store, terminal_user(), action, target, **details)
