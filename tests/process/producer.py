"""A producer: enqueues until its standard input closes, and has each answer on disk before its next call.

    python -m tests.process.producer FILE NUMBER THREADS PAUSE plain|keyed

One line an answer: `receipt seq job microseconds`, or `failed seq 0 microseconds` for an error of ours, or `broken …`
for any other, which no caller should see. What failed may have been accepted, and is not sent again; but with `keyed`
it is, under its key, until there is a receipt.
"""

import os
import sys
import time
from random import Random
from threading import Event, Thread

from forebay import Draft, ForebayError, open_store
from forebay.store.protocol import Store

PER_PRODUCER = 10_000_000
PER_THREAD = 100_000
MAX_BATCH = 8
AGAIN_SECONDS = 0.05


class Producer:
    """One thread of it: batches of jobs, one after the other."""

    def __init__(self, store: Store, file: int, first: int, pause: float, keyed: bool) -> None:
        self._store = store
        self._file = file
        self._next = first
        self._pause = pause
        self._keyed = keyed
        self._random = Random(first)

    def run(self, stop: Event) -> None:
        while not stop.is_set():
            count = self._random.randint(1, MAX_BATCH)
            seqs = range(self._next, self._next + count)
            self._next += count
            while not self._send(seqs) and self._keyed and not stop.wait(AGAIN_SECONDS):
                pass
            stop.wait(self._pause * self._random.random() * 2)

    def _send(self, seqs: range) -> bool:
        """Whether there were receipts."""
        kind = "counted" if self._keyed else self._random.choice(["counted", "counted_plain"])
        drafts = [Draft(kind, {"seq": seq}, key=self._key(seq)) for seq in seqs]
        ids = [0] * len(seqs)
        word = "receipt"
        try:
            ids = [receipt.id for receipt in self._store.enqueue(drafts)]
        except ForebayError:
            word = "failed"
        except Exception as error:
            word = "broken"
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        at = time.monotonic_ns() // 1_000
        text = "".join(f"{word} {seq} {job} {at}\n" for seq, job in zip(seqs, ids, strict=True))
        os.write(self._file, text.encode())
        os.fsync(self._file)
        return word == "receipt"

    def _key(self, seq: int) -> str | None:
        return f"key-{seq}" if self._keyed else None


def main() -> None:
    path, number, threads, pause, way = sys.argv[1:]
    store = open_store(os.environ["FOREBAY_URL"])
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    first = PER_PRODUCER * (int(number) + 1)
    producers = [
        Producer(store, file, first + PER_THREAD * thread, float(pause), way == "keyed")
        for thread in range(int(threads))
    ]
    stop = Event()
    running = [Thread(target=producer.run, args=(stop,)) for producer in producers]
    for thread in running:
        thread.start()
    while os.read(0, 1):
        pass
    stop.set()
    for thread in running:
        thread.join()
    store.close()


if __name__ == "__main__":
    main()
