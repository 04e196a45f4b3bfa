"""What operators do to queues, gates, jobs and schedules, and the workers that announce themselves."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, State
from forebay.core.policy import Retained
from forebay.core.presence import Presence
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.engine.control import check_moved
from forebay.store.checks import check_bytes, check_neighbours
from forebay.store.protocol import CancelAnswer
from forebay.store.redis.records import packed, sids
from forebay.store.redis.session import Session, refuse
from forebay.store.redis.specs import rule_of
from forebay.store.states import STATES

_CANCELLED: Final = (CancelAnswer.GONE, CancelAnswer.CANCELLED, CancelAnswer.REQUESTED)
_encode: Final = msgspec.json.Encoder().encode
_decode_schedule: Final = msgspec.json.Decoder(Schedule).decode
_decode_presence: Final = msgspec.json.Decoder(Presence).decode


class Control:
    """Configuration, and jobs that do not run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put_spec(self, spec: QueueSpec) -> None:
        session, name = self._session, spec.name
        partitions = spec.retention.partitions if isinstance(spec.retention, Retained) else 0
        facts = (spec.to_json(), packed(rule_of(spec)))

        def attempt() -> Sequence[Any]:
            seen = session.command("HGET", session.key("head"), "specs") or 0
            specs = session.stored_specs()
            check_moved(next((known for known in specs if known.name == name), None), spec)
            check_neighbours(spec, specs)
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
            some, is_all = self._session.call("release", gate, count - released)
            released += some
        return released

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        known = sids(ids)
        answers = iter(self._session.call("cancel", packed(known)) if known else ())
        return [_CANCELLED[next(answers)] if sids([job_id]) else CancelAnswer.GONE for job_id in ids]

    def redrive(self, ids: Sequence[int]) -> list[int]:
        reply: Sequence[Any] = self._session.call("redrive", packed(sids(ids)))
        if reply[0] != b"ok":
            refuse(reply)
        return [int(each) for each in reply[1:]]

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        purged: int = self._session.call("purge", STATES.index(state), before, limit, queue or "")
        return purged

    def purge_dead(self, ids: Sequence[int]) -> list[int]:
        return [int(each) for each in self._session.call("purge_dead", packed(sids(ids)))]

    def put_schedule(self, schedule: Schedule) -> None:
        body = _encode(replace(schedule, next_at=0, last_at=None, last_job=None))
        timing = f"{schedule.rule}\n{schedule.zone}"
        self._session.call("put_schedule", schedule.name, body, schedule.next_at, int(schedule.paused), timing)

    def drop_schedule(self, name: str) -> bool:
        return bool(self._session.call("drop_schedule", name))

    def schedules(self) -> list[Schedule]:
        found = [
            replace(_decode_schedule(body), next_at=next_at, last_at=_or_none(last_at), last_job=_or_none(job))
            for body, next_at, last_at, job in self._session.call("schedules")
        ]
        return sorted(found, key=lambda schedule: schedule.name)

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        session = self._session

        def attempt() -> Sequence[Any]:
            drafts = [] if draft is None else copies(session.specs.of(draft.queue).spec, draft)
            bodies = [each.body for each in drafts]
            check_bytes("enqueue", bodies)
            batch = b"" if draft is None else packed(session.specs.batch(drafts, [draft.queue]))
            reply: Sequence[Any] = session.call("fire", name, tick, next_at, batch, *bodies)
            return reply

        try:
            reply = session.on_specs(attempt)
        except (Invalid, WrongQueueKind):
            # A draft that is wrong does not matter where the slot is not to be had.
            if not self._is_free(name, tick):
                return False
            raise
        if reply[0] not in (b"ok", b"taken"):
            refuse(reply)
        return bool(reply[0] == b"ok")

    def _is_free(self, name: str, tick: Instant) -> bool:
        for schedule in self.schedules():
            if schedule.name == name:
                last_at = -1 if schedule.last_at is None else schedule.last_at
                return not schedule.paused and schedule.next_at == tick > last_at
        return False

    def announce(self, presence: Presence, duration: Duration) -> None:
        self._session.call("announce", presence.owner, duration, _encode(presence))

    def withdraw(self, owner: str) -> bool:
        return bool(self._session.call("withdraw", owner))

    def workers(self, after: str, limit: int) -> list[Presence]:
        found = self._session.call("workers", after, limit)
        return [replace(_decode_presence(body), since=since, seen_at=seen_at) for body, since, seen_at in found]


def _or_none(text: bytes | int) -> int | None:
    return int(text) if text != b"" else None
