"""Start marks say which jobs have begun, in a file that outlives its process and may be read at any moment."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from forebay import Draft, State, Want, open_store
from forebay.core.instant import seconds
from forebay.core.lease import Fence
from forebay.core.outcome import Abandoned, Displaced, Interrupted, Unaccounted
from forebay.core.policy import Routing
from forebay.store.protocol import Store
from forebay.work import start_marks
from forebay.work.recovery import Recovery, expired_outcome
from forebay.work.start_marks import (
    IN_QUARANTINE,
    NEWEST,
    NOTHING,
    RUN_DIRECTORY,
    ProcessHeartbeat,
    ProcessMarks,
    Stall,
    StartMarks,
    marks_directory,
    marks_path,
    owners_of,
    read_heartbeat,
    read_marks,
    read_running,
    record_stall,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "marks"


@pytest.fixture
def marks(path: Path) -> Iterator[StartMarks]:
    marks = StartMarks(path)
    marks.open()
    yield marks
    marks.close()


def begun(path: Path) -> set[Fence]:
    found = read_marks(path)
    assert found is not None
    assert found.begun is not None
    return set(found.begun)


def test_nothing_is_marked_at_first(marks: StartMarks, path: Path) -> None:
    assert begun(path) == set()


def test_what_has_started_and_not_ended_is_marked(marks: StartMarks, path: Path) -> None:
    marks.started((7, 1))
    marks.started((8, 3))
    marks.started((2**40, 2**33), thread=77)
    marks.ended((8, 3))
    assert begun(path) == {(7, 1), (2**40, 2**33)}
    found = read_marks(path)
    assert found is not None
    assert found.alive
    assert found.stall is None


def test_what_runs_just_now_is_known_by_its_thread(marks: StartMarks, path: Path) -> None:
    loop = threading.get_native_id()
    for fence in ((1, 1), (2, 1), (3, 1)):
        marks.started(fence)
    marks.started((4, 1), thread=77)
    marks.started((5, 1), thread=IN_QUARANTINE)
    assert read_running(path) == {77: (4, 1)}, "the loop has not said that it runs any"
    marks.on_loop(NEWEST)
    assert read_running(path) == {77: (4, 1), loop: (3, 1)}
    marks.on_loop((1, 1))
    assert read_running(path) == {77: (4, 1), loop: (1, 1)}
    marks.on_loop(NOTHING)
    marks.ended((4, 1))
    assert read_running(path) == {}


def test_a_heartbeat_and_a_stall_are_there_to_be_read(marks: StartMarks, path: Path) -> None:
    for _ in range(3):
        marks.beat()
    assert read_heartbeat(path) == ProcessHeartbeat(os.getpid(), True, 3, threading.get_native_id())
    record_stall(path, Stall(12.5, (7, 2)))
    found = read_marks(path)
    assert found is not None
    assert found.stall == Stall(12.5, (7, 2))


def test_only_the_one_that_held_the_interpreter_is_charged() -> None:
    marks = ProcessMarks({(1, 1): 0, (2, 1): 77, (3, 1): IN_QUARANTINE}, alive=False, stall=Stall(12.0, (2, 1)))
    outcomes = [expired_outcome(marks, (job_id, 1)) for job_id in (1, 2, 3, 4)]
    assert outcomes == [
        Interrupted(),
        Abandoned("it held the GIL for 12.0 s"),
        Displaced("its worker ended while it ran in quarantine"),
        Interrupted(expired=True),
    ]
    unknown = replace(marks, stall=Stall(12.0))
    assert isinstance(expired_outcome(unknown, (1, 1)), Unaccounted)
    assert isinstance(expired_outcome(unknown, (2, 1)), Unaccounted)


def test_slots_are_used_again(marks: StartMarks, path: Path) -> None:
    for job_id in range(1, 10_001):
        marks.started((job_id, 1))
        marks.ended((job_id, 1))
    assert begun(path) == set()
    assert path.stat().st_size == start_marks._CHUNK


def test_two_deliveries_of_one_job_are_two_marks(marks: StartMarks, path: Path) -> None:
    marks.started((5, 1))
    marks.started((5, 2))
    marks.ended((5, 1))
    assert begun(path) == {(5, 2)}


def test_the_end_of_what_never_started_changes_nothing(marks: StartMarks, path: Path) -> None:
    marks.started((1, 1))
    marks.ended((9, 9))
    marks.ended((1, 1))
    marks.ended((1, 1))
    marks.started((2, 1))
    marks.started((3, 1))
    assert begun(path) == {(2, 1), (3, 1)}


def test_a_full_file_grows_and_drops_nothing(marks: StartMarks, path: Path) -> None:
    fences = {(job_id, 1) for job_id in range(1, 12_001)}
    for fence in fences:
        marks.started(fence)
    assert begun(path) == fences
    for fence in fences:
        marks.ended(fence)
    assert begun(path) == set()


def test_a_file_that_cannot_grow_says_that_it_is_incomplete(
    marks: StartMarks, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(start_marks, "_reserve", full)
    for job_id in range(1, 4_001):
        marks.started((job_id, 1))
    for job_id in range(1, 4_001):
        marks.ended((job_id, 1))
    found = read_marks(path)
    assert found is not None
    assert found.begun is None, "a missing mark does not mean that the job had not begun"
    assert caplog.text.count("it will be unknown") == 1


@pytest.mark.parametrize("content", [b"", b"\0" * 65_536, b"\1" * 100, b"\1" * 65_536])
def test_what_is_no_file_of_marks_is_not_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_marks(path) is None


def test_the_file_is_for_its_owner_alone_and_goes_with_a_clean_exit(path: Path) -> None:
    before = os.umask(0)
    try:
        marks = StartMarks(path)
        marks.open()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    marks.close()
    assert not path.exists()


# The directory


def test_each_store_has_a_private_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    assert marks_directory("memory://") is None, "this store dies with its process"
    one, other = marks_directory("postgresql://ada:secret@db/jobs"), marks_directory("postgresql://ada:secret@db/more")
    assert one is not None
    assert one != other
    assert stat.S_IMODE(one.stat().st_mode) == stat.S_IMODE(one.parent.stat().st_mode) == 0o700
    assert "secret" not in str(one)
    assert marks_directory("sqlite:///jobs.db") == marks_directory(f"sqlite:///{tmp_path}/jobs.db")


def test_a_directory_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    assert marks_directory("postgresql:///jobs") is None
    assert f"set {RUN_DIRECTORY} to a private directory" in caplog.text


def test_owners_with_odd_names_keep_to_the_directory(tmp_path: Path) -> None:
    assert marks_path(tmp_path, "../../etc/passwd").parent == tmp_path
    assert read_marks(marks_path(tmp_path, "..")) is None
    StartMarks(marks_path(tmp_path, "a/b:1:c")).open()
    assert list(owners_of(tmp_path)) == ["a/b:1:c"]


# Recovery

CRASHES = """
import os, sys
from pathlib import Path
from forebay.work.start_marks import StartMarks
marks = StartMarks(Path(sys.argv[1]))
marks.open()
for job_id in sys.argv[2:]:
    marks.started((int(job_id), 1))
os.kill(os.getpid(), 9)
"""


def crash(path: Path, *begun: int) -> None:
    """A process that had begun these jobs, and was killed."""
    subprocess.run([sys.executable, "-c", CRASHES, path, *map(str, begun)], check=False)
    assert path.exists()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield store
    store.close()


def test_a_worker_takes_back_what_a_dead_process_of_its_machine_held(store: Store, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    ids = [receipt.id for receipt in store.enqueue([Draft("job")] * 3)]
    store.claim([Want("default", 3)], "ada", seconds(600))
    crash(marks_path(run, "ada"), ids[1])
    living = StartMarks(marks_path(run, "bob"))
    living.open()
    recovery = Recovery(store, lambda _: Routing(), run, "me")
    recovery.step()
    assert {job.state for job in store.get(ids) if job} == {State.RUNNING}, "its supervisor, if any, goes first"
    recovery.step()
    found = [job for job in store.get(ids) if job]
    assert [(job.state, job.attempt, len(job.errors)) for job in found] == [
        (State.READY, 0, 0),
        (State.READY, 1, 1),
        (State.READY, 0, 0),
    ]
    assert recovery.recovered == 3
    assert list(owners_of(run)) == ["bob"], "the file goes once the jobs are taken back; a live worker keeps its file"
    living.close()


def test_a_process_of_another_container_is_taken_to_live(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process id means nothing here, so its jobs are not reclaimed before their leases end."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with monkeypatch.context() as other:
        other.setattr(start_marks, "_namespace", lambda: 7)
        other.setattr(os, "getpid", lambda: child.pid)
        StartMarks(path).open()
    found, heartbeat = read_marks(path), read_heartbeat(path)
    assert found is not None
    assert heartbeat is not None
    assert (found.alive, heartbeat.alive) == (True, True)
    monkeypatch.setattr(start_marks, "_namespace", lambda: 7)
    seen_there = read_marks(path)
    assert seen_there is not None
    assert not seen_there.alive
