"""What a kind of fault is: its name, where it makes sense, its parameters, and what it does.

`prepare` once before the load begins, `strike` at each of its moments, `finish` once after the last and before the
drain. A strike returns when the fault is taken away again; whether all recovers is for others to see. Every choice
comes from the `rng` that it is given.
"""

from random import Random
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay_proof.lab.chaos.plan import STORES, Kept, Timed
from forebay_proof.lab.chaos.scene import Bite, Scene

KINDS: dict[str, "type[ChaosFault]"] = {}


class ChaosFault(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields are what a plan may say beside the timing."""

    stores: ClassVar[tuple[Kept, ...]] = STORES
    settings: ClassVar[dict[str, str]] = {}
    """What its server must be started with."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        KINDS[snake(cls.__name__)] = cls

    def prepare(self, scene: Scene) -> None:
        """Before the load."""

    def strike(self, scene: Scene, rng: Random) -> Bite:
        raise NotImplementedError

    def finish(self, scene: Scene) -> None:
        """After the last strike."""


def snake(name: str) -> str:
    return "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name).lstrip("_")


def fault_of(timed: Timed) -> ChaosFault:
    """The fault that a plan names."""
    kind = KINDS.get(timed.kind)
    if kind is None:
        raise Invalid("fault kind", f"there is none called {timed.kind!r}", f"use one of {', '.join(sorted(KINDS))}")
    try:
        return msgspec.convert(timed.args, kind)
    except msgspec.ValidationError as error:
        takes = ", ".join(kind.__struct_fields__) or "nothing"
        raise Invalid(f"fault {timed.kind}", str(error), f"beside the timing it takes {takes}") from None
