"""What the rules of intake (`engine.intake`) look up in the in-process store."""

from collections.abc import Iterable, Sequence

from forebay.core.entries import Merge
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.policy import Shed
from forebay.core.shedding import Place
from forebay.core.stamp import Stamper
from forebay.engine.intake import IntakePlan, KeyFact, MergeTarget, key_is_taken, plan_intake
from forebay.store.memory.facts import Facts
from forebay.store.memory.index import Index


class IntakeLookup:
    """One for all calls: `plan` begins each. Ids are given out, and used up once a plan is committed."""

    def __init__(self, facts: Facts, index: Index, durable: bool) -> None:
        self.now: Instant = 0
        self._next_id = 0
        self._facts = facts
        self._index = index
        self._durable = durable

    def plan(self, drafts: Sequence[Draft], now: Instant) -> IntakePlan:
        """What the drafts become, with room made for them."""
        self.now = now
        self._next_id = self._facts.next_id
        plan = plan_intake(self, drafts, durable=self._durable)
        plan.make_room()
        return plan

    def stamper(self, queue: str) -> Stamper:
        return (self._index.queues.get(queue) or self._index.queue(queue)).stamper

    def new_id(self, place: int) -> int:
        job_id = self._next_id
        self._next_id += 1
        return job_id

    def taken_key(self, queue: str, key: str) -> KeyFact | None:
        fact = self._facts.keys.get((queue, key))
        taken = fact is not None and key_is_taken(self.stamper(queue), fact, self._facts.state, self.now)
        return fact if taken else None

    def merge_target(self, queue: str, subject: str) -> MergeTarget | None:
        job_id = self._index.queue(queue).newest.get(subject)
        if job_id is None:
            return None
        row = self._facts.rows[job_id]
        expires_at = row.entry.expires_at
        if expires_at is not None and expires_at <= self.now:
            return None
        return MergeTarget(job_id, row.enqueued_at, row.due_at, row.entry.rank_timed)

    def depth(self, queue: str) -> int:
        return self._index.queue(queue).depth

    def resting(self, queue: str, shed: Shed, limit: int) -> Iterable[Place]:
        return self._index.queue(queue).resting or ()


def merges_of(plan: IntakePlan) -> list[Merge]:
    """What waiting jobs take over; the key of each draft points at the job."""
    merges = []
    for target, draft, newer, _ in plan.merged:
        _, digest, until = plan.keys[draft.queue, draft.key] if draft.key is not None else (0, b"", 0)
        merges.append(Merge(target.id, draft.kind, draft.body, draft.key, digest, until, newer))
    return merges
