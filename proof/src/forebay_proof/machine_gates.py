"""The rules of the model-based test about what holds jobs: lines, caps, rates, costs, conditions."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.store.protocol import Want
from forebay_proof.machine_ground import plays
from forebay_proof.machine_logs import LogRules
from forebay_proof.machine_parts import COST, FEW, GATED, GATES, PICK, SUBJECT, TENANT


class GateRules(LogRules):
    """Who may be taken, and who has to wait for what."""

    @plays("order", "block", "until")
    @rule(pick=PICK, subject=SUBJECT, attempts=st.sampled_from([1, 2]), count=FEW)
    def enqueue_ordered(self, pick: int, subject: str, attempts: int, count: int) -> None:
        queue = self._queue(pick, "order", "block", "until")
        draft = Draft("k", count, queue=queue, subject=subject, max_attempts=attempts)
        self._begin().enqueue([draft] * count)

    @plays("cap", "until")
    @rule(pick=PICK, subject=SUBJECT, tenant=TENANT, count=FEW)
    def enqueue_gated(self, pick: int, subject: str, tenant: str | None, count: int) -> None:
        queue = self._queue(pick, "cap", "until")
        self._begin().enqueue([Draft("k", count, queue=queue, subject=subject, tenant=tenant)] * count)

    @plays("dear", "pace", "paces", "stock", "turns")
    @rule(pick=PICK, tenant=TENANT, costs=st.lists(COST, min_size=1, max_size=4), priority=st.integers(-1, 1))
    def enqueue_dear(self, pick: int, tenant: str | None, costs: list[int], priority: int) -> None:
        queue = self._queue(pick, "dear", "pace", "paces", "stock", "turns")
        batch = [Draft("k", queue=queue, tenant=tenant, cost=cost, priority=priority) for cost in costs]
        self._begin().enqueue(batch)

    @plays("dear", "pace", "paces", "stock", "turns")
    @rule(count=FEW)
    def start(self, count: int) -> None:
        """All that share a cap or a rate ask at once."""
        queues = [queue for queue in self.queues if queue in ("dear", "pace", "paces", "stock", "turns")]
        self._begin().claim([Want(queue, count) for queue in queues], "starter", seconds(5))

    @plays(*GATED)
    @rule(name=st.sampled_from(GATES), limit=st.sampled_from([None, 0, 1, 2]))
    def set_gate(self, name: str, limit: int | None) -> None:
        self._begin().set_gate(name, limit)

    @plays("until", "stock")
    @rule(to=st.sampled_from([("go", None), ("ok", "a"), ("ok", "b")]), count=FEW)
    def release(self, to: tuple[str, str | None], count: int) -> None:
        self._begin().release(to[0], count, to[1])

    @plays(*GATED)
    @rule()
    def look_at_what_holds_them(self) -> None:
        self._begin().holds()
