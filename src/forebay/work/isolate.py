"""Child processes for handlers with `isolate=True`, and for suspects in quarantine.

A child is reused and runs one job at a time, plain or async. A crash, a kill or a timeout costs the child and nothing
else. Parent and child exchange length-prefixed MessagePack over two pipes; standard output and error are inherited. A
third pipe is the lifeline: when the parent exits for any reason, the child and its process group are killed. Between
worker and child there is a monitor process, which only waits for the child and exits the way the child did: a handler
that kills its parent process kills the monitor, not the worker. Hooks run in the child as in a worker; one that is
killed runs no shutdown hooks.
"""

import asyncio
import faulthandler
import inspect
import logging
import os
import resource
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import sleep
from typing import Any, BinaryIO, Final, NoReturn

import msgspec

from forebay.core.instant import Duration
from forebay.core.job import Progress
from forebay.core.lease import Lease
from forebay.core.outcome import Dropped, Failed, Failure, Outcome, Snoozed, Succeeded
from forebay.tracing import spans
from forebay.work.app import find_app
from forebay.work.context import Context
from forebay.work.exit_status import CANNOT_START, describe_exit
from forebay.work.handler import Handler, traced
from forebay.work.hooks import Hooked, Hooks
from forebay.work.lifespan import Lifespan, StartupFailed
from forebay.work.log_setup import configure_logging
from forebay.work.redacting import JobSecrets, running_job
from forebay.work.run import Run
from forebay.work.start_marks import StartMarks

_log = logging.getLogger("forebay.work")

CRASHED: Final = "forebay.Crashed"
_LENGTH: Final = struct.Struct("<I")
_PROGRESS_INTERVAL: Final = 0.25
_PIPES: Final = "FOREBAY_CHILD_PIPES"
_HEARTBEAT: Final = "FOREBAY_CHILD_HEARTBEAT"
_EXIT_TIMEOUT: Final = 1.0
_HEARTBEAT_INTERVAL: Final = 0.1


class _Reply(msgspec.Struct, array_like=True, tag=True):
    """The outcome of a job, sent by the child."""

    word: str
    result: bytes | None = None
    error: Failure | None = None
    after: int | None = None

    def outcome(self, keep_for: Duration) -> Outcome:
        match self.word, self.error:
            case "succeeded", _:
                return Succeeded(self.result, keep_for)
            case "snoozed", _:
                return Snoozed(self.after or 0)
            case "dropped", Failure() as error:
                return Dropped(error)
            case _, error:
                return Failed(error or Failure(CRASHED, "the child process gave no reason"), self.after)


class _ProgressMessage(msgspec.Struct, array_like=True, tag=True):
    """The progress of a handler, sent by the child."""

    portion: float
    note: str


_decoder: Final = msgspec.msgpack.Decoder(_Reply | _ProgressMessage)


def _decode(body: bytes) -> _Reply | Progress:
    message = _decoder.decode(body)
    return Progress(message.portion, message.note) if isinstance(message, _ProgressMessage) else message


class ChildDied(Exception):
    """The child process exited; `begun`: while it ran the job."""

    def __init__(self, code: int, *, begun: bool) -> None:
        super().__init__(describe_exit(code))
        self.code = code
        self.begun = begun


class IsolatedProcess:
    """One child process. `prepare` and `run` block the calling thread; `kill` may be called from any thread."""

    def __init__(self, target: str, heartbeat: Path | None = None) -> None:
        """`heartbeat`: the file for its heartbeat, by which a stall is detected."""
        self._target = target
        self.heartbeat = heartbeat
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._lock = Lock()

    def prepare(self) -> None:
        """Start the process if there is none, and wait until it has loaded the app; no job's timeout runs yet."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._forget()
        process = self._start()
        try:
            _receive(self._in)
        except (OSError, EOFError):
            raise ChildDied(self._reap(process), begun=False) from None

    def run(self, run: Run) -> Outcome:
        """Run the job; raises `ChildDied` if the process exits."""
        process = self._process
        assert process is not None
        try:
            lease = run.lease
            _send(self._out, msgspec.msgpack.encode(Lease(lease.job, lease.owner, lease.until)))
            while isinstance(message := _decode(_receive(self._in)), Progress):
                if run.context is not None:
                    run.context.reported = message
            return message.outcome(run.handler.keep_for)
        except (OSError, EOFError, msgspec.DecodeError):
            raise ChildDied(self._reap(process), begun=True) from None

    def kill_orphans(self) -> None:
        """Kill the process group of a dead child: its descendants may hold the pipes open and hide its exit."""
        process = self._process
        if process is not None and process.poll() is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Let an idle child run its shutdown hooks and exit; `close` waits for it."""
        if self._process is not None:
            self._ending = True
            self._out.close()

    def close(self, grace: float = 0.0) -> None:
        """Kill the process; one that was hung up may exit by itself within so many seconds."""
        if self._process is not None and self._ending:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        self.kill()
        if self._process is not None:
            self._process.wait()
            self._forget()

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of a child whose pipes are broken; it is killed if it does not exit."""
        try:
            code = process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            code = process.wait()
        self._forget()
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        to_child, out = os.pipe()
        in_, from_child = os.pipe()
        lifeline, self._lifeline = os.pipe()
        child_ends = (to_child, from_child, lifeline)
        environment = {**os.environ, _PIPES: ",".join(map(str, child_ends)), "PYTHONPATH": os.pathsep.join(sys.path)}
        if self.heartbeat is not None:
            environment[_HEARTBEAT] = str(self.heartbeat)
        command = [sys.executable, "-m", "forebay.work.isolate", self._target]
        with self._lock:
            self._process = subprocess.Popen(command, pass_fds=child_ends, env=environment, start_new_session=True)
        for descriptor in child_ends:
            os.close(descriptor)
        self._out, self._in = os.fdopen(out, "wb", buffering=0), os.fdopen(in_, "rb")
        return self._process

    def _forget(self) -> None:
        with self._lock:
            self._process = None
        self._ending = False
        self._out.close()
        self._in.close()
        os.close(self._lifeline)


def _serve(target: str) -> None:
    """The main loop of a child: run one job after another until the parent closes the pipe."""
    to_child, from_child, lifeline = (int(number) for number in os.environ[_PIPES].split(","))
    monitor, held = os.pipe()
    if child := os.fork():
        for descriptor in (to_child, from_child, lifeline, monitor):
            os.close(descriptor)
        _exit_like(child)
    os.close(held)
    own = os.getpid()
    Thread(target=_exit_with_parent, args=(lifeline, monitor), daemon=True).start()
    if _HEARTBEAT in os.environ:
        _start_heartbeat(StartMarks(Path(os.environ[_HEARTBEAT])))
    app = find_app(target)
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        os.fdopen(to_child, "rb") as in_,
        os.fdopen(from_child, "wb", buffering=0) as out,
        # One event loop for all jobs, as in a worker: objects bound to the loop can be reused by the next job.
        asyncio.Runner() as runner,
    ):
        lifespan = Lifespan(app.hooks if isinstance(app, Hooked) else Hooks(), runner.run)
        try:
            lifespan.start()
        except StartupFailed as error:
            _log.error("a child process cannot start: %s", error, exc_info=error.__cause__)
            sys.exit(CANNOT_START)
        _send(out, b"")
        while True:
            try:
                lease = msgspec.msgpack.decode(_receive(in_), type=Lease)
            except EOFError:
                lifespan.stop()
                return
            handler = app.registry[lease.job.kind]
            context = Context(lease, None, lambda: app.store, handler)
            takes_context = handler.signature.context_name is not None
            with _forward_progress(context, out) if takes_context else nullcontext():
                reply = _run_job(handler, lifespan, context, runner)
                # A forked child that returned from the handler must not send a second reply.
                if os.getpid() != own:
                    os._exit(0)
            _send(out, msgspec.msgpack.encode(reply))


def _start_heartbeat(heartbeat: StartMarks) -> None:
    """Write the heartbeat of the child in a thread; dump stacks to the log on a fatal signal."""
    heartbeat.open()
    if not faulthandler.is_enabled():
        faulthandler.enable()

    def beat() -> None:
        while True:
            heartbeat.beat()
            sleep(_HEARTBEAT_INTERVAL)

    Thread(target=beat, name="forebay-heartbeat", daemon=True).start()


def _exit_like(child: int) -> NoReturn:
    """The monitor process: exit with the code or signal of the child, without dumping a second core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)


def _exit_with_parent(*lines: int) -> None:
    select.select(lines, [], [])
    os.killpg(0, signal.SIGKILL)


@contextmanager
def _forward_progress(context: Context, out: BinaryIO) -> Iterator[None]:
    """Send the latest progress to the parent a few times a second while the handler runs."""
    ended = Event()

    def forward() -> None:
        sent: Progress | None = None
        while not ended.wait(_PROGRESS_INTERVAL):
            current = context.reported
            if current is not None and current is not sent:
                sent = current
                _send(out, msgspec.msgpack.encode(_ProgressMessage(current.portion, current.note)))

    thread = Thread(target=forward, name="forebay-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run_job(plain: Handler, lifespan: Lifespan, context: Context, runner: asyncio.Runner) -> _Reply:
    lease, handler = context.lease, lifespan.wire(plain)
    if (traces := spans()) is not None:
        handler = traced(handler, lease.job, traces)
    running_job.set(JobSecrets(handler.secrets, lease.job.body))
    try:
        lifespan.make_values(plain)
        arguments = handler.signature.arguments(lease.job, context)
        value = handler.function(**arguments)
        if inspect.isawaitable(value):
            value = runner.run(_awaited(value))
        return _Reply("succeeded", handler.encode_result(value))
    except BaseException as error:
        match handler.outcome_of(error, lease.job.body):
            case Snoozed(after):
                return _Reply("snoozed", after=after)
            case Dropped(failure):
                return _Reply("dropped", error=failure)
            case Failed(failure, after):
                return _Reply("failed", error=failure, after=after)
            case _:
                return _Reply("failed")


async def _awaited(value: Any) -> Any:
    return await value


def _send(pipe: BinaryIO, body: bytes) -> None:
    data = memoryview(_LENGTH.pack(len(body)) + body)
    while data:
        data = data[pipe.write(data) or 0 :]


def _receive(pipe: BinaryIO) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    if len(body) < length:
        raise EOFError
    return body


if __name__ == "__main__":
    _serve(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that a handler left behind must not keep the child alive.
    os._exit(0)
