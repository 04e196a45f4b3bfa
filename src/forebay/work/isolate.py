"""Handlers in a process of their own, which may be killed: `isolate=True`.

A child is kept warm and runs one job at a time; a crash, a kill or a timeout costs the child and nothing else. Parent
and child talk over two pipes in length-prefixed MessagePack; what the handler prints goes where it always went. A third
pipe is the life-line: when the parent is gone, however it went, the child ends at once, and so does all it started.
"""

import asyncio
import inspect
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Event, Lock, Thread
from typing import Any, BinaryIO, Final

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

CRASHED: Final = "forebay.Crashed"
_LENGTH: Final = struct.Struct("<I")
_TELL_EVERY: Final = 0.25
_PIPES: Final = "FOREBAY_CHILD_PIPES"


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


class Child:
    """One warm process. `run` blocks the calling thread; `kill` may come from any other."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def run(self, run: Run) -> Outcome:
        process = self._ready()
        try:
            lease = run.lease
            _send(self._out, msgspec.msgpack.encode(Lease(lease.job, lease.owner, lease.until)))
            while isinstance(told := _decode(_receive(self._in)), Progress):
                if run.context is not None:
                    run.context.reported = told
            return told.outcome(run.handler.keep_for)
        except (OSError, EOFError, msgspec.DecodeError):
            code = process.wait()
            self._forget()
            if run.stop is not None:
                return run.stopped_outcome()
            return Failed(Failure(CRASHED, f"its process {describe_exit(code)}"))

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

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._process is not None:
            self._forget()
        to_child, out = os.pipe()
        in_, from_child = os.pipe()
        life_line, self._life_line = os.pipe()
        theirs = (to_child, from_child, life_line)
        environment = {**os.environ, _PIPES: ",".join(map(str, theirs)), "PYTHONPATH": os.pathsep.join(sys.path)}
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
    Thread(target=_die_with_parent, args=(life_line,), daemon=True).start()
    app = find_app(target)
    configure_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(to_child, "rb") as in_, os.fdopen(from_child, "wb", buffering=0) as out:
        while True:
            try:
                lease = msgspec.msgpack.decode(_receive(in_), type=Lease)
            except EOFError:
                return
            context = Context(lease, None, lambda: app.store, app.registry[lease.job.kind])
            takes_context = app.registry[lease.job.kind].signature.context_name is not None
            with _telling(context, out) if takes_context else nullcontext():
                reply = _run_here(app, context)
            _send(out, msgspec.msgpack.encode(reply))


def _die_with_parent(life_line: int) -> None:
    os.read(life_line, 1)
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


def _run_here(app: Any, context: Context) -> _Reply:
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
            value = asyncio.run(_awaited(value))
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
