"""The pictures of jobs that callers get, from the columns that the tables have. Lists travel as one JSON text."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

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
