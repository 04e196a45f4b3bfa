"""Each server follows the log of keys, once a second, so that a revocation is everywhere within 5 seconds.

While the store cannot be read, the keys that were known last go on for `TRUSTED_SECONDS`; after that nobody is let in
until it can be read again. Nearly every answer needs the store anyway, so this costs little, and it bounds for how long
a server that is cut off takes a key that was revoked elsewhere.
"""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

from forebay.serve.security.keys import Created, Key, Keyring, Revoked, read_entries, write_entries
from forebay.store.protocol import Store

EVERY_SECONDS: Final = 1.0
TRUSTED_SECONDS: Final = 60.0


class KeyFollower:
    """A role: reads what is new in the log and tells the keyring."""

    name = "keys"

    def __init__(self, store: Store, keyring: Keyring, now: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._keyring = keyring
        self._now = now
        self._offset = -1
        self._read_at = float("-inf")
        self._guard = Lock()

    @property
    def trusted(self) -> bool:
        return self._now() - self._read_at < TRUSTED_SECONDS

    def step(self) -> float:
        with self._guard:
            began = self._now()
            entries, self._offset = read_entries(self._store, self._offset)
            self._keyring.apply(entries)
            self._read_at = began
        return EVERY_SECONDS

    def create(self, key: Key, by: str) -> None:
        """Known to this server when it returns, to the others within seconds."""
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
