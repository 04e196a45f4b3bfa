"""The server under test, the same one for ours and for all peers, and a fresh database in it for each measurement."""

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar


class HasUrl(Protocol):
    @property
    def url(self) -> str:
        """For our stores, with their options."""


class BenchDatabase(HasUrl, Protocol):
    """A database, and what a measurement did to its server."""

    @property
    def plain_url(self) -> str:
        """For the peers."""

    def wal(self) -> float:
        """Bytes that the server has logged since it was made. Only the measurement writes."""

    def server_cpu(self) -> float:
        """Seconds, with all processes below it."""

    def number(self, query: str) -> float:
        """The result of a query in the server's own language."""

    def settle_down(self, *, analyze: bool = False) -> None:
        """What the seeding left to do is done before the clock starts; `analyze` for peers that gain by it."""

    def traces(self) -> dict[str, float]:
        """What a measurement left behind that costs later ones."""


D = TypeVar("D", bound=BenchDatabase)
D_co = TypeVar("D_co", bound=BenchDatabase, covariant=True)


class BenchServer(Protocol[D_co]):
    def database(self) -> AbstractContextManager[D_co]:
        """A fresh one, gone with the block."""
