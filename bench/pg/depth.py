"""Does depth cost? Claims of a hundred on a deep backlog beside a shallow one, in rows of a hundred jobs and of one."""

from collections.abc import Callable
from typing import Final

from bench.crew import ours
from bench.crew.cell import Cell, Values, latencies
from bench.crew.load import BATCH
from bench.crew.processes import Clients
from bench.measure import Figure
from bench.pg import backlog
from bench.pg.server import Bench
from forebay_proof.tally import CLAIM

SHALLOW: Final = 10_000


def claims(bench: Bench, depth: int, rows_of: int, cycles: int) -> Values:
    """Each cycle puts as many as it takes, so the depth stays."""
    with bench.database() as database, Clients() as clients:
        backlog.seed(database, depth, rows_of)
        database.settle_down()
        ours.run_client(database, clients, "worker", "cycle", BATCH, int(rows_of == 1), cycles)
        return latencies("claim", clients.tallies("worker").histogram(CLAIM))


def figures(bench: Bench, deep: int, cycles: int) -> list[Figure]:
    found: list[Figure] = []
    for kind, rows_of in (("runs", BATCH), ("singles", 1)):
        for depth in (SHALLOW, deep):
            name = f"depth/{kind}-{_short(depth)}"
            base = "" if depth == SHALLOW else f"depth/{kind}-{_short(SHALLOW)}"
            cell = Cell(name, _measuring(bench, depth, rows_of, cycles))
            for key in ("claim-p50", "claim-p99"):
                goal = "≤ 1.3 ×" if base and key == "claim-p50" else ""
                found.append(cell.figure(key, f"{base}/{key}" if base else None, goal))
    return found


def _short(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"


def _measuring(bench: Bench, depth: int, rows_of: int, cycles: int) -> Callable[[], Values]:
    return lambda: claims(bench, depth, rows_of, cycles)
