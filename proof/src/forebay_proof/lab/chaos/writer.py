"""A producer that is there to be hurt: `python -m forebay_proof.lab.chaos.writer URL FIRST BATCHES PAD LIMIT`.

It prints `sending A B` before it enqueues the jobs with seq A … B-1, `accepted SEQ ID` for each once they are accepted,
and `failed` with the reason when they are not; then whether the store still `answered` a few more calls or was
`silent`. PAD is the bytes of each payload; a LIMIT above 0 is the most that a file may grow to, where no disk can be
made full.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable

from forebay import Draft, ForebayError, Want, open_store
from forebay.core.instant import seconds
from forebay_proof.load.app import QUEUE

_BATCH = 4
_OWNER = "writer"


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main() -> None:
    url, *numbers = sys.argv[1:]
    first, batches, pad, limit = map(int, numbers)
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        store = open_store(url)
    except (ForebayError, OSError) as error:
        say("failed", error)
        return
    more = {"pad": "x" * pad} if pad else {}
    try:
        for start in range(first, first + batches * _BATCH, _BATCH):
            seqs = range(start, start + _BATCH)
            say("sending", seqs.start, seqs.stop)
            receipts = store.enqueue([Draft("fast", {"seq": seq, "ms": 1, **more}, QUEUE) for seq in seqs])
            for seq, receipt in zip(seqs, receipts, strict=True):
                say("accepted", seq, receipt.id)
    except ForebayError as error:
        say("failed", error)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.enqueue([Draft("late", {}, QUEUE)]),
            lambda: store.claim([Want(QUEUE, 1)], _OWNER, seconds(5)),
        )
        for call in calls:
            try:
                call()
                say("answered")
            except ForebayError:
                say("silent")
    try:
        store.close()
    except ForebayError as error:
        say("failed", error)


if __name__ == "__main__":
    main()
