"""JWTs of a trusted issuer, verified with its public keys: a JWKS file, or a URL whose keys are cached.

Only asymmetric algorithms are accepted (RS256, ES256, EdDSA): `none` and HS* are refused, and the algorithm must match
the type of the key, so that a public key is never used as a shared secret. A claim that the rules name is required: a
token without it is refused.

An unknown `kid` makes the keys be fetched again, at most once per `REFETCH_SECONDS`, one fetch at a time, bounded by
`FETCH_SECONDS` and `JWKS_BYTES`: a flood of forged tokens does not reach the issuer.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.limits import TEXT_LENGTH
from forebay.core.names import check_name
from forebay.core.payload import clean_text
from forebay.serve.actor import Actor, Role
from forebay.serve.settings import is_loopback

ALGORITHMS: Final = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""The key type of each algorithm."""

REFETCH_SECONDS: Final = 30.0
FETCH_SECONDS: Final = 3.0
JWKS_BYTES: Final = 256 * 1024
JWKS_KEYS: Final = 100
TOKEN_LENGTH: Final = 8_192
MAX_LEEWAY: Final = 120


class TokenRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens are accepted. Claims are names, or dotted paths: `realm_access.roles`.

    jwks      a file, or an https URL (http for loopback only)
    queues    the claim with queue names and patterns; None: every queue
    tenant    the claim with the tenant; None: no tenant. Workers and admins have none
    leeway    seconds by which clocks may differ
    """

    issuer: str
    audience: str
    jwks: str
    roles: str = "roles"
    queues: str | None = None
    tenant: str | None = None
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    leeway: int = 30

    def __post_init__(self) -> None:
        if not self.algorithms or not set(self.algorithms) <= ALGORITHMS.keys():
            given = ", ".join(self.algorithms) or "none"
            raise Invalid("JWT algorithms", f"{given}: not all are allowed", f"use {', '.join(ALGORITHMS)}")
        if not 0 <= self.leeway <= MAX_LEEWAY:
            raise Invalid("JWT leeway", f"{self.leeway} is not in 0 … {MAX_LEEWAY} s", "synchronise the clocks by NTP")
        if not self.issuer or not self.audience:
            raise Invalid("JWT", "issuer and audience are required", "give both")
        if (parts := urlsplit(self.jwks)).scheme in ("http", "https"):
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                raise Invalid("JWKS", f"{self.jwks} would be fetched over plain http", "use https, or a file")
        elif not Path(self.jwks).is_file():
            raise Invalid("JWKS", f"{self.jwks} is neither an https URL nor a file", "give one of the two")


class VerifiedToken(Struct, frozen=True):
    """The actor of a verified token, and when it expires."""

    actor: Actor
    until: Instant


class TokenVerifier:
    """Verifies tokens with the issuer's keys."""

    def __init__(self, rules: TokenRules, now: Callable[[], float] = monotonic) -> None:
        self._rules = rules
        self._now = now
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._fetched_at = float("-inf")
        self._fetching = asyncio.Lock()

    async def verify(self, text: str) -> VerifiedToken | None:
        """None when the token is malformed, expired, or not from the issuer."""
        if len(text) > TOKEN_LENGTH:
            return None
        try:
            header = jwt.get_unverified_header(text)
            key = await self._key(header.get("kid"))
            if key is None or header.get("alg") not in self._rules.algorithms or header["alg"] != key.algorithm_name:
                return None
            claims = jwt.decode(
                text,
                key.key,
                algorithms=[header["alg"]],
                issuer=self._rules.issuer,
                audience=self._rules.audience,
                leeway=self._rules.leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            return VerifiedToken(_actor(self._rules, claims), int(claims["exp"] * 1_000_000))
        except (jwt.InvalidTokenError, Invalid, ValueError, TypeError, OverflowError, RecursionError):
            return None

    async def _key(self, kid: str | None) -> jwt.PyJWK | None:
        if kid not in self._keys and self._now() - self._fetched_at >= REFETCH_SECONDS and not self._fetching.locked():
            async with self._fetching:
                self._fetched_at = self._now()
                keys = await asyncio.to_thread(_fetch_keys, self._rules.jwks)
                if keys is not None:
                    self._keys = keys
        return self._keys.get(kid)


def _fetch_keys(location: str) -> dict[str | None, jwt.PyJWK] | None:
    """The issuer's keys by id; None when they cannot be read."""
    try:
        if urlsplit(location).scheme in ("http", "https"):
            request = Request(location, headers={"Accept": "application/json"})
            with build_opener(_NoRedirect).open(request, timeout=FETCH_SECONDS) as response:
                body = response.read(JWKS_BYTES + 1)
        else:
            with Path(location).open("rb") as file:
                body = file.read(JWKS_BYTES + 1)
        if len(body) > JWKS_BYTES:
            return None
        listed = msgspec.json.decode(body, type=dict[str, Any]).get("keys", [])
        keys = [key for each in listed[:JWKS_KEYS] if (key := _public(each)) is not None]
        return {key.key_id: key for key in keys}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _public(entry: Any) -> jwt.PyJWK | None:
    """A public signature key; None for any other entry of the list."""
    try:
        if entry.get("kty") not in ALGORITHMS.values() or entry.get("use", "sig") != "sig" or "d" in entry:
            return None
        return jwt.PyJWK(entry)
    except (jwt.PyJWTError, AttributeError, ValueError):
        return None


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: keys come from the configured URL only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _actor(rules: TokenRules, claims: Mapping[str, Any]) -> Actor:
    roles = frozenset(role for role in Role if role in _words(_claim(claims, rules.roles)))
    queues = _words(_claim(claims, rules.queues)) if rules.queues else ("*",)
    tenant = None
    if rules.tenant and not roles & {Role.WORKER, Role.ADMIN}:
        tenant = check_name("tenant", _claim(claims, rules.tenant))
    return Actor(clean_text(f"jwt:{claims['sub']}", TEXT_LENGTH), roles, queues, tenant)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    if found is None:
        raise Invalid("token", f"the claim {name} is missing", "check the issuer's claims")
    return found


def _words(given: Any) -> tuple[str, ...]:
    """A list of strings, or one string of words separated by spaces."""
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Invalid("token", "a claim is not a list of strings", "check the issuer's claims")
    return tuple(words)
