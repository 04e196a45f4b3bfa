"""One promise of the contract, and the function that checks it.

`@case` turns a function into a `Case`: its name is the promise, its module the theme, its body the check. A case that
only holds for stores which claim something is marked `@case_if(Need.…)`; for the others it is reported as not claimed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from forebay.store.protocol import Capabilities
from forebay_proof.conformance.harness import Harness

CaseCheck: TypeAlias = Callable[[Harness], None]
Refusal = TypeVar("Refusal", bound=Exception)


class Need(StrEnum):
    """What a store must claim in its `Capabilities` before a case applies to it."""

    NOTHING = "nothing"
    DURABLE = "durable"
    EXACT_ORDER = "exact order"

    def claimed(self, capabilities: Capabilities) -> bool:
        match self:
            case Need.NOTHING:
                return True
            case Need.DURABLE:
                return capabilities.durable
            case Need.EXACT_ORDER:
                return capabilities.order == "exact"


@dataclass(frozen=True, slots=True)
class Case:
    """`check(harness)` raises `AssertionError` when the store breaks the promise that `name` makes."""

    name: str
    theme: str
    check: CaseCheck
    need: Need = Need.NOTHING

    @property
    def sentence(self) -> str:
        return self.name.replace("_", " ")


def case(check: CaseCheck) -> Case:
    """For every store."""
    return _named(check, Need.NOTHING)


def case_if(need: Need) -> Callable[[CaseCheck], Case]:
    """For stores that claim it."""
    return lambda check: _named(check, need)


def _named(check: CaseCheck, need: Need) -> Case:
    return Case(check.__name__, check.__module__.rpartition(".")[2], check, need)


def refused(kind: type[Refusal], action: Callable[[], object]) -> Refusal:
    """The error that the action must raise."""
    try:
        answer = action()
    except kind as refusal:
        return refusal
    raise AssertionError(f"{kind.__name__} was expected, the answer was {answer!r:.200}")
