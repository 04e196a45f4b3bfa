"""API keys. A key is `fb_<id>_<secret>`: shown once when it is made; what is kept is a digest of its secret.

The secret is 192 random bits, so a plain SHA-256 is enough: nobody can try 2**192 secrets, however fast the hash.
Slow hashes are for passwords, which people choose; here one would only make every request slow.

Keys live in the store, in the retained log `forebay.keys`: made and revoked are entries, nothing is changed or taken
back. Whoever reads the log from its start knows all keys (`Keyring`); whoever follows it hears of a revocation.
"""

import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.instant import Instant
from forebay.core.names import check_name, check_text
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Actor, Role
from forebay.store.protocol import Store

_log = logging.getLogger("forebay.serve")

KEYS_LOG: Final = "forebay.keys"
SECRET_BYTES: Final = 24
READ_AT_ONCE: Final = 1_000
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:*-]{1,128}", re.ASCII)
_TEXT: Final = re.compile(r"fb_([0-9a-f]{12})_([A-Za-z0-9_-]{32})", re.ASCII)


class Key(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a key; `digest` is of its secret.

    rate, burst   requests a second, and how many at once after a pause;  None: the server's default
    quota_hour, quota_day   jobs it may enqueue;  None: any number
    queue_names   different queues without a spec that it may enqueue to in a day;  None: `limits.QUEUE_NAMES`
    """

    id: str
    digest: str
    name: str
    roles: tuple[Role, ...]
    queues: tuple[str, ...] = ("*",)
    tenant: str | None = None
    created_at: Instant
    expires_at: Instant | None = None
    rate: float | None = None
    burst: int | None = None
    quota_hour: int | None = None
    quota_day: int | None = None
    queue_names: int | None = None

    def __post_init__(self) -> None:
        check_text("key name", self.name)
        if not self.roles:
            raise Invalid("key", "it has no role", f"give --role, one of {', '.join(Role)}")
        if not self.queues or not all(_PATTERN.fullmatch(pattern) for pattern in self.queues):
            raise Invalid("key queues", "they are not names with *", "give names such as mail, or patterns: mail.*")
        if self.tenant is not None:
            check_name("tenant", self.tenant)
            if Role.WORKER in self.roles or Role.ADMIN in self.roles:
                raise Invalid(
                    "key tenant",
                    "workers claim by queue and admins rule all tenants, so neither has a tenant",
                    "bind viewers, producers and operators, or give the tenant queues of its own",
                )
        for field in ("rate", "burst", "quota_hour", "quota_day", "queue_names"):
            if (given := getattr(self, field)) is not None and not 0 < given <= 1_000_000_000:
                raise Invalid(f"key {field}", f"{given} is not in 0 … 1000000000", "give a positive number, or none")

    def actor(self) -> Actor:
        return Actor(f"key:{self.id}:{self.name}", frozenset(self.roles), self.queues, self.tenant)


class Created(Struct, frozen=True, tag="created"):
    key: Key
    by: str


class Revoked(Struct, frozen=True, tag="revoked"):
    id: str
    by: str


Entry: TypeAlias = Created | Revoked
_entries: "Final[msgspec.json.Decoder[Entry]]" = msgspec.json.Decoder(Created | Revoked)


def mint(name: str, roles: Iterable[Role], created_at: Instant, **limits: object) -> tuple[Key, str]:
    """A new key and its text. The text is for the caller's eyes, once; only its digest goes on."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
    fields = {"id": key_id, "digest": digest(secret), "name": name, "roles": tuple(roles), "created_at": created_at}
    return Key(**fields, **limits), f"fb_{key_id}_{secret}"  # type: ignore[arg-type]


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


_NOBODY: Final = digest(secrets.token_urlsafe(SECRET_BYTES))


class Keyring:
    """All keys, as far as the log was read. One thread feeds it (`apply`); any number ask (`find`)."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def apply(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            match entry:
                case Created(key):
                    self._keys[key.id] = key
                case Revoked(key_id):
                    self._keys.pop(key_id, None)

    def find(self, text: str, now: Instant) -> Key | None:
        """The key that this text is; None when it is none, revoked or expired. Takes as long for either."""
        parts = _TEXT.fullmatch(text)
        key = self._keys.get(parts[1]) if parts else None
        fits = hmac.compare_digest(digest(parts[2] if parts else text), key.digest if key else _NOBODY)
        return key if fits and key and not is_over(key, now) else None

    def living(self, key_id: str, now: Instant) -> Key | None:
        """The key of this id while it is good: for those who showed its secret before."""
        key = self._keys.get(key_id)
        return key if key and not is_over(key, now) else None

    def all(self) -> list[Key]:
        return list(self._keys.values())


def is_over(key: Key, now: Instant) -> bool:
    return key.expires_at is not None and now >= key.expires_at


def make_log(store: Store, name: str, window: timedelta | None = None) -> None:
    """The reserved log, made when it is first needed; without a window it is kept for ever."""
    if name not in {spec.name for spec in store.specs()}:
        store.put_spec(QueueSpec(name=name, retention=Retained(partitions=1, window=window)))


def write_entries(store: Store, entries: Sequence[Entry]) -> None:
    make_log(store, KEYS_LOG)
    store.append(KEYS_LOG, [msgspec.json.encode(entry) for entry in entries])


def read_entries(store: Store, after: int) -> tuple[list[Entry], int]:
    """What was written after this offset, all of it, and the offset to go on from."""
    if after < 0 and KEYS_LOG not in {spec.name for spec in store.specs()}:
        return [], after
    found: list[Entry] = []
    while page := store.read(KEYS_LOG, 0, after, READ_AT_ONCE):
        found += [entry for each in page if (entry := _read(each.body)) is not None]
        after = page[-1].offset
    return found, after


def _read(body: bytes) -> Entry | None:
    """What a later version may have written is passed over: it can only name keys that this one does not know."""
    try:
        return _entries.decode(body)
    except (msgspec.DecodeError, Invalid):
        _log.warning("an entry of %s is not understood and passed over", KEYS_LOG)
        return None
