"""Jobs of a store that exports, as Arrow columns. A row of the export may be a run of many jobs, which is split.

Values that the jobs of a run share are repeated by Arrow. Payloads are cut out of their list undecoded. Only requested
columns are parsed, and only jobs with facts of their own are processed one by one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv
from pyspark.sql.types import StructType

from forebay.core.job import State
from forebay.core.outcome import Failure
from forebay.spark.arrow import arrow_schema, instants
from forebay.store.protocol import Exporting, Query

_RUN_STATES: Final = (State.WAITING, State.READY, State.RUNNING, State.WAITING)
_NUMBERS: Final = frozenset(
    "id last_id n size state due_at enqueued_at delivery attempt max_attempts claimed_at lease_until expires_at "
    "finished_at".split()
)
_OWN: Final = ("kind", "tenant", "subject", "key", "priority", "deadline", "meta")
"""Columns whose values are in `facts` if a job has its own."""

_LAST: Final = {"error_kind": "kind", "error": "message"}
_MAX_ROWS: Final = 50_000

_bodies: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_many: Final = msgspec.json.Decoder(list[dict[str, Any] | None]).decode
_one: Final = msgspec.json.Decoder(dict[str, Any] | None).decode
_errors: Final = msgspec.json.Decoder(list[Failure]).decode
_encode: Final = msgspec.json.Encoder().encode


def exported(store: Exporting, query: Query, first: int, last: int, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The jobs that match, with ids in [first, last]; `schema` is that of jobs or a part of it."""
    target = arrow_schema(schema)
    for what, columns, block in store.export(query, first, last):
        rows = (_Runs if what == "runs" else _Ended)(_parsed(columns, block))
        wanted = rows.wanted(query, first, last)
        table = pa.Table.from_arrays([rows.column(field.name).cast(field.type) for field in target], schema=target)
        if not wanted.all():
            table = table.filter(pa.array(wanted))
        yield from table.combine_chunks().to_batches(_MAX_ROWS)


def _parsed(columns: list[str], block: bytes) -> pa.Table:
    kinds = {name: pa.int64() if name in _NUMBERS else pa.string() for name in columns}
    if "cancel_requested" in kinds:
        kinds["cancel_requested"] = pa.bool_()
    return csv.read_csv(
        BytesIO(block),
        csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=columns),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=kinds,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


class _Rows(ABC):
    """Rows of an export, and the row of each job."""

    states: Sequence[State]

    def __init__(self, table: pa.Table, sizes: NDArray[np.int64]) -> None:
        self.table = table.combine_chunks()
        self.sizes = sizes
        self.row_of = np.repeat(np.arange(len(sizes)), sizes)
        self.jobs = len(self.row_of)
        self._take = None if len(sizes) == self.jobs else pa.array(self.row_of)

    def wanted(self, query: Query, first: int, last: int) -> NDArray[np.bool_]:
        """Which jobs match; the store has filtered by queue and state."""
        wanted = (self.ids >= first) & (self.ids <= last) & self.present
        for name in ("kind", "tenant", "subject"):
            value = getattr(query, name)
            if value is not None:
                wanted &= pc.equal(self.column(name), value).fill_null(False).to_numpy(zero_copy_only=False)
        return wanted

    def column(self, name: str) -> pa.Array:
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self)
        if name in _OWN:
            return self._own(name)
        if name in _LAST:
            return self._last(_LAST[name])
        if name not in self.table.column_names:
            return pa.nulls(self.jobs, pa.string())
        if name.endswith(("_at", "_until")):
            return instants(self.repeated(name, 0))
        return self._spread(self._plain(name))

    @property
    @abstractmethod
    def ids(self) -> NDArray[np.int64]: ...

    @property
    def present(self) -> NDArray[np.bool_]:
        return np.ones(self.jobs, bool)

    @property
    @abstractmethod
    def bodies(self) -> pa.Array: ...

    @property
    @abstractmethod
    def cancel_requested(self) -> pa.Array: ...

    @abstractmethod
    def facts_of(self, text: str, row: int) -> list[dict[str, Any] | None]:
        """The facts of each job of a row."""

    def repeated(self, name: str, none: int) -> NDArray[np.int64]:
        """A number of the row, repeated for each of its jobs."""
        numbers: NDArray[np.int64] = self._plain(name).fill_null(none).to_numpy()
        return numbers[self.row_of]

    def _plain(self, name: str) -> pa.Array:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _spread(self, column: pa.Array) -> pa.Array:
        return column if self._take is None else column.take(self._take)

    @cached_property
    def _facts(self) -> list[tuple[int, dict[str, Any]]]:
        """Jobs with facts of their own, with their indices."""
        starts = np.cumsum(self.sizes) - self.sizes
        return [
            (int(starts[row]) + place, facts)
            for row, text in enumerate(self._plain("facts").to_pylist())
            if text is not None
            for place, facts in enumerate(self.facts_of(text, row))
            if facts
        ]

    def _own(self, name: str) -> pa.Array:
        common = {"kind": lambda: self._spread(self._plain("kind")), "priority": lambda: pa.array(self._zeros())}
        values: list[Any] = common[name]().to_pylist() if name in common and self._facts else [None] * self.jobs
        if not self._facts and name in common:
            return common[name]()
        for place, facts in self._facts:
            if name in facts:
                values[place] = facts[name]
        if name == "deadline":
            return instants(np.array([value or 0 for value in values], np.int64))
        if name == "meta":
            values = [None if value is None else _encode(value).decode() for value in values]
        return pa.array(values, pa.int64() if name == "priority" else pa.string())

    def _zeros(self) -> NDArray[np.int64]:
        return np.zeros(self.jobs, np.int64)

    def _last(self, field: str) -> pa.Array:
        texts = self._plain("errors").to_pylist()
        values = [None if text is None else getattr(_errors(text)[-1], field) for text in texts]
        return self._spread(pa.array(values, pa.string()))


class _Runs(_Rows):
    """Jobs that have not ended: a row holds the last n of `size` payloads, and those of its jobs that are gone."""

    states = _RUN_STATES

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table, table.column("n").to_numpy())

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        """The index of each job in its run."""
        return np.arange(self.jobs) - (np.cumsum(self.sizes) - self.sizes)[self.row_of]

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        return self.repeated("last_id", 0) - self.sizes[self.row_of] + 1 + self._place

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        return np.logical_not(self._bits("settled"))

    @property
    def bodies(self) -> pa.Array:
        found: list[msgspec.Raw] = []
        skips = self._plain("size").to_numpy() - self.sizes
        for text, skip in zip(self._plain("bodies").to_pylist(), skips.tolist(), strict=True):
            raws = _bodies(text)
            found += raws[skip:] if skip else raws
        return pa.array(map(bytes, found), pa.binary(), size=len(found))

    @property
    def cancel_requested(self) -> pa.Array:
        return pa.array(self._bits("cancel_requests"))

    def facts_of(self, text: str, row: int) -> list[dict[str, Any] | None]:
        return _many(text)[-int(self.sizes[row]) :]

    def _bits(self, name: str) -> NDArray[np.bool_]:
        column = self._plain(name)
        if column.null_count == len(column):
            return np.zeros(self.jobs, bool)
        zeros = ("0" * int(size) for size in self.sizes)
        text = "".join(bits or none for bits, none in zip(column.to_pylist(), zeros, strict=True))
        return np.equal(np.frombuffer(text.encode(), np.uint8), ord("1"))


class _Ended(_Rows):
    """Finished jobs, a row each."""

    states = tuple(State)

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table, np.ones(table.num_rows, np.int64))

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        return self.repeated("id", 0)

    @property
    def bodies(self) -> pa.Array:
        return self._plain("body")

    @property
    def cancel_requested(self) -> pa.Array:
        return self._plain("cancel_requested")

    def facts_of(self, text: str, row: int) -> list[dict[str, Any] | None]:
        return [_one(text)]


_SPECIAL: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "id": lambda rows: pa.array(rows.ids),
    "state": lambda rows: pa.array(map(str, rows.states), pa.string()).take(pa.array(rows.repeated("state", 0))),
    "payload": lambda rows: rows.bodies,
    "cancel_requested": lambda rows: rows.cancel_requested,
}
