"""What a command did to a store goes into the operators' log, with the name of the one at the terminal."""

import getpass

from forebay.core.payload import Json
from forebay.serve.security.acts import write_act
from forebay.store.protocol import Store


def whoami() -> str:
    """`cli:<user>`; some machines have no name for the one who is logged in."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli:unknown"


def noted(store: Store, act: str, about: str, **facts: Json) -> None:
    """Write down an act of the one at the terminal."""
    write_act(store, whoami(), act, about, **facts)
