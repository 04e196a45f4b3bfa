"""For the tests of applications: run an app's jobs in virtual time, without a worker and without sleeping.

`JobTester` runs the handlers of an app, `JobSimulator` with seeded crashes and delays; `fb_memory`, `fb_inline` and
`fb_sim` are their pytest fixtures (docs/guides/testing.md).
`ManualClock` is a clock that a test moves, `memory_store` a store that keeps time by it:

clock = ManualClock()
store = memory_store(QueueSpec(name="mail"), clock=clock)
store.enqueue([Draft("send", queue="mail", delay=60_000_000)])
clock.advance(60_000_000)
"""

from forebay.core.clock import Clock
from forebay.core.spec import QueueSpec
from forebay.store.open import open_store
from forebay.store.protocol import Store
from forebay.testing.clock import ManualClock
from forebay.testing.job_tester import Enqueued, JobTester
from forebay.testing.simulator import JobSimulator

__all__ = ["Enqueued", "JobSimulator", "JobTester", "ManualClock", "memory_store"]


def memory_store(*specs: QueueSpec, clock: Clock | None = None) -> Store:
    """A store of this process with these queues and nothing else; the system's clock unless one is given."""
    store = open_store("memory://", clock=clock)
    for spec in specs:
        store.put_spec(spec)
    return store
