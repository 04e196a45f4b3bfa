"""This process's cache of specs, by queue and version, and drafts as a script takes them by these specs.

A batch carries the versions that it relies on; the server refuses it when one has changed, and the caller reads the
specs anew. So all processes follow a new spec at once, without reading it in every call.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.gate import Gate, check_cost, lane_terms, whole_gates
from forebay.core.instant import micros
from forebay.core.job import Draft
from forebay.core.policy import Bounded, Fifo, KeepFor, Retained, Shed
from forebay.core.spec import QueueSpec
from forebay.core.stamp import BY_TIME, Stamper, rank_rule
from forebay.store.redis.connect import DeliveryMode

_TRAITS: Final = attrgetter(
    *"queue kind priority run_at delay deadline expires_at key tenant subject max_attempts cost".split()
)
_RANK_ZERO: Final = 2**63


class KnownSpec:
    """What follows from one version of a spec."""

    __slots__ = ("_ranked", "spec", "stamper", "version")

    def __init__(self, name: str, version: int, text: bytes | None) -> None:
        self.version = version
        self.spec = QueueSpec(name=name) if text is None else QueueSpec.from_json(text)
        self.stamper = Stamper(self.spec)
        self._ranked = not isinstance(self.spec.selection, Fifo)

    def shape(self, draft: Draft) -> dict[str, Any]:
        """What alike drafts have in common, for lua/intake.lua."""
        spec = self.spec
        base, timed = rank_rule(spec.selection, draft) if self._ranked else BY_TIME
        shape: dict[str, Any] = {
            "queue": draft.queue,
            "cls": self.stamper.cls(draft),
            "kind": draft.kind,
            "max_attempts": draft.max_attempts or spec.routing.max_attempts,
            "delay": draft.delay,
            "timed": int(timed),
        }
        if draft.run_at is not None:
            shape["run_at"] = draft.run_at
        if base:
            shape["base"] = f"{base + _RANK_ZERO:020d}"
        more = self._more(draft)
        if self.stamper.gated:
            # The script refuses it if the draft would become a job: one whose key is known costs nothing.
            try:
                check_cost(spec, draft)
            except Invalid as error:
                shape["wrong"] = (error.field, error.reason, error.remedy)
        if self.stamper.stamped:
            more |= self._stamps(draft)
        if draft.key is not None:
            digest, window = self.stamper.key(draft, 0)
            shape["digest"] = digest.hex()
            if spec.unique is None:
                shape["window"] = window
        if spec.merge is not None and draft.subject is not None:
            shape["merges"] = True
            if spec.merge.quiet is not None:
                shape["quiet"] = micros(spec.merge.quiet)
            if spec.merge.at_most is not None:
                shape["at_most"] = micros(spec.merge.at_most)
        if more:
            shape["more"] = more
        return shape

    def _more(self, draft: Draft) -> dict[str, Any]:
        more = {
            "priority": draft.priority or None,
            "tenant": draft.tenant,
            "subject": draft.subject,
            "key": draft.key,
            "deadline": draft.deadline,
            "expires": draft.expires_at,
            "meta": None if draft.meta is None else msgspec.json.encode(draft.meta).decode(),
            "cost": draft.cost if draft.cost != 1 else None,
        }
        return {name: value for name, value in more.items() if value is not None}

    def _stamps(self, draft: Draft) -> dict[str, Any]:
        """The gates of the draft's lane, and its line."""
        gates, (line, blocks) = self.stamper.lane_gates(draft), self.stamper.line(draft) or (None, False)
        stamps = {"gates": gates or None, "line": line, "blocks": blocks or None}
        return {name: value for name, value in stamps.items() if value is not None}


class EncodedDrafts(Struct, frozen=True, omit_defaults=True):
    """Drafts as a script takes them. `runs`: the number of a shape and how many of it, again and again."""

    versions: dict[str, int]
    shapes: list[dict[str, Any]]
    runs: list[int]
    delivery: DeliveryMode | None = None


class Specs:
    """Specs by the name of their queue."""

    def __init__(self, read: Callable[[str], tuple[int, bytes | None]], delivery: DeliveryMode | None) -> None:
        self._read = read
        self._delivery = delivery
        self._known: dict[str, KnownSpec] = {}

    def of(self, name: str) -> KnownSpec:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = KnownSpec(name, *self._read(name))
        return known

    def reload(self) -> None:
        self._known.clear()

    def batch(self, drafts: Sequence[Draft], also: Sequence[str] = (), *, single: bool = False) -> EncodedDrafts:
        """`also`: other queues whose specs the caller relies on; `single`: every draft is a run of its own."""
        versions = {name: self.of(name).version for name in also}
        shapes: list[dict[str, Any]] = []
        runs: list[int] = []
        numbers: dict[tuple[Any, ...], int] = {}
        last: int | None = None
        for draft in drafts:
            if type(draft) is not Draft:
                raise Invalid("draft", f"{type(draft).__name__} is not a Draft", "build a Draft(kind, payload, …)")
            alike = draft.meta is None and draft.key is None
            traits = _TRAITS(draft) if alike else None
            number = numbers.get(traits) if traits is not None else None
            if number is None:
                shapes.append(self._shape(draft, versions))
                number = len(shapes)
                if traits is not None:
                    numbers[traits] = number
            if number == last and not single:
                runs[-1] += 1
            else:
                runs += (number, 1)
                last = number
        return EncodedDrafts(versions, shapes, runs, self._delivery)

    def _shape(self, draft: Draft, versions: dict[str, int]) -> dict[str, Any]:
        known = self.of(draft.queue)
        if known.stamper.is_log:
            raise WrongQueueKind(draft.queue, is_log=True)
        versions[draft.queue] = known.version
        return known.shape(draft)


def rule_of(spec: QueueSpec) -> dict[str, Any]:
    """The part of a spec that the scripts read."""
    rule: dict[str, Any] = {}
    if isinstance(spec.capacity, Bounded):
        rule["limit"] = spec.capacity.limit
        if isinstance(spec.capacity.when_full, Shed):
            rule["shed"] = spec.capacity.when_full.victim
    if isinstance(spec.retention, KeepFor):
        rule["keep"] = micros(spec.retention.duration)
    if isinstance(spec.retention, Retained):
        window = spec.retention.window
        rule["log"] = {"block": spec.retention.lagging == "block"}
        if window is not None:
            rule["log"]["window"] = micros(window)
    if spec.routing.dead is not None:
        dead = spec.routing.dead
        keep = None if dead.keep is None else micros(dead.keep)
        facts = {"queue": dead.queue, "keep": keep, "limit": dead.limit}
        rule["dead"] = {name: value for name, value in facts.items() if value is not None}
    if spec.unique is not None:
        rule["unique"] = spec.unique.mask
    if whole := whole_gates(spec):
        rule["whole"] = [_numbers(gate) for gate in whole]
    if terms := lane_terms(spec):
        rule["terms"] = [_numbers(term.gate) | {"per": term.per is not None} for term in terms]
    if spec.share is not None:
        rule["weights"] = spec.share.weights
        rule["default"] = spec.share.default
    return rule


def _numbers(gate: Gate) -> dict[str, Any]:
    return {"name": gate.name, "limit": gate.limit, "step": gate.step}
