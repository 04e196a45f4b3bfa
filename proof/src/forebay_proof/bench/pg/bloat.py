"""Do tables grow with what has passed through them? Their sizes while jobs flow, early and late.

One producer holds the depth, so what is alive is the same at both moments. The ledger is left out: it keeps its records
for as long as its rule says.
"""

from functools import partial
from typing import Final

from forebay_proof.bench.clients.cell import DEAD, Measurement
from forebay_proof.bench.clients.flow import flowing
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.pg.server import Bench
from forebay_proof.tally import Tallies

_PARTS: Final = 12
_MAX_SECONDS: Final = 3_600.0
_SIZES: Final = """
    SELECT sum(pg_table_size(c.oid)) / 1e6, sum(pg_indexes_size(c.oid)) / 1e6
    FROM pg_class AS c
    WHERE c.relnamespace = 'forebay'::regnamespace AND c.relkind = 'r' AND NOT starts_with(c.relname, 'ledger')
"""


def sizes(bench: Bench, jobs: int) -> dict[str, float]:
    """In megabytes, after a twelfth of the jobs and after all of them."""
    found: dict[str, float] = {}
    with flowing(bench) as flow:
        workers = flow.clients.tallies("worker")
        for when, count in (("early", jobs // _PARTS), ("late", jobs)):
            flow.clients.wait_until(partial(_done, workers, count), _MAX_SECONDS, f"{count} jobs", step=0.05)
            tables, indexes = flow.database.fetch(_SIZES)[0]
            found |= {f"{when}-tables": float(tables), f"{when}-indexes": float(indexes)}
        return {**found, **flow.database.traces()}


def _done(workers: Tallies, count: int) -> bool:
    return workers.jobs() >= count


def figures(bench: Bench, jobs: int) -> list[Figure]:
    early, late = (f"{count // 1000}k" for count in (jobs // _PARTS, jobs))
    tables, indexes = f"scale/bloat-tables-{early}", f"scale/bloat-indexes-{early}"
    return Measurement("scale/bloat", lambda: sizes(bench, jobs)).named_figures(
        (tables, "early-tables", "MB", None, ""),
        (f"scale/bloat-tables-{late}", "late-tables", "MB", tables, "≤ 1.5 ×"),
        (indexes, "early-indexes", "MB", None, ""),
        (f"scale/bloat-indexes-{late}", "late-indexes", "MB", indexes, "≤ 1.5 ×"),
        ("scale/bloat-dead", DEAD, "rows", None, ""),
    )
