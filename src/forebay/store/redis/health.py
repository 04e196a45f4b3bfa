"""The state of a server, and whether it may be trusted with jobs: checked when a store is opened, and by `doctor`.

A server that evicts keys, or that answers before a write is safe, is refused unless the operator has said by the URL
that less is enough. Without CONFIG it cannot be checked: `durability=trusted` skips the check.

Settings may change while a store is open. `Safety` reads them again every second in which calls are made, and after
every reconnect before a receipt is written.
"""

import logging
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Final

import redis
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.errors import Invalid, StoreFailed
from forebay.store.protocol import Vitals
from forebay.store.redis.connect import Address, DeliveryMode, Server

_log = logging.getLogger("forebay.store")

MIN_VERSION: Final = 7
_CHECK_EVERY: Final = 1.0
_LOG_EVERY: Final = 60.0
SLOTS: Final = 16_384
_CLUSTER_SETTINGS: Final = ("min-replicas-to-write", "min-replicas-max-lag", "cluster-require-full-coverage")
_SETTINGS: Final = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy")


class Health(Struct, frozen=True):
    """The state of a server. `settings` is empty where CONFIG is refused."""

    kind: str
    version: str
    settings: dict[str, str]
    writable: bool
    clients: int
    max_clients: int
    memory: int
    max_memory: int
    clustered: bool = False

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


def read_health(server: Server) -> Health:
    info = _info(server.command("INFO", "server", "clients", "memory", "persistence", "replication", "cluster"))
    kind = "valkey" if "valkey_version" in info else "redis"
    return Health(
        kind,
        info.get(f"{kind}_version", info.get("redis_version", "0")),
        _settings(server),
        info.get("role") == "master" and info.get("loading", "0") == "0",
        int(info.get("connected_clients", 0)),
        int(info.get("maxclients", 0)),
        int(info.get("used_memory", 0)),
        int(info.get("maxmemory", 0)),
        info.get("cluster_enabled") == "1",
    )


def flaws(health: Health, durability: str, *, clustered: bool = False) -> list[tuple[str, str]]:
    """What makes a server unfit for what its operator promises: the fact, and the remedy. `clustered`: by the URL."""
    found = []
    if health.clustered and not clustered:
        found.append(("it is a node of a cluster", "write redis+cluster://host:port/, which finds the other nodes"))
    if health.major < MIN_VERSION:
        found.append((f"it is version {health.version}", f"use Redis {MIN_VERSION} or newer, or Valkey"))
    if durability == "trusted":
        return found
    settings = health.settings
    if not settings:
        remedy = "allow CONFIG GET, or vouch for it with ?durability=trusted"
        return [*found, ("its settings cannot be read", remedy)]
    if settings["maxmemory-policy"] != "noeviction":
        fact = f"maxmemory-policy is {settings['maxmemory-policy']}: it would drop jobs when memory is short"
        found.append((fact, "set maxmemory-policy noeviction"))
    if durability == "none":
        return found
    if settings["appendonly"] != "yes":
        found.append(("appendonly is off: a restart loses jobs", "set appendonly yes, or say ?durability=none"))
    elif durability == "always" and settings["appendfsync"] != "always":
        fact = f"appendfsync is {settings['appendfsync']}: a power cut loses what was acknowledged last"
        found.append((fact, "set appendfsync always, or say ?durability=everysec"))
    elif durability == "everysec" and settings["appendfsync"] == "no":
        found.append(("appendfsync is no", "set appendfsync everysec, or say ?durability=none"))
    elif settings["no-appendfsync-on-rewrite"] == "yes" and durability == "always":
        fact = "no-appendfsync-on-rewrite is yes: nothing is safe while the file is rewritten"
        found.append((fact, "set no-appendfsync-on-rewrite no"))
    if clustered and durability == "always" and settings["min-replicas-to-write"] == "0":
        fact = "min-replicas-to-write is 0: a master that is cut off takes jobs that the fail-over drops"
        found.append((fact, "set min-replicas-to-write 1 on every node, or say ?durability=everysec"))
    return found


class Safety:
    """Whether the server keeps what its operator promises, as it is set now; one that does not is refused at first."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._first = read_health(server)
        self._guard = Lock()
        self._opened = server.opened
        self._checked_at = monotonic()
        self._logged_at = float("-inf")
        self.unsafe: tuple[str, ...] = ()
        for fact, remedy in self._flaws(self._first):
            raise Invalid(server.name, fact, remedy)

    @property
    def durable(self) -> bool:
        """False while a new connection may lead to a server that is not checked yet."""
        address = self._server.address
        known = not self.unsafe and self._opened == self._server.opened
        return address.durable and (known or address.durability == "trusted")

    def refresh(self) -> None:
        """Read the settings again, if it is time. A server that is down answers no call either."""
        if self._server.address.durability == "trusted" or not self._due:
            return
        with self._guard, suppress(StoreFailed):
            if self._due:
                settings = _settings(self._server)
                self._opened, self._checked_at = self._server.opened, monotonic()
                self._judge(self._flaws(replace(self._first, settings=settings)))

    def _flaws(self, health: Health) -> list[tuple[str, str]]:
        address = self._server.address
        return flaws(health, address.durability, clustered=bool(address.nodes))

    @property
    def _due(self) -> bool:
        return self._opened != self._server.opened or monotonic() - self._checked_at >= _CHECK_EVERY

    def _judge(self, found: list[tuple[str, str]]) -> None:
        before, self.unsafe = self.unsafe, tuple(fact for fact, _ in found)
        if found and (self.unsafe != before or monotonic() - self._logged_at >= _LOG_EVERY):
            self._logged_at = monotonic()
            for fact, remedy in found:
                _log.error("%s may lose jobs: %s; %s", self._server.name, fact, remedy)
        elif before and not found:
            _log.warning("%s keeps what it acknowledges again", self._server.name)


def delivery_of(server: Server) -> DeliveryMode | None:
    """How ready jobs are kept; None: no job was ever put."""
    last, delivery = server.command("HMGET", f"{server.address.prefix}head", "last", "delivery")
    if last is None:
        return None
    return "streams" if delivery == b"streams" else "sets"


def vitals_of(health: Health, address: Address, delivery: DeliveryMode | None, listening: bool | None) -> Vitals:
    """The part that metrics show."""
    settings = {"durability": address.durability, "delivery": delivery or "not yet decided"} | health.settings
    if address.nodes:
        settings |= {"slot": str(address.slot), "replicas": str(address.replicas)}
    return Vitals(settings, health.writable, 0.0, {}, health.clients, health.max_clients, listening)


def _settings(server: Server) -> dict[str, str]:
    names = (*_SETTINGS, *_CLUSTER_SETTINGS) if server.address.nodes else _SETTINGS
    try:
        flat = [text.decode() for text in server.command("CONFIG", "GET", *names)]
    except StoreFailed as error:
        if isinstance(error.__cause__, redis.ResponseError):
            return {}
        raise
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _info(text: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, colon, value in pairs if colon}
