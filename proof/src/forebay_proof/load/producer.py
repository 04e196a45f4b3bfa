"""One producer: `python -m forebay_proof.load.producer`; standard input has its order, then the first instant.

It writes its first report when its store is open. It ends at the end of its schedule, or when that input closes: the
process that started it has ended, or stops it. The batches of all threads are one sequence; each thread takes the next
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
from forebay_proof.load.generator import LoadShare, ProducerReport
from forebay_proof.tally import Tallies

_REPORT_INTERVAL: Final = 0.25
_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
_OPEN_SECONDS: Final = 30.0
_ROOM_INTERVAL: Final = 0.001


class LoadProducer:
    """One order, carried out on a store that is open."""

    def __init__(self, order: LoadShare, store: Store) -> None:
        self._order = order
        self._store = store
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._receipts = os.open(order.receipts, flags, 0o644) if order.receipts else None
        self._consumers = Tallies(Path(order.consumers)) if order.depth else None
        self._cpu_before = 0.0
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
        self._stop.wait(max(0.0, start_at - time.time()))
        self._cpu_before = time.process_time()
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
            self.report.cpu = time.process_time() - self._cpu_before if self._cpu_before else 0.0
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
                if due_at is not None and time.time() - due_at > order.max_behind:
                    self._missed(number)
                    continue
                drafts = self._batch(number, due_at)
                if due_at is not None and self._stop.wait(max(0.0, due_at - time.time())):
                    return
                if self._consumers is not None and not self._wait_for_room(number, self._consumers):
                    return
                self._send(drafts, time.time() if due_at is None else due_at)
        except BaseException as error:
            self._failed = error
            self._stop.set()

    def _wait_for_room(self, number: int, consumers: Tallies) -> bool:
        """Until few enough jobs of the batches before this one are unfinished; whether the batch is to be sent."""
        while number * self._order.batch - consumers.jobs() >= self._order.depth:
            if self._stop.wait(_ROOM_INTERVAL):
                return False
        return True

    def _seqs(self, number: int) -> range:
        order = self._order
        first = number * order.batch
        return range(order.first + first, order.first + min(order.jobs, first + order.batch))

    def _batch(self, number: int, due_at: float | None) -> list[tuple[int, Draft]]:
        """Sorted by kind: neighbours that are alike may share a row."""
        order, draft = self._order, self._order.mix.draft
        call_at = time.time() if due_at is None else due_at
        made = [
            (seq, draft(order.seed, seq, order.queue, key=order.keys, call_at=call_at)) for seq in self._seqs(number)
        ]
        made.sort(key=lambda pair: pair[1].kind)
        return made

    def _missed(self, number: int) -> None:
        with self._lock:
            self.report.missed += len(self._seqs(number))

    def _send(self, batch: list[tuple[int, Draft]], due_at: float) -> None:
        """Until the answer is known; without keys a lost answer stays unknown: a second call could do it twice."""
        drafts = [draft for _, draft in batch]
        late = time.time() - due_at
        with self._lock:
            self.report.sent += len(batch)
            self.report.late = late
            self.report.max_late = max(self.report.max_late, late)
        pause, retries = _MIN_PAUSE, 0
        while True:
            try:
                receipts = self._store.enqueue(drafts)
            except QueueFull:
                self._refused(batch, retries)
                return
            except (Invalid, KeyConflict):
                raise
            except (ForebayError, OSError):
                retries += 1
                if retries == 1:
                    self._unknown(batch)
                if not self._order.keys or self._stop.wait(pause * random.uniform(0.5, 1.0)):
                    return
                pause = min(_MAX_PAUSE, pause * 2)
                continue
            self._accepted(batch, receipts, time.time() - due_at, retries)
            return

    def _accepted(self, batch: list[tuple[int, Draft]], receipts: list[Receipt], took: float, retries: int) -> None:
        lines = (
            []
            if self._receipts is None
            else [
                b'{"seq":%d,"job_id":%d,"answer":"%s"}\n'
                % (seq, receipt.id, b"duplicate" if receipt.duplicate else b"accepted")
                for (seq, _), receipt in zip(batch, receipts, strict=True)
            ]
        )
        again = sum(receipt.duplicate for receipt in receipts)
        with self._lock:
            self._write(b"".join(lines))
            self.report.accepted += len(batch)
            self.report.duplicates += again
            self.report.open -= len(batch) if retries else 0
            self.report.latency.add(took, len(batch))

    def _refused(self, batch: list[tuple[int, Draft]], retries: int) -> None:
        with self._lock:
            self._write(_nameless(batch, b"refused"))
            self.report.refused += len(batch)
            self.report.open -= len(batch) if retries else 0

    def _unknown(self, batch: list[tuple[int, Draft]]) -> None:
        with self._lock:
            self._write(_nameless(batch, b"unknown"))
            self.report.unknown += len(batch)
            self.report.open += len(batch)

    def _write(self, lines: bytes) -> None:
        while lines and self._receipts is not None:
            lines = lines[os.write(self._receipts, lines) :]


def _nameless(batch: list[tuple[int, Draft]], answer: bytes) -> bytes:
    """Receipts that name no job."""
    return b"".join(b'{"seq":%d,"job_id":null,"answer":"%s"}\n' % (seq, answer) for seq, _ in batch)


def open_with_retries(url: str) -> Store:
    """The store, once its server answers."""
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
        order = msgspec.json.decode(orders.readline(), type=LoadShare)
        with closing(open_with_retries(order.url)) as store:
            producer = LoadProducer(order, store)
            producer.ready()
            if first := orders.readline():
                Thread(target=_stop_at_end_of_input, args=(producer,), daemon=True).start()
                producer.run(msgspec.json.decode(first, type=float))


def _stop_at_end_of_input(producer: LoadProducer) -> None:
    """Stop when the other end of the pipe is closed."""
    while os.read(0, 1):
        pass
    producer.stop()


if __name__ == "__main__":
    main()
