"""The pictures of jobs that callers get, from the columns that the tables have. Lists travel as one JSON text."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from forebay.core.instant import Instant
from forebay.core.job import Job
from forebay.core.lease import Lease
from forebay.core.outcome import Failure
from forebay.store.states import STATES

_FIELDS: Final = Job.__struct_fields__.index("progress")
"""Those that a row has; progress is kept elsewhere."""

_INTEGER_MOST: Final = 2**63 - 1

_META, _ERRORS, _STATE, _CANCEL = (
    Job.__struct_fields__.index(name) for name in ("meta", "errors", "state", "cancel_requested")
)
_encode: Final = msgspec.json.Encoder().encode
_decode_meta: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_errors: Final = msgspec.json.Decoder(tuple[Failure, ...]).decode


class Row(NamedTuple):
    """What a move from state to state needs to know of a job: `{row}` in a statement, `{row}, errors` where it fails.

    `behind`: the head of its line goes before it. `home`: the queue that it belongs to, also where it is dead.
    """

    id: int
    queue: str
    lane: str
    state: int
    rank: int
    due_at: Instant
    line: str | None
    blocks: int
    behind: int
    cost: int
    kind: str
    delivery: int
    attempt: int
    enqueued_at: Instant
    claimed_at: Instant
    lease_until: Instant
    cancel_requested: int
    settled_delivery: int
    settled_code: str
    rank_base: int
    rank_timed: int
    home: str
    errors: str | None = None


def rows_of(found: Iterable[tuple[Any, ...]]) -> list[Row]:
    return [Row(*columns) for columns in found]


class LaneName(NamedTuple):
    """What the text of a lane says (`core.gate.lane_key`)."""

    cls: str
    gates: tuple[str, ...]


@lru_cache(maxsize=4_096)
def lane_name(lane: str) -> LaneName:
    """No class has a name that begins like a JSON array."""
    if not lane.startswith("["):
        return LaneName(lane, ())
    cls, *gates = json.loads(lane)
    return LaneName(cls, tuple(gates))


def picture(columns: Sequence[Any]) -> Job:
    """The immutable `Job` that leaves the store, from the first columns of a statement."""
    fields = list(columns[:_FIELDS])
    fields[_STATE] = STATES[fields[_STATE]]
    fields[_CANCEL] = fields[_CANCEL] == 1
    meta, errors = fields[_META], fields[_ERRORS]
    if meta is not None:
        fields[_META] = _decode_meta(meta)
    fields[_ERRORS] = () if errors is None else _decode_errors(errors)
    return Job(*fields)


def lease_of(columns: Sequence[Any]) -> Lease:
    job = picture(columns)
    return Lease(job, job.owner or "", job.lease_until or 0)


def errors_of(text: str | None) -> tuple[Failure, ...]:
    return () if text is None else _decode_errors(text)


def text_of(value: object) -> str:
    """A value as the JSON that a column holds."""
    return _encode(value).decode()


def id_list(ids: Iterable[int]) -> str:
    """Ids for `json_each`; what is no 64-bit integer is nobody's id."""
    return str([job_id for job_id in ids if 0 < job_id <= _INTEGER_MOST])
