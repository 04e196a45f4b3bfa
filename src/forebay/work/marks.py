"""Which jobs a process has really started, where even `kill -9` leaves it to be read: a small memory-mapped file.

A mark is made just before the handler's first line and taken away when the store has the verdict. The supervisor reads
a dead child's marks: what had started is charged, what had only been claimed is handed back.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from threading import Lock
from typing import Final

from forebay.core.lease import Fence

_SLOT: Final = struct.Struct("<QQ")


class Marks:
    """One pair (job id, delivery) a slot; zeros when the slot is free. May be used from any thread."""

    def __init__(self, path: str, slots: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, slots * _SLOT.size)
            self._map = mmap.mmap(descriptor, slots * _SLOT.size)
        finally:
            os.close(descriptor)
        self._lock = Lock()
        self._free = list(range(slots))
        self._slot_of: dict[Fence, int] = {}

    def started(self, fence: Fence) -> None:
        with self._lock:
            if self._free:
                slot = self._slot_of[fence] = self._free.pop()
                _SLOT.pack_into(self._map, slot * _SLOT.size, *fence)

    def ended(self, fence: Fence) -> None:
        with self._lock:
            slot = self._slot_of.pop(fence, None)
            if slot is not None:
                _SLOT.pack_into(self._map, slot * _SLOT.size, 0, 0)
                self._free.append(slot)

    def close(self) -> None:
        self._map.close()


def read_marks(path: str) -> Iterator[Fence]:
    """The fences a process left behind."""
    with open(path, "rb") as file:
        data = file.read()
    for job_id, delivery in _SLOT.iter_unpack(data[: len(data) // _SLOT.size * _SLOT.size]):
        if job_id:
            yield (job_id, delivery)
