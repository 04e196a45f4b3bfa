"""The textbook in-process queue, as a baseline: a deque, a dict of what is in flight, and a sweep of all of it.

It is what S0 of the requirements describes as the expected approach, written here in as few lines as it needs. It is
quick while little is in flight, and every dequeue walks everything that is.
"""

import itertools
import threading
import time
from collections import deque


class TextbookQueue:
    """At-least-once delivery with visibility timeouts, kept as simple as can be."""

    def __init__(self, visibility: float = 30.0) -> None:
        self._visible: deque[list[object]] = deque()
        self._in_flight: dict[int, tuple[list[object], float]] = {}
        self._visibility = visibility
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def enqueue(self, payload: object) -> int:
        with self._lock:
            job_id = next(self._ids)
            self._visible.append([job_id, payload, 0])
            return job_id

    def dequeue(self) -> int | None:
        now = time.monotonic()
        with self._lock:
            for job_id, (_job, until) in list(self._in_flight.items()):
                if until <= now:
                    self._visible.appendleft(self._in_flight.pop(job_id)[0])
            if not self._visible:
                return None
            job = self._visible.popleft()
            job_id = int(str(job[0]))
            self._in_flight[job_id] = (job, now + self._visibility)
            return job_id

    def ack(self, job_id: int) -> bool:
        with self._lock:
            return self._in_flight.pop(job_id, None) is not None
