"""What a store promises by its specs and schedules: queues that run their jobs in order, slots, and since when.

An audit that is given a store asks about these unasked. Specs and schedules change: what was done before the last
change may have followed another promise, and is not judged. The ledger has a record of every change.
"""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.types import StructType

from forebay.core.policy import Field, InOrder, terms_of
from forebay.spark.audit.slots import ScheduleRule
from forebay.spark.lake import EVENTS as EVENTS_TABLE
from forebay.spark.lake import DataFile, Lake, LakeTable
from forebay.spark.lake_reader import read_rows
from forebay.spark.schemas import EVENTS
from forebay.store.open import open_store

LINES: Final = "put_spec"
SLOTS: Final = "put_schedule"
"""Verbs of the records that change a promise, by what is promised."""

_NAMED: Final = StructType([EVENTS[name] for name in ("offset", "verb", "name")])
_SWITCHED: Final = ("off", "on")
"""Names of a record that switches the ledger: while it is off, changes leave no record."""

_CHANGES: Final = pa.array([LINES, SLOTS, "put_ledger_rule"])

_APART: Final = ("memory", "cells")
"""Stores that are not asked: a journal belongs to one process, and a lake of several cells has no order of their
records."""


class Promises(Struct, frozen=True):
    """`lines`: queues whose jobs run in order, by which field. `rules`: of the schedules."""

    lines: dict[str, Field] = {}
    rules: dict[str, ScheduleRule] = {}


def promises_of(url: str) -> Promises:
    """What the store promises now."""
    if urlsplit(url).scheme in _APART:
        return Promises()
    store = open_store(url)
    try:
        terms = [(spec.name, term) for spec in store.specs() for term in terms_of(spec.eligibility)]
        rules = {schedule.name: ScheduleRule(schedule.rule, schedule.zone) for schedule in store.schedules()}
        return Promises({name: term.per for name, term in terms if isinstance(term, InOrder)}, rules)
    finally:
        store.close()


def last_changes(
    lake: Lake, table: LakeTable, known: Mapping[tuple[str, str], int], end: int
) -> dict[tuple[str, str], int]:
    """By verb and name of a promise: the offset from which it has been the same. `known`: as of the events below the
    offset `end`."""
    names = [name for _, name in known]
    files = [file for file in table.files if file.max_values["offset"] >= end and _may_name(file, [*names, *_SWITCHED])]
    rows = read_rows(lake, EVENTS_TABLE, files, _NAMED)
    rows = rows.filter(pc.and_(pc.greater_equal(rows["offset"], end), pc.is_in(rows["verb"], value_set=_CHANGES)))
    since = dict(known)
    for row in rows.to_pylist():
        if row["verb"] in (LINES, SLOTS):
            changed = {(row["verb"], row["name"])} & known.keys()
        else:
            changed = {*known} if row["name"] in _SWITCHED else set()
        since |= {promise: max(since[promise], row["offset"] + 1) for promise in changed}
    return since


def _may_name(file: DataFile, names: Collection[str]) -> bool:
    """Whether one of its records may be about one of these; statistics of long texts are cut."""
    if "name" not in file.max_values:
        return False
    return any(file.min_values["name"] <= name <= file.max_values["name"] for name in names)
