"""The options of the data source `forebay`, read and checked in one place, on the driver.

An unknown option is refused with the nearest one that exists: a typing error must not become a default.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from forebay.core.errors import Invalid
from forebay.core.job import State
from forebay.core.limits import MAX_INGEST
from forebay.core.names import check_name, check_text
from forebay.spark.lake import lake_uri
from forebay.store.protocol import Query

TABLES: Final = ("jobs", "dead", "events")
GAPS: Final = ("fail", "skip")
STARTS: Final = ("earliest", "latest")
WRITES: Final = ("enqueue", "redrive")
MAX_PARTITIONS: Final = 10_000
_MAX_ROWS: Final = 100_000_000
_MAX_RATE: Final = 1_000_000.0

MAX_ID: Final = 2**63 - 1
_READING: Final = (
    "url table queue state kind tenant subject first_id last_id pushdown partitions page max_events max_records start "
    "on_gap"
)
_LAKE_READING: Final = "lake table files"
_WRITING: Final = "url action queue kind write_id rate dry_run patience chunk report"
_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}
"""Options of Spark that it also passes to the source."""


@dataclass(frozen=True)
class Reading:
    """How to read. `log`: the name behind `log:`; `table` is then "log". `query`: the options that choose jobs.

    url           the store; `FOREBAY_URL` if it is not given
    table         jobs, dead, events or log:NAME
    queue, kind, tenant, subject   jobs and dead: only these jobs
    state         jobs: only those in this state
    first_id, last_id   jobs and dead: only these ids
    pushdown      true: `df.filter` narrows the read itself. Off, because Spark 4.3 keeps the filters of one query for
                  the next one of the same DataFrame: use it for one query after each `load`
    partitions    tasks of a batch read
    page          jobs of one call
    max_events    a stream: events of a micro-batch
    max_records   a stream: records of a micro-batch
    start         a stream begins at earliest or latest
    on_gap        records that were trimmed before a stream read them: fail, or skip them
    """

    url: str
    table: str
    log: str
    query: Query
    first_id: int
    last_id: int
    pushdown: bool
    partitions: int
    page: int
    max_events: int
    max_records: int
    start: str
    on_gap: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Reading":
        given = _RawOptions(options, _READING)
        table, log = given.table()
        return cls(
            url=given.url(readable=table == "events", there=True),
            table=table,
            log=log,
            query=given.query(table),
            first_id=given.count("first_id", 1, MAX_ID),
            last_id=given.count("last_id", MAX_ID, MAX_ID),
            pushdown=given.choice("pushdown", ("false", "true")) == "true",
            partitions=given.count("partitions", os.cpu_count() or 1, MAX_PARTITIONS),
            page=given.count("page", 50_000, 1_000_000),
            max_events=given.count("max_events", 500_000, _MAX_ROWS),
            max_records=given.count("max_records", 100_000, _MAX_ROWS),
            start=given.choice("start", STARTS),
            on_gap=given.choice("on_gap", GAPS),
        )


@dataclass(frozen=True)
class LakeReading:
    """A table of a lake instead of a store's.

    lake          the location of the lake
    table         a table or a view of the lake
    files         only these of its files, a path in each line
    """

    lake: str
    table: str
    files: list[str]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "LakeReading":
        given = _RawOptions(options, _LAKE_READING)
        return cls(
            lake_uri(given.text("lake") or ""), given.text("table") or "jobs", (given.text("files") or "").splitlines()
        )


@dataclass(frozen=True)
class Writing:
    """How to write.

    url           the store; `FOREBAY_URL` if it is not given
    action        enqueue, or redrive
    queue, kind   those of all rows, where there is no such column
    write_id      an identity of the write: repeated with the same rows, it adds nothing
    rate          redrive: rows a second, of one partition
    dry_run       redrive: true counts and changes nothing
    patience      enqueue: seconds to wait for room in a full queue, and for another task to begin
    chunk         enqueue: rows of one call
    report        a file on the driver for the counts of rows, as JSON
    """

    url: str
    action: str
    queue: str
    kind: str | None
    write_id: str | None
    rate: float | None
    dry_run: bool
    patience: float
    chunk: int
    report: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Writing":
        given = _RawOptions(options, _WRITING)
        write_id = given.text("write_id")
        return cls(
            url=given.url(),
            action=given.choice("action", WRITES),
            queue=given.name("queue") or "default",
            kind=given.name("kind"),
            write_id=None if write_id is None else check_text("option write_id", write_id),
            rate=given.number("rate", _MAX_RATE),
            dry_run=given.choice("dry_run", ("false", "true")) == "true",
            patience=given.number("patience", 86_400.0) or 60.0,
            chunk=given.count("chunk", MAX_INGEST, MAX_INGEST),
            report=given.text("report"),
        )


class _RawOptions:
    """Options as the user wrote them."""

    def __init__(self, options: Mapping[str, str], known: str) -> None:
        self._options = {name.lower(): value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        names = known.split()
        for name in self._options:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}? it has " if near else "it has "
                raise Invalid(f"option {name}", "the source forebay has no such option", hint + ", ".join(names))

    def text(self, name: str) -> str | None:
        return self._options.get(name)

    def name(self, option: str) -> str | None:
        value = self.text(option)
        return None if value is None else check_name(f"option {option}", value)

    def url(self, readable: bool = False, there: bool = False) -> str:
        """`readable`: the ledger of a journal, which another process may own. `there`: the store must exist."""
        url = self.text("url") or os.environ.get("FOREBAY_URL")
        if not url:
            raise Invalid("option url", "it is not given", 'add .option("url", "postgresql://…"), or set FOREBAY_URL')
        if url.startswith("memory:") and (not readable or url.strip("/") == "memory:"):
            raise Invalid(
                "option url",
                "a memory store exists in one process, Spark uses several",
                "use sqlite:///…, postgresql://… or redis://…; of memory:///directory the table events can be read",
            )
        if there and url.startswith("sqlite:///") and not Path(unquote(url.removeprefix("sqlite:///"))).is_file():
            path = unquote(url.removeprefix("sqlite:///"))
            raise Invalid("option url", f"there is no file {path}", "name the one that the workers use")
        return url

    def query(self, table: str) -> Query:
        state = self.text("state")
        if state is not None and (state not in tuple(State) or table != "jobs"):
            raise Invalid(
                "option state", f"{state!r} is not a state of table {table}", f"read jobs, with {', '.join(State)}"
            )
        chosen = State.DEAD if table == "dead" else None if state is None else State(state)
        return Query(
            state=chosen,
            subject=self.text("subject"),
            queue=self.name("queue"),
            kind=self.name("kind"),
            tenant=self.name("tenant"),
        )

    def table(self) -> tuple[str, str]:
        table = self.text("table") or "jobs"
        if table.startswith("log:"):
            return "log", check_name("option table", table.removeprefix("log:"))
        if table not in TABLES:
            raise Invalid("option table", f"there is no table {table!r}", f"use {', '.join(TABLES)} or log:<name>")
        return table, ""

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise Invalid(f"option {name}", f"{value!r} is not one of its values", f"use {' or '.join(choices)}")
        return value

    def count(self, name: str, default: int, maximum: int) -> int:
        value = self._number(name, int, maximum)
        return default if value is None else int(value)

    def number(self, name: str, maximum: float) -> float | None:
        value = self._number(name, float, maximum)
        return None if value is None else float(value)

    def _number(self, name: str, kind: type[Any], maximum: float) -> Any:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = kind(text)
        except ValueError:
            value = -1
        if not 0 < value <= maximum:
            raise Invalid(f"option {name}", f"{text!r} is not a number in 1 … {maximum:g}", "choose one of these")
        return value
