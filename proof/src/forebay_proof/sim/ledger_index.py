"""The ledger of a run, read once and put in order: holders and times, and how each delivery and each job ended.

Promise: derived from the records alone; the checks hold it against what the simulation saw. Records that a power cut
took back are not in it.
"""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.changeset import ChangeSet, JobChange
from forebay.core.entries import Entry
from forebay.core.instant import Instant
from forebay.core.job import is_suspicious
from forebay.core.lease import Fence
from forebay.core.ledger import Change
from forebay.core.outcome import OUT_OF_TIME, Failure

_ENDINGS = (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED)


class JobDelivery(Struct):
    """One delivery: `attempt` as the ledger counts it, `epoch` the number of redrives before it.

    `suspicious`: it was claimed to run in quarantine.
    """

    fence: Fence
    owner: str
    attempt: int
    epoch: int
    due_at: Instant
    claimed_at: Instant
    until: Instant
    began: int
    suspicious: bool = False
    ending: JobChange | None = None
    ended_at: Instant = 0
    ended: int = 0

    def ended_by(self, *changes: Change) -> bool:
        return self.ending is not None and self.ending.change in changes


class JobHistory(Struct):
    """One job. `ends` are its final states in order: one an epoch."""

    entry: Entry
    at: Instant
    due_at: Instant
    used: int = 0
    epoch: int = 0
    deliveries: list[JobDelivery] = []
    ends: list[str] = []
    errors: list[Failure] = []


class LedgerIndex:
    """The ledger, by job and by fence."""

    def __init__(self, changes: list[ChangeSet], times: list[int]) -> None:
        self.changes = changes
        self.histories: dict[int, JobHistory] = {}
        self.deliveries: dict[Fence, JobDelivery] = {}
        self.by_serial: dict[int, list[int]] = {}
        self.merges: dict[int, list[int]] = {}
        self.fired: dict[tuple[str, Instant], int] = {}
        self.ticked: dict[tuple[str, Instant], int] = {}
        self.ticks: dict[str, list[Instant]] = {}
        for change, now in zip(changes, times, strict=True):
            self._read(change, now)

    def _read(self, change: ChangeSet, now: int) -> None:
        self._born(change)
        if change.verb == "fire" and change.name is not None and change.tick is not None:
            slot = (change.name, change.tick)
            self.fired[slot] = self.fired.get(slot, 0) + 1
            self.ticked[slot] = self.ticked.get(slot, 0) + len(change.entries)
            self.ticks.setdefault(change.name, []).append(change.tick)
        for each in change.jobs:
            for place, job_id in enumerate(each.ids):
                history = self.histories.get(job_id)
                if history is not None:
                    delivery = each.deliveries[place] if each.deliveries else 0
                    self._happened(change, each, history, (job_id, delivery), now)

    def _born(self, change: ChangeSet) -> None:
        for entry in change.entries:
            self.histories[entry.id] = JobHistory(entry, change.at, entry.due_at, deliveries=[], ends=[], errors=[])
            serial = serial_of(entry.body)
            if serial is not None:
                self.by_serial.setdefault(serial, []).append(entry.id)
        for merge in change.merges:
            serial = serial_of(merge.body)
            if serial is not None:
                self.merges.setdefault(serial, []).append(merge.id)

    def _happened(self, change: ChangeSet, each: JobChange, history: JobHistory, fence: Fence, now: int) -> None:
        if each.change in _ENDINGS:
            self._ended(change.at, each, history, fence, now)
        match each.change:
            case Change.CLAIMED:
                self._claimed(change, each, history, fence, now)
            case Change.EXTENDED:
                if history.deliveries:
                    history.deliveries[-1].until = each.until
            case Change.ACKED:
                history.ends.append("done")
            case Change.DIED | Change.EXPIRED | Change.SHED:
                history.ends.append("dead")
                history.errors += [OUT_OF_TIME] if each.error is None else []
            case Change.DISCARDED | Change.CANCELLED:
                history.ends.append("cancelled")
            case Change.RETRIED:
                history.due_at = each.until
            case Change.RELEASED:
                history.used -= 1
                history.due_at = each.until
            case Change.REDRIVEN:
                history.used, history.due_at = 0, each.until
                history.epoch += 1
            case _:
                pass

    def _claimed(self, change: ChangeSet, each: JobChange, history: JobHistory, fence: Fence, now: int) -> None:
        history.used += 1
        delivery = JobDelivery(
            fence, change.owner or "", history.used, history.epoch, history.due_at, change.at, each.until, now
        )
        delivery.suspicious = is_suspicious(history.errors, history.used, history.entry.max_attempts)
        history.deliveries.append(delivery)
        self.deliveries[fence] = delivery

    def _ended(self, at: Instant, each: JobChange, history: JobHistory, fence: Fence, now: int) -> None:
        delivery = self.deliveries.get(fence)
        if delivery is not None:
            delivery.ending, delivery.ended_at, delivery.ended = each, at, now
        if each.error is not None:
            history.errors.append(replace(each.error, attempt=history.used))


def serial_of(body: bytes) -> int | None:
    number = msgspec.json.decode(body).get("n")
    return number if isinstance(number, int) else None
