"""Payloads and results encrypted at rest: the store and its backups hold envelopes instead of content.

    fb = Forebay(url, vault=Vault.from_env())        # FOREBAY_VAULT_KEYS="2026-11:<base64>,2026-05:<base64>"

AES-256-GCM, bound to the kind of the job, so that an envelope cannot be passed to another handler. The first key seals,
every key opens; to rotate, put a new key first, in every process, and drop the old one once no job needs it. Client and
worker seal and open. Kinds, queues, idempotency keys, subjects, tenants and meta stay readable, because stores use
them. A job whose payload cannot be opened fails with `SealBroken`, is retried by its policy, and ends as a dead letter
that can be redriven.

Nonces are random. A job with an idempotency key must be recognised when it is enqueued again, also under another vault
key, so its envelope carries a mark: a keyed digest of queue, key and payload, by the oldest known key. It reveals no
more than the idempotency key does, and it changes only when the oldest key is dropped.
"""

import os
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from hashlib import sha256
from hmac import digest as hmac_digest
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from forebay.core.errors import Invalid, SealBroken
from forebay.core.job import Draft, Job
from forebay.core.limits import PAYLOAD_BYTES
from forebay.core.names import check_name
from forebay.core.payload import SEALED

VARIABLE: Final = "FOREBAY_VAULT_KEYS"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_NOTHING: Final = (b"null", b"{}")
_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Vault:
    """Seals with its first key, opens with any. Keys are 32 random bytes under a name."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        ciphers = _ciphers()
        if not keys:
            raise Invalid("vault", "it has no key", f"set one in {VARIABLE}")
        for name, key in keys.items():
            check_name("vault key", name)
            if len(key) != KEY_BYTES:
                raise Invalid(f"vault key {name}", f"it has {len(key)} bytes", f"give {KEY_BYTES} random bytes")
        self._ciphers = {name: ciphers(key) for name, key in keys.items()}
        self._first = next(iter(keys))
        self._marking = sha256(b"forebay mark" + list(keys.values())[-1]).digest()

    @classmethod
    def from_env(cls, variable: str = VARIABLE) -> "Vault":
        """`name:base64,name:base64`; the first one seals."""
        keys = {}
        for part in filter(None, os.environ.get(variable, "").split(",")):
            name, _, text = part.strip().partition(":")
            try:
                keys[name] = b64decode(text, validate=True)
            except NotBase64:
                raise Invalid(variable, f"the key {name!r} is not base64", "write name:base64") from None
        return cls(keys)

    def seal(self, kind: str, body: bytes, limit: int = PAYLOAD_BYTES) -> bytes:
        """The envelope of encoded JSON."""
        return self._seal(kind, body, None, limit)

    def open(self, kind: str, body: bytes) -> bytes:
        """The content of the envelope; a body that is not sealed is returned unchanged."""
        envelope = envelope_of(body)
        if envelope is None:
            return body
        name = str(envelope.get("key"))
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise SealBroken(kind, name, f"this process has no key {name!r}, only {', '.join(self._ciphers)}")
        try:
            opened: bytes = cipher.decrypt(b64decode(envelope["nonce"]), b64decode(envelope["text"]), kind.encode())
        except Exception as error:
            reason = "this process has another key of that name, or the envelope was changed"
            raise SealBroken(kind, name, reason) from error
        return opened

    def seal_draft(self, draft: Draft) -> Draft:
        """The draft with its payload sealed; a sealed or empty payload stays unchanged."""
        if draft.body in _NOTHING or envelope_of(draft.body) is not None:
            return draft
        return replace(draft, payload=None, body=self.seal_body(draft, draft.body))

    def seal_body(self, draft: Draft, body: bytes, limit: int = PAYLOAD_BYTES) -> bytes:
        """The envelope of a payload for this draft; with its mark, if the draft has a key."""
        mark = None
        if draft.key is not None:
            about = _sorted([draft.kind, draft.queue, draft.key, msgspec.json.decode(body)])
            mark = b64encode(hmac_digest(self._marking, about, "sha256")[:16]).decode()
        return self._seal(draft.kind, body, mark, limit)

    def open_job(self, job: Job) -> Job:
        """The job with its payload and result opened."""
        result = None if job.result_body is None else self.open(job.kind, job.result_body)
        return replace(job, body=self.open(job.kind, job.body), result_body=result)

    def _seal(self, kind: str, body: bytes, mark: str | None, limit: int = PAYLOAD_BYTES) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        text = self._ciphers[self._first].encrypt(nonce, body, kind.encode())
        envelope = {"key": self._first, "nonce": b64encode(nonce).decode(), "text": b64encode(text).decode()}
        sealed = msgspec.json.encode({SEALED: envelope if mark is None else {**envelope, "same": mark}})
        if len(sealed) > limit:
            maximum = limit * 3 // 4 - 256
            raise Invalid(kind, f"{len(body)} bytes are too many to seal", f"the limit is about {maximum} bytes")
        return sealed


def envelope_of(body: bytes) -> dict[str, Any] | None:
    """The decoded envelope; None for a payload that is not sealed."""
    if not body.startswith(b'{"' + SEALED.encode()):
        return None
    payload = msgspec.json.decode(body)
    envelope = payload.get(SEALED)
    return envelope if len(payload) == 1 and isinstance(envelope, dict) else None


def _ciphers() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise Invalid("vault", "cryptography is not installed", "pip install 'forebay[vault]'") from None
    return AESGCM
