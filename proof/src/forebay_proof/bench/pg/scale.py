"""Does breadth cost? The drain of a backlog over many queues, and over many tenants, beside one of each.

Every job is a row of its own, as jobs of many queues and tenants are. One worker serves all queues.
"""

from dataclasses import dataclass
from typing import Final

from forebay import Draft, open_store
from forebay_proof.bench.crew import ours
from forebay_proof.bench.crew.cell import Measurement
from forebay_proof.bench.crew.drain import COSTS, Queue, drain_of
from forebay_proof.bench.crew.processes import Clients
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg import backlog
from forebay_proof.bench.pg.server import Bench, PostgresDatabase
from forebay_proof.load.payloads import BULK, payloads

_GOAL: Final = "≥ 0.83 ×"


@dataclass(frozen=True)
class Breadth:
    """How many queues and tenants a backlog is spread over."""

    queues: int = 1
    tenants: int = 1

    def seed(self, database: PostgresDatabase, _: Clients, jobs: int) -> None:
        store = open_store(database.url)
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
    for name, breadth in (
        ("one", Breadth()),
        (f"queues-{queues}", Breadth(queues=queues)),
        (f"tenants-{tenants}", Breadth(tenants=tenants)),
    ):
        cell = Measurement(f"scale/{name}", drain_of(bench, Queue(breadth.seed, breadth.start, backlog.LEFT), jobs))
        found += cell.figures(COSTS, None if name == "one" else "scale/one", rate="" if name == "one" else _GOAL)
    return found
