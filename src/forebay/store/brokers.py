"""Drafts for brokers at a store's door: each gives way to its copies, and what these are told becomes one answer."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from forebay.core.errors import BatchTooLarge, Invalid
from forebay.core.fanout import copies
from forebay.core.job import Draft
from forebay.core.spec import QueueSpec
from forebay.store.checks import check_batch, check_bytes
from forebay.store.protocol import Receipt


class Spread:
    """A batch in which some drafts are for brokers. `drafts` has their copies in their place, and no more than fit."""

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
    """What a broker answers, from what its queues do."""
    ids = tuple(receipt.id for receipt in receipts)
    duplicate, merged = (bool(ids) and all(told) for told in _told(receipts))
    return Receipt(ids[0] if ids else 0, durable, duplicate, merged, ids)


def any_new(receipts: Iterable[Receipt]) -> bool:
    """Whether anything came of the drafts that was not there before."""
    return any(receipt.id and not receipt.duplicate for receipt in receipts)


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


def _told(receipts: Sequence[Receipt]) -> tuple[list[bool], list[bool]]:
    return [receipt.duplicate for receipt in receipts], [receipt.merged for receipt in receipts]
