"""API keys. A key is `fb_<id>_<secret>`: shown once when it is created; the store keeps a digest of its secret.

The secret has 192 random bits, so a plain SHA-256 is enough: 2**192 secrets cannot be tried, however fast the hash. A
slow hash is for passwords that people choose; here it would only slow down every request.

Keys are entries of the retained log `forebay.keys`: creations and revocations are appended, nothing is changed. A
`Keyring` is the result of reading the log from its start. Each server follows the log once a second (`KeyFollower`), so
that a revocation takes effect everywhere within 5 seconds.

While the store cannot be read, the last known keys stay valid for `TRUSTED_SECONDS`; after that every key is refused
until the store can be read again. Nearly every response needs the store anyway, and this bounds how long a server that
is cut off accepts a key that was revoked elsewhere.
"""

import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from hashlib import sha256
from threading import Lock
from time import monotonic
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
READ_BATCH: Final = 1_000
FOLLOW_SECONDS: Final = 1.0
TRUSTED_SECONDS: Final = 60.0
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:*-]{1,128}", re.ASCII)
_TEXT: Final = re.compile(r"fb_([0-9a-f]{12})_([A-Za-z0-9_-]{32})", re.ASCII)


class ApiKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key without its secret; `digest` is the secret's.

    rate, burst   requests per second, and how many at once after a pause;  None: the server's default
    quota_hour, quota_day   jobs it may enqueue;  None: unlimited
    queue_names   distinct queues without a spec that it may enqueue to per day;  None: `limits.QUEUE_NAMES`
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
            raise Invalid("key", "it has no role", f"give --role: one of {', '.join(Role)}")
        if not self.queues or not all(_PATTERN.fullmatch(pattern) for pattern in self.queues):
            given = ", ".join(map(repr, self.queues)) or "none"
            raise Invalid("key queues", f"{given}: not names or patterns", "give names (mail) or patterns (mail.*)")
        if self.tenant is not None:
            check_name("tenant", self.tenant)
            if Role.WORKER in self.roles or Role.ADMIN in self.roles:
                raise Invalid(
                    "key tenant",
                    "workers claim whole queues and admins see all tenants, so neither can have a tenant",
                    "bind viewers, producers and operators to it, or give the tenant its own queues",
                )
        for field in ("rate", "burst", "quota_hour", "quota_day", "queue_names"):
            if (given := getattr(self, field)) is not None and not 0 < given <= 1_000_000_000:
                raise Invalid(f"key {field}", f"{given} is not in 0 … 1000000000", "give a positive number, or none")

    def actor(self) -> Actor:
        return Actor(f"key:{self.id}:{self.name}", frozenset(self.roles), self.queues, self.tenant)


class Created(Struct, frozen=True, tag="created"):
    key: ApiKey
    by: str


class Revoked(Struct, frozen=True, tag="revoked"):
    id: str
    by: str


KeyEntry: TypeAlias = Created | Revoked
_entries: "Final[msgspec.json.Decoder[KeyEntry]]" = msgspec.json.Decoder(Created | Revoked)


def mint(name: str, roles: Iterable[Role], created_at: Instant, **limits: object) -> tuple[ApiKey, str]:
    """A new key, and its text, which is shown once and not stored."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
    fields = {"id": key_id, "digest": digest(secret), "name": name, "roles": tuple(roles), "created_at": created_at}
    return ApiKey(**fields, **limits), f"fb_{key_id}_{secret}"  # type: ignore[arg-type]


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


_NO_KEY: Final = digest(secrets.token_urlsafe(SECRET_BYTES))
"""Compared when there is no such key, so that both cases take the same time."""


class Keyring:
    """All keys as of the last read of the log. One thread calls `apply`; any thread calls `find`."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def apply(self, entries: Iterable[KeyEntry]) -> None:
        for entry in entries:
            match entry:
                case Created(key):
                    self._keys[key.id] = key
                case Revoked(key_id):
                    self._keys.pop(key_id, None)

    def find(self, text: str, now: Instant) -> ApiKey | None:
        """The key with this text, in constant time; None when it is unknown, revoked or expired."""
        parts = _TEXT.fullmatch(text)
        key = self._keys.get(parts[1]) if parts else None
        matches = hmac.compare_digest(digest(parts[2] if parts else text), key.digest if key else _NO_KEY)
        return key if matches and key and not is_expired(key, now) else None

    def find_valid(self, key_id: str, now: Instant) -> ApiKey | None:
        """The key with this id while it is valid, for a session whose secret was checked before."""
        key = self._keys.get(key_id)
        return key if key and not is_expired(key, now) else None

    def all(self) -> list[ApiKey]:
        return list(self._keys.values())


def is_expired(key: ApiKey, now: Instant) -> bool:
    return key.expires_at is not None and now >= key.expires_at


def ensure_log(store: Store, name: str, window: timedelta | None = None) -> None:
    """Create the reserved log if it does not exist; without a window its entries are kept for ever."""
    if name not in {spec.name for spec in store.specs()}:
        store.put_spec(QueueSpec(name=name, retention=Retained(partitions=1, window=window)))


def write_entries(store: Store, entries: Sequence[KeyEntry]) -> None:
    ensure_log(store, KEYS_LOG)
    store.append(KEYS_LOG, [msgspec.json.encode(entry) for entry in entries])


def read_entries(store: Store, after: int) -> tuple[list[KeyEntry], int]:
    """All entries after this offset, and the offset of the last one."""
    if after < 0 and KEYS_LOG not in {spec.name for spec in store.specs()}:
        return [], after
    found: list[KeyEntry] = []
    while page := store.read(KEYS_LOG, 0, after, READ_BATCH):
        found += [entry for each in page if (entry := _decode(each.body)) is not None]
        after = page[-1].offset
    return found, after


def _decode(body: bytes) -> KeyEntry | None:
    """None for an entry of a later version: it can only name keys that this version does not have."""
    try:
        return _entries.decode(body)
    except (msgspec.DecodeError, Invalid):
        _log.warning("skipped an entry of %s that this version cannot read", KEYS_LOG)
        return None


class KeyFollower:
    """A role: applies new entries of the log to the keyring."""

    name = "keys"

    def __init__(self, store: Store, keyring: Keyring, now: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._keyring = keyring
        self._now = now
        self._offset = -1
        self._read_at = float("-inf")
        self._lock = Lock()

    @property
    def trusted(self) -> bool:
        return self._now() - self._read_at < TRUSTED_SECONDS

    def step(self) -> float:
        with self._lock:
            began = self._now()
            entries, self._offset = read_entries(self._store, self._offset)
            self._keyring.apply(entries)
            self._read_at = began
        return FOLLOW_SECONDS

    def create(self, key: ApiKey, by: str) -> None:
        """This server accepts the key when this returns, the others within seconds."""
        write_entries(self._store, [Created(key, by)])
        self.step()

    def revoke(self, key_id: str, by: str) -> bool:
        """False when there is no such key."""
        self.step()
        if key_id not in self._keyring:
            return False
        write_entries(self._store, [Revoked(key_id, by)])
        self.step()
        return True
