"""The ground under the model-based test: how a history begins, what is compared after each step, and how it ends."""

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition

from forebay.core.decide import decide
from forebay.core.job import State
from forebay.core.lease import Lease, Settlement
from forebay.core.ledger import Change, LedgerEntry
from forebay.core.limits import MAX_BATCH
from forebay.core.spec import QueueSpec
from forebay.testing.clock import ManualClock
from forebay_proof.checkers import check_all, ledger
from forebay_proof.machine_parts import GAVE_UP, HOLDING, JOBS, LOG, OUTCOMES, QUEUES, SCHEDULES, SPECS, START
from forebay_proof.pair import Opened, Pair

Rule = TypeVar("Rule", bound=Callable[..., Any])
_COMPANY = (QUEUES, QUEUES, HOLDING)
Opener = Callable[[ManualClock], Opened]


def plays(*names: str) -> Callable[[Rule], Rule]:
    """The rule is for histories in which one of these plays."""
    return precondition(lambda machine: not machine.plays.isdisjoint(names))


class Ground(RuleBasedStateMachine):
    """A store, its model and a clock. A history has one theme and few queues, so that its steps meet."""

    opener: ClassVar[Opener]

    @classmethod
    def for_store(cls, opener: Opener) -> type[Self]:
        return type("Machine", (cls,), {"opener": staticmethod(opener), "__module__": cls.__module__})

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.pair = Pair(type(self).opener(self.clock), self.clock)
        self.queues: list[str] = []
        self.plays: set[str] = set()
        self.specs: list[QueueSpec] = []
        self.last: list[Settlement] = []
        self._compared = True
        self._untended = False

    @initialize(
        queues=st.one_of([st.lists(st.sampled_from(some), min_size=1, max_size=3, unique=True) for some in _COMPANY]),
        theme=st.sampled_from([JOBS, JOBS, JOBS, JOBS, LOG, SCHEDULES]),
    )
    def configure(self, queues: list[str], theme: str) -> None:
        self.queues = queues if theme == JOBS else queues[:1]
        self.plays = {theme, *self.queues}
        self.specs = [spec for spec in SPECS if spec.name in self.plays]
        for spec in self.specs:
            self.pair.put_spec(spec)

    def _begin(self) -> Pair:
        self._compared = False
        self._untended = False
        return self.pair

    @invariant()
    def queues_are_alike(self) -> None:
        # A backlog may promote what is due. After the clock has moved, the next verb must find it undone.
        if not self._untended:
            self.pair.backlog()
        self._compared = True

    def teardown(self) -> None:
        """Not after a failure: what comes after it would hide it."""
        if not self._compared:
            return
        self._judge_ledger()
        self.pair.drain()
        changes = self.pair.opened.changes
        found = check_all(changes(), drained=True, dropped=[GAVE_UP]) if changes else []
        assert not found, "\n".join(map(str, found))

    def _judge_ledger(self) -> None:
        """What the store itself wrote down: legal lives, of exactly the jobs that the model knows."""
        store = self.pair.store
        if not store.ledger_rule().on:
            return
        first, following = store.ledger_extent()
        entries: list[LedgerEntry] = []
        while first + len(entries) < following:
            entries += store.ledger(first + len(entries) - 1, MAX_BATCH)
        found = ledger(entries, dropped=[GAVE_UP])
        assert not found, "\n".join(map(str, found))
        if first:
            return
        last = {
            span.first + place: span.change
            for entry in entries
            for span in entry.record.spans
            for place in range(span.n)
        }
        accepted = self.pair.model.accepted
        assert sorted(last) == accepted, f"the ledger tells of {sorted(last)}, accepted were {accepted}"
        running = {
            job_id for job_id, change in last.items() if change in (Change.CLAIMED, Change.EXTENDED, Change.ASKED)
        }
        held = {item.job.id for item in self.pair.model.jobs(State.RUNNING)}
        assert running == held, f"the ledger says that {sorted(running)} run, the model {sorted(held)}"

    def _advance(self, span: int) -> None:
        self._begin()
        self.clock.advance(span)
        self.pair.overdue(1000)
        self._untended = True

    def _queue(self, pick: int, *names: str) -> str:
        queues = [queue for queue in self.queues if queue in (names or self.queues)]
        return queues[pick % len(queues)]

    def _offset(self, partition: int, pick: int) -> int:
        """From -1, the start, to one that is not written yet; small picks are the newest."""
        following = self.pair.model.extent(LOG)[partition][1]
        return following - pick % (following + 2)

    def _leases(self, pick: int) -> list[Lease]:
        newest = self.pair.leases[::-1]
        return newest[pick % len(newest) :]

    def _id(self, pick: int) -> int:
        newest = self.pair.model.accepted[::-1] or [1]
        return newest[pick % len(newest)]

    def _settle(self, wishes: list[tuple[Lease, str]]) -> None:
        self.last = [
            (lease, decide(lease.job, OUTCOMES[name], self.pair.routing(lease), 0.5)) for lease, name in wishes
        ]
        self._begin().settle(self.last)
