"""Queues and gates as an operator sees them: their specs, pauses, numbers of slots, and how much they hold."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.instant import Instant
from forebay.core.limits import MAX_AHEAD, MAX_BATCH
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.store.checks import check_neighbours
from forebay.store.protocol import Backlog, GateUse, Totals
from forebay.store.redis.row import packed
from forebay.store.redis.session import Session
from forebay.store.redis.specs import rule_of
from forebay.store.states import STATES


class Queues:
    """Configuration and counts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def specs(self) -> list[QueueSpec]:
        session = self._session
        names = session.command("ZRANGE", session.key("queues"), 0, -1)
        texts = session.command("MGET", *(session.key("spec", name.decode()) for name in names)) if names else ()
        return [QueueSpec.from_json(text) for text in texts if text is not None]

    def put_spec(self, spec: QueueSpec) -> None:
        session, name = self._session, spec.name
        partitions = spec.retention.partitions if isinstance(spec.retention, Retained) else 0
        facts = (spec.to_json(), packed(rule_of(spec)))

        def attempt() -> Sequence[Any]:
            seen = session.command("HGET", session.key("head"), "specs") or 0
            check_neighbours(spec, self.specs())
            reply: Sequence[Any] = (b"more", "")
            # A spec that begins to shed marks the jobs that the queue has first, some at a time.
            while reply[0] == b"more":
                reply = session.call("put_spec", name, *facts, seen, partitions, reply[1])
            return reply

        match session.on_specs(attempt):
            case [b"kind", was_log]:
                raise WrongQueueKind(name, is_log=bool(was_log))
            case [b"fewer"]:
                raise Invalid(name, "a log cannot lose partitions", "keep them, or start a new log")
            case _:
                session.specs.reload()

    def pause(self, queue: str, until: Instant | None) -> None:
        self._session.call("pause", "resume" if until is None else "pause", queue, until or 0)

    def set_gate(self, name: str, limit: int | None) -> None:
        self._session.call("set_gate", name, "" if limit is None else limit)

    def release(self, gate: str, count: int) -> int:
        """In steps, so that no call holds the server up."""
        released, is_all = 0, False
        while not is_all:
            some, is_all = self._session.call("release", gate, count - released, tokened=True)
            released += some
        return released

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        found = self._session.call("gates", after, limit, prefix)
        return [GateUse(name.decode(), *numbers) for name, *numbers in found]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        return [name.decode() for name, *_ in self._session.call("queues", after, limit, prefix)]

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        names, every = packed(queues or ()), "all" if queues is None else ""
        now, *found = self._session.call("backlog", names, every, MAX_AHEAD)
        return [_backlog(each, now) for each in found]

    def totals(self, limit: int) -> Totals:
        """In pages, so that no call holds the server up: a queue may have moved while others were counted."""
        counted, after = list[tuple[str, list[int]]](), ""
        while page := self._session.call("queues", after, MAX_BATCH, ""):
            counted += [(name.decode(), [int(count or 0) for count in counts]) for name, *counts in page]
            after = counted[-1][0]
        deepest = nsmallest(limit, counted, key=lambda each: (-sum(each[1][:3]), -each[1][4], each[0]))
        sums = [sum(counts[state] for _, counts in counted) for state in range(len(STATES))]
        return Totals(self.backlog([name for name, _ in deepest]) if deepest else [], len(counted), *sums)


def _backlog(row: Sequence[Any], now: Instant) -> Backlog:
    name, waiting, ready, running, done, dead, cancelled, oldest, paused, keys, held, blocked = row
    return Backlog(
        name.decode(),
        waiting,
        ready,
        running,
        done,
        dead,
        cancelled,
        oldest_age=max(0, now - oldest) if ready else 0,
        paused_until=paused if paused > now else None,
        keys=keys,
        held=held,
        blocked=blocked,
    )
