"""`QueueSpec`: the five-axis vector of one queue, as one frozen value that prints itself and travels as JSON."""

from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from forebay.core.errors import Invalid
from forebay.core.instant import checked_micros, in_words, minutes
from forebay.core.limits import SPAN_MOST
from forebay.core.names import check_name
from forebay.core.policy import (
    AtMost,
    Backoff,
    Bounded,
    Capacity,
    Eligibility,
    Exponential,
    Fair,
    Fifo,
    Fixed,
    FullJitter,
    Immediate,
    InOrder,
    KeepFor,
    LatestWins,
    RemoveOnAck,
    Retained,
    Retention,
    Routing,
    Selection,
    Unbounded,
    Until,
    terms_of,
)

_AXES: dict[str, Any] = {
    "retention": Retention,
    "selection": Selection,
    "share": Fair | None,
    "merge": LatestWins | None,
    "eligibility": Eligibility,
    "routing": Routing,
    "capacity": Capacity,
}
_OF_A_LOG = (Fifo(), None, None, Immediate(), Routing(), Unbounded())


def _backoff(backoff: Backoff) -> str:
    match backoff:
        case Fixed(span):
            return f"fixed {in_words(span)}"
        case FullJitter(base, cap):
            return f"full jitter {in_words(base)} … {in_words(cap)}"
        case Exponential(base, cap, _):
            return f"exponential {in_words(base)} … {in_words(cap)}"


class QueueSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One queue. `key_window` is how long an idempotency key is remembered after its job was accepted."""

    name: str
    retention: Retention = RemoveOnAck()
    selection: Selection = Fifo()
    share: Fair | None = None
    merge: LatestWins | None = None
    eligibility: Eligibility = Immediate()
    routing: Routing = Routing()
    capacity: Capacity = Unbounded()
    key_window: timedelta = minutes(5)

    def __post_init__(self) -> None:
        force_setattr(self, "name", check_name("queue", self.name))
        checked_micros("key_window", self.key_window, timedelta(seconds=1), SPAN_MOST)
        self._check_types()
        axes = (self.selection, self.share, self.merge, self.eligibility, self.routing, self.capacity)
        if self.is_log and axes != _OF_A_LOG:
            raise Invalid(
                self.name, "a retained log has no selection, gates, routing or capacity", "its readers keep their place"
            )
        if self.merge and any(isinstance(term, InOrder) for term in terms_of(self.eligibility)):
            raise Invalid(self.name, "LatestWins replaces work that InOrder promises to run", "choose one of the two")

    def _check_types(self) -> None:
        """What has a wrong type would be written down and never read back."""
        for axis, types in _AXES.items():
            value = getattr(self, axis)
            try:
                sound = msgspec.convert(msgspec.to_builtins(value), types) == value
                reason = f"{type(value).__name__} is no value of it"
            except (msgspec.ValidationError, TypeError, ValueError) as error:
                sound, reason = False, str(error)
            if not sound:
                raise Invalid(f"{self.name} {axis}", reason, "use the values of forebay.core.policy")

    @property
    def is_log(self) -> bool:
        return isinstance(self.retention, Retained)

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(text: bytes | str) -> "QueueSpec":
        try:
            return msgspec.json.decode(text, type=QueueSpec)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Invalid("queue spec", str(error), "see QueueSpec.to_json() for the shape") from None

    def vector(self) -> str:
        """The queue in one line, so that a reader recognises it."""
        return f"{self.name} = {{{', '.join(self.axes().values())}}}"

    def axes(self) -> dict[str, str]:
        """The five axes, each in words."""
        return {
            "retention": self._retention(),
            "selection": self._selection(),
            "eligibility": self._eligibility(),
            "position": self._position(),
            "capacity": self._capacity(),
        }

    @property
    def commit_point(self) -> str:
        """When progress is durable, relative to the effect."""
        if self.is_log:
            return "a reader's commit of its offset: before its effect means at most once, after it at least once"
        return "settle(Ack) after the effect: at least once; make the effect idempotent by the job's fence"

    def _retention(self) -> str:
        match self.retention:
            case RemoveOnAck():
                return "remove-on-ack"
            case KeepFor(span):
                return f"keep {in_words(span)}"
            case Retained(partitions, window):
                return f"retained log × {partitions}, window {in_words(window) if window else 'unlimited'}"

    def _selection(self) -> str:
        words = [type(self.selection).__name__.lower()]
        if self.share:
            words.append(f"fair by {self.share.by}")
        if self.merge:
            words.append(f"latest wins by {self.merge.by}")
        return " + ".join(words)

    def _eligibility(self) -> str:
        words = []
        for term in terms_of(self.eligibility):
            match term:
                case AtMost(limit, per):
                    words.append(f"at most {limit}" + (f" per {per}" if per else ""))
                case InOrder(per, dead_head):
                    words.append(f"in order per {per} (dead head: {dead_head})")
                case Until(condition, per):
                    words.append(f"until {condition}" + (f" per {per}" if per else ""))
        return " + ".join(words) or "immediate"

    def _position(self) -> str:
        if self.is_log:
            return "main"
        return f"main → retry × {self.routing.max_attempts} ({_backoff(self.routing.backoff)}) → dead"

    def _capacity(self) -> str:
        match self.capacity:
            case Unbounded():
                return "unbounded"
            case Bounded(limit, when_full):
                return f"bounded {limit}, {type(when_full).__name__.lower()}"
