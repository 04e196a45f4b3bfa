"""Rows of a DataFrame as drafts. Columns are checked on the driver, rows in the task that reads them.

kind          string; without the column the option `kind` holds for all rows
queue         string; without the column the option `queue`, or "default"
payload       JSON text, or a struct, map or array; null is the payload null
key           string: an idempotency key
run_at        timestamp
delay         a number of seconds
deadline, expires_at   timestamps
priority, max_attempts, cost   integers
tenant, subject   strings
meta          map of strings
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from forebay.core.errors import Invalid
from forebay.core.instant import from_seconds
from forebay.core.job import Draft
from forebay.spark.options import Writing

Kinds = tuple[type[DataType], ...]

_TEXT: Final[Kinds] = (StringType,)
_TIME: Final[Kinds] = (TimestampType,)
_NUMBER: Final[Kinds] = (NumericType,)
_COLUMNS: Final[dict[str, Kinds]] = {
    "kind": _TEXT,
    "payload": (StringType, BinaryType, StructType, MapType, ArrayType),
    "queue": _TEXT,
    "key": _TEXT,
    "run_at": _TIME,
    "delay": _NUMBER,
    "deadline": _TIME,
    "expires_at": _TIME,
    "priority": _NUMBER,
    "tenant": _TEXT,
    "subject": _TEXT,
    "max_attempts": _NUMBER,
    "cost": _NUMBER,
    "meta": (MapType,),
}
_WORDS: Final[dict[Kinds, str]] = {
    _TEXT: "a string",
    _TIME: "a timestamp",
    _NUMBER: "a number",
    (MapType,): "a map of strings",
}


def check_columns(schema: StructType, writing: Writing) -> None:
    """`Invalid` names every column that is not allowed, and the types that are."""
    wrong = []
    for field in schema:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            wrong.append(f"a job has no field {field.name}")
        elif not isinstance(field.dataType, kinds):
            may = _WORDS.get(kinds, "JSON text, a struct, a map or an array")
            wrong.append(f"{field.name} is {field.dataType.simpleString()}, not {may}")
    if "kind" not in schema.names and writing.kind is None:
        wrong.append("kind is missing")
    if wrong:
        way_out = f"select some of {', '.join(_COLUMNS)}; one kind for all rows is .option('kind', …)"
        raise Invalid("columns to write", "; ".join(wrong), way_out)


def drafts_of(batch: pa.RecordBatch, writing: Writing) -> Iterator[Draft]:
    """One draft a row, in order."""
    columns = [
        _VALUES.get(name, _plain)(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    names = [
        "body" if name == "payload" and _is_json(batch.schema.field(name).type) else name for name in batch.schema.names
    ]
    common: dict[str, Any] = {} if "queue" in names else {"queue": writing.queue}
    if "kind" not in names:
        common["kind"] = writing.kind or ""
    for values in zip(*columns, strict=True):
        given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        yield Draft(**common, **given)


def _is_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind))


def _plain(column: pa.Array) -> list[Any]:
    return list(column.to_pylist())


def _payloads(column: pa.Array) -> list[Any]:
    if _is_json(column.type):
        return list(column.cast(pa.binary()).to_pylist())
    return list(column.to_pylist(maps_as_pydicts="strict"))


def _instants(column: pa.Array) -> list[Any]:
    return list(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist())


def _counts(column: pa.Array) -> list[Any]:
    return list(column.cast(pa.int64()).to_pylist())


def _durations(column: pa.Array) -> list[Any]:
    seconds = column.cast(pa.float64()).to_pylist()
    return [None if value is None else from_seconds("delay", value) for value in seconds]


_VALUES: Final[dict[str, Callable[[pa.Array], list[Any]]]] = {
    "payload": _payloads,
    "run_at": _instants,
    "deadline": _instants,
    "expires_at": _instants,
    "delay": _durations,
    "priority": _counts,
    "max_attempts": _counts,
    "cost": _counts,
    "meta": lambda column: list(column.to_pylist(maps_as_pydicts="strict")),
}
