"""Signatures of webhooks, by the rules of Standard Webhooks: https://www.standardwebhooks.com

    event = verify(request.body, request.headers, secret)["data"]        # in the service that receives it

`fb.webhook(...)` sends them (`forebay.work.webhook`). The signature is an HMAC-SHA256 over id, timestamp and body, so
neither a body nor an old delivery can be passed off as a new one. The id is the same for every attempt of a job: a
receiver that stores ids handles each job once.
"""

import hmac
import time
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import Final

import msgspec

from forebay.core.errors import Invalid
from forebay.core.payload import Json, decode_payload

__all__ = ["WebhookInvalid", "new_secret", "sign", "verify"]

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

TOLERANCE: Final = 300
"""Seconds by which the clocks of sender and receiver may differ, and for which a delivery may be under way."""

MAX_SECRETS: Final = 4
_MAX_SIGNATURES: Final = 16
_PREFIX: Final = "whsec_"
_MIN_BYTES: Final = 24
_MAX_BYTES: Final = 64


class WebhookInvalid(Invalid):
    """A delivery whose signature, timestamp or body is not valid. Answer with 400, and handle nothing of it."""


def new_secret() -> str:
    """A random secret, for sender and receiver."""
    return _PREFIX + b64encode(token_bytes(32)).decode()


def sign(message_id: str, timestamp: int, body: bytes, secret: str | Sequence[str]) -> dict[str, str]:
    """The headers of a delivery; with several secrets, a signature by each of them."""
    signatures = [f"v1,{_signature(key, message_id, timestamp, body)}" for key in keys_of(secret)]
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance: int = TOLERANCE,
    now: float | None = None,
) -> Json:
    """The decoded body of a delivery that was signed with one of these secrets, or `WebhookInvalid`."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, at, signatures = (given.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not message_id or not at.isascii() or not at.isdigit() or len(at) > 15:
        raise WebhookInvalid("webhook", f"{ID} or {TIMESTAMP} is missing or malformed", "send it as it was signed")
    if abs((time.time() if now is None else now) - int(at)) > tolerance:
        raise WebhookInvalid(TIMESTAMP, f"it is more than {tolerance} s away from now", "check both clocks")
    received = [value for version, _, value in (part.partition(",") for part in signatures.split()) if version == "v1"]
    expected = [_signature(key, message_id, int(at), body) for key in keys_of(secret)]
    matches = [
        hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
        for one in expected
        for other in received[:_MAX_SIGNATURES]
    ]
    if not any(matches):
        raise WebhookInvalid(SIGNATURE, "no signature is by a known secret", "check the secret of both sides")
    try:
        return decode_payload(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise WebhookInvalid("webhook", "its body is not JSON", "send it as it was signed") from None


def keys_of(secret: str | Sequence[str]) -> list[bytes]:
    """The keys in one or several secrets, newest first. No message contains any of them."""
    given = [secret] if isinstance(secret, str) else list(secret)
    if not 1 <= len(given) <= MAX_SECRETS:
        raise Invalid("webhook secret", f"{len(given)} were given", f"give 1 to {MAX_SECRETS}")
    return [_key(each) for each in given]


def _key(secret: str) -> bytes:
    try:
        key = b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (NotBase64, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        way_out = f"write {_PREFIX} and {_MIN_BYTES} to {_MAX_BYTES} random bytes in base64, as new_secret() does"
        raise Invalid("webhook secret", "it is malformed", way_out)
    return key


def _signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return b64encode(hmac.digest(key, signed, "sha256")).decode()
