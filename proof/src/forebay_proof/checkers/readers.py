"""Readers of logs: a partition has one owner a group at a time, changes hands only when it is free, and in a new epoch.

A partition is free when it has no owner or its owner's time is over. Epochs only grow, and a member that keeps a
partition keeps its epoch. A group's share is not checked here: it depends on when its members call.
"""

from collections.abc import Sequence

from forebay.core.changeset import ChangeSet
from forebay.core.instant import Duration, Instant
from forebay_proof.checkers.violation import Violation

_Group = dict[int, tuple[str | None, int]]


def readers(changes: Sequence[ChangeSet]) -> list[Violation]:
    groups: dict[tuple[str, str], _Group] = {}
    ends: dict[tuple[str, str, str], Instant] = {}
    found: list[Violation] = []
    for place, change in enumerate(changes):
        log = change.log
        if log is None or log.member is None:
            continue
        name, member = (log.log, log.group), log.member
        group = groups.setdefault(name, {})
        for number, epoch in log.owned.items():
            owner, last = group.get(number, (None, 0))
            left = 0 if owner is None else ends[*name, owner] - change.at
            wrong = _wrong(member, owner, last, left, epoch)
            found += [Violation("readers", place, None, f"{log.log}/{number} of {log.group}: {wrong}")] * bool(wrong)
            group[number] = (member, epoch)
        for number, (owner, last) in group.items():
            if owner == member and number not in log.owned:
                group[number] = (None, last)
        ends[*name, member] = log.until
    return found


def _wrong(member: str, owner: str | None, last: int, left: Duration, epoch: int) -> str | None:
    if owner == member:
        return None if epoch == last else f"{owner} keeps it in epoch {epoch}, not {last}"
    if owner is not None and left > 0:
        return f"{member} takes it while {owner} owns it for {left} µs more"
    return None if epoch == last + 1 else f"it changes hands in epoch {epoch} after {last}"
