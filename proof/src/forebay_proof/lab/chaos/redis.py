"""Faults that only Redis can suffer: killed clients, dropped scripts, a script without end, no memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.plan import Kept
from forebay_proof.lab.chaos.scene import Bite, Scene, pause

if TYPE_CHECKING:
    import redis

_LOOP: Final = "while true do end"


@contextmanager
def client_of(scene: Scene) -> "Iterator[redis.Redis]":
    from forebay_proof.servers.redis import RedisServer

    server = scene.lab_server.server
    assert isinstance(server, RedisServer)
    with server.client() as client:
        yield client


class KillClients(ChaosFault, frozen=True):
    """CLIENT KILL of all clients; with `scripts`, the server drops its scripts, too (NOSCRIPT)."""

    stores: ClassVar[tuple[Kept, ...]] = ("redis",)
    scripts: bool = False

    def strike(self, scene: Scene, rng: Random) -> Bite:
        with client_of(scene) as client:
            if self.scripts:
                client.script_flush()
            killed = int(client.client_kill_filter(_type="normal", skipme=True))
        return Bite(killed > 0, f"{killed} clients killed{', no script is known' if self.scripts else ''}")


class ErrorReply(ChaosFault, frozen=True):
    """For a while the server answers with an error: BUSY, OOM, READONLY or NOSCRIPT. How often, it counts itself."""

    stores: ClassVar[tuple[Kept, ...]] = ("redis",)
    word: Literal["BUSY", "OOM", "READONLY", "NOSCRIPT"]
    lasts: float = 1.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        with client_of(scene) as client:
            before = self._answered(client)
            getattr(self, f"_{self.word.lower()}")(scene, client)
            met = self._answered(client) - before
        return Bite(met > 0, f"{met} answers of {self.word}")

    def _answered(self, client: "redis.Redis") -> int:
        counts = client.info("errorstats").get(f"errorstat_{self.word}", {})
        return int(counts.get("count", 0))

    def _busy(self, scene: Scene, client: "redis.Redis") -> None:
        import redis

        def loop() -> None:
            with client_of(scene) as other:
                try:
                    other.eval(_LOOP, 0)
                except redis.RedisError:
                    return

        client.config_set("busy-reply-threshold", "100")
        script = Thread(target=loop)
        script.start()
        pause(self.lasts)
        client.script_kill()
        script.join()

    def _oom(self, scene: Scene, client: "redis.Redis") -> None:
        client.config_set("maxmemory", "1mb")
        try:
            pause(self.lasts)
        finally:
            client.config_set("maxmemory", "0")

    def _readonly(self, scene: Scene, client: "redis.Redis") -> None:
        client.replicaof("127.0.0.1", "1")
        try:
            pause(self.lasts)
        finally:
            client.replicaof("NO", "ONE")

    def _noscript(self, scene: Scene, client: "redis.Redis") -> None:
        client.script_flush()
        pause(self.lasts)
