"""`JobQueue`: an in-process queue with visibility timeouts, in four calls. No handlers, no worker, no set-up.

    q = JobQueue()
    q.enqueue({"to": "ada@example.com"}, idempotency_key="email-42")
    job = q.dequeue(visibility_timeout=10)
    q.ack(job.job_id)

At least once: a job that is not acknowledged before its timeout is handed out again, so make the work idempotent.
Give a directory and it survives `kill -9`. The queue is a thin face of the in-process store; there is no thread
behind it: expired jobs return at the next call for work, at a cost that does not depend on how many are in flight.
"""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from msgspec import Struct

from forebay.core.clock import Clock
from forebay.core.decide import decide
from forebay.core.errors import Closed, Invalid
from forebay.core.instant import checked_micros, from_seconds
from forebay.core.job import Draft
from forebay.core.job import Job as StoredJob
from forebay.core.lease import Lease, Settled
from forebay.core.limits import MAX_ATTEMPTS, MAX_BATCH, MAX_LEASE, MIN_LEASE
from forebay.core.outcome import Abandoned, Ack, DeadLetter, Failed, Failure, Outcome, Release
from forebay.core.payload import Json
from forebay.core.policy import Fixed, Routing, check_between
from forebay.core.spec import QueueSpec
from forebay.store.open import open_store
from forebay.store.protocol import Backlog, Store, Want

_log = logging.getLogger("forebay.queue")

_KIND: Final = "job"
_OWNER: Final = "JobQueue"
_REAP_BATCH: Final = 100
_NO_JITTER: Final = 0.0
_MAX_DELIVERIES_COUNTED: Final = 1_000
_MAX_WAIT: Final = timedelta(hours=12)


class Job(Struct, frozen=True):
    """A job in your hands. `enqueued_at` is seconds since 1970; `delivery_count` is 1 the first time."""

    job_id: int
    payload: Json
    delivery_count: int
    enqueued_at: float


class JobQueue:
    """A queue of JSON payloads in this process.

    default_visibility_timeout  seconds a job is yours before it is handed out again
    idempotency_ttl             seconds a key is kept
    max_redeliveries            after so many further deliveries a job goes to the dead letters; None: never
    dlq_handler                 called with each job that goes there
    url                         memory://, or memory:///directory to survive the process
    """

    def __init__(
        self,
        default_visibility_timeout: float = 30.0,
        idempotency_ttl: float = 300.0,
        *,
        max_redeliveries: int | None = None,
        dlq_handler: Callable[[Job], object] | None = None,
        name: str = "default",
        url: str = "memory://",
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._visibility = _duration("default_visibility_timeout", default_visibility_timeout)
        checked_micros("default_visibility_timeout", self._visibility, MIN_LEASE, MAX_LEASE)
        if max_redeliveries is not None:
            check_between("max_redeliveries", max_redeliveries, 0, MAX_ATTEMPTS - 1)
        self._routing = Routing(
            max_attempts=MAX_ATTEMPTS if max_redeliveries is None else max_redeliveries + 1, backoff=Fixed()
        )
        self._dlq_handler = dlq_handler
        self._leases: dict[int, Lease] = {}
        self._deliveries: Counter[int] = Counter()
        self._closed = False
        self._store: Store = open_store(url, clock=clock)
        self._store.put_spec(
            QueueSpec(name=name, routing=self._routing, key_window=_duration("idempotency_ttl", idempotency_ttl))
        )

    def enqueue(self, payload: Json, idempotency_key: str | None = None) -> int:
        """Accept a job and return its id; a key seen within its time returns the first job's id."""
        self._check_open()
        return self._store.enqueue([Draft(_KIND, payload, self._name, key=idempotency_key)])[0].id

    def dequeue(self, visibility_timeout: float | None = None) -> Job | None:
        """The next visible job, or None at once."""
        self._check_open()
        self._reap()
        lease_for = (
            self._visibility if visibility_timeout is None else _duration("visibility_timeout", visibility_timeout)
        )
        leases = self._store.claim([Want(self._name, 1)], _OWNER, lease_for)
        if not leases:
            return None
        lease = leases[0]
        self._leases[lease.job.id] = lease
        return _received(lease.job)

    def receive(self, timeout: float = 10.0, visibility_timeout: float | None = None) -> Job | None:
        """Wait for a job, at most `timeout` seconds; asleep, not polling. None when none came."""
        deadline = self._store.now() + from_seconds("timeout", timeout)
        while True:
            job = self.dequeue(visibility_timeout)
            left = deadline - self._store.now()
            if job is not None or left <= 0:
                return job
            self._store.wait([self._name], min(timedelta(microseconds=left), _MAX_WAIT))

    def ack(self, job_id: int) -> bool:
        """The work is done. False when the lease has been lost: another worker runs the job, or ran it."""
        lease = self._leases.pop(_checked_id(job_id), None)
        if lease is None or self._store.settle([(lease, Ack())]) != [Settled.APPLIED]:
            return False
        self._deliveries[min(lease.job.delivery, _MAX_DELIVERIES_COUNTED)] += 1
        return True

    def nack(self, job_id: int, requeue_delay: float = 0.0) -> bool:
        """Hand it back, to be visible again after the delay; never sleeps."""
        after = from_seconds("requeue_delay", requeue_delay)
        lease = self._leases.pop(_checked_id(job_id), None)
        if lease is None:
            return False
        return self._settle([lease], lambda _: Failed(Failure("nack"), after=after)) == 1

    def stats(self) -> dict[str, int]:
        """Counts right now. `waiting` jobs are delayed; `dead` ones have used up their deliveries."""
        backlog = self._backlog()
        return {
            "visible": backlog.ready,
            "in_flight": backlog.running,
            "waiting": backlog.waiting,
            "dead": backlog.dead,
            "dedup_keys": backlog.keys,
        }

    def deliveries(self) -> dict[int, int]:
        """How many acknowledged jobs took how many deliveries; a long tail means crashes or a short timeout."""
        return dict(sorted(self._deliveries.items()))

    def close(self) -> None:
        """Refuse new jobs, make what is in flight visible again, and let go of the journal."""
        if self._closed:
            return
        self._closed = True
        held = list(self._leases.values())
        self._leases.clear()
        for start in range(0, len(held), MAX_BATCH):
            self._store.settle([(lease, Release()) for lease in held[start : start + MAX_BATCH]])
        self._store.close()

    def __enter__(self) -> "JobQueue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the queue")

    def _backlog(self) -> Backlog:
        self._reap()
        while self._store.promote(MAX_BATCH).ready == MAX_BATCH:
            pass
        return self._store.backlog([self._name])[0]

    def _reap(self) -> None:
        """Jobs whose time ran out are visible again, or dead."""
        while overdue := self._store.overdue(_REAP_BATCH):
            for lease in overdue:
                if self._leases.get(lease.job.id, lease).fence == lease.fence:
                    self._leases.pop(lease.job.id, None)
            self._settle(overdue, lambda _: Abandoned(expired=True))

    def _settle(self, leases: list[Lease], outcome: Callable[[Lease], Outcome]) -> int:
        verdicts = [(lease, decide(lease.job, outcome(lease), self._routing, _NO_JITTER)) for lease in leases]
        applied = 0
        for (lease, verdict), settled in zip(verdicts, self._store.settle(verdicts), strict=True):
            if settled is Settled.APPLIED:
                applied += 1
                if isinstance(verdict, DeadLetter):
                    self._handle_dead(lease.job)
        return applied

    def _handle_dead(self, job: StoredJob) -> None:
        if self._dlq_handler is None:
            return
        try:
            self._dlq_handler(_received(job))
        except Exception:
            _log.exception("dlq_handler failed for job %d; the job stays in the dead letters", job.id)


def _checked_id(job_id: int) -> int:
    if type(job_id) is not int:
        raise Invalid("job_id", f"{type(job_id).__name__} is not a job's id", "give the job_id of the job you hold")
    return job_id


def _duration(field: str, count: float) -> timedelta:
    return timedelta(microseconds=from_seconds(field, count))


def _received(job: StoredJob) -> Job:
    return Job(job.id, job.payload, job.delivery, job.enqueued_at / 1_000_000)
