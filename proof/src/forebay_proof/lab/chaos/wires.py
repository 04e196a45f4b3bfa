"""Faults of the network between the store and its clients, through a proxy: cut, silent, slow, half open."""

import time
from random import Random
from typing import Final, Literal

from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.scene import Bite, Scene, pause

_CALLS: Final = {
    "postgres": (b"forebay.insert_run", b"forebay.claim(", b"forebay.settle(", b"forebay.heartbeat("),
    "redis": (b"EVALSHA",),
}
_STRIKES_WITHIN: Final = 3.0
_LISTEN: Final = b"LISTEN forebay"


class Cut(ChaosFault, frozen=True):
    """Connections are reset: all `now`, one in the `middle` of a message, one `before` a call of the store arrives, one
    after it took effect, before its `reply`; or so around a `commit`, where a
    call is not one already."""

    stores = ("postgres", "redis")
    where: Literal["now", "middle", "before", "reply", "commit"] = "now"

    def strike(self, scene: Scene, rng: Random) -> Bite:
        wire = scene.wire()
        if self.where == "now":
            count = wire.cut()
            return Bite(count > 0, f"{count} connections reset")
        if self.where == "middle":
            count, replies = rng.randrange(1, 3_000), rng.random() < 0.5
            trap, what = wire.cut_after(count, replies=replies), f"cut after {count} bytes {'back' if replies else ''}"
        else:
            commits = self.where == "commit" and scene.kept == "postgres"
            call = b"COMMIT" if commits else rng.choice(_CALLS[scene.kept])
            nth, lose = rng.randrange(1, 3), self.where == "reply" or (self.where == "commit" and rng.random() < 0.5)
            trap = wire.lose_reply(call, nth=nth) if lose else wire.cut_before(call, nth=nth)
            what = f"{'the reply to' if lose else 'cut before'} {call.decode()}"
        struck = trap.wait(_STRIKES_WITHIN)
        wire.disarm()
        return Bite(struck, what.strip())


class Freeze(ChaosFault, frozen=True):
    """Nothing goes through and nothing is closed, as behind a firewall that has dropped the connection."""

    stores = ("postgres", "redis")
    lasts: float = 3.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        wire, count = scene.wire(), scene.wire().connections
        wire.freeze()
        try:
            pause(self.lasts)
        finally:
            wire.thaw()
        return Bite(count > 0, f"{count} connections silent for {self.lasts:g} s")


class Trickle(ChaosFault, frozen=True):
    """A few bytes at a time, each way."""

    stores = ("postgres", "redis")
    lasts: float = 3.0
    bytes_at_once: int = 1
    rest: float = 0.02

    def strike(self, scene: Scene, rng: Random) -> Bite:
        wire, moved, until = scene.wire(), 0, time.monotonic() + self.lasts
        wire.freeze()
        try:
            while time.monotonic() < until:
                moved += wire.step(self.bytes_at_once)
                pause(self.rest)
        finally:
            wire.thaw()
        return Bite(moved > 0, f"{moved} bytes in {self.lasts:g} s")


class Delay(ChaosFault, frozen=True):
    """Everything is late by up to `most` seconds, differently every time."""

    stores = ("postgres", "redis")
    most: float = 2.0
    lasts: float = 4.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        wire, held, until = scene.wire(), 0, time.monotonic() + self.lasts
        count = wire.connections
        while time.monotonic() < until:
            wire.freeze()
            try:
                pause(rng.uniform(0, self.most))
            finally:
                wire.thaw()
            held += 1
            pause(rng.uniform(0.01, 0.1))
        return Bite(count > 0, f"{held} delays of 0 … {self.most:g} s on {count} connections")


class HalfOpenListener(ChaosFault, frozen=True):
    """Connections that listen for wake-ups go silent and stay open, the others go on. Work is found all the same."""

    stores = ("postgres",)
    lasts: float = 20.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        wire = scene.wire()
        count = wire.mute(_LISTEN)
        ids = scene.send("fast", 20, ms=1)
        scene.ended(ids, 15)
        pause(self.lasts * rng.uniform(0.9, 1.1))
        replaced = wire.speaking(_LISTEN)
        wire.unmute()
        if self.lasts >= 20 and not replaced:
            scene.report_failure(f"no listener is back {self.lasts:g} s after {count} listeners fell silent")
        return Bite(count > 0, f"{count} listeners silent for {self.lasts:g} s, {replaced} new ones meanwhile")
