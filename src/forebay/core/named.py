"""Twelve well-known kinds of queues, each as one expression.

A name is a shortcut for recognition, not a kind of its own: every one of these is a `QueueSpec`, and every field of it
may be changed. Each entry also has its classic failure and what contains it here.
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
    DeadLetters,
    Deadline,
    Exponential,
    Fair,
    FanOut,
    FullJitter,
    InOrder,
    LatestWins,
    Reject,
    Retained,
    Route,
    Routing,
    Until,
)
from forebay.core.spec import QueueSpec


class Named(Struct, frozen=True):
    """One named configuration: how to make it, how it fails, what contains it, and the test that shows both."""

    make: Callable[[str], QueueSpec]
    fails_by: str
    contained_by: str
    test: str

    def __call__(self, queue: str) -> QueueSpec:
        return self.make(queue)


FIFO: Final = Named(
    lambda queue: QueueSpec(name=queue, eligibility=InOrder(per="subject")),
    "head-of-line blocking; order breaks under parallelism",
    "order per subject: a slow head holds back its own subject alone, through retries and crashes",
    "test_fifo_head_of_line_blocking_and_order_under_parallelism",
)
WORK: Final = Named(
    lambda queue: QueueSpec(name=queue),
    "a crash after the effect and before the ack; stuck in flight",
    "leases that end by themselves, a fence for the effect, attempts counted at the claim",
    "test_work_crash_after_the_effect_and_stuck_in_flight",
)
BROKER: Final = Named(
    lambda queue: QueueSpec(name=queue, fan_out=FanOut((Route("**", f"{queue}.all"),))),
    "loss by a wrong ack or persistence setting; a slow subscriber's backlog",
    "durable before the answer, all copies or none, one queue a subscriber, each with its own bound",
    "test_broker_loss_by_a_wrong_ack_and_a_slow_subscribers_backlog",
)
DURABLE_LOG: Final = Named(
    lambda queue: QueueSpec(name=queue, retention=Retained(partitions=4, window=days(7), lagging="block")),
    "lag; a bad offset commit; retention deletes history that someone needed",
    "commits only move forward, replay is explicit, entries that a group still reads stay, a lost offset is an error",
    "test_durable_log_a_bad_commit_and_a_trim_of_needed_entries",
)
DELAY: Final = Named(
    lambda queue: QueueSpec(name=queue, routing=Routing(backoff=FullJitter(base=seconds(1), cap=minutes(5)))),
    "clock skew; a storm of timers; timers missed in a crash",
    "one clock decides, due times are stored, due jobs run before the backlog, in due order",
    "test_delay_clock_skew_a_storm_of_timers_and_timers_missed_in_a_crash",
)
PRIORITY: Final = Named(
    lambda queue: QueueSpec(name=queue, selection=Aging(step=minutes(1))),
    "starvation; inversion; everything becomes urgent",
    "aging: a point of priority is worth a minute of waiting, no more",
    "test_priority_starvation",
)
RETRY: Final = Named(
    lambda queue: QueueSpec(
        name=queue, routing=Routing(max_attempts=8, backoff=FullJitter(base=ms(500), cap=minutes(10)))
    ),
    "a retry storm; retrying what cannot succeed; effects twice",
    "full jitter, a fixed number of attempts, Drop for the hopeless, a fence for the effect",
    "test_retry_a_storm_of_retries",
)
DEAD_LETTER: Final = Named(
    lambda queue: QueueSpec(
        name=queue, routing=Routing(max_attempts=1, dead=DeadLetters(keep=days(30), limit=1_000_000))
    ),
    "dead letters are never examined; a second unbounded backlog; secrets in payloads",
    "other queues' dead letters: bounded in number and age, counted in every backlog, redriven home by a plan",
    "test_dead_letter_a_second_backlog_and_no_way_back",
)
BOUNDED: Final = Named(
    lambda queue: QueueSpec(name=queue, capacity=Bounded(10_000, Block(timeout=seconds(5)))),
    "too large: latency; too small: refusals; a stalled producer",
    "the bound is exact, the wait is bounded, a refusal says when to come back",
    "test_bounded_latency_without_a_bound_and_a_stalled_producer_with_one",
)
FAIR: Final = Named(
    lambda queue: QueueSpec(name=queue, share=Fair(by="tenant"), eligibility=AtMost(64, per="tenant")),
    "wrong weights; starvation; idle tenants waste capacity",
    "virtual time: shares follow the weights, an idle class gives its turn away",
    "test_fair_a_loud_tenant_and_idle_ones",
)
COALESCING: Final = Named(
    lambda queue: QueueSpec(name=queue, merge=LatestWins(by="subject")),
    "a lost event that mattered; a wrong key; a hot key starves the rest",
    "one runs and one waits per subject, the newest payload is always the last to run",
    "test_coalescing_repeated_work_a_lost_event_and_a_hot_key",
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
    "test_waitlist_overbooking_stale_promotion_and_waiting_for_ever",
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
