"""How a worker works: its queues, its size, its patience."""

from datetime import timedelta

from msgspec import Struct

from forebay.core.breaker import Budget
from forebay.core.errors import Invalid
from forebay.core.instant import checked_micros, seconds
from forebay.core.limits import BATCH_MOST, LEASE_MOST, WEIGHT_MOST
from forebay.core.names import check_name
from forebay.core.policy import check_between


class Options(Struct, frozen=True, kw_only=True):
    """lease_for is the visibility timeout: how long a job outlives its worker's last heartbeat.

    weights say how the worker's room is divided while several of its queues have work; a queue without one has 1. None
    at all: evenly.
    quarantine_processes is how many suspects run at once, each in a process of its own, beside the worker's room.
    metrics is where to be scraped, a port or host:port; processes under a supervisor take the next free ports.
    """

    queues: tuple[str, ...] = ("default",)
    weights: dict[str, int] = {}
    concurrency: int = 64
    claim_batch: int = 100
    lease_for: timedelta = seconds(30)
    drain_timeout: timedelta = seconds(25)
    retry_budget: float | None = None
    wedged_most: int = 64
    metrics: str | None = None
    quarantine_processes: int = 2

    def __post_init__(self) -> None:
        if not self.queues:
            raise Invalid("queues", "none is named", "give at least one, such as default")
        for queue in self.queues:
            check_name("queue", queue)
        for queue, weight in self.weights.items():
            if queue not in self.queues:
                raise Invalid("weights", f"{queue} is not one of the queues", f"use {', '.join(self.queues)}")
            check_between(f"weight of {queue}", weight, 1, WEIGHT_MOST)
        check_between("concurrency", self.concurrency, 1, 10_000)
        check_between("claim_batch", self.claim_batch, 1, BATCH_MOST)
        check_between("quarantine_processes", self.quarantine_processes, 1, 64)
        check_between("wedged_most", self.wedged_most, 0, 10_000)
        if self.retry_budget is not None:
            Budget(self.retry_budget)
        checked_micros("lease_for", self.lease_for, timedelta(milliseconds=10), LEASE_MOST)
        if self.metrics is not None:
            checked_place(self.metrics)
        checked_micros("drain_timeout", self.drain_timeout, timedelta(0), timedelta(days=1))


def checked_place(place: str) -> tuple[str, int]:
    """Host and port of `9464`, `:9464`, `host:9464` or `[::1]:9464`; without a host: this machine alone."""
    host, _, port = place.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise Invalid("metrics", f"{place!r} is no port and no host:port", "write 9464, or 0.0.0.0:9464")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
