"""What the stores are still to learn, and how they refuse it meanwhile. Whoever builds one deletes its line here."""

from abc import abstractmethod
from typing import Final

from forebay.core.errors import Unsupported
from forebay.core.features import Feature
from forebay.store.protocol import Capabilities, Hold

MEMORY: Final[frozenset[Feature]] = frozenset()
SQLITE: Final[frozenset[Feature]] = frozenset()
POSTGRES: Final[frozenset[Feature]] = frozenset()


def unbuilt(store: str, feature: Feature) -> Unsupported:
    return Unsupported(store, feature, "it is on its way")


class Unbuilt:
    """The verbs that nobody has built yet; a store's own come before these."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the whole store claims."""

    def release(self, condition: str, count: int, value: str | None = None) -> int:
        raise unbuilt(self.capabilities.name, Feature.RELEASE)

    def hold(self, job_id: int) -> Hold | None:
        raise unbuilt(self.capabilities.name, Feature.HOLD)

    def ahead(self, job_id: int) -> int | None:
        raise unbuilt(self.capabilities.name, Feature.HOLD)
