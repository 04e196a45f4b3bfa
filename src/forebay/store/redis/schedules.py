"""Schedules: their bodies and slots, and taking a slot together with the job that it becomes."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.schedule import Schedule
from forebay.store.checks import check_bytes
from forebay.store.redis.row import packed
from forebay.store.redis.session import Session, refuse

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Schedule).decode


class Schedules:
    """Put, drop, list and fire."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put_schedule(self, schedule: Schedule) -> None:
        body = _encode(replace(schedule, next_at=0, last_at=None, last_job=None))
        timing = f"{schedule.rule}\n{schedule.zone}"
        self._session.call("put_schedule", schedule.name, body, schedule.next_at, int(schedule.paused), timing)

    def drop_schedule(self, name: str) -> bool:
        return bool(self._session.call("drop_schedule", name, tokened=True))

    def schedules(self) -> list[Schedule]:
        found = [
            replace(_decode(body), next_at=next_at, last_at=_or_none(last_at), last_job=_or_none(job))
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
            reply: Sequence[Any] = session.call("fire", name, tick, next_at, batch, *bodies, tokened=True)
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


def _or_none(text: bytes | int) -> int | None:
    return int(text) if text != b"" else None
