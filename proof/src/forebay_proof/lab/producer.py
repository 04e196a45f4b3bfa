"""One producer: `python -m forebay_proof.lab.producer`; standard input has its order, then the first instant.

It is ready, and says so, when its store is open. It ends when its schedule is at its end, or when that input closes:
whoever started it has ended, or wants it to. The batches of all threads are one sequence; each thread takes the next
number, makes the jobs while there is time, and sends them at their instant.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import msgspec

from forebay.core.errors import ForebayError, Invalid, KeyConflict, QueueFull
from forebay.core.job import Draft
from forebay.store.open import open_store
from forebay.store.protocol import Receipt, Store
from forebay_proof.lab.load import Order, ProducerReport

_REPORT_INTERVAL: Final = 0.25
_PAUSE_FIRST, _MAX_PAUSE = 0.05, 1.0
_OPEN_SECONDS: Final = 30.0


class Producer:
    """One order, carried out on a store that is open."""

    def __init__(self, order: Order, store: Store) -> None:
        self._order = order
        self._store = store
        self._receipts = os.open(order.receipts, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = Lock()
        self._next = order.number
        self._batches = -(-order.jobs // order.batch)
        self._stop = Event()
        self._failed: BaseException | None = None
        self._start_at = 0.0
        self.report = ProducerReport()

    def ready(self) -> None:
        self._write_report(ended=False)

    def run(self, start_at: float) -> None:
        self._start_at = start_at
        threads = [Thread(target=self._send_all, name=f"sender-{n}") for n in range(self._order.threads)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(_REPORT_INTERVAL) if threads[0].is_alive() else time.sleep(_REPORT_INTERVAL / 20)
            self._write_report(ended=False)
        self._write_report(ended=self._next >= self._batches)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """No further batch is sent."""
        self._stop.set()

    def _write_report(self, *, ended: bool) -> None:
        with self._lock:
            self.report.ended = ended
            self.report.cpu = time.process_time()
            self.report.seconds = max(0.0, time.time() - self._start_at) if self._start_at else 0.0
            body = msgspec.json.encode(self.report)
        draft = Path(f"{self._order.report}.new")
        draft.write_bytes(body)
        draft.replace(self._order.report)

    def _numbers(self) -> Iterator[int]:
        while not self._stop.is_set():
            with self._lock:
                number = self._next
                self._next += self._order.producers
            if number >= self._batches:
                return
            yield number

    def _send_all(self) -> None:
        order = self._order
        try:
            for number in self._numbers():
                due_at = self._start_at + number * order.batch / order.rate if order.rate else None
                if due_at is not None and time.time() - due_at > order.behind_most:
                    self._missed(number)
                    continue
                drafts = self._batch(number)
                if due_at is not None and self._stop.wait(max(0.0, due_at - time.time())):
                    return
                self._send(drafts, time.time() if due_at is None else due_at)
        except BaseException as error:
            self._failed = error
            self._stop.set()

    def _seqs(self, number: int) -> range:
        order = self._order
        first = number * order.batch
        return range(order.first + first, order.first + min(order.jobs, first + order.batch))

    def _batch(self, number: int) -> list[tuple[int, Draft]]:
        """Sorted by kind: neighbours that are alike may share a row."""
        order = self._order
        made = [(seq, order.mix.draft(order.seed, seq, order.queue, key=order.keys)) for seq in self._seqs(number)]
        made.sort(key=lambda pair: pair[1].kind)
        return made

    def _missed(self, number: int) -> None:
        with self._lock:
            self.report.missed += len(self._seqs(number))

    def _send(self, batch: list[tuple[int, Draft]], due_at: float) -> None:
        """Until the answer is known; without keys a lost answer stays so, for asking again could do it twice."""
        drafts = [draft for _, draft in batch]
        late = time.time() - due_at
        with self._lock:
            self.report.sent += len(batch)
            self.report.late = late
            self.report.late_most = max(self.report.late_most, late)
        pause, asked = _PAUSE_FIRST, 0
        while True:
            try:
                receipts = self._store.enqueue(drafts)
            except QueueFull:
                self._refused(batch, asked)
                return
            except (Invalid, KeyConflict):
                raise
            except (ForebayError, OSError):
                asked += 1
                if asked == 1:
                    self._unknown(batch)
                if not self._order.keys or self._stop.wait(pause * random.uniform(0.5, 1.0)):
                    return
                pause = min(_MAX_PAUSE, pause * 2)
                continue
            self._accepted(batch, receipts, time.time() - due_at, asked)
            return

    def _accepted(self, batch: list[tuple[int, Draft]], receipts: list[Receipt], took: float, asked: int) -> None:
        lines = [
            b'{"seq":%d,"job_id":%d,"answer":"%s"}\n'
            % (seq, receipt.id, b"duplicate" if receipt.duplicate else b"accepted")
            for (seq, _), receipt in zip(batch, receipts, strict=True)
        ]
        again = sum(receipt.duplicate for receipt in receipts)
        with self._lock:
            self._write(b"".join(lines))
            self.report.accepted += len(batch)
            self.report.duplicates += again
            self.report.open -= len(batch) if asked else 0
            self.report.latency.add(took, len(batch))

    def _refused(self, batch: list[tuple[int, Draft]], asked: int) -> None:
        with self._lock:
            self._write(_nameless(batch, b"refused"))
            self.report.refused += len(batch)
            self.report.open -= len(batch) if asked else 0

    def _unknown(self, batch: list[tuple[int, Draft]]) -> None:
        with self._lock:
            self._write(_nameless(batch, b"unknown"))
            self.report.unknown += len(batch)
            self.report.open += len(batch)

    def _write(self, lines: bytes) -> None:
        while lines:
            lines = lines[os.write(self._receipts, lines) :]


def _nameless(batch: list[tuple[int, Draft]], answer: bytes) -> bytes:
    """Receipts that name no job."""
    return b"".join(b'{"seq":%d,"job_id":null,"answer":"%s"}\n' % (seq, answer) for seq, _ in batch)


def opened(url: str) -> Store:
    """A server may be down just now."""
    deadline = time.monotonic() + _OPEN_SECONDS
    while True:
        try:
            return open_store(url)
        except Invalid:
            raise
        except (ForebayError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_MAX_PAUSE)


def main() -> None:
    with open(0, "rb", buffering=0, closefd=False) as orders:
        order = msgspec.json.decode(orders.readline(), type=Order)
        with closing(opened(order.url)) as store:
            producer = Producer(order, store)
            producer.ready()
            if first := orders.readline():
                Thread(target=_listen, args=(producer,), daemon=True).start()
                producer.run(msgspec.json.decode(first, type=float))


def _listen(producer: Producer) -> None:
    """The pipe is a life line."""
    while os.read(0, 1):
        pass
    producer.stop()


if __name__ == "__main__":
    main()
