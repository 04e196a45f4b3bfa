"""Where process tests happen: a store, a file of effects, and the real processes that use them.

Handlers write what they do to the file of effects (`apps.py`); a test judges by that file and by the store, never by
what a worker says about itself. `close` demands that every process that ever loaded the app is gone.
"""

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from forebay import Draft, ForebayError, Job, QueueSpec, State, Store, open_store
from forebay.core.instant import hours, ms, seconds
from forebay.core.limits import ERRORS_KEPT
from forebay.core.policy import Fixed, KeepFor, Routing
from forebay.store.protocol import Query
from forebay.work.options import Options
from forebay_proof.processes import alive
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
_log = logging.getLogger(__name__)

APP = "tests.process.apps"


class Line(NamedTuple):
    """One line of the effects' file."""

    word: str
    seq: int
    job: int
    delivery: int
    attempt: int
    pid: int
    at: int


class Site:
    """A store, an effects' file, and the processes that use them."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.effects = directory / "effects"
        self.url = url
        self.log = directory / "log"
        self.run_directory = directory / "run"
        self.store: Store = open_store(self.url)
        self.store.put_spec(QueueSpec(name="default", retention=KeepFor(hours(1)), routing=Routing(25, Fixed(ms(20)))))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ids: list[int] = []

    def enqueue(self, kind: str, count: int = 1, max_attempts: int | None = None, **more: object) -> list[int]:
        first = len(self.ids) + 1
        drafts = [Draft(kind, {"seq": first + n, **more}, max_attempts=max_attempts) for n in range(count)]
        ids = [receipt.id for receipt in self.store.enqueue(drafts)]
        self.ids += ids
        return ids

    def run(self, *command: str, url: str | None = None) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "FOREBAY_URL": url or self.url,
            "FOREBAY_EFFECTS": str(self.effects),
            "FOREBAY_RUN_DIR": str(self.run_directory),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYTHONFAULTHANDLER": "",
        }
        with self.log.open("ab") as log, (self.directory / "said").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=log
            )
        self.processes.append(process)
        return process

    def worker(self, app: str = APP, **options: object) -> subprocess.Popen[bytes]:
        """One worker without a supervisor."""
        return self.run("-m", "forebay.work.worker", f"{app}:fb", encoded(**options), f"worker-{len(self.processes)}")

    def fleet(self, processes: int, **options: object) -> subprocess.Popen[bytes]:
        return self.run("-m", APP, str(processes), encoded(**options))

    def workers_of(self, fleet: subprocess.Popen[bytes]) -> set[int]:
        """The processes of a fleet that live now."""
        return {line.pid for line in self.lines("boot") if alive(line.pid)} - {fleet.pid}

    def lines(self, word: str = "", seq: int | None = None) -> list[Line]:
        text = self.effects.read_text() if self.effects.exists() else ""
        found = [line.split() for line in text.splitlines()]
        lines = [Line(output, *map(int, numbers)) for output, *numbers in found]
        return [line for line in lines if word in ("", line.word) and seq in (None, line.seq)]

    def make(self, name: str) -> None:
        Path(f"{self.effects}.{name}").touch()

    def job(self, job_id: int) -> Job:
        (found,) = self.store.get([job_id])
        assert found is not None, f"job {job_id} is lost"
        return found

    def jobs(self, *states: State) -> list[Job]:
        found: list[Job] = []
        after: int | None = 0
        while after is not None:
            page = self.store.browse(Query(), after, 1_000)
            found += [job for job in page.jobs if not states or job.state in states]
            after = page.next
        return found

    def until(self, holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """A store that is out of reach does not answer yet."""

        def reached() -> bool:
            with suppress(ForebayError):
                return holds()
            return False

        eventually(reached, what, patience, self._state)

    def _state(self) -> str:
        states = Counter((job.kind, job.state.value) for job in self.jobs())
        return f"{states}\n{self.log.read_text()[-3_000:] if self.log.exists() else ''}"

    def until_ended(self, patience: float = PATIENCE) -> None:
        """Every accepted job is done or dead."""
        self.until(lambda: all(job.state.terminal for job in self.store.get(self.ids) if job), "all ended", patience)

    def started(self, seq: int, attempt: int = 1) -> Line:
        """By its attempt: a suspect may be handed back unharmed, which counts a delivery and no life."""

        def there() -> list[Line]:
            return [line for line in self.lines("start", seq) if line.attempt == attempt]

        self.until(lambda: bool(there()), f"seq {seq} starts as attempt {attempt}")
        return there()[0]

    def audit(self) -> dict[int, Job]:
        """What must hold however it went: by seq, the jobs."""
        jobs = dict(enumerate((self.job(job_id) for job_id in self.ids), 1))
        self.audit_jobs(jobs)
        return jobs

    def audit_jobs(self, jobs: dict[int, Job]) -> None:
        """Of these jobs, by seq: each has ended, and what was written of it fits what the store says."""
        starts, effects = self.lines("start"), self.lines("effect")
        for lines in (starts, effects):
            fences = Counter((line.job, line.delivery) for line in lines)
            assert not [fence for fence, count in fences.items() if count > 1], "one fence, twice"
        started, done = by_seq(starts), by_seq(effects)
        for seq, job in jobs.items():
            assert job.state.terminal, f"seq {seq} was accepted and is neither done nor dead: {job}"
            mine = started.get(seq, [])
            assert job.attempt <= job.max_attempts
            assert [line.attempt for line in mine] == sorted(line.attempt for line in mine)
            if job.state is State.DEAD:
                assert job.attempt == job.max_attempts
                assert_charged(job, {line.attempt for line in mine})
            else:
                assert done.get(seq), f"seq {seq} is done and has no effect"

    def end(self, process: subprocess.Popen[bytes], signals: int = 1) -> int:
        """The exit code after these signals; with another than 0, the report has the log of the processes."""
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        if code := process.wait(PATIENCE):
            _log.error("%s", self.log.read_text(errors="replace")[-8_000:])
        return code

    def close(self) -> None:
        """Everything is stopped, by force if need be; then nothing that ever loaded the app may be alive."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        pids = {line.pid for line in self.lines()} | {process.pid for process in self.processes}
        with suppress(AssertionError):
            eventually(lambda: not any(map(alive, pids)), "no process is left", 10)
        left = [pid for pid in pids if alive(pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(PATIENCE)
            assert process.stdin is not None
            process.stdin.close()
        self.store.close()
        assert not left, f"still running at the end: {left}"


def by_seq(lines: list[Line]) -> dict[int, list[Line]]:
    found: dict[int, list[Line]] = {}
    for line in lines:
        found.setdefault(line.seq, []).append(line)
    return found


def assert_charged(job: Job, ran: set[int]) -> None:
    """Every attempt was a start. One may die between its mark and its first word, when a neighbour kills them both."""
    abandoned = {error.attempt for error in job.errors if error.abandoned}
    silent = set(range(1, job.attempt + 1)) - ran
    assert ran <= set(range(1, job.attempt + 1)), f"{job.kind}: charged {job.attempt}, ran {ran}"
    assert silent <= abandoned or len(job.errors) == ERRORS_KEPT, f"{job.kind}: charged {job.attempt}, ran {ran}"
    if {job.attempt - 1, job.attempt - 2} <= abandoned:
        assert job.attempt in ran, "a suspect runs alone: no other job can have killed it"


def encoded(**options: object) -> str:
    usual: dict[str, object] = {"concurrency": 8, "lease_for": seconds(2), "drain_timeout": seconds(10)}
    return msgspec.json.encode(Options(**{**usual, **options})).decode()  # type: ignore[arg-type]
