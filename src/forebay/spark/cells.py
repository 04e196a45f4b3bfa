"""The ledgers of several cells as one tail: a partition for each cell, in the order of the cells' numbers.

Each ledger keeps its own offsets. A row of several cells has the number of its cell in `cell` and its offset in that
ledger in `seq`, and its job id is the one that all cells use. A cell is opened when it is read: one that does not
answer is named, and holds up no other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.core.errors import Invalid, OffsetGone, StoreFailed
from forebay.spark.tails import LedgerTail
from forebay.store.open import CellLedger, open_cell_ledger

_REMEDY: Final = "its events are read when it answers again; the other cells are not affected"


class CellsTail:
    """The ledgers of all cells."""

    def __init__(self, cells: list[CellLedger]) -> None:
        self.cells: Final = cells
        self._tails: dict[int, LedgerTail] = {}

    def extents(self) -> list[tuple[int, int]]:
        return [self.extent(partition) for partition in range(len(self.cells))]

    def extent(self, partition: int) -> tuple[int, int]:
        """Of one cell; `StoreFailed` names it where it does not answer."""
        with self._naming(partition):
            return self._tail(partition).extents()[0]

    def within(self, partition: int, start: int, end: int, rows: int) -> int:
        with self._naming(partition):
            return self._tail(partition).within(0, start, end, rows)

    def batches(self, partition: int, start: int, end: int, schema: StructType, rows: int) -> Iterator[pa.RecordBatch]:
        number = self.cells[partition].number
        own = (
            schema if "offset" in schema.names else StructType([*schema.fields, StructType().add("offset", "long")[0]])
        )
        with self._naming(partition):
            for batch in self._tail(partition).batches(0, start, end, own, rows):
                yield _placed(batch, number).select(schema.names)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def _tail(self, partition: int) -> LedgerTail:
        if partition not in self._tails:
            self._tails[partition] = LedgerTail(open_cell_ledger(self.cells[partition]))
        return self._tails[partition]

    @contextmanager
    def _naming(self, partition: int) -> Iterator[None]:
        name = f"cell {self.cells[partition].name}"
        try:
            yield
        except OffsetGone as error:
            raise OffsetGone(f"the ledger of {name}", partition, error.requested, error.first) from None
        except (Invalid, StoreFailed) as error:
            raise StoreFailed(name, str(error), _REMEDY) from error


def _placed(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """With the cell and the offset of each row in that cell's ledger, if these columns were requested."""
    columns = {"cell": pa.repeat(pa.scalar(number, pa.int32()), len(batch)), "seq": batch["offset"]}
    for name, values in columns.items():
        if (index := batch.schema.get_field_index(name)) >= 0:
            batch = batch.set_column(index, batch.schema.field(name), values)
    return batch
