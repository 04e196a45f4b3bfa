"""Forebay: a durable job queue and scheduler for Python.

A queue is a point on five axes, written as a `QueueSpec`. The same contract (`forebay.store.protocol`) holds on every
store that `open_store` knows. `JobQueue` is the smallest way in: an in-process queue with visibility timeouts.
"""

from forebay.core.decide import decide
from forebay.core.errors import ForebayError, Invalid, KeyConflict, QueueFull
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Lease, Settled
from forebay.core.named import NAMED
from forebay.core.spec import QueueSpec
from forebay.queue import JobQueue
from forebay.store.open import open_store
from forebay.store.protocol import Receipt, Store, Want

__all__ = [
    "Draft",
    "ForebayError",
    "Invalid",
    "Job",
    "JobQueue",
    "KeyConflict",
    "Lease",
    "NAMED",
    "QueueFull",
    "QueueSpec",
    "Receipt",
    "Settled",
    "State",
    "Store",
    "Want",
    "decide",
    "open_store",
]
