"""One try of one batch of a write, as one of its tasks sees it; and whether what was begun before may be gone on with.

A batch whose try was cut off is tried again from the start. Each task finds how far its partition had come, and sees by
a digest that it has the same rows before it. But a partition may be missing now: its rows came to other tasks, which
know nothing of it. So in a try that is not the first, no task puts a row before every partition that had put some was
found again, by a task of this try that has the same rows. One that does not come is not waited for forever: the batch
fails, with nothing added.

    spark:<write>        batch, one more than the highest partition that puts rows in it, and which try began it
    spark:<write>:<n>    batch, rows, their digest, and which try saw them last
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final

from forebay.core.errors import Invalid
from forebay.store.protocol import Checkpoint, Store

DIGEST_BYTES: Final = 16
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Share:
    """The rows of one partition of one batch of a write, in one try."""

    write: str
    partition: int
    batch: int
    trial: bytes

    @property
    def source(self) -> str:
        return source_of(self.write, self.partition)

    def place(self, taken: int, digest: bytes) -> Checkpoint:
        return Checkpoint(self.batch, taken, digest + self.trial)

    def saw(self, place: Checkpoint) -> bool:
        """Whether it was this try that put these rows, or found them to be its own."""
        return place.digest[DIGEST_BYTES:] == self.trial


def source_of(write: str, partition: int) -> str:
    """What the store knows the rows of a partition by."""
    return f"spark:{write}:{partition}"


def begin(store: Store, share: Share, patience: float) -> None:
    """To be called once, before the first row is put: `Invalid` if that could repeat one.

    `patience`: how many seconds it may take until the next partition is seen.
    """
    head = _joined(store, share)
    if head.digest == share.trial:
        return
    awaited: list[int] = []
    give_up_at = monotonic() + patience
    while missing := list(_unseen(store, share, head.taken)):
        if len(missing) < len(awaited):
            give_up_at = monotonic() + patience
        if monotonic() >= give_up_at:
            raise _other_parts(share, missing)
        awaited = missing
        Event().wait(_LOOK_SECONDS)


def _joined(store: Store, share: Share) -> Checkpoint:
    """The batch as it was begun, by this try or one before, with this partition in it."""
    name = f"spark:{share.write}"
    while True:
        head = store.ingested(name)
        if head is not None and head.batch >= share.batch:
            if head.taken > share.partition:
                return head
            joined = Checkpoint(head.batch, share.partition + 1, head.digest)
        else:
            joined = Checkpoint(share.batch, share.partition + 1, share.trial)
        if store.ingest(name, head, joined, []) is not None:
            return joined


def _unseen(store: Store, share: Share, partitions: int) -> Iterator[int]:
    """Partitions that put rows of this batch, and were not seen in this try."""
    for number in range(partitions):
        place = None if number == share.partition else store.ingested(source_of(share.write, number))
        if place is not None and place.batch == share.batch and not share.saw(place):
            yield number


def _other_parts(share: Share, missing: list[int]) -> Invalid:
    numbers = ", ".join(map(str, missing))
    return Invalid(
        f"rows of {share.source}",
        f"an earlier try of batch {share.batch} put rows of partition {numbers}, of which this one has seen nothing; "
        f"nothing was added now",
        "give it the partitions and the slots that it had: df.repartition(n), the same --master and cores",
    )
