"""Real processes, a real disk, `kill -9` at random: what was acknowledged is there, what was finished stays finished.

A victim works flat out on a journal and logs acknowledgements to a file; the parent kills it, opens the journal, and
audits it against that file. Also: one process a journal, death in the middle of a compaction, a full disk, modes.
"""

import os
import random
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forebay import Draft, Job, State, Want, open_store
from forebay.core.errors import StoreLocked
from forebay.core.instant import seconds
from forebay.core.outcome import Ack
from forebay.store.protocol import Query, Store
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
ROUNDS = 10
THREADS = 8
MIN_ACKS = 100

VICTIM = """
import os, random, signal, sys, threading
from forebay import Draft, Want
from forebay.core.instant import seconds
from forebay.core.outcome import Ack, Failure, Release, Retry
from forebay.store.memory.journaled import open_journaled

directory, witness_path, name, threads, segment_bytes, compact_bytes = sys.argv[1:]
witness = os.open(witness_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
store = open_journaled(directory, segment_bytes=int(segment_bytes), compact_bytes=int(compact_bytes))


def write(lines):
    os.write(witness, "".join(line + "\\n" for line in lines).encode())


def work(thread):
    rng = random.Random(f"{name}-{thread}")
    number = 0
    while True:
        keys = [f"{name}-{thread}-{number + n}" for n in range(4)]
        receipts = store.enqueue([Draft("mail", {"key": key}, key=key) for key in keys])
        write(f"accepted {receipt.id} {key}" for receipt, key in zip(receipts, keys))
        leases = store.claim([Want("default", 4)], f"thread-{thread}", seconds(30))
        write(f"claimed {lease.job.id} {lease.job.delivery}" for lease in leases)
        verdicts = [rng.choice([Ack(), Ack(), Ack(), Retry(0, Failure("again")), Release()]) for _ in leases]
        finished = [lease.job.id for lease, verdict in zip(leases, verdicts) if type(verdict) is Ack]
        write(f"acking {job_id} -" for job_id in finished)
        store.settle(list(zip(leases, verdicts)))
        write(f"done {job_id} -" for job_id in finished)
        number += 4


for thread in range(int(threads)):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
signal.pause()
"""

HOLDER = """
import signal, sys
from forebay import Draft, open_store
store = open_store(f"memory://{sys.argv[1]}")
store.enqueue([Draft("mail")])
print("open", flush=True)
signal.pause()
"""

FILLER = """
import resource, signal, sys
from forebay import Draft, ForebayError, Want, open_store
from forebay.core.errors import StoreFailed
from forebay.core.instant import seconds
directory, limit = sys.argv[1], int(sys.argv[2])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
store = open_store(f"memory://{directory}")
try:
    while True:
        print("accepted", *(receipt.id for receipt in store.enqueue([Draft("mail", "x" * 3_000)] * 3)), flush=True)
except StoreFailed as failure:
    print("failed", failure, flush=True)
for verb in (
    lambda: store.enqueue([Draft("mail")]),
    lambda: store.claim([Want("default", 1)], "ada", seconds(5)),
    lambda: store.get([1]),
    lambda: store.backlog(),
):
    try:
        print("answered", verb(), flush=True)
    except StoreFailed:
        print("silent", flush=True)
try:
    store.close()
except ForebayError:
    pass
"""


@contextmanager
def running(program: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A child that is dead and buried at the end, whatever happens."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(PATIENCE)
        assert child.stdout is not None
        child.stdout.close()


def kill(child: subprocess.Popen[str]) -> None:
    assert child.poll() is None, f"it ended by itself: {child.returncode}"
    child.send_signal(signal.SIGKILL)
    assert child.wait(PATIENCE) == -signal.SIGKILL


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], PATIENCE)
    return child.stdout.readline().strip() if ready else ""


class VictimReport:
    """What the victims said so far. `acking` may or may not have happened: the kill can fall before the answer."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.accepted: dict[int, str] = {}
        self.acking: set[int] = set()
        self.done: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.turn(0)

    def turn(self, number: int) -> None:
        """A new victim writes to a new file: what the last one left half said stays unsaid."""
        self.path = self._directory / f"witness-{number}"
        self._read = 0

    def read(self) -> int:
        """Read the new lines; how many jobs are done."""
        text = self.path.read_text()[self._read :] if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._read_line(*line.split())
        return len(self.done)

    def _read_line(self, word: str, job_id: str, detail: str) -> None:
        number = int(job_id)
        match word:
            case "accepted":
                assert number not in self.accepted, f"id {number} was given twice"
                self.accepted[number] = detail
            case "claimed":
                assert int(detail) > self.deliveries.get(number, 0), f"job {number} was delivered as {detail} twice"
                self.deliveries[number] = int(detail)
            case "acking":
                self.acking.add(number)
            case "done":
                assert number not in self.done, f"job {number} was done twice"
                self.done.add(number)
            case _:
                raise AssertionError(word)

    def until_done(self, count: int) -> None:
        """A round that does too little proves nothing, and fails."""
        eventually(lambda: self.read() >= count, f"{count} jobs done", PATIENCE)


def everything(store: Store) -> dict[int, Job]:
    jobs: dict[int, Job] = {}
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(), after=after, limit=1_000)
        jobs.update((job.id, job) for job in page.jobs)
        after = page.next
    return jobs


def audit(directory: Path, reported: VictimReport) -> int:
    """The journal against the witness file; how many jobs are still open."""
    store = open_store(f"memory://{directory}")
    try:
        found = everything(store)
        lost = reported.accepted.keys() - reported.acking - found.keys()
        assert not lost, f"accepted, not finished and missing: {sorted(lost)[:10]}"
        undone = reported.done & found.keys()
        assert not undone, f"finished, and back from the dead: {sorted(undone)[:10]}"
        for job in found.values():
            assert job.delivery >= reported.deliveries.get(job.id, 0), f"deliveries of job {job.id} went back"
            assert job.state in (State.WAITING, State.READY, State.RUNNING)
        recent = list(reported.accepted.items())[-50:]
        again = store.enqueue([Draft("mail", {"key": key}, key=key) for _, key in recent])
        assert [receipt.id for receipt in again] == [job_id for job_id, _ in recent]
        assert all(receipt.duplicate for receipt in again)
        return len(found)
    finally:
        store.close()


def test_ten_kills_lose_nothing_and_undo_nothing(tmp_path: Path) -> None:
    journal, reported = tmp_path / "journal", VictimReport(tmp_path)
    rng = random.Random(9)
    for number in range(ROUNDS):
        reported.turn(number)
        with running(VICTIM, journal, reported.path, number, THREADS, 2**26, 2**26) as victim:
            reported.until_done(len(reported.done) + MIN_ACKS)
            time.sleep(rng.uniform(0, 0.1))
            kill(victim)
        reported.read()
        assert audit(journal, reported) > 0
    assert len(reported.done) >= ROUNDS * MIN_ACKS
    assert len(reported.acking - reported.done) <= ROUNDS * THREADS * 4
    assert max(reported.deliveries.values()) > 1


def wait_for_file(directory: Path, pattern: str) -> None:
    """Until there is one, without a pause: it may be gone soon; or two seconds."""
    with suppress(AssertionError):
        eventually(lambda: list(directory.glob(pattern)), timeout=2, step=0)


def test_kills_during_compaction_lose_nothing(tmp_path: Path) -> None:
    """The journal is so small that it is compacted nearly all the time. Kills take turns: one hits a snapshot that is
    being written, the next comes when one is whole; a recovery then starts from each."""
    journal, reported = tmp_path / "journal", VictimReport(tmp_path)
    seen = {"snapshot-*.tmp": 0, "snapshot-*.snap": 0}
    for number in range(24):
        reported.turn(number)
        wanted = min(seen, key=lambda pattern: seen[pattern])
        with running(VICTIM, journal, reported.path, number, THREADS, 16_384, 4_096) as victim:
            reported.until_done(len(reported.done) + 50)
            wait_for_file(journal, wanted)
            kill(victim)
        for pattern in seen:
            seen[pattern] += bool(list(journal.glob(pattern)))
        reported.read()
        audit(journal, reported)
        assert not list(journal.glob("snapshot-*.tmp")), "a recovery clears away what a kill left half written"
        if number >= 4 and min(seen.values()) >= 2:
            break
    assert min(seen.values()) >= 1, seen


def test_a_second_process_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}/journal"
    with running(HOLDER, tmp_path / "journal") as holder:
        assert first_line(holder) == "open"
        with pytest.raises(StoreLocked) as locked:
            open_store(url)
        assert locked.value.holder == str(holder.pid)
        assert str(holder.pid) in str(locked.value)
        kill(holder)
    store = open_store(url)
    assert [job.state for job in everything(store).values()] == [State.READY]
    store.close()


def audit_a_full_disk(directory: Path, output: list[str]) -> None:
    """The process stopped by itself: every job it accepted is there, and it accepted nothing afterwards."""
    accepted = {int(number) for line in output if line.startswith("accepted") for number in line.split()[1:]}
    assert len(accepted) > 10
    failures = [line for line in output if line.startswith("failed")]
    assert len(failures) == 1
    assert "nothing was acknowledged since" in failures[0]
    assert output[output.index(failures[0]) + 1 :] == ["silent"] * 4
    store = open_store(f"memory://{directory}")
    found = everything(store)
    assert accepted <= found.keys()
    assert all(job.payload == "x" * 3_000 for job in found.values())
    leases = store.claim([Want("default", 1)], "ada", seconds(5))
    store.settle([(lease, Ack()) for lease in leases])
    store.close()


def test_a_disk_that_takes_no_more_stops_the_store(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the write fails half-way, as it would there."""
    journal = tmp_path / "journal"
    with running(FILLER, journal, 200_000) as filler:
        output, _ = filler.communicate(timeout=PATIENCE)
    assert filler.returncode == 0
    audit_a_full_disk(journal, output.splitlines())


def test_a_small_file_system_that_is_full_stops_the_store(tmp_path: Path) -> None:
    """No space left on the device, where this process may mount one; elsewhere the limit on files must do."""
    device, copy = tmp_path / "device", tmp_path / "copy"
    device.mkdir()
    if may_mount(device):
        output, reason = fill_a_device(device, copy), "No space left on device"
    else:
        with running(FILLER, copy, 100_000) as filler:
            output, reason = filler.communicate(timeout=PATIENCE)[0], "File too large"
    assert reason in output
    audit_a_full_disk(copy, output.splitlines())


# In name spaces of their own: the mount ends with the process, whatever becomes of it.
APART = ("unshare", "--map-root-user", "--mount")
MOUNT = 'mount -t tmpfs -o size=512k forebay-test "$0"'
FILL = f'{MOUNT} && "$1" -c "$2" "$0/journal" 0 && cp -R "$0/journal" "$3"'


def may_mount(device: Path) -> bool:
    try:
        tried = subprocess.run([*APART, "sh", "-c", MOUNT, device], capture_output=True, check=False, timeout=PATIENCE)
    except OSError:
        return False
    return tried.returncode == 0


def fill_a_device(device: Path, copy: Path) -> str:
    return subprocess.run(
        [*APART, "sh", "-c", FILL, device, sys.executable, FILLER, copy],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    ).stdout


def test_files_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    journal = tmp_path / "deep" / "journal"
    reported = VictimReport(tmp_path)
    before = os.umask(0)
    try:
        with running(VICTIM, journal, reported.path, 0, THREADS, 16_384, 4_096) as victim:
            eventually(lambda: bool(list(journal.glob("snapshot-*.snap"))), "a snapshot", PATIENCE)
            kill(victim)
        open_store(f"memory://{journal}").close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in journal.iterdir()}
    assert {name.partition("-")[0] for name in modes} == {"ledger", "lock", "snapshot", "synced", "wal"}
    assert set(modes.values()) == {0o600}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (journal, journal.parent)] == [0o700, 0o700]
