"""Forebay: a durable job queue and scheduler for Python.

`Forebay` is the application object: decorate functions, enqueue calls, start `forebay worker`. A queue is a point on
five axes, written as a `QueueSpec`. The same contract (`forebay.store.protocol`) holds on every store that
`open_store` opens. `JobQueue` is the smallest way in: an in-process queue with visibility timeouts.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forebay.client import Forebay
    from forebay.core.breaker import Breaker
    from forebay.core.decide import decide
    from forebay.core.errors import (
        ForebayError,
        Invalid,
        JobCancelled,
        JobFailed,
        JobGone,
        KeyConflict,
        LeaseLost,
        QueueFull,
        ResultPending,
    )
    from forebay.core.job import Draft, Job, State
    from forebay.core.lease import Lease, Settled
    from forebay.core.named import NAMED
    from forebay.core.spec import QueueSpec
    from forebay.queue import JobQueue
    from forebay.store.open import open_store
    from forebay.store.protocol import Receipt, Store, Want
    from forebay.work.batches import Call
    from forebay.work.context import Context
    from forebay.work.handler import Drop, RetryAfter, Snooze

__all__ = [
    "Breaker",
    "Call",
    "Context",
    "Draft",
    "Drop",
    "Forebay",
    "ForebayError",
    "Invalid",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobGone",
    "JobQueue",
    "KeyConflict",
    "Lease",
    "LeaseLost",
    "NAMED",
    "QueueFull",
    "QueueSpec",
    "Receipt",
    "ResultPending",
    "RetryAfter",
    "Settled",
    "Snooze",
    "State",
    "Store",
    "Want",
    "decide",
    "open_store",
]


def __getattr__(name: str) -> object:
    """Names are imported when they are first used: the command line has to heed signals before that has taken its time.

    What belongs to applications comes alone: a queue in memory should not pay for it.
    """
    if name == "Forebay":
        from forebay import client

        return client.Forebay
    if name == "Breaker":
        from forebay.core import breaker

        return breaker.Breaker
    if name == "Call":
        from forebay.work import batches

        return batches.Call
    if name == "Context":
        from forebay.work import context

        return context.Context
    if name in ("Drop", "RetryAfter", "Snooze"):
        from forebay.work import handler

        return vars(handler)[name]
    if name in __all__:
        from forebay import public

        value = globals()[name] = vars(public)[name]
        return value
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")
