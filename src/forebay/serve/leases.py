"""Leases that travel: what `/claim` hands out, and what `/settle` and `/extend` make of it again.

A worker in another language holds a text. It carries the fence (job and delivery), whose it is, and what the server
must know to decide alike when the same settle comes twice; it is signed, so that nobody can make one up. The secret
lies in the store, in the retained log `forebay.leases`, written once by the first server: so a lease outlives a restart
of the server and is good at every other server of the store. The fence itself is checked by the store alone.
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
from forebay.core.instant import micros
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
from forebay.serve.api.bodies import Error, Settle, json_of, span_of
from forebay.serve.security.keys import make_log
from forebay.store.protocol import Store

SECRET_LOG: Final = "forebay.leases"
_SECRET_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 16
_TOKEN_MOST: Final = 2_048
_UNSAID: Final = "unsaid"


class Proof(Struct, frozen=True, array_like=True):
    """What the text of a lease says. `holder` is the actor that it was given to."""

    job_id: int
    delivery: int
    attempt: int
    max_attempts: int
    queue: str
    kind: str
    owner: str
    holder: str

    def stands_for(self, job: Job) -> bool:
        """Whether the job is held by this very lease."""
        return job.state is State.RUNNING and (job.id, job.delivery) == (self.job_id, self.delivery)

    def lease(self, job: Job | None) -> Lease:
        """The lease: with the job as it looks now, or with what is known of it when it has moved on.

        The latter is only for asking the store whether this very settle was applied before.
        """
        if job is not None and self.stands_for(job):
            return Lease(job, self.owner, job.lease_until or 0)
        return Lease(self._remembered(), self.owner, 0)

    def _remembered(self) -> Job:
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


_decode: Final = msgspec.json.Decoder(Proof).decode
_encode: Final = msgspec.json.Encoder().encode


class Signer:
    """Makes and reads the texts of leases."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def text(self, lease: Lease, holder: str) -> str:
        job = lease.job
        proof = Proof(job.id, job.delivery, job.attempt, job.max_attempts, job.queue, job.kind, lease.owner, holder)
        said = _encode(proof)
        return base64.urlsafe_b64encode(self._sign(said) + said).decode().rstrip("=")

    def proof(self, text: str, holder: str) -> Proof | None:
        """None: nobody here gave it to this actor."""
        if len(text) > _TOKEN_MOST or not text.isascii() or text.endswith("="):
            return None
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        signature, said = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(said)):
            return None
        proof = _decode(said)
        return proof if proof.holder == holder else None

    def _sign(self, said: bytes) -> bytes:
        return hmac.digest(self._secret, said, sha256)[:_SIGNATURE_BYTES]


def signer_of(store: Store) -> Signer:
    """With the secret of this store, which the first one to ask makes."""
    make_log(store, SECRET_LOG)
    first = store.read(SECRET_LOG, 0, -1, 1)
    if not first:
        store.append(SECRET_LOG, [_encode(secrets.token_hex(_SECRET_BYTES))])
        first = store.read(SECRET_LOG, 0, -1, 1)
    return Signer(bytes.fromhex(msgspec.json.decode(first[0].body, type=str)))


def outcome_of(said: Settle) -> Outcome:
    """What happened, as a worker would put it."""
    match said.outcome:
        case "ack":
            result = _result(said.result)
            keep_for = 0 if result is None else micros(RESULT_KEPT)
            return Succeeded(result, keep_for if said.keep is None else span_of("keep", said.keep))
        case "fail":
            return Failed(_failure(said.error), None if said.after is None else span_of("after", said.after))
        case "drop":
            return Dropped(_failure(said.error))
        case "release":
            return Interrupted()
        case "snooze":
            if said.after is None:
                raise Invalid("after", "a snooze says for how long", "give after, in seconds")
            return Snoozed(span_of("after", said.after))
        case "cancel":
            return Withdrawn(0 if said.keep is None else span_of("keep", said.keep))
        case _:
            assert_never(said.outcome)


def _result(result: Raw | UnsetType) -> bytes | None:
    """Null is no result, as a handler that returns None keeps none."""
    given = json_of(result)
    return None if given == b"null" else check_body(given)


def _failure(error: Error | None) -> Failure:
    return Failure(_UNSAID) if error is None else Failure(error.kind, error.message, error.trace)


def words_of(verdict: Verdict) -> tuple[str, float | None]:
    """What became of the job, and after how many seconds it comes back."""
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
