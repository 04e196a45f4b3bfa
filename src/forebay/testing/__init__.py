"""For the tests of applications: a clock that a test moves, and a store in memory that keeps time by it.

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

__all__ = ["ManualClock", "memory_store"]


def memory_store(*specs: QueueSpec, clock: Clock | None = None) -> Store:
    """A store of this process with these queues and nothing else; the system's clock unless one is given."""
    store = open_store("memory://", clock=clock)
    for spec in specs:
        store.put_spec(spec)
    return store
