"""JWTs of an issuer that you trust, checked by its public keys: a JWKS file, or a URL that is read and kept.

Only signatures with a private key count (RS256, ES256, EdDSA): `none` and the shared secrets of HS* are refused, and an
algorithm must be the one of the key's own kind, so no public key is ever taken for a secret. A claim that the rules
name must be there: a token without it is nobody's.

A `kid` that is not known makes the keys be read again, at most once in `REFETCH_SECONDS`, by one reader at a time,
within `FETCH_SECONDS` and `JWKS_BYTES`: a flood of made-up tokens costs the issuer nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from ipaddress import ip_address
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

ALGORITHMS: Final = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""Algorithm: the kind of key it needs."""

REFETCH_SECONDS: Final = 30.0
FETCH_SECONDS: Final = 3.0
JWKS_BYTES: Final = 256 * 1024
JWKS_KEYS: Final = 100
TOKEN_LENGTH: Final = 8_192
LEEWAY_MOST: Final = 120


class TokenRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose tokens count. Claims are names, or paths with dots: `realm_access.roles`.

    jwks      a file, or an https URL (http only on this machine)
    queues    the claim with names and patterns; None: every queue
    tenant    the claim with the tenant; None: no tenant.  Workers and admins have none
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
            raise Invalid("JWT algorithms", "not all of them are allowed", f"use {', '.join(ALGORITHMS)}")
        if not 0 <= self.leeway <= LEEWAY_MOST:
            raise Invalid("JWT leeway", f"{self.leeway} is not in 0 … {LEEWAY_MOST} s", "set the clocks by NTP")
        if not self.issuer or not self.audience:
            raise Invalid("JWT", "issuer and audience are needed", "give both: a token for others is none for us")
        if (parts := urlsplit(self.jwks)).scheme in ("http", "https"):
            if parts.scheme == "http" and not _is_here(parts.hostname or ""):
                raise Invalid("JWKS", "it would be read over plain http", "use https, or a file")
        elif not Path(self.jwks).is_file():
            raise Invalid("JWKS", "it is neither an https URL nor a file", "give one of the two")


class Bearer(Struct, frozen=True):
    """Who a token names, and until when."""

    actor: Actor
    until: Instant


class Tokens:
    """Checks tokens by the issuer's keys."""

    def __init__(self, rules: TokenRules, now: Callable[[], float] = monotonic) -> None:
        self._rules = rules
        self._now = now
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self.fetches = 0

    async def bearer(self, text: str) -> Bearer | None:
        """Who this token names; None when it is none of ours."""
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
            return Bearer(_actor(self._rules, claims), int(claims["exp"] * 1_000_000))
        except (jwt.InvalidTokenError, Invalid, ValueError, TypeError, OverflowError, RecursionError):
            return None

    async def _key(self, kid: str | None) -> jwt.PyJWK | None:
        if kid not in self._keys and self._now() - self._asked_at >= REFETCH_SECONDS and not self._asking.locked():
            async with self._asking:
                self._asked_at = self._now()
                self.fetches += 1
                read = await asyncio.to_thread(_fetched, self._rules.jwks)
                if read is not None:
                    self._keys = read
        return self._keys.get(kid)


def _fetched(place: str) -> dict[str | None, jwt.PyJWK] | None:
    """The issuer's keys by their ids; None when they cannot be had."""
    try:
        if urlsplit(place).scheme in ("http", "https"):
            asked = Request(place, headers={"Accept": "application/json"})
            with build_opener(_NoRedirect).open(asked, timeout=FETCH_SECONDS) as answer:
                body = answer.read(JWKS_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                body = file.read(JWKS_BYTES + 1)
        if len(body) > JWKS_BYTES:
            return None
        listed = msgspec.json.decode(body, type=dict[str, Any]).get("keys", [])
        keys = [key for each in listed[:JWKS_KEYS] if (key := _public(each)) is not None]
        return {key.key_id: key for key in keys}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _public(entry: Any) -> jwt.PyJWK | None:
    """A key that checks signatures; others in the list are no concern of ours."""
    try:
        if entry.get("kty") not in ALGORITHMS.values() or entry.get("use", "sig") != "sig" or "d" in entry:
            return None
        return jwt.PyJWK(entry)
    except (jwt.PyJWTError, AttributeError, ValueError):
        return None


class _NoRedirect(HTTPRedirectHandler):
    """Keys come from where they were said to be, or not at all."""

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
        raise Invalid("token", f"it has no claim {name}", "see the issuer's claims")
    return found


def _words(given: Any) -> tuple[str, ...]:
    """A list of words, or words in one text."""
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Invalid("token", "a claim is no list of words", "see the issuer's claims")
    return tuple(words)


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
