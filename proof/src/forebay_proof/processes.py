"""CPU time, memory, open files and bytes written of processes and of trees of them, by psutil.

The CPU time of a tree is exact over its whole life: that of a child that ended and was waited for is in its parent's
account. A process that has ended counts as nothing, never as an error.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def alive(pid: int) -> bool:
    """A zombie is not alive."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def parent_of(pid: int) -> int:
    """The parent's pid; 0 if the process has ended."""
    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).ppid())
    return 0


def children_of(pid: int) -> list[int]:
    """The direct children that have not been waited for."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def tree_of(roots: Iterable[int]) -> Iterator[psutil.Process]:
    """These processes and all their descendants."""
    for pid in roots:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            yield from (root, *root.children(recursive=True))


def cpu_seconds(roots: Iterable[int]) -> float:
    """User and system time of these processes and their descendants, ended children included."""
    total = 0.0
    for process in tree_of(roots):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def running_seconds(roots: Iterable[int]) -> float:
    """The same for those that live, in nanoseconds and not in ticks where the kernel counts them: for short rounds."""
    total = 0.0
    for process in tree_of(roots):
        try:
            total += int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9
        except OSError:
            total += cpu_seconds([process.pid])
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes; shared pages count for each."""
    total = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            total += psutil.Process(pid).memory_info().rss
    return total


def descriptors(pids: Iterable[int]) -> int:
    """Open files and sockets of these processes."""
    total = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += psutil.Process(pid).num_fds()
    return total


def written_bytes(roots: Iterable[int]) -> int:
    """What these processes and their living descendants have sent to the disk."""
    total = 0
    for process in tree_of(roots):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.io_counters().write_bytes
    return total


def machine_seconds() -> tuple[float, float]:
    """CPU time of all cores since the machine started: busy, idle."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle - guest, idle
