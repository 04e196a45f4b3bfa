"""The records of a ledger in memory, so that tests can read events. They last as long as their store, and none is lost.

The store hands over each change as it would write it to a journal. It is decoded when records are read: few tests do.
"""

from forebay.core.changeset import StoredRecord, decode_entry


class RecordsInMemory:
    """The recorder of a store, and what its ledger reads from. The offset of a record is its place."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._decoded = 0
        self._records: list[StoredRecord] = []

    def append(self, body: bytes) -> int:
        self._bodies.append(body)
        return len(self._bodies)

    def sync(self, _: int) -> None:
        """There is no disk to wait for."""

    def close(self) -> None:
        """There is nothing to close."""

    def read(self, after: int, count: int, _: int) -> list[StoredRecord]:
        unread = self._bodies[self._decoded :]
        self._decoded += len(unread)
        self._records += [record for body in unread if (record := decode_entry(body).record) is not None]
        return self._records[after + 1 : after + 1 + count]
