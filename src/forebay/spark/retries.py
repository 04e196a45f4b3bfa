"""Attempts of one batch of a write, and whether an attempt may continue what an earlier one started.

An interrupted batch is repeated from the start. Each task reads the checkpoint of its partition, and compares a digest
to verify that it has the same rows. But the data may have been repartitioned: the rows of a partition may now be in
other tasks, which have no checkpoint for them. So in a later attempt no task adds a row before every partition with
added rows was confirmed by a task of this attempt that has the same rows. The wait is bounded: if one is not confirmed,
the batch fails, and nothing is added.

    spark:<write>        batch, one more than the highest partition with rows, and the attempt that started it
    spark:<write>:<n>    batch, rows, their digest, and the attempt that confirmed them last
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final

from forebay.core.errors import Invalid
from forebay.store.protocol import Checkpoint, Store

DIGEST_BYTES: Final = 16
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class PartitionAttempt:
    """One attempt of one partition of one batch of a write."""

    write: str
    partition: int
    batch: int
    attempt: bytes

    @property
    def source(self) -> str:
        return source_of(self.write, self.partition)

    def checkpoint(self, taken: int, digest: bytes) -> Checkpoint:
        return Checkpoint(self.batch, taken, digest + self.attempt)

    def confirmed(self, checkpoint: Checkpoint) -> bool:
        """Whether this attempt added these rows, or verified them."""
        return checkpoint.digest[DIGEST_BYTES:] == self.attempt


def source_of(write: str, partition: int) -> str:
    """The ingest source of a partition."""
    return f"spark:{write}:{partition}"


def begin(store: Store, task: PartitionAttempt, patience: float) -> None:
    """Called once, before the first row is added: `Invalid` if that could repeat one.

    `patience`: how many seconds to wait for the next partition.
    """
    head = _joined(store, task)
    if head.digest == task.attempt:
        return
    awaited: list[int] = []
    give_up_at = monotonic() + patience
    while missing := list(_unconfirmed(store, task, head.taken)):
        if len(missing) < len(awaited):
            give_up_at = monotonic() + patience
        if monotonic() >= give_up_at:
            raise _other_partitions(task, missing)
        awaited = missing
        Event().wait(_POLL_SECONDS)


def _joined(store: Store, task: PartitionAttempt) -> Checkpoint:
    """The checkpoint of the batch, started by this attempt or an earlier one, with this partition in it."""
    name = f"spark:{task.write}"
    while True:
        head = store.ingested(name)
        if head is not None and head.batch >= task.batch:
            if head.taken > task.partition:
                return head
            joined = Checkpoint(head.batch, task.partition + 1, head.digest)
        else:
            joined = Checkpoint(task.batch, task.partition + 1, task.attempt)
        if store.ingest(name, head, joined, []) is not None:
            return joined


def _unconfirmed(store: Store, task: PartitionAttempt, partitions: int) -> Iterator[int]:
    """Partitions with rows of this batch that this attempt has not confirmed."""
    for number in range(partitions):
        known = None if number == task.partition else store.ingested(source_of(task.write, number))
        if known is not None and known.batch == task.batch and not task.confirmed(known):
            yield number


def _other_partitions(task: PartitionAttempt, missing: list[int]) -> Invalid:
    numbers = ", ".join(map(str, missing))
    return Invalid(
        f"rows of {task.source}",
        f"an earlier attempt of batch {task.batch} added rows of partition {numbers}, unconfirmed by this one; "
        f"nothing was added now",
        "repeat it with the same partitions and slots: df.repartition(n), the same --master and cores",
    )
