"""`enqueue --file`: any number of jobs from NDJSON, in batches that are each accepted as a whole or not at all.

A bad line stops the command before its batch is sent; the error names the line and how many lines have been enqueued,
so that the rest can follow with `--skip`. Memory holds one or two batches.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import msgspec
from msgspec import Struct

from forebay.cli.argtypes import moment
from forebay.cli.command import Invocation
from forebay.cli.exits import FAILED, OK, USAGE, CommandFailed
from forebay.cli.screen import ProgressBar
from forebay.core.errors import ForebayError, Invalid, StoreFailed
from forebay.core.humanize import many
from forebay.core.instant import Instant, from_seconds
from forebay.core.job import Draft
from forebay.core.payload import Json
from forebay.store.protocol import Tally
from forebay.store.streams import enqueue_stream

LINE_BYTES = 1024 * 1024


class DraftLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One job of a file. `delay` is in seconds; times are written as on the command line."""

    kind: str | None = None
    payload: Json = None
    queue: str | None = None
    priority: int = 0
    run_at: str | None = None
    delay: float = 0
    deadline: str | None = None
    expires_at: str | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None
    max_attempts: int | None = None
    meta: dict[str, str] | None = None
    cost: int | None = None

    def draft(self, kind: str | None, queue: str | None, now: Callable[[], Instant]) -> Draft:
        chosen = self.kind or kind
        if chosen is None:
            raise Invalid("kind", "the line has no kind", 'write {"kind": …}, or give one: forebay enqueue KIND --file')
        return Draft(
            chosen,
            self.payload,
            self.queue or queue or "default",
            self.priority,
            moment("run_at", self.run_at, now()) if self.run_at else None,
            from_seconds("delay", self.delay),
            moment("deadline", self.deadline, now()) if self.deadline else None,
            moment("expires_at", self.expires_at, now()) if self.expires_at else None,
            self.key,
            self.tenant,
            self.subject,
            self.max_attempts,
            self.meta,
            cost=1 if self.cost is None else self.cost,
        )


class _Lines:
    """The lines of a file as drafts. `read`: bytes read; `done`: the last line that has been enqueued."""

    def __init__(self, call: Invocation, file: BinaryIO, now: Callable[[], Instant]) -> None:
        self._call = call
        self._file = file
        self._now = now
        self._under_way: deque[int] = deque()
        self.read = 0
        self.done = 0
        self.tally = Tally()

    def drafts(self) -> Iterator[Draft]:
        number = 0
        while line := self._file.readline(LINE_BYTES):
            number += 1
            self.read += len(line)
            if len(line) == LINE_BYTES:
                raise Invalid(f"line {number}", f"longer than {LINE_BYTES} bytes", "a payload has at most 256 KiB")
            if number <= self._call.args.skip or not line.strip():
                continue
            draft = _parsed(line, number, self._call, self._now)
            self._under_way.append(number)
            yield draft

    def taken(self, tally: Tally) -> None:
        for _ in range(tally.taken - self.tally.taken):
            self.done = self._under_way.popleft()
        self.tally = tally

    @property
    def accepted(self) -> int:
        return self.tally.taken - self.tally.duplicates - self.tally.merged


def enqueue_file(call: Invocation) -> int:
    """Enqueue a file; the options of the command are defaults for its lines."""
    for option in ("payload", "run_at", "delay", "key", "app"):
        if getattr(call.args, option):
            raise Invalid(
                f"--{option.replace('_', '-')}", "it applies to one job", "write it into the lines of the file"
            )
    with _input(call.args.file) as (file, size), call.store(create=True) as store:
        lines = _Lines(call, file, store.now)
        progress = ProgressBar(call.screen, "enqueue", size)

        def show_progress(tally: Tally) -> None:
            lines.taken(tally)
            progress.show(lines.read, f"{lines.accepted:,} jobs")

        try:
            enqueue_stream(store, lines.drafts(), show_progress)
        except ForebayError as error:
            raise CommandFailed(f"{error}{_way_on(lines)}", _code(error)) from error
        except KeyboardInterrupt:
            call.screen.note(f"stopped{_way_on(lines)}")
            raise
        finally:
            progress.close()
    numbers = {"accepted": lines.accepted, "duplicates": lines.tally.duplicates, "merged": lines.tally.merged}
    if call.screen.as_json:
        call.screen.emit(numbers)
    else:
        more = "".join(f", {number:,} {word}" for word, number in list(numbers.items())[1:] if number)
        call.screen.say(f"{many(lines.accepted, 'job')} accepted{more}")
    return OK


def _code(error: ForebayError) -> int:
    return USAGE if isinstance(error, Invalid) else 3 if isinstance(error, StoreFailed) else FAILED


def _way_on(lines: _Lines) -> str:
    if not lines.done:
        return "; nothing was enqueued"
    return f"; lines up to {lines.done} are enqueued: continue with --skip {lines.done}"


@contextmanager
def _input(name: str) -> Iterator[tuple[BinaryIO, int]]:
    if name == "-":
        yield sys.stdin.buffer, 0
        return
    try:
        file = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise CommandFailed(f"{name}: {error.strerror}; give a readable file", FAILED) from error
    with file:
        yield file, os.fstat(file.fileno()).st_size


def _parsed(line: bytes, number: int, call: Invocation, now: Callable[[], Instant]) -> Draft:
    args = call.args
    try:
        given = msgspec.json.decode(line, type=DraftLine)
        defaults = {
            name: getattr(args, name)
            for name in ("priority", "tenant", "subject", "max_attempts", "cost")
            if getattr(args, name) is not None and not getattr(given, name)
        }
        return msgspec.structs.replace(given, **defaults).draft(args.kind, args.queue, now)
    except Invalid as error:
        raise Invalid(f"line {number}: {error.field}", error.reason, error.remedy) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid(
            f"line {number}", str(error), 'write one JSON object per line, such as {"kind": "mail"}'
        ) from None
