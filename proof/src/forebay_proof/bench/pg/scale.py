"""Does breadth cost? The drain of a backlog over many queues, and over many tenants, beside one of each.

Every job is a row of its own, as jobs of many queues and tenants are. One worker serves all queues. `fair`: tenants
take turns, beside one tenant of a queue that is fair, too.
"""

from dataclasses import dataclass
from typing import Final

from forebay import Draft, QueueSpec, open_store
from forebay.core.policy import Fair
from forebay_proof.bench.clients import ours
from forebay_proof.bench.clients.cell import CLIENT, CPU, RATE, SERVER, WAL, Measurement
from forebay_proof.bench.clients.drain import Queue, drain_of
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.server import Bench, PostgresDatabase
from forebay_proof.load.payloads import BULK, payloads

_GOAL: Final = "≥ 0.83 ×"


@dataclass(frozen=True)
class Breadth:
    """How many queues and tenants a backlog is spread over, and whether the tenants take turns."""

    queues: int = 1
    tenants: int = 1
    fair: bool = False

    def seed(self, database: PostgresDatabase, _: Clients, jobs: int) -> None:
        store = open_store(database.url)
        if self.fair:
            store.put_spec(QueueSpec(name="q0", share=Fair()))
        for start in range(0, jobs, BULK):
            store.enqueue(
                [
                    Draft(
                        "email",
                        load,
                        queue=f"q{n % self.queues}",
                        tenant=f"t{n % self.tenants}",
                        max_attempts=24 + n % 2,
                    )
                    for n, load in enumerate(payloads(min(BULK, jobs - start)), start)
                ]
            )
        store.close()

    def start(self, database: PostgresDatabase, clients: Clients) -> None:
        ours.start_worker(database, clients, ours.DRAIN, queues=[f"q{number}" for number in range(self.queues)])


def figures(bench: Bench, jobs: int, queues: int, tenants: int) -> list[Figure]:
    found: list[Figure] = []
    for name, base, breadth in (
        ("one", "", Breadth()),
        (f"queues-{queues}", "one", Breadth(queues=queues)),
        (f"tenants-{tenants}", "one", Breadth(tenants=tenants)),
        ("fair-one", "", Breadth(fair=True)),
        (f"fair-tenants-{tenants}", "fair-one", Breadth(tenants=tenants, fair=True)),
    ):
        cell = Measurement(f"scale/{name}", drain_of(bench, Queue(breadth.seed, breadth.start, backlog.LEFT), jobs))
        found += [
            cell.figure(RATE, f"scale/{base}" if base else None),
            cell.figure(CPU, f"scale/{base}/{CPU}" if base else None, _GOAL if base else ""),
            *(cell.figure(key) for key in (SERVER, CLIENT, WAL)),
        ]
    return found
