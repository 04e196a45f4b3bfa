"""What the kernel knows of processes: children, CPU time, memory, open files, bytes written. For trees of them.

The CPU of a tree is exact over its whole life: what has ended and was waited for is in its parent's account. Its grain
is the kernel's tick, a hundredth of a second. What has ended meanwhile counts as nothing, never as an error. Figures
are for Linux: elsewhere there is no /proc, and all of them are 0.
"""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
_RSS: Final = 21
"""Of /proc/PID/stat, from the state on: pages in memory."""


def _fields(pid: int | str) -> list[str]:
    """Of /proc/PID/stat, from the state on; none if it has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    """A zombie is not."""
    if _PROC.exists():
        return _fields(pid)[:1] not in ([], ["Z"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def parent_of(pid: int) -> int:
    """Zero if it has ended."""
    return int((_fields(pid) or ["", "0"])[1])


def children_of(pid: int) -> list[int]:
    """The processes that it started and that have not been waited for."""
    listed = _PROC / str(pid) / "task" / str(pid) / "children"
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in listed.read_text().split()]
    if _PROC.exists():
        return []
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in done.stdout.split()]


def tree_of(roots: Iterable[int]) -> dict[int, list[str]]:
    """These processes and all below them, with their fields."""
    parents: dict[int, list[int]] = {}
    known: dict[int, list[str]] = {}
    for entry in os.listdir(_PROC) if _PROC.exists() else ():
        if entry.isdigit() and (fields := _fields(entry)):
            parents.setdefault(int(fields[1]), []).append(int(entry))
            known[int(entry)] = fields
    found: dict[int, list[str]] = {}
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid in known:
            found[pid] = known[pid]
        todo += parents.get(pid, [])
    return found


def cpu_seconds(roots: Iterable[int]) -> float:
    """User and system time of these processes and of all below them, the ended ones too."""
    return sum(sum(map(int, fields[11:15])) for fields in tree_of(roots).values()) * _TICK


def rss_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, what they share counted with each."""
    return sum(int(fields[_RSS]) for pid in pids if (fields := _fields(pid))) * _PAGE


def descriptors(pids: Iterable[int]) -> int:
    """Open files and sockets of these processes."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += len(os.listdir(_PROC / str(pid) / "fd"))
    return total


def written_bytes(roots: Iterable[int]) -> int:
    """What these processes and all below them, as far as they live, have sent to the disk."""
    total = 0
    for pid in tree_of(roots):
        with suppress(OSError):
            lines = (_PROC / str(pid) / "io").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
    return total
