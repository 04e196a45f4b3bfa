"""What becomes of jobs whose worker is killed: Forebay and other queues, each with the settings that it has by itself.

forebay bench run recovery            on SQLite, Postgres and Redis, beside every peer that is here: about five minutes
forebay bench run recovery --quick    watched for 40 seconds instead of 150

Eight jobs of three seconds. One second after the start of the first, all processes of the worker get SIGKILL, and the
same command is started again at once. `again` and `waiting` are seconds from the kill to the next start of a job: of
the first one that was interrupted, and of the first one that had not started. `interrupted` jobs ran at the kill,
`waited` jobs had not started. `once`, `repeated` and `unfinished` are jobs by how often they came to their end while
they were watched. The queues are killed one after the other, and watched at the same time.
"""

import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from forebay_proof.bench.clients.peer import NODE_ENV, PYTHON, version_of
from forebay_proof.bench.clients.processes import Clients
from forebay_proof.bench.killed import nap
from forebay_proof.bench.measure import Figure, arguments, run, selected
from forebay_proof.processes import tree_of
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.process import ProcessHandle, tail
from forebay_proof.servers.redis import RedisServer

JOBS: Final = 8
KILL_AFTER: Final = 1.0
WATCHED: Final = 150.0
WATCHED_QUICKLY: Final = 40.0
NEVER: Final = "s without a start"
GOALS: Final = {"again": "≤ 5", "once": f"≥ {JOBS}"}
"""Of Forebay."""

_MAX_START: Final = 60.0
_UNDISTURBED: Final = 8.0
"""The next queue is started this long after a kill, or as soon as an interrupted job runs again."""
_APPS: Final = "forebay_proof.bench.killed"
_HERE: Final = Path(__file__).parent / "killed"


@dataclass(frozen=True)
class Contender:
    """A queue: the program that puts its jobs, its worker, and the server that it needs.

    `node`: the name of its package there, if it is not Python's.
    """

    name: str
    server: str
    program: Sequence[str | Path]
    work: Sequence[str | Path]
    prepares: bool = False
    node: str = ""

    @cached_property
    def version(self) -> str:
        """Empty if it is not here."""
        return version_of(self.name, self.node)


def _forebay(server: str) -> Contender:
    app = f"{_APPS}.forebay_app"
    return Contender(
        f"forebay-{server}",
        server,
        [sys.executable, "-m", app],
        [sys.executable, "-m", "forebay", "worker", f"{app}:fb"],
    )


def _python(name: str, server: str, *worker: str, prepares: bool = False) -> Contender:
    """Without words for a worker, the program is the worker, too."""
    program: list[str | Path] = [PYTHON, "-m", f"{_APPS}.{name}_app"]
    work: list[str | Path] = [PYTHON, "-m", *worker] if worker else [*program, "work"]
    return Contender(name, server, program, work, prepares)


def _node(name: str, package: str, server: str, *, prepares: bool) -> Contender:
    program: list[str | Path] = ["node", _HERE / f"{name}.cjs"]
    return Contender(name, server, program, [*program, "work"], prepares, package)


OURS: Final = [_forebay(server) for server in ("sqlite", "postgres", "redis")]
PEERS: Final = [
    _python("pgqueuer", "postgres", prepares=True),
    _python("procrastinate", "postgres", prepares=True),
    _node("graphile", "graphile-worker", "postgres", prepares=True),
    _node("bullmq", "bullmq", "redis", prepares=False),
    _python("celery", "redis", "celery", "-A", f"{_APPS}.celery_app", "worker", "--loglevel=ERROR"),
    _python("dramatiq", "redis", "dramatiq", f"{_APPS}.dramatiq_app"),
    _python("rq", "redis"),
    _python("huey", "sqlite", "huey.bin.huey_consumer", f"{_APPS}.huey_app.huey"),
]


class Note(NamedTuple):
    what: str
    number: int
    at: float


class Sites:
    """A database of its own for each queue; servers are started when the first one needs them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._numbers = count()

    @cached_property
    def _postgres(self) -> PostgresServer:
        return self._stack.enter_context(PostgresServer(durable=True, private=True))

    @cached_property
    def _redis(self) -> RedisServer:
        return self._stack.enter_context(RedisServer(durable=True, private=True))

    @cached_property
    def _directory(self) -> str:
        return self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-"))

    def url(self, contender: Contender) -> str:
        if contender.server == "postgres":
            return self._postgres.create_database()
        if contender.server == "redis":
            return f"{self._redis.url().removesuffix('/0')}/{next(self._numbers)}"
        path = f"{self._directory}/{contender.name}.db"
        return path if contender in PEERS else f"sqlite:///{path}"


class KillTrial:
    """One queue: its jobs are put, its worker is killed and started again."""

    def __init__(self, contender: Contender, url: str, clients: Clients) -> None:
        self.contender = contender
        self.name = contender.name if contender in OURS else f"{contender.name}-{contender.version}"
        self.killed_at = 0.0
        self._clients = clients
        self._notes = clients.new_directory("notes") / "notes"
        self._notes.touch()
        self._env = {nap.URL: url, nap.FILE: str(self._notes), **(NODE_ENV if contender.node else {})}
        self._worker: ProcessHandle | None = None

    def run(self) -> None:
        program = self.contender.program
        if self.contender.prepares:
            self._clients.run("prepare", [*program, "prepare"], self._env)
        self._clients.run("put", [*program, "put", str(JOBS)], self._env)
        self._start()
        self._wait(lambda: bool(self.notes()), _MAX_START)
        if not self.notes():
            raise TimeoutError(f"{self.name}: no job started within {_MAX_START:g} s\n{self.log()}")
        time.sleep(max(0.0, min(note.at for note in self.notes()) + KILL_AFTER - time.time()))
        self.killed_at = time.time()
        self.kill()
        self._start()
        self._wait(lambda: "again" in self.found(_UNDISTURBED), _UNDISTURBED)

    def kill(self) -> None:
        """All processes of the worker."""
        for process in list(tree_of([self._worker.pid] if self._worker is not None else [])):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def notes(self) -> list[Note]:
        lines = (line.split() for line in self._notes.read_text().rpartition("\n")[0].splitlines())
        return [Note(what, int(number), float(at)) for what, number, at in lines]

    def found(self, watched: float) -> dict[str, float]:
        return outcome(self.notes(), self.killed_at, watched)

    def log(self) -> str:
        return tail(self._worker.log) if self._worker is not None else ""

    def _start(self) -> None:
        self._worker = self._clients.start("worker", self.contender.work, self._env)

    def _wait(self, ready: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not ready():
            time.sleep(0.01)


def outcome(notes: Sequence[Note], killed_at: float, watched: float) -> dict[str, float]:
    """What became of the jobs. `again` and `waiting` are missing where no such job started."""
    notes = [note for note in notes if note.at <= killed_at + watched]
    before = [note for note in notes if note.at <= killed_at]
    begun, ended = ({note.number for note in before if note.what == what} for what in ("start", "end"))
    interrupted = begun - ended
    later = [note for note in notes if note.what == "start" and note.at > killed_at]
    ends = Counter(note.number for note in notes if note.what == "end")
    found: dict[str, float] = {}
    for key, numbers in (("again", interrupted), ("waiting", set(range(JOBS)) - begun)):
        if starts := [note.at for note in later if note.number in numbers]:
            found[key] = min(starts) - killed_at
    times = [ends[number] for number in range(JOBS)]
    found |= {"interrupted": len(interrupted), "waited": JOBS - len(begun)}
    found |= {"once": times.count(1), "unfinished": times.count(0)}
    return found | {"repeated": sum(each > 1 for each in times)}


def figures_of(name: str, found: Mapping[str, float], watched: float, goals: Mapping[str, str]) -> Iterator[Figure]:
    """Where no such job started, the figure is how long that was watched."""
    for key in ("again", "waiting", "interrupted", "waited", "once", "repeated", "unfinished"):
        if key != "waiting" or found["waited"]:
            unit = ("s" if key in found else NEVER) if key in ("again", "waiting") else "jobs"
            value = found.get(key, watched)
            yield Figure(f"recovery/{name}/{key}", unit, partial(float, value), goal=goals.get(key, ""))


def main() -> int:
    """A queue that fails is reported, and the others go on; the exit code then is 1."""
    args = arguments(__doc__)
    watched = WATCHED_QUICKLY if args.quick else WATCHED
    wanted = [each for each in (*OURS, *PEERS) if selected(args.only, f"recovery/{each.name}")]
    here = [each for each in wanted if each in OURS or each.version]
    _describe(wanted, here)
    found: list[Figure] = []
    trials: list[KillTrial] = []
    with ExitStack() as stack:
        sites = Sites(stack)
        clients = stack.enter_context(Clients())
        for contender in here:
            try:
                trial = KillTrial(contender, sites.url(contender), clients)
                stack.callback(trial.kill)
                trial.run()
            except Exception:
                print(f"{contender.name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            else:
                trials.append(trial)
        last = max((trial.killed_at for trial in trials), default=0.0)
        time.sleep(max(0.0, last + watched - time.time()))
        for trial in trials:
            goals = GOALS if trial.contender in OURS else {}
            found += figures_of(trial.name, trial.found(watched), watched, goals)
    run(found, rounds=1, only="", as_json=args.json)
    return int(len(trials) < len(here))


def _describe(wanted: Sequence[Contender], here: Sequence[Contender]) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for each in here:
        print(f"{each.name} {each.version}: {' '.join(map(str, each.work[1:]))}", file=sys.stderr)
    if missing := [each.name for each in wanted if each not in here]:
        print(f"not installed: {', '.join(missing)} (make bench-recovery PEERS=1)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
