"""Faults that hold Postgres back without breaking it: an open transaction and a replication slot that is not read."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import ClassVar, Final

import msgspec
from msgspec import Struct

from forebay.store.protocol import Inspecting
from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.plan import Kept, Scaled
from forebay_proof.lab.chaos.postgres import admin
from forebay_proof.lab.chaos.scene import Bite, Scene, pause
from forebay_proof.servers.postgres import REPLICATED
from forebay_proof.tally import CLAIM, Tallies

_SLOT: Final = "forebay_lab"
_KEPT: Final = (
    "SELECT (SELECT max(age(backend_xid)) FROM pg_stat_activity), pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) "
    "FROM pg_replication_slots WHERE slot_name = %s"
)
_NORMAL_RATE: Final = 0.9
_NORMAL_CLAIM: Final = 1.5
_PATIENCE_SECONDS: Final = 5.0
_SHOWN_SECONDS: Final = 61.0


class Pace(Struct, frozen=True):
    """What a fleet did for a while: jobs done a second, and the latency of its claims (p99, seconds)."""

    jobs: float
    claim: float


class HoldTransaction(ChaosFault, frozen=True):
    """A transaction with an id stays open for so many seconds, and a replication slot is not read: dead rows and the
    log stay. Meanwhile `completed` of the jobs are done at least, and claims take at most `slower` times as long (p99);
    `normal` seconds afterwards all is as before. `doctor` and the metric name what is held."""

    stores: ClassVar[tuple[Kept, ...]] = ("postgres",)
    settings: ClassVar[dict[str, str]] = REPLICATED
    lasts: Scaled = Scaled(5, 90, 720)
    before: Scaled = Scaled(3, 20, 60)
    completed: float = 0.8
    slower: float = 3.0
    normal: float = 60.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        tallies = Tallies(scene.tallies)
        before = _pace(tallies, self.before.at(scene.scale))
        lasts = self.lasts.at(scene.scale)
        with _held(scene) as began:
            beside = _pace(tallies, lasts)
            if beside.jobs < self.completed * before.jobs:
                scene.report_failure(f"{beside.jobs:.0f} jobs/s beside it, {before.jobs:.0f} before it")
            if beside.claim > self.slower * before.claim:
                scene.report_failure(
                    f"claims took {1e3 * beside.claim:.1f} ms (p99) beside it, {1e3 * before.claim:.1f} before"
                )
            self._check_shown(scene, time.monotonic() - began)
            behind, kept = _kept(scene)
        took = self._normal_after(scene, tallies, before)
        paces = f"{before.jobs:.0f} → {beside.jobs:.0f} jobs/s, claim p99 {1e3 * before.claim:.1f} → "
        what = f"{behind} transactions and {kept} bytes of log for {lasts} s: {paces}{1e3 * beside.claim:.1f} ms"
        return Bite(behind > 0 and kept > 0, f"{what}, as before after {took:.0f} s", took=took)

    @staticmethod
    def _check_shown(scene: Scene, held: float) -> None:
        """A transaction of a minute is not worth a word of the operator's."""
        if held <= _SHOWN_SECONDS:
            return
        assert isinstance(scene.store, Inspecting)
        if not held - _PATIENCE_SECONDS <= (known := scene.store.vitals().held) <= held + _PATIENCE_SECONDS:
            scene.report_failure(f"the metric says that a transaction is held for {known:.0f} s, not {held:.0f}")
        if _SLOT not in scene.store.vitals().slots:
            scene.report_failure("the metric does not name the replication slot")
        words = [sys.executable, "-m", "forebay", "doctor", "--store", scene.lab_server.url, "--json"]
        lines = subprocess.run(words, capture_output=True, check=False).stdout.splitlines()
        warned = {found["check"] for line in lines if (found := msgspec.json.decode(line))["status"] == "warn"}
        for missed in sorted({"held", "slot"} - warned):
            scene.report_failure(f"doctor does not name what is held: {missed}")

    def _normal_after(self, scene: Scene, tallies: Tallies, before: Pace) -> float:
        """Seconds until a second of work is like those before."""
        ended = time.monotonic()
        while True:
            pace, took = _pace(tallies, 1.0), time.monotonic() - ended
            if pace.jobs >= _NORMAL_RATE * before.jobs and pace.claim <= _NORMAL_CLAIM * before.claim:
                return took
            if took > self.normal:
                scene.report_failure(
                    f"{took:.0f} s after it {pace.jobs:.0f} jobs/s and {1e3 * pace.claim:.1f} ms a claim (p99)"
                )
                return took


@contextmanager
def _held(scene: Scene) -> Iterator[float]:
    with admin(scene) as other:
        other.execute("SELECT pg_create_physical_replication_slot(%s, true)", (_SLOT,))
        try:
            with admin(scene) as holder, holder.transaction():
                holder.execute("SELECT pg_current_xact_id()")
                yield time.monotonic()
        finally:
            other.execute("SELECT pg_drop_replication_slot(%s)", (_SLOT,))


def _kept(scene: Scene) -> tuple[int, int]:
    """How many transactions are newer than the oldest that is open, and how much log the slot keeps."""
    with admin(scene) as other:
        row = other.execute(_KEPT, (_SLOT,)).fetchone()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _pace(tallies: Tallies, seconds: float) -> Pace:
    jobs, claims, began = tallies.jobs(), tallies.histogram(CLAIM), time.monotonic()
    pause(seconds)
    took = time.monotonic() - began
    return Pace((tallies.jobs() - jobs) / took, tallies.histogram(CLAIM).minus(claims).percentile(99))
