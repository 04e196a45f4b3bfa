"""The shape of everything that an exact check finds: one row an offender, whatever the check."""

from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.schemas import schema_of

FINDINGS: Final = schema_of("""
check string!
seq long
job_id long
delivery int
offset long
place int
note string
""")
"""
seq      the producer's number, if the check has it
offset, place   the wrong event, or the last one of those that contradict each other
"""


def finding(rows: DataFrame, check: str | Column, note: str | Column) -> DataFrame:
    """These rows as findings; what of FINDINGS they have under its name is kept."""
    values = {
        "check": F.lit(check) if isinstance(check, str) else check,
        "note": F.lit(note) if isinstance(note, str) else note,
    }
    columns = []
    for field in FINDINGS:
        value = values.get(field.name)
        if value is None:
            value = F.col(field.name) if field.name in rows.columns else F.lit(None)
        columns.append(value.cast(field.dataType).alias(field.name))
    return rows.select(*columns)


def single_row(frame: DataFrame) -> Row:
    """The one row of an aggregate over everything."""
    (row,) = frame.collect()
    return row
