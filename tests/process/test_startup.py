"""The first moments of a command: a signal during start-up is heeded, and a full disk is a clear error."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from forebay import open_store
from forebay_proof.processes import alive
from tests.process.test_kill import APART, MOUNT, may_mount
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
SLOW = """
import os, time
from pathlib import Path
Path(f"importing-{os.getpid()}").touch()
try:
    time.sleep(60)
except BaseException:
    pass
from forebay import Forebay
fb = Forebay()
"""
APP = """
from forebay import Forebay, QueueSpec
fb = Forebay()
fb.queue(QueueSpec(name="default"))

@fb.job
def note() -> None:
    pass
"""
FULL = f'{MOUNT} && dd if=/dev/zero of="$0/rest" bs=1k 2>/dev/null; exec "$1" -m forebay worker app:fb'


def environment(place: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{place}", **more}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "words",
    ["worker slow:fb", "worker slow:fb --processes 2", "dev slow:fb --port 0", "serve --app slow:fb --port 0"],
)
def test_a_signal_while_the_app_is_imported_ends_a_command_with_0(tmp_path: Path, words: str, number: int) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "forebay", *words.split()]
    child = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.DEVNULL)
    try:
        importing = 2 if words.startswith("dev") else 1
        eventually(lambda: len(list(tmp_path.glob("importing-*"))) == importing, "the app is imported", PATIENCE)
        child.send_signal(number)
        assert child.wait(PATIENCE) == 0
    finally:
        child.kill()
        child.wait()
    pids = [int(each.name.partition("-")[2]) for each in tmp_path.glob("importing-*")]
    eventually(lambda: not any(map(alive, pids)), "all processes are gone", PATIENCE)


@pytest.mark.parametrize("words", ["worker app:fb", "dev app:fb --port 0", "serve --port 0"])
def test_a_signal_is_heeded_as_soon_as_there_is_anything_to_heed_it(tmp_path: Path, words: str) -> None:
    """Before the command line itself is imported, which takes longer than most of the rest."""
    (tmp_path / "app.py").write_text(APP)
    program = f"""
import os, signal, sys, threading
import forebay.__main__ as start
assert "forebay.cli" not in sys.modules
class Early:
    def find_spec(self, name, *_):
        if name == "forebay.cli":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Early())
sys.argv = ["forebay", *{words.split()!r}]
sys.exit(start.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(tmp_path), check=False, timeout=PATIENCE
    )
    assert done.returncode == 0


def test_a_worker_that_starts_on_a_full_disk_says_so_and_exits_with_3(tmp_path: Path) -> None:
    """A real one where this process may mount; elsewhere a limit on files."""
    device = tmp_path / "device"
    device.mkdir()
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "forebay", "worker", "app:fb"]
    mounted = may_mount(device)
    done = subprocess.run(
        [*APART, "sh", "-c", FULL, str(device), sys.executable] if mounted else command,
        cwd=tmp_path,
        env=environment(tmp_path, FOREBAY_URL=f"sqlite:///{device}/jobs.db"),
        preexec_fn=None if mounted else _no_files,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 3
    (output,) = done.stderr.splitlines()
    assert output.startswith(f"forebay: cannot open sqlite:///{device}/jobs.db: the disk ")
    assert "fix the cause" in output


def test_a_supervisor_starts_a_worker_again_that_found_the_disk_full(tmp_path: Path) -> None:
    """A limit on files stands in for the disk: it can be lifted while the processes run."""
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/jobs.db"
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "forebay", "worker", "app:fb", "--processes", "1"],
        cwd=tmp_path,
        env=environment(tmp_path, FOREBAY_URL=url, PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually((tmp_path / "jobs.db").exists, "the store is there", PATIENCE)
        store = open_store(url)
        eventually(lambda: store.workers("", 10), "a worker announces itself", PATIENCE)
        (first,) = store.workers("", 10)
        (tmp_path / "app.py").write_text(APP.replace('"default"', '"other"'))  # a spec that has to be written
        resource.prlimit(supervisor.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        os.kill(first.pid, signal.SIGKILL)
        assert supervisor.stderr is not None
        pauses = _pauses(supervisor.stderr, 3)
        resource.prlimit(supervisor.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        eventually(lambda: any(each.owner != first.owner for each in store.workers("", 10)), "another worker", PATIENCE)
        store.close()
    finally:
        supervisor.send_signal(signal.SIGTERM)
        _, rest = supervisor.communicate(timeout=PATIENCE)
    assert supervisor.returncode == 0, rest
    assert pauses == sorted(set(pauses)), "later each time"


def _pauses(output: IO[str], count: int) -> list[float]:
    """How long the supervisor says it waits, after workers that said why they cannot start."""
    found: list[float] = []
    reasons = 0
    for line in output:
        reasons += "cannot start: sqlite " in line and "the disk " in line
        if "exited with code 3: it could not open its store, or a start-up hook failed; restarting in " in line:
            found.append(float(line.rpartition("restarting in ")[2].removesuffix(" s\n")))
        if len(found) == count:
            break
    assert reasons >= count
    return found


def _no_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
