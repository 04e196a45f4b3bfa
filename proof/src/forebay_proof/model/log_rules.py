"""The rules of the model-based test for logs: appends, readers and their groups, owners of partitions, trims."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from forebay.core.instant import seconds
from forebay.testing.clock import ManualClock
from forebay_proof.model.lockstep import Lockstep
from forebay_proof.model.strategies import BACK, FEW, LOG, PICK, SECOND

Rule = TypeVar("Rule", bound=Callable[..., Any])
_GROUP = st.sampled_from("ggh")
_MEMBER = st.sampled_from("abc")
_NUMBER = st.integers(0, 1)


def plays(*names: str) -> Callable[[Rule], Rule]:
    """The rule is for histories in which one of these plays."""
    return precondition(lambda machine: not machine.plays.isdisjoint(names))


class LogRules(RuleBasedStateMachine):
    """A machine has these beside its own."""

    clock: ManualClock
    lockstep: Lockstep

    def _begin(self) -> Lockstep:
        raise NotImplementedError

    def _offset(self, partition: int, pick: int) -> int:
        """From -1, the start, to one that is not written yet; small picks are the newest."""
        following = self.lockstep.model.logs.extent(LOG)[partition][1]
        return following - pick % (following + 2)

    @plays(LOG)
    @rule(keys=st.lists(st.sampled_from([None, "u", "v", "w"]), max_size=4))
    def append(self, keys: list[str | None]) -> None:
        bodies = [b'{"n":%d}' % number for number in range(len(keys))]
        self._begin().append(LOG, bodies, keys)

    @plays(LOG)
    @rule(partition=_NUMBER, pick=PICK, limit=FEW)
    def read(self, partition: int, pick: int, limit: int) -> None:
        self._begin().read(LOG, partition, self._offset(partition, pick), limit)

    @plays(LOG)
    @rule(group=_GROUP, partition=_NUMBER, picks=st.lists(PICK, max_size=3), rewind=BACK)
    def commit(self, group: str, partition: int, picks: list[int], rewind: bool) -> None:
        """A reader that goes on, is late, or goes back on purpose."""
        for pick in picks:
            self._begin().commit(LOG, group, partition, self._offset(partition, pick), rewind=rewind)

    @plays(LOG)
    @rule(age=st.sampled_from([-1, 0, SECOND]), limit=st.sampled_from([1, 2, 1000]))
    def trim(self, age: int, limit: int) -> None:
        self._begin().trim(LOG, self.clock.now() - age, limit)

    @plays(LOG)
    @rule(group=_GROUP, partition=_NUMBER, pick=PICK, rewind=BACK, epoch=FEW)
    def commit_in_an_epoch(self, group: str, partition: int, pick: int, rewind: bool, epoch: int) -> None:
        """Some owner says so, of now, of before, or one that never was."""
        offset = self._offset(partition, pick)
        self._begin().commit(LOG, group, partition, offset, rewind=rewind, epoch=epoch)

    @plays(LOG)
    @rule(group=_GROUP, member=_MEMBER, lease_for=st.sampled_from([1, 1, 90]))
    def own(self, group: str, member: str, lease_for: int) -> None:
        self._begin().own(LOG, group, member, seconds(lease_for))

    @plays(LOG)
    @rule(group=_GROUP, members=st.permutations("abc"))
    def all_own(self, group: str, members: list[str]) -> None:
        for member in members:
            self._begin().own(LOG, group, member, seconds(5))

    @plays(LOG)
    @rule(group=_GROUP, member=_MEMBER)
    def disown(self, group: str, member: str) -> None:
        self._begin().disown(LOG, group, member)

    @plays(LOG)
    @rule(partition=_NUMBER, age=st.sampled_from([-1, 0, 1, SECOND, 3 * SECOND]))
    def offset_at(self, partition: int, age: int) -> None:
        self._begin().offset_at(LOG, partition, self.clock.now() - age)

    @plays(LOG)
    @rule()
    def look_at_the_groups(self) -> None:
        self._begin().configuration()
