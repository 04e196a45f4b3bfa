"""What the tests of the journal share: opening one, filling it, holding its disk, running threads."""

import threading
from collections.abc import Callable

from forebay.store.memory.disk import Disk
from forebay.store.memory.journal import Journal
from forebay.store.memory.recovery import SEGMENT_BYTES, recover
from forebay_proof.disk import MemoryDisk

DIRECTORY = "j"


def opened(disk: Disk, directory: str = DIRECTORY, segment_bytes: int = SEGMENT_BYTES) -> tuple[Journal, list[bytes]]:
    """The journal, and the bodies of its snapshot and of all records behind it."""
    with recover(directory, disk, segment_bytes) as recovery:
        state = [*recovery.chunks(), *(body for _, body in recovery.frames())]
        return recovery.start(), state


def put(journal: Journal, *bodies: bytes) -> int:
    """One group."""
    lsn = [journal.append(body) for body in bodies][-1]
    journal.sync(lsn)
    return lsn


def nothing_survives(_: int) -> int:
    return 0


class HeldDisk(MemoryDisk):
    """A disk whose next sync, once `hold` was called, waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()
        self.syncs = 0
        self.error: BaseException | None = None

    def sync(self, handle: int) -> None:
        self.syncs += 1
        self.reached.set()
        assert self.let_go.wait(5)
        if self.error is not None:
            raise self.error
        super().sync(handle)

    def hold(self) -> None:
        self.reached.clear()
        self.let_go.clear()
        self.syncs = 0


def in_thread(action: Callable[..., object], *args: object) -> tuple[threading.Thread, list[BaseException]]:
    """A running thread, and the list that will hold what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action(*args)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors
