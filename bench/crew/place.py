"""Where a measurement happens: a server under test, and a fresh place in it for each measurement.

`Ground` is the server, the same one for ours and for all peers. `Place` tells what a measurement did to it.
"""

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar


class Located(Protocol):
    @property
    def url(self) -> str:
        """For our stores, with their options."""


class Place(Located, Protocol):
    @property
    def plain_url(self) -> str:
        """For everybody else."""

    def wal(self) -> float:
        """Bytes that the server has logged, ever. Nobody else writes."""

    def server_cpu(self) -> float:
        """Seconds, with all processes below it."""

    def number(self, question: str) -> float:
        """The answer to a question in the server's own language."""

    def settle_down(self, *, analyze: bool = False) -> None:
        """What the seeding left to do is done before the clock starts; `analyze` for peers that gain by it."""

    def traces(self) -> dict[str, float]:
        """What a measurement left behind that costs those after it."""


P = TypeVar("P", bound=Place)
P_co = TypeVar("P_co", bound=Place, covariant=True)


class Ground(Protocol[P_co]):
    def database(self) -> AbstractContextManager[P_co]:
        """A fresh place, gone with the block."""
