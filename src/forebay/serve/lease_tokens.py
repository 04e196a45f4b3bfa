"""Lease tokens: what `/claim` returns and `/settle` and `/extend` take.

A worker over HTTP holds a lease as a text. It carries the fence (job and delivery), the actor it was given to, and what
the server needs to reach the same verdict when a settle is repeated. It is signed and cannot be forged. The secret is
in the store, in the retained log `forebay.leases`, written once by the first server, so that a token survives a restart
and is valid at every server of the store. The fence itself is checked by the store.
"""

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct, UnsetType

from forebay.core.errors import Invalid
from forebay.core.instant import from_seconds, micros
from forebay.core.job import Job, State
from forebay.core.lease import Lease
from forebay.core.limits import RESULT_KEPT
from forebay.core.outcome import (
    Ack,
    Cancel,
    DeadLetter,
    Dropped,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Release,
    Retry,
    Snoozed,
    Succeeded,
    Verdict,
    Withdrawn,
)
from forebay.core.payload import check_body
from forebay.serve.api.requests import Error, Settle, json_of
from forebay.serve.security.keys import ensure_log
from forebay.store.protocol import Store

SECRET_LOG: Final = "forebay.leases"
_SECRET_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 16
_MAX_TOKEN: Final = 2_048
_NO_ERROR: Final = "unspecified"


class LeaseToken(Struct, frozen=True, array_like=True):
    """The content of a token. `holder` is the actor that it was given to."""

    job_id: int
    delivery: int
    attempt: int
    max_attempts: int
    queue: str
    kind: str
    owner: str
    holder: str

    def holds(self, job: Job) -> bool:
        """Whether the job is running under this lease."""
        return job.state is State.RUNNING and (job.id, job.delivery) == (self.job_id, self.delivery)

    def lease(self, job: Job | None) -> Lease:
        """The lease with the job's current state, or with the token's fields when the lease is over.

        The latter suffices for the store to recognise a settle that was applied before.
        """
        if job is not None and self.holds(job):
            return Lease(job, self.owner, job.lease_until or 0)
        return Lease(self._stub(), self.owner, 0)

    def _stub(self) -> Job:
        return Job(
            id=self.job_id,
            queue=self.queue,
            kind=self.kind,
            body=b"null",
            state=State.RUNNING,
            priority=0,
            enqueued_at=0,
            due_at=0,
            attempt=self.attempt,
            max_attempts=self.max_attempts,
            delivery=self.delivery,
            key=None,
            tenant=None,
            subject=None,
            deadline=None,
            expires_at=None,
            meta=None,
            owner=self.owner,
            claimed_at=0,
            lease_until=0,
            finished_at=None,
            cancel_requested=False,
            errors=(),
            result_body=None,
        )


_decode: Final = msgspec.json.Decoder(LeaseToken).decode
_encode: Final = msgspec.json.Encoder().encode


class LeaseSigner:
    """Signs and reads tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def text(self, lease: Lease, holder: str) -> str:
        job = lease.job
        token = LeaseToken(
            job.id, job.delivery, job.attempt, job.max_attempts, job.queue, job.kind, lease.owner, holder
        )
        content = _encode(token)
        return base64.urlsafe_b64encode(self._sign(content) + content).decode().rstrip("=")

    def read(self, text: str, holder: str) -> LeaseToken | None:
        """None: malformed, forged, or given to another actor."""
        if len(text) > _MAX_TOKEN or not text.isascii() or text.endswith("="):
            return None
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        signature, content = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(content)):
            return None
        token = _decode(content)
        return token if token.holder == holder else None

    def csrf_token(self, user: str) -> str:
        """For a user of a host application; the same in all of its processes."""
        return hmac.new(hmac.digest(self._secret, b"csrf", sha256), user.encode(), sha256).hexdigest()

    def _sign(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, sha256)[:_SIGNATURE_BYTES]


def load_signer(store: Store) -> LeaseSigner:
    """The signer with the store's secret, which is created on first use."""
    ensure_log(store, SECRET_LOG)
    first = store.read(SECRET_LOG, 0, -1, 1)
    if not first:
        store.append(SECRET_LOG, [_encode(secrets.token_hex(_SECRET_BYTES))])
        first = store.read(SECRET_LOG, 0, -1, 1)
    return LeaseSigner(bytes.fromhex(msgspec.json.decode(first[0].body, type=str)))


def outcome_of(settlement: Settle) -> Outcome:
    """The outcome that a settlement reports."""
    match settlement.outcome:
        case "ack":
            result = _result(settlement.result)
            keep_for = 0 if result is None else micros(RESULT_KEPT)
            return Succeeded(result, keep_for if settlement.keep is None else from_seconds("keep", settlement.keep))
        case "fail":
            return Failed(
                _failure(settlement.error),
                None if settlement.after is None else from_seconds("after", settlement.after),
            )
        case "drop":
            return Dropped(_failure(settlement.error))
        case "release":
            return Interrupted()
        case "snooze":
            if settlement.after is None:
                raise Invalid("after", "a snooze needs a duration", "give after, in seconds")
            return Snoozed(from_seconds("after", settlement.after))
        case "cancel":
            return Withdrawn(0 if settlement.keep is None else from_seconds("keep", settlement.keep))
        case _:
            assert_never(settlement.outcome)


def _result(result: Raw | UnsetType) -> bytes | None:
    """Null means no result, as for a handler that returns None."""
    given = json_of(result)
    return None if given == b"null" else check_body(given)


def _failure(error: Error | None) -> Failure:
    return Failure(_NO_ERROR) if error is None else Failure(error.kind, error.message, error.trace)


def describe_verdict(verdict: Verdict) -> tuple[str, float | None]:
    """The verdict's name, and the seconds until the job is due again."""
    match verdict:
        case Ack():
            return "done", None
        case Retry(after):
            return "retry", after / 1_000_000
        case DeadLetter():
            return "dead", None
        case Release(after):
            return "released", after / 1_000_000
        case Cancel():
            return "cancelled", None
        case _:
            assert_never(verdict)
