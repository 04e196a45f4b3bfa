"""A lake: the ledger's events and the tables made from them, each a Delta table below one URI.

    events/        the ledger, one row a job and change
    jobs/ …        the tables of `forebay.spark.tables`
    receipts/ …    evidence that an audit was given
    verdict.json   the answer of the last audit
    cells.json     of several cells: their names, and those that the last run of the pipeline could not read

The Delta log decides what is in a table. A task writes Parquet files, the driver adds them in one commit, and that
carries the ledger offset that the table has reached as Delta's application transaction. Two writers that start from the
same offset cannot both commit: the format refuses the second, which has added nothing. A file that no commit adds is
invisible, and `maintain` removes it.

Nothing here needs Spark. Credentials and endpoints of object stores come from the environment of each process
(`AWS_…`, `GOOGLE_…`, `AZURE_…`), as delta-rs reads them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError, Invalid

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

FORMAT: Final = "2"
EVENTS: Final = "events"
TABLES: Final = ("jobs", "attempts", "service_levels", "redeliveries", "dead_letters")
PROOF: Final = "proof"
"""A table of the audit, whose files replace each other."""

REVISION: Final = 2
"""Of the definitions of all tables: it grows when one means something else than before."""

MAX_TABLE_ROWS: Final = 100_000
"""Rows of a table in one file: the unit that a refresh rewrites."""

SCHEMES: Final = ("file", "s3", "s3a", "gs", "abfss")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_STORE, _FORMAT = "forebay.store", "forebay.format"
_CELLS: Final = "cells.json"
VERDICT: Final = "verdict.json"
_DROPPED: Final = "forebay/dropped"
_COMPACTED_BYTES: Final = 128 * 2**20


class Conflict(ForebayError):
    """Another writer has committed to the table since it was read; nothing was added."""


class DataFile(Struct, frozen=True):
    """A Parquet file of a table. `partition`: the values of the partition columns. `min_values`, `max_values`: of the
    columns that have statistics."""

    path: str
    size: int
    rows: int
    partition: dict[str, str]
    min_values: dict[str, Any]
    max_values: dict[str, Any]
    null_counts: dict[str, int] = {}

    @property
    def day(self) -> str:
        return self.partition["day"]


def identity(url: str) -> str:
    """What identifies a store: its location, without credentials."""
    parts = urlsplit(url)
    if parts.scheme == "cells":
        return f"cells:{Path(unquote(parts.path)).resolve()}"
    if parts.scheme in ("sqlite", "memory"):
        path = unquote(parts.path)
        return f"{parts.scheme}:{Path(path.removeprefix('/') if parts.scheme == 'sqlite' else path).resolve()}"
    scheme = parts.scheme if parts.scheme.startswith(("redis", "unix")) else "postgresql"
    prefix = dict(parse_qsl(parts.query)).get("prefix") if scheme != "postgresql" else None
    return f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{f'?prefix={prefix}' if prefix else ''}"


def lake_uri(location: str | Path) -> str:
    """The absolute path of a lake on a file system, or its URI elsewhere; unknown schemes are refused by name."""
    text = str(location)
    if _SCHEME.match(text) is None:
        return str(Path(location).resolve())
    parts = urlsplit(text)
    way_out = f"name a path, or a URI of {', '.join(SCHEMES)}"
    if parts.scheme not in SCHEMES:
        raise Invalid(f"lake {text}", f"lakes on {parts.scheme}: are not supported", way_out)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise Invalid(f"lake {text}", f"the directory is on the host {parts.netloc}", way_out)
        return str(Path(unquote(parts.path)).resolve())
    if not parts.netloc:
        raise Invalid(f"lake {text}", "it names no bucket or host", f"write {parts.scheme}://NAME/PATH")
    return text.rstrip("/")


class LakeCells(Struct, frozen=True):
    """The cells of a lake: their names by number, and why the last run of the pipeline did not read some of them."""

    names: dict[int, str]
    unread: dict[str, str] = {}


class CellCoverage(Struct, frozen=True):
    """The records of one cell that a lake has: offsets `first` … `end` - 1 of that cell's ledger."""

    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.first} … {self.end - 1}" if self.end > self.first else "none"


class LakeTable:
    """One Delta table at the version at which it was read. `end`: every event below this offset is in it."""

    def __init__(self, table: "DeltaTable", name: str, revision: int) -> None:
        import pyarrow as pa

        self._table = table
        self._app = f"forebay/{revision}"
        self.name = name
        self.end: int = table.transaction_version(self._app) or 0
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        self.files: list[DataFile] = [_data_file(each) for each in actions]

    @property
    def version(self) -> int:
        return int(self._table.version())

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def settings(self) -> Mapping[str, str | None]:
        return self._table.metadata().configuration

    def reached(self, app: str) -> int | None:
        """The version of another application transaction."""
        return self._table.transaction_version(app)

    def coverage(self, cell: int) -> CellCoverage | None:
        """The records of a cell in the events of several; None: none was added yet."""
        first, end = self.reached(f"cell/{cell}/first"), self.reached(f"cell/{cell}")
        return None if first is None or end is None else CellCoverage(first, end)

    def commit(
        self,
        added: Iterable[DataFile],
        end: int | None = None,
        removed: Iterable[DataFile] = (),
        apps: Mapping[str, int] | None = None,
    ) -> None:
        """Add and remove files in one step; `Conflict` if another writer committed first."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

        reached = dict(apps or {}) | ({} if end is None else {self._app: end})
        now = _milliseconds()
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, file.partition, now, True, _stats(file)) for file in added
        ]
        actions += [RemoveAction(file.path, True, now, file.size, {**file.partition}) for file in removed]
        transactions = [Transaction(app, version) for app, version in reached.items()]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise Conflict(
                f"lake table {self.name}: another writer has committed; nothing was added: {error}"
            ) from None

    def compact(self, max_rows: int | None = None) -> int:
        """Join small files, by partition, into files of about `max_rows`; how many were replaced."""
        from deltalake import WriterProperties

        size = sum(file.size for file in self.files)
        target = _COMPACTED_BYTES if max_rows is None or not self.rows else max_rows * size // self.rows
        done = self._table.optimize.compact(
            target_size=max(1, min(target, _COMPACTED_BYTES)), writer_properties=WriterProperties(compression="ZSTD")
        )
        return int(done["numFilesRemoved"])

    @property
    def dropped(self) -> int:
        """How many rows upkeep has dropped so far."""
        return self.reached(_DROPPED) or 0

    def drop(self, column: str, last: int) -> int:
        """Delete rows up to a number; how many they were."""
        import pyarrow.dataset as ds

        rows = int(self._table.to_pyarrow_dataset().count_rows(filter=ds.field(column) <= last))
        self._delete(f"{column} <= {last}", {_DROPPED: self.dropped + rows})
        return rows

    def drop_days(self, first: str) -> int:
        """Delete the rows of the days before this one; how many they were."""
        return self._delete(f"day < '{first}'", {})

    def _delete(self, predicate: str, apps: Mapping[str, int]) -> int:
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(app_transactions=[Transaction(app, version) for app, version in apps.items()])
        return int(self._table.delete(predicate, commit_properties=properties)["num_deleted_rows"] or 0)

    def vacuum(self, hours: int) -> int:
        """Remove files that no version of the last hours refers to."""
        return len(self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True))


class Contents(Struct, frozen=True):
    """What a lake holds: its store, its events, and the tables that were made."""

    store: str
    events: LakeTable
    tables: dict[str, LakeTable]

    @property
    def first(self) -> int:
        return min((file.min_values["offset"] for file in self.events.files), default=0)

    @property
    def end(self) -> int:
        return self.events.end

    @property
    def event_count(self) -> int:
        return self.events.rows


class Lake:
    """The Delta tables below a URI. Readers and writers need no lock."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @classmethod
    def at(cls, location: str | Path) -> "Lake":
        """An existing lake."""
        lake = cls(lake_uri(location))
        if not lake._is_table(EVENTS):
            way_out = "name what `forebay pipeline run --lake` made, or an empty location to create it there"
            raise Invalid(f"lake {lake.uri}", f"there is no Delta table {EVENTS}", way_out)
        settings = lake.table(EVENTS).settings
        if settings.get(_FORMAT) != FORMAT:
            reason = f"it has the format {settings.get(_FORMAT)}, this Forebay reads {FORMAT}"
            raise Invalid(f"lake {lake.uri}", reason, "use the Forebay that wrote it, or create another lake")
        return lake

    @classmethod
    def of(cls, location: str | Path, url: str) -> "Lake":
        """The lake of a store, created if the location is empty."""
        from forebay.spark.arrow import arrow_schema
        from forebay.spark.schemas import EVENTS as SCHEMA

        lake, store = cls(lake_uri(location)), identity(url)
        if lake._is_empty():
            lake.create(EVENTS, arrow_schema(SCHEMA), ["day"], {_STORE: store, _FORMAT: FORMAT})
        owner = cls.at(lake.uri).store
        if owner != store:
            raise Invalid(
                f"lake {lake.uri}", f"it belongs to {owner}, not to {store}", "name that store, or another location"
            )
        return lake

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @property
    def store(self) -> str:
        return str(self.table(EVENTS).settings[_STORE])

    def table_uri(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def create(
        self, name: str, schema: "pa.Schema", partition_by: Sequence[str], settings: Mapping[str, str] | None = None
    ) -> None:
        """Create an empty table, unless it exists."""
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import DeltaError

        if self._is_table(name):
            return
        try:
            DeltaTable.create(
                self.table_uri(name),
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(settings or {}),
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:
            if not self._is_table(name):
                raise

    def table(self, name: str, revision: int = 1) -> LakeTable:
        """Its current version."""
        with _reading(self.table_uri(name)):
            return LakeTable(_delta().DeltaTable(self.table_uri(name)), name, revision)

    def tables(self, names: Iterable[str], revision: int = 1) -> dict[str, LakeTable]:
        """Those that exist."""
        return {name: self.table(name, revision) for name in names if self._is_table(name)}

    def contents(self) -> Contents:
        return Contents(self.store, self.table(EVENTS), self.tables(TABLES, REVISION))

    def cells(self) -> LakeCells | None:
        """None: the lake is of a single store."""
        content = self.read(_CELLS)
        return None if content is None else msgspec.json.decode(content, type=LakeCells)

    def put_cells(self, cells: LakeCells) -> None:
        if cells != self.cells():
            self.write(_CELLS, msgspec.json.encode(cells))

    def files(self, name: str) -> "FileSystem":
        """The files of a table, or of the lake itself, by their paths below it."""
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if self.is_local:
            place = Path(self.uri, name)
            place.mkdir(parents=True, exist_ok=True)
            return SubTreeFileSystem(str(place), LocalFileSystem())
        _delta()
        from deltalake.fs import DeltaStorageHandler

        return PyFileSystem(DeltaStorageHandler(self.table_uri(name).rstrip("/")))

    def read(self, file: str) -> bytes | None:
        """A file of the lake itself; None: there is none. Below a directory it needs no package."""
        try:
            if self.is_local:
                return Path(self.uri, file).read_bytes()
            with self.files("").open_input_stream(file) as opened:
                return bytes(opened.read())
        except FileNotFoundError:
            return None

    def write(self, file: str, content: bytes) -> None:
        """Replace a file of the lake."""
        place = self.files("")
        draft = f".{file}.new" if self.is_local else file
        # What fits into the stream's own buffer is written as bytes; anything else as a Buffer, which delta-rs refuses.
        with place.open_output_stream(draft, buffer_size=len(content) + 1) as out:
            out.write(content)
        if draft != file:
            place.move(draft, file)

    def discard(self, name: str, files: Iterable[DataFile]) -> None:
        """Remove files that were written and never added."""
        place = self.files(name)
        for file in files:
            with suppress(OSError):
                place.delete_file(file.path)

    def _is_table(self, name: str) -> bool:
        with _reading(self.table_uri(name)):
            return bool(_delta().DeltaTable.is_deltatable(self.table_uri(name)))

    def _is_empty(self) -> bool:
        """Whether the location is empty, or another process is creating the same lake there."""
        if self._is_table(EVENTS):
            return False
        place = Path(self.uri)
        if not self.is_local or not place.exists():
            return True
        started = {place / EVENTS, place / EVENTS / "_delta_log"}
        return place.is_dir() and {*place.glob("*"), *place.glob("*/*")} <= started


def stale_tables(contents: Contents) -> list[str]:
    """Tables that are missing, or that lag behind the events of the lake."""
    return [name for name in TABLES if name not in contents.tables or contents.tables[name].end < contents.end]


def missing_events(contents: Contents) -> list[str]:
    """Where files of events are missing, by the offset of the table; empty when the lake is whole."""
    last = max((file.max_values["offset"] for file in contents.events.files), default=contents.end - 1)
    return (
        [] if last + 1 == contents.end else [f"events end at offset {last}, the table's offset is {contents.end - 1}"]
    )


def _delta() -> Any:
    try:
        import deltalake
    except ModuleNotFoundError:
        raise ForebayError(
            "a lake needs the package deltalake, which is not installed; pip install 'forebay[spark]'"
        ) from None
    return deltalake


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    """An error of the Delta client as one line."""
    try:
        yield
    except ForebayError:
        raise
    except Exception as error:
        if isinstance(error, (OSError, _delta().exceptions.DeltaError)):
            lines = [line.strip(" \u21b3") for line in _COLOUR.sub("", str(error)).splitlines()]
            raise ForebayError(f"lake table {uri} cannot be read: {': '.join(filter(None, lines))}") from None
        raise


def _milliseconds() -> int:
    from forebay.store.clock import SystemClock

    return SystemClock().now() // 1_000


def _stats(file: DataFile) -> str:
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": file.min_values,
            "maxValues": file.max_values,
            "nullCount": file.null_counts,
        }
    )


def _data_file(action: Mapping[str, Any]) -> DataFile:
    def part(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in action.items() if name.startswith(prefix)}

    def known(prefix: str) -> dict[str, Any]:
        return {name: value for name, value in part(prefix).items() if value is not None}

    partition = {name: _text(value) for name, value in part("partition.").items()}
    return DataFile(
        action["path"], action["size_bytes"], action["num_records"], partition, known("min."), known("max.")
    )


def _text(value: Any) -> str:
    """As Delta writes the value of a partition column."""
    return str(value).lower() if isinstance(value, bool) else str(value)
