"""What this process knows of the queues' specs, by version.

Every put, claim and settle carries the versions that it relies on; the server refuses it when one has changed, and the
caller reads the specs anew. So all processes follow a new spec at once, without asking for it in every call.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from forebay.core.gate import check_cost, lane_gates, lane_terms
from forebay.core.job import Draft
from forebay.core.policy import Bounded, Fifo, InOrder, terms_of
from forebay.core.spec import QueueSpec
from forebay.core.stamp import BY_TIME, Stamper, rank_rule
from forebay.store.postgres.connect import Rows, Server
from forebay.store.postgres.runs import Stamp

Fetch = Callable[[str, Iterable[Any]], Rows]

_READ = "SELECT name, version, spec FROM forebay.queue WHERE name = ANY (%s)"


def lock_key(name: str) -> int:
    """The advisory lock of a queue, or of a gate that queues share."""
    return crc32(name.encode()) - 2**31


def gate_key(gate: str) -> int:
    """The lock under which a gate changes: its own where queues may share it, else that of its queue."""
    sort, of, *_ = gate.split("/")
    return lock_key(f"{sort}/{of}" if sort == "until" or of.startswith("@") else of)


class Locks(NamedTuple):
    """What a verb takes before it reads anything: locks that it holds alone, and locks that it shares with its like.

    `names` and `versions` of the specs that this follows from.
    """

    alone: list[int]
    beside: list[int]
    names: list[str]
    versions: list[int]


class Known:
    """What follows from one version of a spec. `direct`: its jobs need nothing but their stamps.

    laned   its jobs have classes that share, or gates of their own
    lined   its jobs stand in lines
    claims  a claim of it needs its locks alone: the next ready job is not all that matters
    """

    def __init__(self, name: str, version: int, text: str | None) -> None:
        spec = QueueSpec(name=name) if text is None else QueueSpec.from_json(text)
        self.version = version
        self.spec = spec
        self.stamper = Stamper(spec)
        self.bounded = isinstance(spec.capacity, Bounded)
        terms = terms_of(spec.eligibility)
        self.lined = spec.merge is not None or any(isinstance(term, InOrder) for term in terms)
        self.direct = not (self.bounded or self.lined or spec.is_log or spec.is_broker)
        self.terms = lane_terms(spec)
        self.laned = spec.share is not None or bool(self.terms)
        self.claims = self.laned or bool(self.stamper.whole)
        gates = [*(gate.name for gate in self.stamper.whole), *(prefix for prefix, _, _ in self.terms)]
        self.key = lock_key(name)
        self.keys = {self.key, *map(gate_key, gates)} if self.claims or self.lined else set()
        """Locks that every verb of the queue takes, but for claims of a queue that has only lines."""
        self.by_time = isinstance(spec.selection, Fifo)
        alike = self.by_time and not self.laned
        self._only = Stamp(BY_TIME, spec.routing.max_attempts, "", 1) if alike else None

    def stamp(self, draft: Draft) -> Stamp:
        """For a draft in no line."""
        if draft.cost > 1 and self.stamper.gated:
            check_cost(self.spec, draft)
        if self._only is not None and draft.max_attempts is None and draft.cost == 1:
            return self._only
        lives = draft.max_attempts or self.spec.routing.max_attempts
        gates = lane_gates(self.spec, draft) if self.terms else ()
        return Stamp(rank_rule(self.spec.selection, draft), lives, self.stamper.cls(draft), draft.cost, gates)

    @property
    def sql(self) -> tuple[Any, ...]:
        """What the functions of the server know of the spec's gates, lanes and shares, as the columns of its row."""
        share = self.spec.share
        whole = [{"name": gate.name, "slots": gate.limit, "step": gate.step} for gate in self.stamper.whole]
        terms = [
            {"prefix": prefix, "exact": exact, "slots": gate.limit, "step": gate.step}
            for prefix, exact, gate in self.terms
        ]
        weights = (None, None) if share is None else (_json(share.weights), share.default)
        return (self.laned, _json(whole), _json(terms), *weights)


class Specs:
    """Specs by the name of their queue. `walked`: how far the keys that are taken by state were looked through."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: dict[str, Known] = {}
        self.walked = ("", "")
        self._apart: set[str] = set()

    def set_apart(self, names: Iterable[str]) -> None:
        """These queues have lanes of an older spec: claims need their locks alone until there is another one."""
        self._apart.update(names)

    def is_apart(self, name: str) -> bool:
        return name in self._apart or self.of(name).claims

    def locks(self, names: Iterable[str], claimed: Iterable[str] = (), fetch: Fetch | None = None) -> Locks:
        """Those of a verb that changes jobs of these queues, and claims from those; `fetch` as in `reload`."""
        names, claimed = set(names), set(claimed)
        known = {name: self.of(name, fetch) for name in sorted(names | claimed)}
        alone: set[int] = set()
        beside: set[int] = set()
        for name, each in known.items():
            if self.is_apart(name) or (each.keys and name in names):
                alone |= each.keys or {each.key}
            else:
                beside.add(each.key)
        return Locks(sorted(alone), sorted(beside - alone), list(known), [each.version for each in known.values()])

    def of(self, name: str, fetch: Fetch | None = None) -> Known:
        known = self._known.get(name)
        if known is None:
            self.reload([name], fetch)
            known = self._known[name]
        return known

    def reload(self, names: Iterable[str], fetch: Fetch | None = None) -> None:
        """Read these specs again. A unit of work reads them by its own connection:
        many who each had one, and waited for one more, would wait for each other."""
        names = list(names)
        found = {name: (version, text) for name, version, text in (fetch or self._server.query)(_READ, (names,))}
        for name in names:
            version, text = found.get(name, (0, None))
            known = self._known.get(name)
            if known is None or known.version != version:
                self._apart.discard(name)
                self._known[name] = Known(name, version, text)


def is_plain(spec: QueueSpec) -> bool:
    """Whether a job of this queue needs nothing but the time: no rank, class, gate, bound, merge or route."""
    known = Known(spec.name, 0, spec.to_json().decode())
    return known.direct and not known.claims and isinstance(spec.selection, Fifo)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
