"""The bounds of everything, in one place: sizes, batches, times, counts.

A bound is checked where a value is made (`Draft`, `QueueSpec`, …), so every store takes the same decision.
"""

from datetime import timedelta
from typing import Final

NAME_LENGTH: Final = 128
TEXT_LENGTH: Final = 256
PAYLOAD_BYTES: Final = 256 * 1024
PAYLOAD_DEPTH: Final = 64
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1

MAX_BATCH: Final = 1_000
"""Items in one call of any verb."""

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Payloads or results in one call, together."""

MAX_ATTEMPTS: Final = 2**31 - 1
"""Also what "unlimited" means."""

MAX_PRIORITY: Final = 2**31 - 1
MAX_AGING_STEP: Final = timedelta(hours=1)
"""With a 32-bit priority the rank then fits 64 bits with room to spare."""

MAX_WEIGHT: Final = 1_000
MAX_SLOTS: Final = 2**31 - 1
MAX_COST: Final = 1_000_000
MIN_RATE_STEP: Final = 100
"""Microseconds from start to start at the highest rate: what is rounded to whole microseconds is off by 1 % at most."""

MAX_ROUTES: Final = 64
MAX_PARTITIONS: Final = 1_024
MAX_DEPTH: Final = 2**31 - 1

MIN_LEASE: Final = timedelta(milliseconds=1)
MAX_LEASE: Final = timedelta(days=7)
MAX_DURATION: Final = timedelta(days=3_660)
MAX_INSTANT: Final = 7_258_118_400_000_000
"""The year 2200, in microseconds: a run time beyond it is a mistake of units."""

MAX_PRESENCE: Final = timedelta(hours=1)
"""How long a worker that stopped announcing itself is still shown."""

MAX_WAIT: Final = timedelta(days=1)
"""How long one call of a verb may sleep."""

MAX_NOTE: Final = 200
"""Characters of a job's progress text."""

RESULT_KEPT: Final = timedelta(hours=1)
"""How long a finished job stays readable whose handler keeps results and does not say for how long."""

ERROR_MESSAGE_LENGTH: Final = 1_000
ERROR_TRACE_LENGTH: Final = 4_000
ERRORS_KEPT: Final = 5
"""Past failures kept with a job; the ledger has all of them."""

MAX_INGEST: Final = 32 * MAX_BATCH
"""Drafts in one call of `ingest`."""

SOURCE_KEPT: Final = timedelta(days=90)
"""How long the checkpoint of a source is kept after its last change."""

LEDGER_KEPT: Final = timedelta(days=7)
LEDGER_BYTES: Final = 1024 * 1024 * 1024
"""How much of its ledger a store keeps unless its rule says otherwise."""

MAX_ID: Final = 2**63 - 1

MAX_AHEAD: Final = 10_000
"""Jobs that are counted to show how many are ahead of one."""

LANES_MET: Final = 4_000
"""Heads that one claim may find expired or behind a closed gate; the next claim continues."""

MAX_PARKED: Final = 1_000
"""Jobs that are counted to show how many are parked at a gate."""

MAX_BLOCKED: Final = 1_000
"""Lines of a queue that are examined to count the blocked ones."""

CONTENT_SCAN: Final = 500
"""Jobs that one page of a search by meta or payload reads; the next page continues."""

MAINTAINED: Final = 256
"""Due jobs that a verb takes care of in passing."""

SETTLE_MEMORY: Final = 65_536
"""Deleted jobs whose last settle a store keeps: a repeated one gets the same answer."""

META_ENTRIES: Final = 16
META_BYTES: Final = 4_096
