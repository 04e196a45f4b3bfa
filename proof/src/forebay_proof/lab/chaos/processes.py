"""Faults of processes: workers and supervisors that are killed, stopped, drained, or whose clock is wrong."""

import os
import signal
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from random import Random
from threading import Thread
from typing import Final, Literal

from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.scene import Bite, Scene, now, pause
from forebay_proof.load.handler_log import read_last_records, read_records
from forebay_proof.processes import alive
from forebay_proof.servers.process import ProcessHandle

_TICK_SECONDS: Final = 0.05
_RECENT: Final = 500_000
_STEP: Final = 0.05
_END_SECONDS: Final = 10.0
"""That a command gets besides its drain timeout."""


class KillWorker(ChaosFault, frozen=True):
    """kill -9 of a worker while it runs jobs."""

    def strike(self, scene: Scene, rng: Random) -> Bite:
        pid, at = busy_worker(scene, rng), now()
        os.kill(pid, signal.SIGKILL)
        return Bite(True, f"kill -9 {pid}", (pid,), at=at)


class KillAtTick(ChaosFault, frozen=True):
    """kill -9 of a worker within 50 ms of a tick of the schedule. Each slot must have fired once."""

    def strike(self, scene: Scene, rng: Random) -> Bite:
        aim = time.time() // 1 + 1 + rng.uniform(-_TICK_SECONDS, _TICK_SECONDS)
        pid = rng.choice(scene.until(scene.fleet.workers, "a worker"))
        pause(max(0.0, aim - time.time()))
        os.kill(pid, signal.SIGKILL)
        off = time.time() - round(aim)
        return Bite(abs(off) < 2 * _TICK_SECONDS, f"kill -9 {pid} {off * 1000:+.0f} ms off a tick")

    def finish(self, scene: Scene) -> None:
        scene.memo["ticks"] = True


class KillSupervisor(ChaosFault, frozen=True):
    """kill -9 of the supervisor: its workers notice and drain. Then another one is started."""

    def strike(self, scene: Scene, rng: Random) -> Bite:
        workers = scene.fleet.workers()
        pid = scene.fleet.kill_supervisor()
        if rng.random() < 0.5:
            scene.until(lambda: not any(map(alive, workers)), "the workers of a dead supervisor end", 30)
        scene.fleet.restart()
        return Bite(bool(workers), f"kill -9 {pid}, a supervisor of {len(workers)}")


class StopWorker(ChaosFault, frozen=True):
    """SIGSTOP of a worker for longer than its leases, then SIGCONT: what it says then must not count."""

    leases: float = 2.5

    def strike(self, scene: Scene, rng: Random) -> Bite:
        pid, at = busy_worker(scene, rng), now()
        scene.fleet.pause(pid)
        try:
            pause(scene.plan.fleet.lease * self.leases * rng.uniform(1.0, 1.3))
        finally:
            scene.fleet.resume(pid)
        return Bite(True, f"SIGSTOP {pid}", (pid,), at=at)


class EndFleet(ChaosFault, frozen=True):
    """SIGTERM at random, then a new fleet: it drains and leaves with code 0. With `kill`, SIGKILL while it drains."""

    kill: bool = False

    def strike(self, scene: Scene, rng: Random) -> Bite:
        workers = tuple(scene.fleet.workers())
        if self.kill:
            self._cut_short(scene, rng, workers)
        else:
            code = scene.fleet.stop()
            if code != 0:
                scene.report_failure(f"a drained fleet exited with code {code}")
        left = [pid for pid in workers if alive(pid)]
        if left and not self.kill:
            scene.report_failure(f"workers outlived their fleet: {left}")
        scene.fleet.restart()
        how = "SIGTERM and then SIGKILL" if self.kill else "SIGTERM"
        return Bite(bool(workers), f"{how} to a fleet of {len(workers)}", workers if self.kill else ())

    @staticmethod
    def _cut_short(scene: Scene, rng: Random, workers: tuple[int, ...]) -> None:
        scene.fleet.terminate()
        pause(rng.uniform(0.0, 0.4))
        scene.fleet.kill_supervisor()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class SignalCommand(ChaosFault, frozen=True):
    """One of several commands gets the signals of a deploy, in one of these `ways`, and is started again after its end.

    term  SIGTERM;  terms  SIGTERM twice;  kill  SIGKILL;  stop  SIGSTOP past its leases, SIGTERM, SIGCONT

    A strike does not wait for the end: others go on meanwhile.
    """

    ways: tuple[Literal["term", "terms", "kill", "stop"], ...] = ("term", "terms", "kill", "stop")
    stopped: float = 1.5
    """Of a lease."""

    def prepare(self, scene: Scene) -> None:
        scene.memo["signals"], scene.memo["ending"] = [], {}

    def strike(self, scene: Scene, rng: Random) -> Bite:
        ending: dict[int, Thread] = scene.memo["ending"]
        scene.fleet.restart()
        command = rng.choice(scene.until(lambda: self._at_work(scene, ending), "a command has begun jobs"))
        way, between, at = rng.choice(self.ways), rng.uniform(0.05, 0.3), now()
        thread = ending[command.pid] = Thread(target=self._end, args=(scene, command, way, between), daemon=True)
        thread.start()
        return Bite(True, f"{way} to {command.pid}", (command.pid,) if way == "kill" else (), at=at)

    @staticmethod
    def _at_work(scene: Scene, ending: Container[int]) -> list[ProcessHandle]:
        """Those that have begun jobs: an interpreter that has just started ends by SIGTERM before it runs any code."""
        begun = {int(file.name.partition("-")[0]) for file in scene.starts.iterdir()}
        return [each for each in scene.fleet.commands() if each.pid in begun and each.pid not in ending]

    def finish(self, scene: Scene) -> None:
        for thread in scene.memo["ending"].values():
            thread.join()
        scene.fleet.restart()

    def _end(self, scene: Scene, command: ProcessHandle, way: str, between: float) -> None:
        if way == "stop":
            command.signal(signal.SIGSTOP)
            pause(scene.plan.fleet.lease * self.stopped)
        scene.memo["signals"].append((command.pid, now()))
        command.signal(signal.SIGKILL if way == "kill" else signal.SIGTERM)
        if way == "stop":
            command.signal(signal.SIGCONT)
        if way == "terms":
            pause(between)
            command.signal(signal.SIGTERM)
        code = _ended(command, scene.plan.fleet.drain + _END_SECONDS)
        expected = -signal.SIGKILL if way == "kill" else 0
        if code != expected:
            scene.report_failure(f"a command that got {way} ended with {code}, not with {expected}")


def _ended(command: ProcessHandle, patience: float) -> int | None:
    """Its exit code. Each poll is short, since all children of a watchdog are waited for one at a time."""
    deadline = time.monotonic() + patience
    while (code := command.wait(0)) is None and time.monotonic() < deadline:
        pause(_STEP)
    return code


class SkewClock(ChaosFault, frozen=True):
    """A second fleet whose wall clock is `offset` seconds off, or jumps to and fro with a `strobe` of so many seconds.

    The clock is wrong for all of Python in those processes (`app.py`), from before the store is opened.
    """

    offset: float
    strobe: float = 0.0
    lasts: float = 2.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        from forebay_proof.lab.chaos.parts import fleet_of

        began = now()
        before = set(scene.fleet.workers())
        clock = f"{self.offset:g}/{self.strobe:g}"
        with fleet_of(scene, "skewed", processes=1, env={"LAB_CLOCK": clock}) as other:
            other.start()
            scene.until(lambda: self._effects(scene, other.workers()), "the skewed fleet works")
            scene.skewed.update(other.workers())
            pause(self.lasts)
            scene.skewed.update(other.workers())
            if (code := other.stop()) != 0:
                scene.report_failure(f"a fleet whose clock was wrong left with code {code}")
        scene.skewed -= before
        done, took = self._effects(scene, scene.skewed), (now() - began) / 1_000_000
        return Bite(done > 0, f"a clock {self.offset:+g} s off, for {took:.1f} s: {done} effects by such so far")

    @staticmethod
    def _effects(scene: Scene, pids: Iterable[int]) -> int:
        return sum(len(read_last_records(scene.effects, pid)) for pid in pids)


class FlapDependency(ChaosFault, frozen=True):
    """What handlers depend on is down, and up again. No job may become a dead letter for it."""

    lasts: float = 3.0

    def strike(self, scene: Scene, rng: Random) -> Bite:
        before = _starts(scene)
        scene.dependency.touch()
        try:
            pause(self.lasts * rng.uniform(0.8, 1.2))
        finally:
            scene.dependency.unlink(missing_ok=True)
        met = _starts(scene) - before
        return Bite(met > 0, f"down for {self.lasts:g} s: {met} more starts than effects")

    def finish(self, scene: Scene) -> None:
        scene.memo["innocent"] = "dependent"


def busy_worker(scene: Scene, rng: Random) -> int:
    """One that runs jobs just now, and not only such as fail by themselves."""

    def poll() -> list[int]:
        return [pid for pid in sorted(scene.fleet.workers()) if runs_any(scene, pid)]

    return rng.choice(scene.until(poll, "a worker runs jobs", 20))


def runs_any(scene: Scene, pid: int) -> bool:
    done = {(line.job, line.delivery) for line in read_last_records(scene.effects, pid)}
    recent = now() - _RECENT
    starts = (line for line in read_last_records(scene.starts, pid) if line.at > recent and scene.steady(line.seq))
    return any((line.job, line.delivery) not in done for line in starts)


def _starts(scene: Scene) -> int:
    """Runs that came to nothing so far."""
    return len(read_records(scene.starts)) - len(read_records(scene.effects))
