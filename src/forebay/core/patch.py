"""JSON merge patches (RFC 7396) for payloads: a member replaces, null removes, objects merge recursively."""

from typing import Any

from forebay.core.errors import Invalid
from forebay.core.payload import Json, check_body, decode_payload


def parse_patch(text: str) -> dict[str, Any] | None:
    """Parse a patch; None for an empty text. It must be an object: any other value would replace the payload."""
    if not text.strip():
        return None
    patch = decode_payload(check_body(text.encode()))
    if not isinstance(patch, dict) or not patch:
        raise Invalid("patch", "it is not a JSON object with members", 'write it like {"to": "ada@example.org"}')
    return patch


def patched(payload: Json, patch: Json) -> Json:
    """The payload with the patch applied; neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(payload) if isinstance(payload, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = patched(result.get(name), value)
    return result
