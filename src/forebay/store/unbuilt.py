"""What the stores are still to learn, and how they refuse it meanwhile. Whoever builds one deletes its line here."""

from abc import abstractmethod
from datetime import timedelta
from typing import Final

from forebay.core.errors import Unsupported
from forebay.core.features import Feature
from forebay.core.instant import Instant
from forebay.store.log import Owned, Standing
from forebay.store.protocol import Capabilities, Hold

_ALL: Final = frozenset(
    {
        Feature.RATE,
        Feature.SHARED,
        Feature.COST,
        Feature.RELEASE,
        Feature.HOLD,
        Feature.QUIET,
        Feature.UNIQUE,
        Feature.SHED,
        Feature.LAGGING,
        Feature.GROUPS,
        Feature.REPLAY,
        Feature.DEAD_LETTERS,
        Feature.PURGE_ONE,
    }
)
_LOGS: Final = {Feature.LAGGING, Feature.GROUPS, Feature.REPLAY}
MEMORY: Final = _ALL - {Feature.COST, Feature.RATE, Feature.SHARED, Feature.DEAD_LETTERS, Feature.PURGE_ONE} - _LOGS
SQLITE: Final = _ALL - {Feature.DEAD_LETTERS, Feature.PURGE_ONE}
POSTGRES: Final = _ALL


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

    def own(self, log: str, group: str, member: str, lease_for: timedelta) -> list[Owned]:
        raise unbuilt(self.capabilities.name, Feature.GROUPS)

    def disown(self, log: str, group: str, member: str) -> int:
        raise unbuilt(self.capabilities.name, Feature.GROUPS)

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        raise unbuilt(self.capabilities.name, Feature.GROUPS)

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        raise unbuilt(self.capabilities.name, Feature.REPLAY)
