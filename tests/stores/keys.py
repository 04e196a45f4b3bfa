"""What a Redis store leaves behind: keys that should be gone once its jobs are, and counters that are not zero."""

from typing import Final

import redis

LASTING: Final = frozenset("head queues gone0 gone1 limits schedules ticks sources sources_at ledger book logs".split())
"""Keys that stay: one of each at most, and bounded by themselves."""

CONFIGURED: Final = ("q:", "spec:", "terms:", "log:", "l:", "groups:", "lg:", "lm:", "t:")
"""Keys of configuration, of logs, and of answers that expire."""

COUNTERS: Final = (b"waiting", b"ready", b"running", b"done", b"dead", b"cancelled")


def left_behind(client: "redis.Redis") -> dict[str, int]:
    """By key; an empty dict is what a drained store should give."""
    left: dict[str, int] = {}
    for key in client.scan_iter(count=1_000):
        name = str(key, "utf-8").partition(":")[2]
        if name.startswith("q:"):
            counts = client.hmget(key, list(COUNTERS))
            left |= {f"counters of {name}": 1} if any(int(count or 0) for count in counts) else {}
        elif name not in LASTING and not name.startswith(CONFIGURED):
            left[name] = 1
    return left
