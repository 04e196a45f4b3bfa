"""The parts of a scene: the store and the way to it, the fleet, the load."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from forebay import open_store
from forebay_proof.lab.chaos.scene import LOAD_FIRST, Impossible, Scene
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.fleet import Fleet
from forebay_proof.load.generator import Load
from forebay_proof.load.mix import parse_mix
from forebay_proof.servers.process import ServerUnavailable

APP: Final = "forebay_proof.lab.chaos.app:fb"
TICKS: Final = "lab-ticks"
_LOAD_SECONDS: Final = 7 * 86_400.0
"""It is stopped before."""

_SMALL: Final = {
    "postgres": {"shared_buffers": "64MB", "max_wal_size": "32MB", "min_wal_size": "32MB", "max_connections": "100"},
    "redis": {},
    "sqlite": {},
}
"""Servers that start quickly and whose bounds are near."""


def build(scene: Scene, where: str, parts: ExitStack, settings: Mapping[str, str]) -> None:
    """`where` is a kind of store, or the URL of one. The fleet is not started yet, nor is the load."""
    plan = scene.plan
    try:
        lab_server = parts.enter_context(LabServer(where, settings={**_SMALL.get(where, {}), **settings}))
        scene.way = _way(scene, lab_server, parts)
    except ServerUnavailable as error:
        raise Impossible(str(error)) from error
    store = open_store(lab_server.url)
    parts.callback(store.close)
    store.put_spec(SPEC)
    fleet = parts.enter_context(fleet_of(scene, ".", processes=plan.fleet.processes, env={}))
    load = parts.enter_context(
        Load(
            scene.way,
            rate=plan.load.rate,
            seconds=_LOAD_SECONDS,
            directory=scene.directory,
            seed=plan.seed,
            batch=plan.load.batch,
            processes=plan.load.processes,
            mix=parse_mix(plan.load.mix),
            first=LOAD_FIRST,
            keys=plan.load.keys,
            max_behind=60.0,
        )
    )
    scene.stage(lab_server, fleet, load, store)


def fleet_of(scene: Scene, name: str, *, processes: int, env: Mapping[str, str]) -> Fleet:
    """One whose effects and starts are found with those of the others."""
    plan = scene.plan.fleet
    directory = scene.directory / name
    directory.mkdir(exist_ok=True)
    return Fleet(
        APP,
        scene.way,
        directory,
        processes=processes,
        supervisors=plan.commands,
        concurrency=plan.concurrency,
        claim_batch=plan.claim_batch,
        lease=plan.lease,
        queues=(QUEUE, TICKS),
        env={**scene.environment(), **env},
        drain=plan.drain,
    )


def _way(scene: Scene, lab_server: LabServer, parts: ExitStack) -> str:
    match scene.plan.through:
        case "proxy":
            url = lab_server.through_proxy()
            scene.proxy = lab_server.proxy
            return url
        case "pooler":
            from forebay_proof.servers.pgbouncer import PgBouncer
            from forebay_proof.servers.postgres import PostgresServer

            assert isinstance(lab_server.server, PostgresServer)
            scene.memo["pooler"] = pooler = parts.enter_context(PgBouncer(lab_server.server, pool=20))
            return pooler.url(lab_server.url)
        case _:
            return lab_server.url
