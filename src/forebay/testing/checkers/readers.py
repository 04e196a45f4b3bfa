"""Readers of logs: a partition has one owner a group at a time, changes hands only when it is free, and in a new epoch.

A partition is free when nobody owns it or its owner's time is over. Epochs only grow, and who keeps a partition keeps
its epoch. A group's share is not judged here: it depends on who calls when.
"""

from collections.abc import Sequence

from forebay.core.event import Event, PartitionsOwned
from forebay.core.instant import Instant
from forebay.testing.checkers.violation import Violation

_Group = dict[int, tuple[str | None, int]]


def readers(events: Sequence[Event]) -> list[Violation]:
    groups: dict[tuple[str, str], _Group] = {}
    ends: dict[tuple[str, str, str], Instant] = {}
    found: list[Violation] = []
    for place, event in enumerate(events):
        if not isinstance(event, PartitionsOwned):
            continue
        name = (event.log, event.group)
        group = groups.setdefault(name, {})
        for number, epoch in zip(event.partitions, event.epochs, strict=True):
            owner, last = group.get(number, (None, 0))
            until = 0 if owner is None else ends[*name, owner]
            wrong = _wrong(event, owner, last, until, epoch)
            found += [Violation("readers", place, None, f"{event.log}/{number} of {event.group}: {wrong}")] * bool(
                wrong
            )
            group[number] = (event.member, epoch)
        for number, (owner, last) in group.items():
            if owner == event.member and number not in event.partitions:
                group[number] = (None, last)
        ends[*name, event.member] = event.until
    return found


def _wrong(event: PartitionsOwned, owner: str | None, last: int, until: Instant, epoch: int) -> str | None:
    if owner == event.member:
        return None if epoch == last else f"{owner} keeps it in epoch {epoch}, not {last}"
    if owner is not None and until > event.at:
        return f"{event.member} takes it while {owner} owns it for {until - event.at} µs more"
    return None if epoch == last + 1 else f"it changes hands in epoch {epoch} after {last}"
