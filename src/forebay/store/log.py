"""The contract of retained logs: a part of `store.protocol`, and of every store.

Readers come in groups. A group has a place in every partition, moved on by `commit`. Where several members of a group
read, each owns some partitions by lease; its `epoch` is the fence, as `delivery` is that of a job. Reading needs no
ownership and changes nothing: any number of groups, and readers without a group, read the same log without a trace.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, PartitionLost, WrongQueueKind
from forebay.core.instant import Instant


class Owned(Struct, frozen=True):
    """A partition in the hands of one member: read after `position`, commit with `epoch`, own again before `until`."""

    partition: int
    epoch: int
    position: int
    until: Instant


class Standing(Struct, frozen=True):
    """The progress of a group in one partition. A group exists once it has committed or owned, and is never removed.

    position  the last committed offset, -1 for none
    lag       entries behind that, as far as the log still holds them
    lost      entries that left the log before the group had them, all in all
    loses_at  when the first entry that it has not had leaves the window; None: it has had all, or there is no window.
              Where `lagging` blocks, the entry stays beyond that while the group still reads
    seen_at   the last commit or call of `own`
    member    the owner of the partition, with its epoch and the end of its lease; None: it is free
    """

    group: str
    partition: int
    position: int
    lag: int
    lost: int
    loses_at: Instant | None
    seen_at: Instant
    member: str | None = None
    epoch: int = 0
    until: Instant | None = None


class Log(Protocol):
    """Retained logs: dense offsets from 0 per partition, readers in groups, replay."""

    def append(self, log: str, bodies: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[LogEntry]:
        """Entries of one key go to one partition, in order; without a key they go to the one with the fewest."""

    def read(self, log: str, partition: int, after: int, limit: int) -> list[LogEntry]:
        """Entries with an offset greater than `after`; -1 reads from the start. `OffsetGone` when trimmed."""

    def commit(
        self, log: str, group: str, partition: int, offset: int, *, rewind: bool = False, epoch: int | None = None
    ) -> int:
        """The group has done everything up to `offset`; returns its place. It only moves back with `rewind`.

        With `epoch` only the owner of the partition in that epoch may commit, rewind or not: `PartitionLost` for
        others, and nothing has changed. A lease that has run out is still good until another member takes the
        partition.
        """

    def position(self, log: str, group: str, partition: int) -> int:
        """The last committed offset, -1 for none."""

    def extent(self, log: str) -> list[tuple[int, int]]:
        """Per partition: the first offset still held, and the next one to be written."""

    def offset_at(self, log: str, partition: int, instant: Instant) -> int:
        """The offset to read after for all that was appended at the instant or later: replay from a time.

        Instants of a partition never fall. One before the first entry that is held gives the offset before that one, so
        reading goes on without a gap; one after the last gives the last.
        """

    def trim(self, log: str, before: Instant, limit: int) -> int:
        """Drop entries from before the instant, whatever the log's window is and however far a group lags; how many.

        `promote` does the same by itself for entries that have left the window of their log, as `lagging` says.
        """

    def own(self, log: str, group: str, member: str, lease_for: timedelta) -> list[Owned]:
        """The partitions that this member of the group reads from now on; call it again before the lease has run out.

        Each partition has one owner a group at a time. A call renews what the member has, frees what exceeds its share
        (partitions by living members, rounded up) and takes free ones or those whose lease ran out, up to that share.
        A partition with a new owner gets the next epoch; one that is renewed keeps its own. A member is alive while its
        lease lasts, even with no partition. Calls of all members until nothing changes give each its share: a member
        that joins gets what the others free at their next call.
        """

    def disown(self, log: str, group: str, member: str) -> int:
        """The member leaves the group; what it owned is free at once. How many partitions that were."""

    def groups(self, log: str, after: str, limit: int) -> list[Standing]:
        """The progress of up to `limit` groups in each partition, by name and number; go on with the last name."""


def committed(
    known: int, flaw: str | None, log: str, group: str, partition: int, offset: int, epoch: int | None
) -> int:
    """What a commit by one statement answered, in our words: the place, or why there is none."""
    match flaw:
        case None:
            return known
        case "log":
            raise WrongQueueKind(log, is_log=False)
        case "partition":
            raise Invalid("partition", f"{partition!r} is not in 0 … {known}", f"log {log!r} has no other")
        case "offset":
            raise Invalid("offset", f"{offset!r} is not in -1 … {known}", "commit what was read")
        case _:
            raise PartitionLost(log, group, partition, epoch or 0)
