"""Real workers on a real file, killed, stopped and poisoned: nothing accepted is lost, what started is charged once.

Handlers write what they do to a file (`apps.py`); the tests judge by that file and by the store, never by what a worker
says about itself. At the end of every test each process that ever loaded the app is gone.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from forebay import Draft, Job, QueueSpec, State, Store, open_store
from forebay.core.instant import hours, ms, seconds
from forebay.core.policy import Fixed, KeepFor, Routing
from forebay.store.protocol import Query
from forebay.work.isolate import CRASHED
from forebay.work.options import Options
from forebay.work.run import TIMEOUT

ROOT = Path(__file__).parents[2]
APP = "tests.process.apps"
PATIENCE = 40.0


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
    """A store's file, an effects' file, and the processes that use them."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "jobs.db"
        self.effects = directory / "effects"
        self.url = f"sqlite:///{self.database}"
        self.log = directory / "log"
        self.store: Store = open_store(self.url)
        self.store.put_spec(QueueSpec(name="default", retention=KeepFor(hours(1)), routing=Routing(25, Fixed(ms(20)))))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ids: list[int] = []

    def enqueue(self, kind: str, count: int = 1, lives: int | None = None, **more: object) -> list[int]:
        first = len(self.ids) + 1
        drafts = [Draft(kind, {"seq": first + n, **more}, max_attempts=lives) for n in range(count)]
        ids = [receipt.id for receipt in self.store.enqueue(drafts)]
        self.ids += ids
        return ids

    def run(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "FOREBAY_URL": self.url,
            "FOREBAY_EFFECTS": str(self.effects),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYTHONFAULTHANDLER": "",
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=log
            )
        self.processes.append(process)
        return process

    def worker(self, **options: object) -> subprocess.Popen[bytes]:
        """One worker without a supervisor."""
        number = len(self.processes)
        marks = self.effects.with_name(f"marks-{number}")
        return self.run("-m", "forebay.work.worker", f"{APP}:fb", encoded(**options), f"worker-{number}", str(marks))

    def fleet(self, processes: int, **options: object) -> subprocess.Popen[bytes]:
        return self.run("-m", APP, str(processes), encoded(**options))

    def lines(self, word: str = "", seq: int | None = None) -> list[Line]:
        text = self.effects.read_text() if self.effects.exists() else ""
        found = [line.split() for line in text.splitlines()]
        lines = [Line(said, *map(int, numbers)) for said, *numbers in found]
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
        deadline = time.monotonic() + patience
        while not holds():
            if time.monotonic() > deadline:
                states = Counter((job.kind, job.state.value) for job in self.jobs())
                log = self.log.read_text()[-3_000:] if self.log.exists() else ""
                raise AssertionError(f"not within {patience:g} s: {what}\n{states}\n{log}")
            time.sleep(0.02)

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
        starts, effects = self.lines("start"), self.lines("effect")
        for lines in (starts, effects):
            fences = Counter((line.job, line.delivery) for line in lines)
            assert not [fence for fence, count in fences.items() if count > 1], "one fence, twice"
        for seq, job in jobs.items():
            assert job.state.terminal, f"seq {seq} was accepted and is neither done nor dead: {job}"
            mine = [line for line in starts if line.seq == seq]
            assert job.attempt <= job.max_attempts
            assert [line.attempt for line in mine] == sorted(line.attempt for line in mine)
            if job.state is State.DEAD:
                assert job.attempt == job.max_attempts
                assert_charged(job, {line.attempt for line in mine})
            else:
                assert [line for line in effects if line.seq == seq], f"seq {seq} is done and has no effect"
        return jobs

    def end(self, process: subprocess.Popen[bytes], signals: int = 1) -> int:
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)

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
        deadline = time.monotonic() + 10
        while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(PATIENCE)
            assert process.stdin is not None
            process.stdin.close()
        self.store.close()
        assert not left, f"still running at the end: {left}"


def assert_charged(job: Job, ran: set[int]) -> None:
    """Every attempt was a start. One may die between its mark and its first word, when a neighbour kills them both."""
    abandoned = {error.attempt for error in job.errors if error.abandoned}
    silent = set(range(1, job.attempt + 1)) - ran
    assert ran <= set(range(1, job.attempt + 1)), f"{job.kind}: charged {job.attempt}, ran {ran}"
    assert silent <= abandoned, f"{job.kind}: charged {job.attempt}, ran {ran}"
    if job.attempt - 1 in abandoned:
        assert job.attempt in ran, "a suspect runs alone: nobody else can have killed it"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def encoded(**options: object) -> str:
    usual: dict[str, object] = {"concurrency": 8, "lease_for": seconds(2), "drain_timeout": seconds(10)}
    return msgspec.json.encode(Options(**{**usual, **options})).decode()  # type: ignore[arg-type]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process writes, and takes its time."""
    other = sqlite3.connect(database, isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


# Kills


def test_after_a_kill_in_the_middle_of_a_handler_the_job_runs_again_long_before_its_lease_ends(site: Site) -> None:
    fleet = site.fleet(2, lease_for=seconds(20))
    (job_id,) = site.enqueue("stuck_once")
    site.enqueue("plain", 20)
    victim = site.started(1)
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = time.monotonic_ns() // 1_000
    again = site.started(1, attempt=2)
    assert again.pid != victim.pid
    assert (again.at - killed_at) / 1_000_000 < 10, "half a lease"
    site.until_ended()
    assert site.end(fleet) == 0
    jobs = site.audit()
    assert [(job.state, job.attempt) for job in jobs.values() if job.id == job_id] == [(State.DONE, 2)]
    assert site.job(job_id).errors[0].abandoned


def test_after_a_kill_between_effect_and_acknowledgement_the_effects_differ_by_their_fence(site: Site) -> None:
    fleet = site.fleet(1, lease_for=seconds(20))
    (stuck,) = site.enqueue("effect_then_stuck")
    site.until(lambda: len(site.lines("effect", 1)) == 1, "the first effect")
    os.kill(site.lines("effect", 1)[0].pid, signal.SIGKILL)
    site.until_ended()
    assert [(line.job, line.delivery) for line in site.lines("effect", 1)] == [(stuck, 1), (stuck, 2)]
    assert site.job(stuck).attempt == 2
    assert site.end(fleet) == 0
    site.audit()


def test_a_handler_that_returned_before_the_kill_is_charged_like_any_that_started(site: Site) -> None:
    """The verdict cannot be written, because another process holds the file; then the worker dies with it."""
    fleet = site.fleet(1, lease_for=seconds(20))
    (job_id,) = site.enqueue("told_when")
    victim = site.started(1)
    with locked(site.database):
        site.make("go-1")
        site.until(lambda: len(site.lines("effect", 1)) == 1, "the first effect")
        time.sleep(0.3)
        os.kill(victim.pid, signal.SIGKILL)
        time.sleep(0.3)
    site.started(1, attempt=2)
    assert (site.job(job_id).attempt, site.job(job_id).delivery) == (2, 2)
    site.make("go-2")
    site.until_ended()
    assert site.job(job_id).result == 2
    assert site.end(fleet) == 0
    site.audit()


def test_a_worker_that_was_stopped_past_its_lease_cannot_acknowledge_late(site: Site) -> None:
    first = site.worker(lease_for=seconds(1))
    (job_id,) = site.enqueue("told_when")
    assert site.started(1).pid == first.pid
    first.send_signal(signal.SIGSTOP)
    second = site.worker(lease_for=seconds(1))
    assert site.started(1, attempt=2).pid == second.pid
    site.make("go-1")
    first.send_signal(signal.SIGCONT)
    site.until(lambda: len(site.lines("effect", 1)) == 1, "the late effect")
    time.sleep(1.0)
    held = site.job(job_id)
    assert (held.state, held.delivery, held.result_body) == (State.RUNNING, 2, None), "its acknowledgement was refused"
    site.make("go-2")
    site.until_ended()
    done = site.job(job_id)
    assert (done.state, done.attempt, done.result) == (State.DONE, 2, 2)
    assert [line.delivery for line in site.lines("effect", 1)] == [1, 2]
    site.enqueue("plain", 5)
    site.until_ended()
    assert site.end(first) == 0, "it lives, and works on"
    assert site.end(second) == 0
    site.audit()


# Signals


def test_a_signal_at_any_moment_drains_and_harms_nothing(site: Site) -> None:
    rng = random.Random(4)
    site.enqueue("quick", 150)
    site.enqueue("plain", 150, pause=0.02)
    for _ in range(4):
        before = len(site.lines("effect"))
        worker = site.worker()
        site.until(lambda before=before: len(site.lines("effect")) >= before + 15, "some work")  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.1))
        asked_at = time.monotonic_ns() // 1_000
        assert site.end(worker) == 0
        assert [line for line in site.lines("start") if line.at > asked_at + 1_000_000] == [], "nothing starts after it"
        assert site.jobs(State.RUNNING) == []
        open_jobs = site.jobs(State.READY, State.WAITING)
        assert {job.attempt for job in open_jobs} <= {0}, "what was handed back is not charged"
        assert len(open_jobs) + len(site.lines("effect")) == 300
    worker = site.worker()
    site.until_ended()
    assert site.end(worker) == 0
    jobs = site.audit()
    assert Counter(line.seq for line in site.lines("effect")) == Counter(range(1, 301)), "each once, for nobody died"
    assert {job.attempt for job in jobs.values()} == {1}


def test_what_does_not_end_in_the_drain_is_for_others_at_once_and_a_second_signal_hurries(site: Site) -> None:
    patient = site.worker(drain_timeout=seconds(600), lease_for=seconds(600))
    (job_id,) = site.enqueue("stuck_once")
    site.started(1)
    patient.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert patient.poll() is None, "it waits for the handler"
    assert site.end(patient) == 0
    back = site.job(job_id)
    assert (back.state, back.attempt, back.errors) == (State.READY, 0, ())
    hurried = site.worker(drain_timeout=seconds(0))
    site.until_ended()
    assert site.end(hurried) == 0
    assert (site.job(job_id).attempt, site.job(job_id).delivery) == (1, 2)
    site.audit()


def test_a_fleet_whose_supervisor_is_killed_drains_by_itself(site: Site) -> None:
    fleet = site.fleet(2, lease_for=seconds(600), drain_timeout=seconds(1))
    ids = site.enqueue("stuck_once", 2)
    children = {site.started(1).pid, site.started(2).pid}
    workers = {line.pid for line in site.lines("boot")} - {fleet.pid}
    assert children <= workers
    fleet.kill()
    fleet.wait(PATIENCE)
    site.until(lambda: not any(alive(pid) for pid in workers), "the children are gone")
    assert [(site.job(job_id).state, site.job(job_id).attempt) for job_id in ids] == [(State.READY, 0)] * 2
    other = site.worker()
    site.until_ended()
    assert site.end(other) == 0
    site.audit()


# Poison


POISON = ("exits", "exits_on_the_loop", "crashes", "raises_exit", "holds_the_interpreter", "hangs", "hungry")


def test_poison_dies_of_its_own_and_innocents_live(site: Site) -> None:
    fleet = site.fleet(2, lease_for=seconds(1.5))
    site.enqueue("plain", 20)
    poison = [site.enqueue(kind, lives=2)[0] for kind in POISON]
    site.enqueue("forks", 2)
    site.enqueue("quick", 40)
    site.enqueue("plain", 20)
    site.until_ended(80)
    site.enqueue("quick", 10)
    site.until_ended()
    assert site.end(fleet) == 0
    jobs = site.audit()
    innocents = [job for job in jobs.values() if job.id not in poison]
    assert {job.state for job in innocents} == {State.DONE}
    ended = {site.job(job_id).kind: site.job(job_id).state for job_id in poison}
    assert ended.pop("holds_the_interpreter").terminal, "it ends well where nobody was there to take it over"
    assert set(ended.values()) == {State.DEAD}
    deaths = len({line.pid for line in site.lines("boot")}) - 3
    assert deaths <= 2 * len(POISON), "no more workers died than poison had lives"


def test_a_handler_that_closes_files_that_are_not_its_own_does_not_leave_a_worker_that_does_nothing(site: Site) -> None:
    """Alone in its fleet: the numbers of closed files are given to others, and a store's file could be harmed so."""
    fleet = site.fleet(1)
    (poison,) = site.enqueue("closes_files", lives=2)
    site.until_ended(80)
    site.enqueue("quick", 10)
    site.until_ended()
    assert site.end(fleet) == 0
    jobs = site.audit()
    assert Counter(job.state for job in jobs.values()) == {State.DEAD: 1, State.DONE: 10}
    assert site.job(poison).state is State.DEAD


# Processes of their own


def test_isolated_handlers_cost_their_own_process_and_nothing_else(site: Site) -> None:
    worker = site.worker(concurrency=3)
    site.enqueue("alone", 4)
    bad = [site.enqueue(kind, lives=2)[0] for kind in ("alone_exits", "alone_killed", "alone_raises")]
    (hanging,) = site.enqueue("alone_hangs", lives=1)
    site.enqueue("alone_and_asynchronous", 2)
    site.enqueue("quick", 10)
    site.until_ended(60)
    assert worker.poll() is None
    jobs = site.audit()
    assert Counter(job.state for job in jobs.values()) == {State.DONE: 16, State.DEAD: 4}
    kinds = [site.job(job_id).errors[-1].kind for job_id in (*bad, hanging)]
    assert kinds == [CRASHED, CRASHED, "SystemExit", TIMEOUT]
    assert "SIGKILL" in site.job(bad[1]).errors[-1].message
    assert site.end(worker) == 0


def test_an_isolated_handler_does_not_outlive_its_worker(site: Site) -> None:
    fleet = site.fleet(1, lease_for=seconds(20))
    (job_id,) = site.enqueue("alone_stuck_once")
    orphan = site.started(1).pid
    workers = {line.pid for line in site.lines("boot")} - {fleet.pid, orphan}
    (worker,) = workers
    os.kill(worker, signal.SIGKILL)
    site.until(lambda: not alive(orphan), "the isolated process is gone too")
    site.until_ended()
    assert site.job(job_id).attempt == 2
    assert site.end(fleet) == 0
    site.audit()


# Outages


def test_a_worker_goes_on_when_the_file_is_free_again(site: Site) -> None:
    worker = site.worker()
    site.enqueue("quick", 20)
    site.until_ended()
    with locked(site.database):
        time.sleep(2.5)
    site.enqueue("quick", 20)
    site.enqueue("plain", 20)
    site.until(lambda: len(site.lines("start")) > 30, "work again")
    with locked(site.database):
        time.sleep(2.5)
    site.until_ended()
    assert worker.poll() is None
    assert site.end(worker) == 0
    jobs = site.audit()
    assert {job.state for job in jobs.values()} == {State.DONE}
    assert len({line.pid for line in site.lines("boot")}) == 1
