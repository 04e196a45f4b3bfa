"""Handlers in a process of their own, which may be killed: `isolate=True`, and suspects in quarantine.

A child is kept warm and runs one job at a time, plain or async; a crash, a kill or a timeout costs the child and
nothing else. Parent and child talk over two pipes in length-prefixed MessagePack; what the handler prints goes where it
always went. A third pipe is the life-line: when the parent is gone, however it went, the child ends at once, and so
does all it started. Between the two is a stand-in, which does nothing but wait for the child and end as it did: a
handler that kills its parent kills the stand-in, not the worker.
"""

import asyncio
import faulthandler
import inspect
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

from forebay.core.instant import Span
from forebay.core.job import Progress
from forebay.core.lease import Lease
from forebay.core.outcome import Dropped, Failed, Failure, Outcome, Snoozed, Succeeded
from forebay.tracing import spans
from forebay.work.app import find_app
from forebay.work.context import Context
from forebay.work.exit_status import describe_exit
from forebay.work.handler import Handler, traced
from forebay.work.log_setup import configure_logging
from forebay.work.redacting import RunningJob, running_job
from forebay.work.run import Run
from forebay.work.start_marks import StartMarks

CRASHED: Final = "forebay.Crashed"
_LENGTH: Final = struct.Struct("<I")
_TELL_EVERY: Final = 0.25
_PIPES: Final = "FOREBAY_CHILD_PIPES"
_PULSE: Final = "FOREBAY_CHILD_PULSE"
_LAST_WORDS: Final = 1.0
_BEAT_EVERY: Final = 0.1


class _Reply(msgspec.Struct, array_like=True, tag=True):
    """An outcome on its way back."""

    word: str
    result: bytes | None = None
    error: Failure | None = None
    after: int = 0

    def outcome(self, keep_for: Span) -> Outcome:
        match self.word, self.error:
            case "succeeded", _:
                return Succeeded(self.result, keep_for)
            case "snoozed", _:
                return Snoozed(self.after)
            case "dropped", Failure() as error:
                return Dropped(error)
            case _, error:
                return Failed(error or Failure(CRASHED, "the child gave no reason"))


class _Said(msgspec.Struct, array_like=True, tag=True):
    """What a handler says of its progress, on its way."""

    portion: float
    note: str


_decoder: Final = msgspec.msgpack.Decoder(_Reply | _Said)


def _decode(body: bytes) -> _Reply | Progress:
    told = _decoder.decode(body)
    return Progress(told.portion, told.note) if isinstance(told, _Said) else told


class ChildDied(Exception):
    """The child is gone; `begun`: with the job that it was to run."""

    def __init__(self, code: int, *, begun: bool) -> None:
        super().__init__(describe_exit(code))
        self.code = code
        self.begun = begun


class Child:
    """One warm process. `prepare` and `run` block the calling thread; `kill` may come from any other."""

    def __init__(self, target: str, pulse: Path | None = None) -> None:
        """`pulse`: where its heartbeat is written, so that a stall of its interpreter is seen."""
        self._target = target
        self.pulse = pulse
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def prepare(self) -> None:
        """Start the process, if there is none, and wait until it has loaded the app: no job's time runs meanwhile."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._forget()
        process = self._start()
        try:
            _receive(self._in)
        except (OSError, EOFError):
            raise ChildDied(self._bury(process), begun=False) from None

    def run(self, run: Run) -> Outcome:
        """What came of the job; `ChildDied` if the process did not survive it."""
        process = self._process
        assert process is not None
        try:
            lease = run.lease
            _send(self._out, msgspec.msgpack.encode(Lease(lease.job, lease.owner, lease.until)))
            while isinstance(told := _decode(_receive(self._in)), Progress):
                if run.context is not None:
                    run.context.reported = told
            return told.outcome(run.handler.keep_for)
        except (OSError, EOFError, msgspec.DecodeError):
            raise ChildDied(self._bury(process), begun=True) from None

    def let_go_of_dead(self) -> None:
        """What a dead child has started may hold its pipes open: it goes too, or nobody would notice the death."""
        process = self._process
        if process is not None and process.poll() is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait()
            self._forget()

    def _bury(self, process: subprocess.Popen[bytes]) -> int:
        """How it ended. A child whose pipes are broken is of no use, and is not waited for."""
        try:
            code = process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self.kill()
            code = process.wait()
        self._forget()
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        to_child, out = os.pipe()
        in_, from_child = os.pipe()
        life_line, self._life_line = os.pipe()
        theirs = (to_child, from_child, life_line)
        environment = {**os.environ, _PIPES: ",".join(map(str, theirs)), "PYTHONPATH": os.pathsep.join(sys.path)}
        if self.pulse is not None:
            environment[_PULSE] = str(self.pulse)
        command = [sys.executable, "-m", "forebay.work.isolate", self._target]
        with self._lock:
            self._process = subprocess.Popen(command, pass_fds=theirs, env=environment, start_new_session=True)
        for descriptor in theirs:
            os.close(descriptor)
        self._out, self._in = os.fdopen(out, "wb", buffering=0), os.fdopen(in_, "rb")
        return self._process

    def _forget(self) -> None:
        with self._lock:
            self._process = None
        self._out.close()
        self._in.close()
        os.close(self._life_line)


def _serve(target: str) -> None:
    """The child's life: one job after another until the parent is gone."""
    to_child, from_child, life_line = (int(number) for number in os.environ[_PIPES].split(","))
    stand_in, held = os.pipe()
    if child := os.fork():
        for descriptor in (to_child, from_child, life_line, stand_in):
            os.close(descriptor)
        _end_as(child)
    os.close(held)
    own = os.getpid()
    Thread(target=_die_with_parent, args=(life_line, stand_in), daemon=True).start()
    if _PULSE in os.environ:
        _beat(StartMarks(Path(os.environ[_PULSE])))
    app = find_app(target)
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        os.fdopen(to_child, "rb") as in_,
        os.fdopen(from_child, "wb", buffering=0) as out,
        # One loop for all its jobs, as in a worker: what one of them made for its loop, the next may use.
        asyncio.Runner() as runner,
    ):
        _send(out, b"")
        while True:
            try:
                lease = msgspec.msgpack.decode(_receive(in_), type=Lease)
            except EOFError:
                return
            context = Context(lease, None, lambda: app.store, app.registry[lease.job.kind])
            takes_context = app.registry[lease.job.kind].signature.context_name is not None
            with _telling(context, out) if takes_context else nullcontext():
                reply = _run_here(app, context, runner)
                # A handler that forked and came back in the copy must not answer for it a second time.
                if os.getpid() != own:
                    os._exit(0)
            _send(out, msgspec.msgpack.encode(reply))


def _beat(pulse: StartMarks) -> None:
    """The heartbeat of the child, for whoever watches it; a signal that ends it leaves its stacks in the log."""
    pulse.open()
    if not faulthandler.is_enabled():
        faulthandler.enable()

    def beat() -> None:
        while True:
            pulse.beat()
            sleep(_BEAT_EVERY)

    Thread(target=beat, name="forebay-heartbeat", daemon=True).start()


def _end_as(child: int) -> NoReturn:
    """The stand-in: end as the child does, without a core of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)


def _die_with_parent(*lines: int) -> None:
    select.select(lines, [], [])
    os.killpg(0, signal.SIGKILL)


@contextmanager
def _telling(context: Context, out: BinaryIO) -> Iterator[None]:
    """While the handler runs, what it last said of its progress goes to the parent, a few times a second."""
    over = Event()

    def tell() -> None:
        told: Progress | None = None
        while not over.wait(_TELL_EVERY):
            said = context.reported
            if said is not None and said is not told:
                told = said
                _send(out, msgspec.msgpack.encode(_Said(said.portion, said.note)))

    teller = Thread(target=tell, name="forebay-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _run_here(app: Any, context: Context, runner: asyncio.Runner) -> _Reply:
    lease = context.lease
    handler: Handler = app.registry[lease.job.kind]
    if (traces := spans()) is not None:
        handler = traced(handler, lease.job, traces)
    running_job.set(RunningJob(handler.secrets, lease.job.body))
    try:
        arguments = handler.signature.unpack(lease.job.body)
        if handler.signature.context_name is not None:
            arguments[handler.signature.context_name] = context
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
            case Failed(failure):
                return _Reply("failed", error=failure)
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
