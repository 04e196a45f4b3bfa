"""What a store may be unable to do, by name. A spec that asks for it is refused when it comes in, and so is a call."""

from collections.abc import Iterator
from enum import StrEnum

from forebay.core.policy import AtMost, Bounded, Rate, Retained, Shed, terms_of
from forebay.core.spec import QueueSpec


class Feature(StrEnum):
    """Each is a thing of its own: a store can have any of them without the others. The words are for an error."""

    RATE = "rate limits"
    SHARED = "gates that queues share"
    COST = "jobs that cost more than one"
    RELEASE = "release"
    HOLD = "telling what holds a job"
    QUIET = "waiting for quiet"
    UNIQUE = "keys that are taken by the state of a job"
    SHED = "shedding"
    FAN_OUT = "brokers"
    LAGGING = "logs that wait for lagging groups"
    GROUPS = "groups that share a log's partitions"
    REPLAY = "replay from an instant"
    DEAD_LETTERS = "rules for dead letters"
    PURGE_ONE = "purging one queue alone"


def features_of(spec: QueueSpec) -> Iterator[Feature]:
    """What a store must be able to do to keep what the spec says."""
    terms = terms_of(spec.eligibility)
    if any(isinstance(term, Rate) for term in terms):
        yield Feature.RATE
    if any(isinstance(term, AtMost | Rate) and term.shared for term in terms):
        yield Feature.SHARED
    if spec.merge is not None and spec.merge.quiet is not None:
        yield Feature.QUIET
    if spec.unique is not None:
        yield Feature.UNIQUE
    if spec.fan_out is not None:
        yield Feature.FAN_OUT
    if isinstance(spec.capacity, Bounded) and isinstance(spec.capacity.when_full, Shed):
        yield Feature.SHED
    if isinstance(spec.retention, Retained) and spec.retention.lagging == "block":
        yield Feature.LAGGING
    if spec.routing.dead is not None:
        yield Feature.DEAD_LETTERS
