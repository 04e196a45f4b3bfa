"""The schemas of everything that the pipeline reads and writes, in one place. Instants are timestamps in UTC.

`EVENTS` is the ledger flattened: one row per job and change, (offset, place) is its identity. Of several cells
(cell, seq, place) is, and `offset` counts the records of all cells in the order in which a lake added them. A record
that moves no job is one row without a job. `RECEIPTS` and `EFFECTS` are evidence that does not come from the store: the
answers to producers, and the effects of handlers.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from forebay.core.errors import Invalid

_TYPES: Final = {
    "long": LongType(),
    "int": IntegerType(),
    "byte": ByteType(),
    "double": DoubleType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "date": DateType(),
    "bool": BooleanType(),
}


def schema_of(columns: str) -> StructType:
    """From lines of `name type` or `name type!`, where `!` means not null."""
    fields = []
    for column in columns.strip().split("\n"):
        name, kind = column.split()
        fields.append(StructField(name, _TYPES[kind.rstrip("!")], nullable=not kind.endswith("!")))
    return StructType(fields)


EVENTS: Final = schema_of("""
offset long!
place int!
event_at timestamp!
verb string!
change string
job_id long
queue string
kind string
delivery int
attempt int
max_attempts int
priority int
owner string
enqueued_at timestamp
due_at timestamp
claimed_at timestamp
lease_until timestamp
next_at timestamp
kept_until timestamp
tenant string
subject string
key string
error_kind string
error string
name string
tick timestamp
day date!
places int
cell int
seq long
""")
"""
offset          the record
place           the job's place in the record: with the offset the identity of an event
event_at        the instant of the record
verb            the call that wrote the record
change          what happened to the job, a word of `Change`; null: the record moves no job
job_id, queue, kind   the job
delivery        the fence of the lease
attempt         the attempt of the lease
max_attempts, priority, tenant, subject, key   of the job, where the record has them
owner           the worker
enqueued_at, due_at, claimed_at   as in the lease (for accepted: of the new job); null where the record has none
lease_until     of claimed and extended
next_at         of retried, released and redriven: when the job is due again
kept_until      of ended jobs that are kept
error_kind, error     of a failure
name            the schedule where the verb is `fire`; else the queue or gate that a verb is about
tick            the slot of the schedule that fired
day             of the event
places          how many events the record has; null in events from before this was recorded
cell            the number of the cell; null in the lake of a single store
seq             the offset of the record in the ledger of its cell; null in the lake of a single store
"""

RECEIPTS: Final = schema_of("""
seq long!
job_id long
answer string!
sent_at timestamp
""")
"""
seq             the producer's own number
job_id          the job in the reply; null: it has none
answer          accepted, duplicate, merged, refused or unknown (the reply was lost)
sent_at         when the call was made
"""

EFFECTS: Final = schema_of("""
seq long!
job_id long!
delivery int!
effect_at timestamp
worker string
""")
"""
seq             the producer's number, from the payload
job_id          the job
delivery        the fence of its lease
effect_at       when the handler did it
worker          the worker
"""


def conform(df: DataFrame, schema: StructType, what: str) -> DataFrame:
    """The columns of the schema, in its order; `Invalid` names what is missing or of another type."""
    wrong = []
    for field in schema:
        if field.name not in df.columns:
            wrong.append(f"{field.name} is missing")
        elif df.schema[field.name].dataType != field.dataType:
            wrong.append(f"{field.name} is {df.schema[field.name].dataType.simpleString()}")
    if wrong:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        raise Invalid(what, "; ".join(wrong), f"it has the columns {columns}")
    return df.select(*schema.names)
