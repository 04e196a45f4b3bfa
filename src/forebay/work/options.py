"""The options of a worker."""

from datetime import timedelta

from msgspec import Struct

from forebay.core.breaker import Budget
from forebay.core.errors import Invalid
from forebay.core.instant import checked_micros, seconds
from forebay.core.limits import MAX_BATCH, MAX_LEASE, MAX_WEIGHT
from forebay.core.names import check_name
from forebay.core.policy import check_between


class Options(Struct, frozen=True, kw_only=True):
    """queues                the queues to claim from
    weights               how slots are divided while several queues have work; 1 for a queue without a weight.
                          Empty: evenly, in rotation
    concurrency           jobs that may run at once
    claim_batch           jobs that one claim may return; it returns fewer where handlers take longer
    lease_for             the visibility timeout: how long a lease lasts after the last heartbeat
    drain_timeout         how long running jobs may take to finish after a SIGTERM
    shutdown_timeout      how long shutdown hooks and the closing of provided values may take after that
    retry_budget          the share of runs that may be retries; None: no limit
    max_wedged            threads that may hang before the process exits
    metrics               port or host:port of the metrics endpoint; supervised processes use the next free ports
    quarantine_processes  suspects that may run at once, each in a child process
    """

    queues: tuple[str, ...] = ("default",)
    weights: dict[str, int] = {}
    concurrency: int = 64
    claim_batch: int = 500
    lease_for: timedelta = seconds(30)
    drain_timeout: timedelta = seconds(25)
    shutdown_timeout: timedelta = seconds(5)
    retry_budget: float | None = None
    max_wedged: int = 64
    metrics: str | None = None
    quarantine_processes: int = 2

    def __post_init__(self) -> None:
        if not self.queues:
            raise Invalid("queues", "the list is empty", "name at least one, such as default")
        for queue in self.queues:
            check_name("queue", queue)
        for queue, weight in self.weights.items():
            if queue not in self.queues:
                raise Invalid("weights", f"{queue} is not one of the queues", f"use {', '.join(self.queues)}")
            check_between(f"weight of {queue}", weight, 1, MAX_WEIGHT)
        check_between("concurrency", self.concurrency, 1, 10_000)
        check_between("claim_batch", self.claim_batch, 1, MAX_BATCH)
        check_between("quarantine_processes", self.quarantine_processes, 1, 64)
        check_between("max_wedged", self.max_wedged, 0, 10_000)
        if self.retry_budget is not None:
            Budget(self.retry_budget)
        checked_micros("lease_for", self.lease_for, timedelta(milliseconds=10), MAX_LEASE)
        if self.metrics is not None:
            parse_address(self.metrics)
        checked_micros("drain_timeout", self.drain_timeout, timedelta(0), timedelta(days=1))
        checked_micros("shutdown_timeout", self.shutdown_timeout, timedelta(0), timedelta(days=1))


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `9464`, `:9464`, `host:9464` or `[::1]:9464`; the default host is loopback."""
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise Invalid("metrics", f"{address!r} is neither a port in 1 … 65535 nor host:port", "write 9464")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
