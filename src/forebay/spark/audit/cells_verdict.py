"""The verdict on several cells: one answer, the coverage of each cell, and offenders with the name of their cell.

The checks need nothing of this: a job is in one cell, and its events keep their order. But a cell that was not read
lacks every event of its jobs, which would count as lost; so without it nothing is judged, and the answer is INVALID.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from forebay.spark.audit.checks import CHECKS
from forebay.spark.audit.verdict import AuditVerdict, CheckResult, Offender
from forebay.spark.lake import CellCoverage, LakeCells
from forebay.store.open import cell_number

Coverage = Mapping[int, CellCoverage | None]
"""By the number of a cell."""


def not_judged(cells: LakeCells, coverage: Coverage) -> AuditVerdict:
    """Some cells were not read."""
    results = [CheckResult(check.id, check.invariant, check.what, "not run", 0, []) for check in CHECKS.values()]
    reasons = [f"cell {name} was not read, so nothing was judged: {why}" for name, why in sorted(cells.unread.items())]
    facts = {"offsets": "none", "to": "None", "jobs": 0, "cells": _described(cells, coverage)}
    return AuditVerdict("INVALID", reasons, facts, results)


def doubts(cells: LakeCells, coverage: Coverage) -> Iterator[str]:
    """Of cells whose first records the lake does not have."""
    for number, name in cells.names.items():
        if (held := coverage[number]) is not None and held.first:
            yield f"the ledger of cell {name} starts at offset {held.first}, not 0: earlier events are missing"


def in_cells(verdict: AuditVerdict, cells: LakeCells, coverage: Coverage) -> AuditVerdict:
    """With the coverage of each cell, and the cells of offenders."""

    def named(each: Offender) -> Offender:
        cell = None if each.job_id is None else cells.names.get(cell_number(each.job_id))
        return each if cell is None else replace(each, cell=cell)

    results = [replace(each, offenders=[named(one) for one in each.offenders]) for each in verdict.results]
    return replace(verdict, results=results, facts=verdict.facts | {"cells": _described(cells, coverage)})


def _described(cells: LakeCells, coverage: Coverage) -> str:
    """`a 0 … 41, b 0 … 57`: the offsets of each cell's ledger."""
    return ", ".join(f"{name} {coverage[number] or 'none'}" for number, name in sorted(cells.names.items()))
