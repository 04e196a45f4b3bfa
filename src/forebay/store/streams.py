"""Any number of drafts from any iterator, on every store: by the store's own stream, or in batches.

The iterator is read as it goes and memory holds a bounded part of it. Parts are taken whole, one after the other, so
the accepted drafts are always a prefix of the iterator: an error says how long it is (`accepted`), and a caller that
continues after it loses nothing and repeats nothing.
"""

from collections.abc import Callable, Iterable, Iterator

from forebay.core.errors import ForebayError
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, MAX_BATCH
from forebay.store.brokers import in_parts
from forebay.store.protocol import Store, Streaming, Tally


def enqueue_stream(store: Store, drafts: Iterable[Draft], progress: Callable[[Tally], object] | None = None) -> Tally:
    """How many were accepted; `progress` is called after each part."""
    latest = Tally()

    def report(tally: Tally) -> None:
        nonlocal latest
        latest = tally
        if progress is not None:
            progress(tally)

    try:
        if isinstance(store, Streaming):
            return store.enqueue_stream(drafts, report)
        for batch in batches(drafts):
            for receipts in in_parts(store.enqueue, batch):
                report(latest.plus(Tally.of(receipts)))
    except Exception as error:
        error.add_note(f"{latest.taken} drafts were accepted before this; go on with those after them")
        if isinstance(error, ForebayError):
            error.accepted = latest.taken
        raise
    return latest


def batches(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """As many as one call of `enqueue` takes."""
    batch: list[Draft] = []
    size = 0
    for draft in drafts:
        if len(batch) == MAX_BATCH or size + len(draft.body) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(draft)
        size += len(draft.body)
    if batch:
        yield batch
