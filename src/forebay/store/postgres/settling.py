"""The commit point and the other endings: settle, cancel, redrive, purge.

The fence decides, not the time. A settle is one call of one function, run by run: whole runs go in one step, parts are
marked in their runs, what is to be tried again or kept is broken out. What the function refuses is looked at one by
one. The last settle is remembered, on the row or, once the job is gone, in a table of calls: a repeated one is answered
alike.
"""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Final

from forebay.core.errors import StoreFailed
from forebay.core.instant import Instant, Span
from forebay.core.job import State
from forebay.core.lease import Lease, Settled, Settlement, outlived
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.store.postgres.claims import CALL, Claims
from forebay.store.postgres.endings import cancel, purge, redrive
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import Ref
from forebay.store.postgres.verdicts import CODES, SETTLE, SETTLE_CALL, Group, Item, SettleCall, grouped
from forebay.store.postgres.waiting import ending_of
from forebay.store.protocol import CancelAnswer, Want
from forebay.store.states import RUNNING, STATES

_EXCHANGE: Final = (
    f"WITH told AS MATERIALIZED (SELECT {SETTLE_CALL} AS applied) "
    f"SELECT told.applied, taken.* FROM told LEFT JOIN LATERAL {CALL} AS taken ON true"
)
_FOUND: Final = statement("found")
_MARKS: Final = statement("marks")

_TOGETHER: Final = 3
_LOOKS_MOST: Final = 5
"""A job may move from row to row while it is looked for."""


class Settling(Claims):
    """How jobs end."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        groups, later = grouped(settlements)
        applied = self._apply(groups) if groups else set()
        return self._answers(settlements, groups, later, applied)

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Want], owner: str, span: Span
    ) -> tuple[list[Settled], list[Lease]]:
        """Settle, and claim what comes next, in one round trip and one commit. What is not plain takes two."""
        groups, later = grouped(settlements)
        if later or not groups or not wants:
            return self.settle(settlements), self.claim(wants, owner, span)
        holder = self._holder(owner)
        fronts = [self._front(want) for want in wants]
        asked = self._asked(wants, fronts, holder, span)
        told = self._settle_call(groups, [want.queue for want in wants])
        began = monotonic()
        try:
            with holder.claiming():
                rows = self._server.query(_EXCHANGE, (*told, *asked), repeatable=False)
                found = [row[1:] for row in rows if row[1] is not None]
                flag = found[0][0] if found else 0
                taken = [] if flag else self._leases(found, owner, holder)
        except StoreFailed:
            self._retire(owner, holder)
            raise
        self._moved(monotonic() - began, wants, fronts, found)
        applied = self._applied(groups, rows[0][0])
        answers = self._answers(settlements, groups, later, applied)
        if flag:
            self._refused(flag, wants)
        return answers, self.claim(wants, owner, span) if flag else taken

    def _answers(
        self, settlements: Sequence[Settlement], groups: Sequence[Group], later: list[Item], applied: set[int]
    ) -> list[Settled]:
        """What was not applied with its run is looked at one by one."""
        answers = [Settled.APPLIED] * len(settlements)
        for place, (_, items) in enumerate(groups, 1):
            if place not in applied:
                later += items
        for number, lease, verdict in sorted(self._settle_found(later), key=lambda item: item[0]):
            answers[number] = self._settle_one(lease, verdict)
        self._let_go([(lease.job.id, lease.job.delivery) for lease, _ in settlements])
        return answers

    def cancel(self, ids: Sequence[int]) -> list[CancelAnswer]:
        return self._write(lambda turn: cancel(turn, ids)) if ids else []

    def redrive(self, ids: Sequence[int]) -> list[int]:
        return self._write(lambda turn: redrive(turn, ids)) if ids else []

    def purge(self, state: State, before: Instant, limit: int, queue: str | None) -> int:
        return self._write(lambda turn: purge(turn, STATES.index(state), before, limit, queue))

    def _apply(self, groups: Sequence[Group]) -> set[int]:
        """Which of these runs were settled as asked, by number."""
        return self._applied(groups, self._server.query(SETTLE, self._settle_call(groups))[0][0])

    def _applied(self, groups: Sequence[Group], numbers: list[int] | None) -> set[int]:
        """The same from the answer to a call; None: it knew an old spec and is made again."""
        for _ in range(_LOOKS_MOST):
            if numbers is not None:
                break
            self._specs.reload({items[0][1].job.queue for _, items in groups})
            numbers = self._server.query(SETTLE, self._settle_call(groups))[0][0]
        done = set(numbers or ())
        self._settled([group for place, group in enumerate(groups, 1) if place in done])
        return done

    def _settle_call(self, groups: Sequence[Group], claimed: Sequence[str] = ()) -> tuple[Any, ...]:
        """The arguments of `forebay.settle`."""
        return SettleCall(self._at, self._mine(), self._specs, groups, claimed).parameters()

    def _mine(self) -> list[int]:
        return [holder.id for holder in list(self._holders.values())]

    def _settled(self, groups: Sequence[Group]) -> None:
        """Bookkeeping of this process, and news for those who sleep."""
        news: set[str] = set()
        eased: set[str] = set()
        topics = [ending_of(job_id) for job_id in self._ended(groups)]
        for _, items in groups:
            queue = items[0][1].job.queue
            if self._specs.of(queue).keys or any(type(verdict) in (Retry, Release) for _, _, verdict in items):
                news.add(queue)
            if self._specs.of(queue).bounded:
                eased.add(queue)
        if news or eased or topics:
            self._sleepers.hear(news, eased, topics)

    def _ended(self, groups: Sequence[Group]) -> Iterator[int]:
        """Jobs whose end others may wait for; most go with their acknowledgement, of which only this process hears."""
        watched = self._sleepers.watched
        for _, items in groups:
            for _, lease, verdict in items:
                match verdict:
                    case Ack(_, 0) if not watched:
                        continue
                    case Ack() | Cancel() | DeadLetter():
                        yield lease.job.id
                    case _:
                        pass

    def _settle_found(self, items: list[Item]) -> list[Item]:
        """Settle in one look what is where its fence says, as all that a dead process held; the others come back."""
        ids = [lease.job.id for _, lease, _ in items]
        if len(ids) < _TOGETHER or len(set(ids)) < len(ids):
            return items
        rows = [row for row in self._server.query(_FOUND, (ids,)) if row[5] == RUNNING]
        refs = {(row[0], row[10]): Ref(row[1], row[2], row[3], row[10]) for row in rows}
        groups: dict[tuple[bool, int], Group] = {}
        for item in items:
            if (ref := refs.get(item[1].fence)) is not None:
                groups.setdefault(ref.key, (ref, []))[1].append(item)
        ordered = [groups[key] for key in sorted(groups)]
        applied = self._apply(ordered) if ordered else set()
        done = {item[0] for place, (_, some) in enumerate(ordered, 1) if place in applied for item in some}
        return [item for item in items if item[0] not in done]

    def _settle_one(self, lease: Lease, verdict: Verdict) -> Settled:
        """The job where it is by now; or what is remembered of it."""
        fence = lease.fence
        for _ in range(_LOOKS_MOST):
            found = [
                row for row in self._server.query(_FOUND, ([fence[0]],)) if row[5] == RUNNING and row[10] == fence[1]
            ]
            if not found or outlived(lease, verdict, found[0][14]):
                break
            row = found[0]
            groups: list[Group] = [(Ref(row[1], row[2], row[3], row[10]), [(0, lease, verdict)])]
            if self._apply(groups):
                return Settled.APPLIED
        marks = self._server.query(_MARKS, ([fence[0]],) * 3)
        last = max(((delivery, code) for _, delivery, code in marks), default=None)
        return Settled.APPLIED if last == (fence[1], CODES[type(verdict)]) else Settled.STALE
