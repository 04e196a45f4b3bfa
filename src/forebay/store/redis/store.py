"""`RedisStore`: every verb of the contract on a Redis or Valkey server, for the processes of many machines.

A call is durable before its answer where the server syncs every write (`appendfsync always`). That setting is checked
when the store is opened and while it runs, unless the URL promises less. The server's clock decides; tests may inject
one.
"""

from forebay.core.clock import Clock
from forebay.core.limits import SETTLE_MEMORY
from forebay.store.backend import BoundVerbs
from forebay.store.protocol import Capabilities, Vitals
from forebay.store.redis.control import Control
from forebay.store.redis.health import delivery_of, read_health, vitals_of
from forebay.store.redis.intake import Intake
from forebay.store.redis.leases import Leases
from forebay.store.redis.logs import Ledger, Logs
from forebay.store.redis.observing import Observing
from forebay.store.redis.session import Session
from forebay.store.redis.waiting import Waiting
from forebay.store.shell import PipeliningShell


class RedisBackend(BoundVerbs):
    """The verbs of all parts; each is one script."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.session = session = Session(url, clock)
        self.waiting = waiting = Waiting(session)
        intake, leases, ledger, logs = Intake(session, waiting), Leases(session), Ledger(session), Logs(session)
        control, observing = Control(session), Observing(session)
        super().__init__(observing, control, ledger, logs)
        self.now, self.specs = session.now, session.stored_specs
        self.enqueue, self.wait_for_room = intake.enqueue, intake.wait_for_room
        self.ingested, self.ingest, self.replace_dead = intake.ingested, intake.ingest, intake.replace_dead
        self.promote, self.claim, self.settle_and_claim = leases.promote, leases.claim, leases.settle_and_claim
        self.extend, self.overdue, self.settle = leases.extend, leases.overdue, leases.settle
        self.report_progress = leases.report_progress
        self.cancel, self.redrive = control.cancel, control.redrive
        self.purge, self.purge_dead = control.purge, control.purge_dead
        self.wait, self.wait_ended = waiting.wait, waiting.wait_ended
        self.wait_cancel_requests = waiting.wait_cancel_requests

    @property
    def capabilities(self) -> Capabilities:
        safety = self.session.safety
        return Capabilities(
            name="redis",
            durable=safety.durable,
            processes="many",
            settle_memory=SETTLE_MEMORY,
            lease_grain=0.0,
            unsafe=safety.unsafe,
        )

    def close(self) -> None:
        """No verb works afterwards; whatever waits wakes up and finds the store closed."""
        self.waiting.close()
        self.session.server.close()

    def vitals(self) -> Vitals:
        server = self.session.server
        delivery = delivery_of(server) or server.address.delivery
        return vitals_of(read_health(server), server.address, delivery, self.waiting.listening)


class RedisStore(PipeliningShell[RedisBackend]):
    """The store in memory that several machines share."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(RedisBackend(url, clock=clock))

    def vitals(self) -> Vitals:
        return self.backend.vitals()
