"""Drafts for brokers: each is replaced by its copies, and their receipts become one."""

from collections.abc import Callable, Iterator, Sequence

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.fanout import copies
from forebay.core.job import Draft
from forebay.core.spec import QueueSpec
from forebay.store.checks import check_batch, check_bytes
from forebay.store.protocol import Receipt


class Spread:
    """A batch in which some drafts are for brokers. `drafts` has their copies in their place, at most one batch."""

    def __init__(self, drafts: Sequence[Draft], spec_of: Callable[[str], QueueSpec]) -> None:
        self.drafts: list[Draft] = []
        self._counts: list[int | None] = []
        for draft in drafts:
            if type(draft) is not Draft:
                raise Invalid("draft", f"{type(draft).__name__} is not a Draft", "build a Draft(kind, payload, …)")
            spec = spec_of(draft.queue)
            some = copies(spec, draft)
            self.drafts += some
            self._counts.append(len(some) if spec.is_broker else None)
        check_batch("enqueue", len(self.drafts))
        check_bytes("enqueue", [draft.body for draft in self.drafts])

    def folded(self, receipts: Sequence[Receipt], durable: bool) -> list[Receipt]:
        """One receipt a draft of the batch, from one a copy."""
        rest = iter(receipts)
        return [
            next(rest) if count is None else folded([next(rest) for _ in range(count)], durable)
            for count in self._counts
        ]


def folded(receipts: Sequence[Receipt], durable: bool) -> Receipt:
    """The receipt of a broker, from those of its queues."""
    ids = tuple(receipt.id for receipt in receipts)
    duplicate = bool(ids) and all(receipt.duplicate for receipt in receipts)
    merged = bool(ids) and all(receipt.merged for receipt in receipts)
    return Receipt(ids[0] if ids else 0, durable, duplicate, merged, ids)


def became(receipts: Sequence[Receipt]) -> int | None:
    """The job that the drafts became: the first that is new, else the first that took one over; None: none at all."""
    new = [receipt for receipt in receipts if receipt.id and not receipt.duplicate]
    return next((receipt.id for receipt in sorted(new, key=lambda receipt: receipt.merged)), None)


def in_parts(enqueue: Callable[[Sequence[Draft]], list[Receipt]], drafts: Sequence[Draft]) -> Iterator[list[Receipt]]:
    """Enqueue drafts whose copies may be more than one call takes, in as many calls as it needs."""
    try:
        receipts = enqueue(drafts)
    except BatchTooLarge:
        if len(drafts) < 2:
            raise
        half = len(drafts) // 2
        yield from in_parts(enqueue, drafts[:half])
        yield from in_parts(enqueue, drafts[half:])
    else:
        yield receipts
