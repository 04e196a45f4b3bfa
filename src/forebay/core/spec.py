"""`QueueSpec`: the five-axis vector of one queue, as one frozen value that is stored as JSON."""

from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from forebay.core.contradictions import contradiction
from forebay.core.errors import Invalid
from forebay.core.instant import checked_micros, in_words, minutes
from forebay.core.limits import MAX_DURATION
from forebay.core.names import check_name
from forebay.core.policy import (
    AtMost,
    Backoff,
    Bounded,
    Capacity,
    DeadLetters,
    Eligibility,
    Exponential,
    Fair,
    FanOut,
    Fifo,
    Fixed,
    FullJitter,
    Immediate,
    InOrder,
    KeepFor,
    LatestWins,
    Moved,
    Rate,
    RemoveOnAck,
    Retained,
    Retention,
    Routing,
    Selection,
    Shed,
    Unbounded,
    Until,
    While,
    terms_of,
)

_AXES: dict[str, Any] = {
    "retention": Retention,
    "selection": Selection,
    "share": Fair | None,
    "merge": LatestWins | None,
    "unique": While | None,
    "eligibility": Eligibility,
    "routing": Routing,
    "fan_out": FanOut | None,
    "capacity": Capacity,
}


def _backoff(backoff: Backoff) -> str:
    match backoff:
        case Fixed(duration):
            return f"fixed {in_words(duration)}"
        case FullJitter(base, cap):
            return f"full jitter {in_words(base)} … {in_words(cap)}"
        case Exponential(base, cap, _):
            return f"exponential {in_words(base)} … {in_words(cap)}"


def _dead(dead: DeadLetters) -> str:
    if dead.queue is not None:
        return f"dead in {dead.queue}"
    kept = [in_words(dead.keep)] if dead.keep else []
    return ", ".join(["dead", *kept, *([f"the last {dead.limit}"] if dead.limit else [])])


def _quiet(merge: LatestWins) -> str:
    if merge.quiet is None:
        return ""
    return f", after {in_words(merge.quiet)} of quiet" + (f" or {in_words(merge.at_most)}" if merge.at_most else "")


def _per(per: str | None) -> str:
    return f" per {per}" if per else ""


def _shared(shared: str | None) -> str:
    return f", shared as {shared}" if shared else ""


class QueueSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One queue. `key_window` is how long an idempotency key is kept after its job was accepted.

    With `unique` a key is taken while its job is in one of those states instead. With `fan_out` it is a broker.
    """

    name: str
    retention: Retention = RemoveOnAck()
    selection: Selection = Fifo()
    share: Fair | None = None
    merge: LatestWins | None = None
    eligibility: Eligibility = Immediate()
    routing: Routing = Routing()
    capacity: Capacity = Unbounded()
    key_window: timedelta = minutes(5)
    unique: While | None = None
    fan_out: FanOut | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "name", check_name("queue", self.name))
        checked_micros("key_window", self.key_window, timedelta(milliseconds=1), MAX_DURATION)
        self._check_types()
        if (found := contradiction(self)) is not None:
            raise Invalid(self.name, found.reason, found.way_out)

    def _check_types(self) -> None:
        """A value of a wrong type could be stored and never read back."""
        for axis, types in _AXES.items():
            value = getattr(self, axis)
            try:
                sound = msgspec.convert(msgspec.to_builtins(value), types) == value
                reason = f"{type(value).__name__} is not one of its policies"
            except (msgspec.ValidationError, TypeError, ValueError) as error:
                sound, reason = False, str(error)
            if not sound:
                raise Invalid(f"{self.name} {axis}", reason, "use the values of forebay.core.policy")

    @property
    def is_log(self) -> bool:
        return isinstance(self.retention, Retained)

    @property
    def is_broker(self) -> bool:
        return self.fan_out is not None

    def to_json(self) -> bytes:
        """The spec as JSON, as stores keep it and the HTTP API takes it."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(text: bytes | str) -> "QueueSpec":
        """The spec that `to_json` wrote; `Invalid` for anything else."""
        try:
            return _decode(text)
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
        if self.is_broker:
            return "the enqueue, which puts a copy into every queue or into none; then that of each queue for its copy"
        return "settle(Ack) after the effect: at least once; make the effect idempotent by the job's fence"

    def _retention(self) -> str:
        match self.retention:
            case RemoveOnAck():
                return "remove-on-ack"
            case KeepFor(duration):
                return f"keep {in_words(duration)}"
            case Retained(partitions, window, lagging):
                words = f"retained log × {partitions}, window {in_words(window) if window else 'unlimited'}"
                return words if lagging == "count" else f"{words}, longer for lagging groups"

    def _selection(self) -> str:
        words = [type(self.selection).__name__.lower()]
        if self.share:
            words.append(f"fair by {self.share.by}")
        if self.merge:
            words.append(f"latest wins by {self.merge.by}{_quiet(self.merge)}")
        if self.unique:
            words.append(f"unique while {' or '.join(self.unique.states)}")
        return " + ".join(words)

    def _eligibility(self) -> str:
        words = []
        for term in terms_of(self.eligibility):
            match term:
                case AtMost(limit, per, shared):
                    words.append(f"at most {limit}{_per(per)}{_shared(shared)}")
                case Rate(limit, every, per, burst, shared):
                    at_once = "" if burst is None else f" ({burst} at once)"
                    words.append(f"{limit} every {in_words(every)}{at_once}{_per(per)}{_shared(shared)}")
                case InOrder(per, dead_head):
                    words.append(f"in order per {per} (dead head: {dead_head})")
                case Until(condition, per):
                    words.append(f"until {condition}{_per(per)}")
        return " + ".join(words) or "immediate"

    def _position(self) -> str:
        if self.is_log:
            return "main"
        if self.fan_out is not None:
            return f"broker → {' + '.join(f'{route.queue} ({route.kinds})' for route in self.fan_out.routes)}"
        dead = _dead(self.routing.dead) if self.routing.dead else "dead"
        return f"main → retry × {self.routing.max_attempts} ({_backoff(self.routing.backoff)}) → {dead}"

    def _capacity(self) -> str:
        match self.capacity:
            case Unbounded():
                return "unbounded"
            case Moved():
                return "moved to another cell"
            case Bounded(limit, Shed(victim)):
                return f"bounded {limit}, shed {victim}"
            case Bounded(limit, when_full):
                return f"bounded {limit}, {type(when_full).__name__.lower()}"


# Made at import, not at the first use: msgspec completes its description of a struct in steps, and a thread that
# decodes the same struct meanwhile crashes the process.
_decode = msgspec.json.Decoder(QueueSpec).decode
