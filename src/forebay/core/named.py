"""The twelve queues everybody knows by name, each as one expression.

A name is a shortcut for recognition, not a kind of its own: every one of these is a `QueueSpec`, and every field of it
may be changed. Beside each stands the way it classically fails, and what contains that failure here.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from forebay.core.instant import days, minutes, ms, seconds
from forebay.core.policy import (
    Aging,
    AtMost,
    Block,
    Bounded,
    Deadline,
    Exponential,
    Fair,
    FullJitter,
    InOrder,
    KeepFor,
    LatestWins,
    Reject,
    Retained,
    Routing,
    Until,
)
from forebay.core.spec import QueueSpec


class Named(Struct, frozen=True):
    """One named configuration: how to make it, how it fails, what contains the failure."""

    make: Callable[[str], QueueSpec]
    fails_by: str
    contained_by: str

    def __call__(self, queue: str) -> QueueSpec:
        return self.make(queue)


FIFO: Final = Named(
    lambda queue: QueueSpec(name=queue, eligibility=InOrder(per="subject")),
    "head-of-line blocking; order breaks under parallelism",
    "order per subject: a slow head holds back its own subject alone, through retries and crashes",
)
WORK: Final = Named(
    lambda queue: QueueSpec(name=queue),
    "a crash after the effect and before the ack; stuck in flight",
    "leases that end by themselves, a fence for the effect, lives counted at the claim",
)
BROKER: Final = Named(
    lambda queue: QueueSpec(name=queue, capacity=Bounded(100_000, Reject()), retention=KeepFor(days(1))),
    "loss by a wrong ack or persistence setting; a slow subscriber's backlog",
    "durable before the answer, one queue a subscriber, each with its own bound",
)
DURABLE_LOG: Final = Named(
    lambda queue: QueueSpec(name=queue, retention=Retained(partitions=4, window=days(7))),
    "lag; a bad offset commit; retention deletes history that someone needed",
    "commits only move forward, replay is explicit, a trimmed offset is an error with the first one left",
)
DELAY: Final = Named(
    lambda queue: QueueSpec(name=queue, routing=Routing(backoff=FullJitter(base=seconds(1), cap=minutes(5)))),
    "clock skew; a storm of timers; timers missed in a crash",
    "one clock decides, due times are stored, what is due goes before the backlog, in due order",
)
PRIORITY: Final = Named(
    lambda queue: QueueSpec(name=queue, selection=Aging(step=minutes(1))),
    "starvation; inversion; everything becomes urgent",
    "aging: a point of priority is worth a minute of waiting, no more",
)
RETRY: Final = Named(
    lambda queue: QueueSpec(
        name=queue, routing=Routing(max_attempts=8, backoff=FullJitter(base=ms(500), cap=minutes(10)))
    ),
    "a retry storm; retrying what cannot succeed; effects twice",
    "full jitter, a fixed number of lives, Drop for the hopeless, a fence for the effect",
)
DEAD_LETTER: Final = Named(
    lambda queue: QueueSpec(
        name=queue, retention=KeepFor(days(30)), routing=Routing(max_attempts=1), capacity=Bounded(1_000_000, Reject())
    ),
    "nobody looks; a second unbounded backlog; secrets in payloads",
    "bounded, counted in every backlog, redriven by id, purged by age",
)
BOUNDED: Final = Named(
    lambda queue: QueueSpec(name=queue, capacity=Bounded(10_000, Block(timeout=seconds(5)))),
    "too large: latency; too small: refusals; a stalled producer",
    "the bound is exact, the wait is bounded, a refusal says when to come back",
)
FAIR: Final = Named(
    lambda queue: QueueSpec(name=queue, share=Fair(by="tenant"), eligibility=AtMost(64, per="tenant")),
    "wrong weights; starvation; idle tenants waste capacity",
    "deficit round robin: shares follow the weights, an idle class gives its turn away",
)
COALESCING: Final = Named(
    lambda queue: QueueSpec(name=queue, merge=LatestWins(by="subject")),
    "a lost event that mattered; a wrong key; a hot key starves the rest",
    "one runs and one waits per subject, the newest payload is always the last to run",
)
WAITLIST: Final = Named(
    lambda queue: QueueSpec(
        name=queue,
        selection=Deadline(),
        eligibility=Until("capacity"),
        capacity=Bounded(10_000, Reject()),
        routing=Routing(backoff=Exponential()),
    ),
    "stale promotion; overbooking; waiting for ever",
    "slots are counted, expired entries are never promoted, the list is bounded",
)

NAMED: Final[dict[str, Named]] = {
    "fifo": FIFO,
    "work": WORK,
    "broker": BROKER,
    "durable-log": DURABLE_LOG,
    "delay": DELAY,
    "priority": PRIORITY,
    "retry": RETRY,
    "dead-letter": DEAD_LETTER,
    "bounded": BOUNDED,
    "fair": FAIR,
    "coalescing": COALESCING,
    "waitlist": WAITLIST,
}
