"""`RedisStore`: every verb of the contract on a Redis or Valkey server, for the processes of many machines.

Durable before every answer where the server syncs every write (`appendfsync always`), which is what it is held to while
it runs; weaker only by the operator's word in the URL. The server's clock alone decides; tests may inject one.
"""

from typing import Final

from forebay.core.clock import Clock
from forebay.store.protocol import Capabilities, Vitals
from forebay.store.redis.health import delivery_of, look, vitals_of
from forebay.store.redis.intake import Intake
from forebay.store.redis.jobs import Jobs
from forebay.store.redis.leases import Leases
from forebay.store.redis.ledger import Ledger
from forebay.store.redis.logs import Logs
from forebay.store.redis.presence import Presences
from forebay.store.redis.queues import Queues
from forebay.store.redis.schedules import Schedules
from forebay.store.redis.session import Session
from forebay.store.redis.waiting import Waiting
from forebay.store.shell import PipeliningShell

_SETTLE_MEMORY: Final = 65_536


class RedisBackend:
    """The verbs of its parts: a script each."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.session = session = Session(url, clock)
        self.waiting = waiting = Waiting(session)
        intake, leases, jobs, queues = Intake(session, waiting), Leases(session), Jobs(session), Queues(session)
        schedules, presences, ledger, logs = Schedules(session), Presences(session), Ledger(session), Logs(session)
        self.now = session.now
        self.enqueue, self.wait_for_room = intake.enqueue, intake.wait_for_room
        self.ingested, self.ingest, self.replace_dead = intake.ingested, intake.ingest, intake.replace_dead
        self.promote, self.claim, self.settle_and_claim = leases.promote, leases.claim, leases.settle_and_claim
        self.extend, self.overdue, self.settle = leases.extend, leases.overdue, leases.settle
        self.report_progress = leases.report_progress
        self.get, self.browse, self.hold, self.ahead = jobs.get, jobs.browse, jobs.hold, jobs.ahead
        self.cancel, self.redrive, self.purge, self.discard = jobs.cancel, jobs.redrive, jobs.purge, jobs.discard
        self.specs, self.put_spec, self.pause = queues.specs, queues.put_spec, queues.pause
        self.queues, self.backlog, self.totals = queues.queues, queues.backlog, queues.totals
        self.set_gate, self.release, self.gates = queues.set_gate, queues.release, queues.gates
        self.put_schedule, self.drop_schedule = schedules.put_schedule, schedules.drop_schedule
        self.schedules, self.fire = schedules.schedules, schedules.fire
        self.announce, self.withdraw, self.workers = presences.announce, presences.withdraw, presences.workers
        self.ledger, self.ledger_extent, self.ledger_rule = ledger.ledger, ledger.ledger_extent, ledger.ledger_rule
        self.put_ledger_rule, self.trim_ledger = ledger.put_ledger_rule, ledger.trim_ledger
        self.append, self.read, self.commit, self.position = logs.append, logs.read, logs.commit, logs.position
        self.extent, self.offset_at, self.trim = logs.extent, logs.offset_at, logs.trim
        self.own, self.disown, self.groups = logs.own, logs.disown, logs.groups
        self.wait, self.wait_ended = waiting.wait, waiting.wait_ended
        self.wait_cancel_requests = waiting.wait_cancel_requests

    @property
    def capabilities(self) -> Capabilities:
        safety = self.session.safety
        return Capabilities(
            name="redis",
            durable=safety.durable,
            processes="many",
            settle_memory=_SETTLE_MEMORY,
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
        return vitals_of(look(server), server.address.durability, delivery, self.waiting.hears)


class RedisStore(PipeliningShell[RedisBackend]):
    """The store in memory that several machines share."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(RedisBackend(url, clock=clock))

    def vitals(self) -> Vitals:
        return self.backend.vitals()
