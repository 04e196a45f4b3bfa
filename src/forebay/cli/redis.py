"""The checks of `doctor` for a Redis or Valkey server. They only read.

The module needs the driver, so it is imported inside `resolve_store.connecting`, which reports a missing driver. The
facts come from `forebay.store.redis.health`; this module adds the status and the remedy.
"""

from collections.abc import Iterator
from typing import Final

from forebay.cli.diagnosis import Diagnosis
from forebay.store.redis.cluster import server_at
from forebay.store.redis.connect import Address, Server
from forebay.store.redis.health import SLOTS, Health, delivery_of, flaws, read_health

_CONNECTIONS_SHARE: Final = 0.9
_MEMORY_SHARE: Final = 0.8
_WEAKER: Final = {
    "everysec": "a power failure loses up to a second of acknowledged writes; receipts say so",
    "none": "a crash of the server loses acknowledged writes; receipts say so",
    "trusted": "the operator vouches for it; the server's settings were not checked",
}


def diagnoses(url: str) -> Iterator[Diagnosis]:
    """All checks of the server."""
    server = server_at(Address.of(url))
    try:
        health = read_health(server)
        yield Diagnosis("ok", "server", f"{health.kind.capitalize()} {health.version}")
        yield from _durable(health, server.address)
        if server.address.nodes:
            yield from _cluster(health, server.address)
        if not health.writable:
            yield Diagnosis("fail", "writable", "it is a replica, or still loading", "connect to the primary")
        yield _delivery(server)
        yield _memory(health)
        yield _connections(health)
    finally:
        server.close()


def _durable(health: Health, address: Address) -> Iterator[Diagnosis]:
    durability, found = address.durability, flaws(health, address.durability, clustered=bool(address.nodes))
    for fact, way_out in found:
        yield Diagnosis("fail", "durable", fact, way_out)
    if durability in _WEAKER:
        remedy = "set appendfsync always on the server, and leave durability out of the URL"
        yield Diagnosis("warn", "durable", f"durability={durability}: {_WEAKER[durability]}", remedy)
    elif not found:
        yield Diagnosis("ok", "durable", "every write is synced before it is acknowledged, and nothing is evicted")


def _cluster(health: Health, address: Address) -> Iterator[Diagnosis]:
    yield Diagnosis("ok", "slot", f"{address.prefix.rstrip(':')} is slot {address.slot} of 0 … {SLOTS - 1}")
    if not address.replicas:
        fact = "replicas=0: a fail-over loses what its replica did not have yet; the audit names it"
        yield Diagnosis("warn", "fail-over", fact, "leave replicas out of the URL, or write ?replicas=1")
    else:
        yield Diagnosis("ok", "fail-over", f"a write is acknowledged when {address.replicas} of its replicas has it")
    if health.settings.get("cluster-require-full-coverage") == "yes":
        fact = "cluster-require-full-coverage is yes: a shard that is down stops the stores of all others"
        yield Diagnosis("warn", "coverage", fact, "set cluster-require-full-coverage no on every node")


def _delivery(server: Server) -> Diagnosis:
    kept, wanted = delivery_of(server), server.address.delivery
    if kept is not None and wanted not in (None, kept):
        return Diagnosis(
            "fail", "delivery", f"the store delivers by {kept}, the URL says {wanted}", "leave it out of the URL"
        )
    if kept is None:
        return Diagnosis("ok", "delivery", f"by {wanted or 'sets'}, from the first job on")
    return Diagnosis("ok", "delivery", f"by {kept}, in exact order")


def _memory(health: Health) -> Diagnosis:
    if not health.max_memory:
        remedy = "set maxmemory: new jobs are then refused before the machine runs out of memory"
        return Diagnosis("warn", "memory", f"{health.memory / 2**20:.0f} MiB in use, without a limit", remedy)
    fraction = health.memory / health.max_memory
    fact = f"{health.memory / 2**20:.0f} of {health.max_memory / 2**20:.0f} MiB in use"
    if fraction > _MEMORY_SHARE:
        return Diagnosis("warn", "memory", fact, "drain or bound the queues, or add memory: a full server refuses jobs")
    return Diagnosis("ok", "memory", fact)


def _connections(health: Health) -> Diagnosis:
    fact = f"{health.clients} of {health.max_clients} connections in use"
    if health.clients > _CONNECTIONS_SHARE * health.max_clients:
        return Diagnosis("warn", "connections", fact, "raise maxclients: further connections are refused")
    return Diagnosis("ok", "connections", fact)
