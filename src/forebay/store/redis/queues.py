"""The verbs around jobs: looking at them, configuring queues and schedules, and sleeping until there is work."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.instant import Instant, Span
from forebay.core.job import Draft, Job
from forebay.core.limits import AHEAD_MOST, BATCH_MOST
from forebay.core.policy import Retained
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.checks import check_bytes, check_neighbours
from forebay.store.protocol import Backlog, Page, Query, Totals
from forebay.store.redis.base import refuse
from forebay.store.redis.gate_verbs import GateVerbs
from forebay.store.redis.row import jobs_of, packed, sid, sids
from forebay.store.redis.specs import rule_of
from forebay.store.states import STATES

_PROBES: Final = 5_000
"""How many jobs one page looks at, found or not: a page is never a long read."""

_ID_MOST: Final = 10**16 - 1
_encode: Final = msgspec.json.Encoder().encode
_decode_schedule: Final = msgspec.json.Decoder(Schedule).decode


class QueueVerbs(GateVerbs):
    """Observation and configuration."""

    def get(self, ids: Sequence[int]) -> list[Job | None]:
        known = sids(ids)
        found = {job.id: job for job in jobs_of(self._call("get", packed(known)), results=True)} if known else {}
        return [found.get(job_id) for job_id in ids]

    def browse(self, query: Query, after: int, limit: int) -> Page:
        wanted = {name: getattr(query, name) for name in ("queue", "kind", "tenant", "subject", "suspect")}
        wanted["state"] = None if query.state is None else STATES.index(query.state)
        given = {name: value for name, value in wanted.items() if value is not None}
        start = sid(max(0, min(after, _ID_MOST)))
        last, *found = self._call("browse", start, limit, _PROBES, packed(given))
        return Page(list(jobs_of(found, results=True)), int(last) if last else None)

    def backlog(self, queues: Sequence[str] | None) -> list[Backlog]:
        now, *told = self._call("backlog", packed(queues or ()), "all" if queues is None else "", AHEAD_MOST)
        return [_backlog(each, now) for each in told]

    def queues(self, after: str, limit: int, prefix: str) -> list[str]:
        return [name.decode() for name, *_ in self._call("queues", after, limit, prefix)]

    def totals(self, limit: int) -> Totals:
        """In pages, so that no call holds the server up: a queue may have moved while others were counted."""
        counted, after = list[tuple[str, list[int]]](), ""
        while page := self._call("queues", after, BATCH_MOST, ""):
            counted += [(name.decode(), [int(count or 0) for count in counts]) for name, *counts in page]
            after = counted[-1][0]
        deepest = nsmallest(limit, counted, key=lambda each: (-sum(each[1][:3]), -each[1][4], each[0]))
        sums = [sum(counts[state] for _, counts in counted) for state in range(len(STATES))]
        return Totals(self.backlog([name for name, _ in deepest]) if deepest else [], len(counted), *sums)

    def put_spec(self, spec: QueueSpec) -> None:
        name = spec.name
        facts = (spec.to_json(), packed(rule_of(spec)))

        def attempt() -> Sequence[Any]:
            seen = self._server.command("HGET", self._key("head"), "specs") or 0
            check_neighbours(spec, self.specs())
            reply: Sequence[Any] = self._call("put_spec", name, *facts, seen, _partitions(spec))
            return reply

        match self._on_specs(attempt):
            case [b"kind", was_log]:
                raise WrongQueueKind(name, is_log=bool(was_log))
            case [b"fewer"]:
                raise Invalid(name, "a log cannot lose partitions", "keep them, or start a new log")
            case _:
                self._specs.reload()

    def pause(self, queue: str, until: Instant | None) -> None:
        self._call("pause", "resume" if until is None else "pause", queue, until or 0)

    def put_schedule(self, schedule: Schedule) -> None:
        body = _encode(replace(schedule, next_at=0, last_at=None, last_job=None))
        timing = f"{schedule.rule}\n{schedule.zone}"
        self._call("put_schedule", schedule.name, body, schedule.next_at, int(schedule.paused), timing)

    def drop_schedule(self, name: str) -> bool:
        return bool(self._call("drop_schedule", name, tokened=True))

    def schedules(self) -> list[Schedule]:
        found = [
            replace(_decode_schedule(body), next_at=next_at, last_at=_or_none(last_at), last_job=_or_none(job))
            for body, next_at, last_at, job in self._call("schedules")
        ]
        return sorted(found, key=lambda schedule: schedule.name)

    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        def attempt() -> Sequence[Any]:
            drafts = [] if draft is None else copies(self._specs.of(draft.queue).spec, draft)
            check_bytes("enqueue", [each.body for each in drafts])
            batch = b"" if draft is None else packed(self._specs.batch(drafts, [draft.queue]))
            bodies = [each.body for each in drafts]
            reply: Sequence[Any] = self._call("fire", name, tick, next_at, batch, *bodies, tokened=True)
            return reply

        try:
            reply = self._on_specs(attempt)
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

    def wait(self, queues: Sequence[str], span: Span) -> bool:
        first: list[int] = []

        def ready() -> Instant:
            work_at, grown = self._call("pulse", packed(queues))
            first.append(grown)
            return 0 if grown > first[0] else int(work_at)

        return self._sleepers.until_work(queues, self.now() + span, ready)


def _backlog(told: Sequence[Any], now: Instant) -> Backlog:
    name, waiting, ready, running, done, dead, cancelled, oldest, paused, keys, held, blocked = told
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


def _or_none(text: bytes | int) -> int | None:
    return int(text) if text != b"" else None


def _partitions(spec: QueueSpec) -> int:
    return spec.retention.partitions if isinstance(spec.retention, Retained) else 0
