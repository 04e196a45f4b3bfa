"""The public names that need neither an application nor a worker; `forebay` hands them out."""

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

__all__ = [
    "Draft",
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
    "Settled",
    "State",
    "Store",
    "Want",
    "decide",
    "open_store",
]
