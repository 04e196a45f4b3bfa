"""The numbers in SQL and Lua are those of the core: a server language cannot import them, so no text may drift."""

import re
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Final

import pytest

import forebay
from forebay.core import ledger, limits, share, stamp
from forebay.core.instant import micros
from forebay.core.spec import QueueSpec
from forebay.engine import lanes
from forebay.store.postgres import maintenance
from forebay.store.sqlite import unit_of_work

STORES: Final = Path(forebay.__file__).parent / "store"
TEXTS: Final = sorted(path for path in STORES.rglob("*") if path.suffix in (".sql", ".lua"))

CORE: Final = {
    share.UNIT,
    stamp.LEAD,
    limits.LANES_MET,
    limits.MAX_BATCH,
    limits.MAX_INSTANT,
    limits.PAYLOAD_BYTES,
    limits.SETTLE_MEMORY,
    limits.LEDGER_BYTES,
    micros(limits.LEDGER_KEPT),
    micros(QueueSpec(name="q").key_window),
    2**63 - 1,
    2**63,
    2**64 - 1,
}
OWN: Final = {
    1_000_000: "a second",
    10_000_000: "ten seconds",
    60_000_000: "a minute",
    600_000_000: "ten minutes",
    86_400: "the seconds of a day",
    60_000: "milliseconds for which Redis keeps an answer",
    10**9: "ids that a new timeline of Postgres leaves out",
    10**10: "half a rank of Redis",
    1_178_748_739: "the class of the advisory locks of Postgres",
    2_000: "autovacuum",
    5_000: "autovacuum",
    20_000: "autovacuum",
    2_000_000_000: "autovacuum",
}
LUA: Final = {
    "UNIT": share.UNIT,
    "IDLE_CLASSES": lanes.IDLE_CLASSES,
    "LANES_MET": limits.LANES_MET,
    "MAX_INSTANT": limits.MAX_INSTANT,
    "BATCH": limits.MAX_BATCH,
    "MAINTAIN_LIMIT": limits.MAINTAINED,
    "EXPIRE_LIMIT": unit_of_work.EXPIRE_LIMIT,
    "SETTLE_MEMORY": limits.SETTLE_MEMORY,
    "SOURCE_KEPT": micros(limits.SOURCE_KEPT),
    "LEAD": stamp.LEAD,
    "ZERO": 2**63,
    "RECORDS_PER_TRIM": ledger.RECORDS_PER_TRIM,
    "TRIMMED_AT_ONCE": ledger.TRIMMED_AT_ONCE,
}
"""Constants of the scripts that the core has too, by their names in Lua."""


def code_of(path: Path) -> str:
    """Without its comments."""
    return re.sub(r"--.*", "", path.read_text("utf-8"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(STORES)))
def test_a_number_in_sql_and_lua_is_one_that_the_core_has(path: Path) -> None:
    """An SQLSTATE is text, and has no meaning as a number."""
    code = re.sub(r"ERRCODE = '\w+'", "", code_of(path))
    numbers = {int(number) for number in re.findall(r"(?<![\w.])[0-9]{4,}(?![\w.])", code)} - {0}
    assert numbers <= CORE | OWN.keys(), sorted(numbers - CORE - OWN.keys())


def test_a_constant_of_the_scripts_has_the_value_of_the_core() -> None:
    code = "\n".join(code_of(path) for path in TEXTS if path.suffix == ".lua")
    found = defaultdict(list)
    for names, values in re.findall(
        r"^ *local ([A-Z_]+(?:, [A-Z_]+)*) = ([\d '*]+(?:, [\d '*]+)*)\n", code, re.MULTILINE
    ):
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            found[name].append(value)
    for name, expected in LUA.items():
        (value,) = found[name]
        assert prod(int(factor) for factor in value.strip("'").split(" * ")) == expected, name


def test_the_stores_on_sql_expire_as_many_jobs_at_once() -> None:
    assert unit_of_work.EXPIRE_LIMIT == maintenance.EXPIRE_LIMIT


@pytest.mark.parametrize(
    ("number", "file"), [(share.UNIT, "0006_claim"), (limits.LANES_MET, "0004_lanes"), (limits.LANES_MET, "0006_claim")]
)
def test_the_lanes_of_postgres_have_the_numbers_of_the_core(number: int, file: str) -> None:
    assert re.search(rf"\b{number}\b", code_of(STORES / "postgres" / "migrations" / f"{file}.pre.sql"))
