"""A command: a name, a summary, arguments, examples, and a function that returns an exit code."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from forebay.cli.resolve_store import chosen_url, open_at
from forebay.cli.screen import Screen
from forebay.core.job import Job
from forebay.serve.security.redact import redact_job
from forebay.store.protocol import Store
from forebay.work.log_setup import FORMAT, FORMATS, log_format, log_level


class Invocation:
    """One invocation of a command: its arguments, its output, and its store."""

    def __init__(self, args: Namespace, screen: Screen) -> None:
        self.args = args
        self.screen = screen

    @property
    def url(self) -> str:
        return chosen_url(self.args.store)

    def shown(self, job: Job) -> Job:
        """The job, redacted unless --raw is given."""
        return job if self.args.raw else redact_job(job)

    def open(self, *, create: bool = False) -> Store:
        return open_at(self.url, create=create)

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """The chosen store, closed at the end. It is created only with `create`."""
        store = self.open(create=create)
        try:
            yield store
        finally:
            store.close()


def raw_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="show secrets (default: ***)")


def log_format_argument(parser: ArgumentParser, default: str = "text") -> None:
    words = f"the log format (default: {FORMAT}, else {default})"
    parser.add_argument("--log-format", choices=FORMATS, help=words)


def use_log_format(args: Namespace) -> None:
    """Set the log format of this process and its children; an invalid one is refused before anything runs."""
    if args.log_format is not None:
        os.environ[FORMAT] = args.log_format
    log_level(), log_format()


def no_arguments(parser: ArgumentParser) -> None:
    """For commands without arguments of their own."""


class Command(Struct, frozen=True):
    """`examples` are command lines, one per line, shown by --help and in docs/reference/cli.md."""

    name: str
    summary: str
    run: Callable[[Invocation], int]
    examples: str
    arguments: Callable[[ArgumentParser], None] = no_arguments
    takes_store: bool = True
    takes_json: bool = True


class CommandGroup(Struct, frozen=True):
    """Commands with a common prefix: `forebay dlq ls`."""

    name: str
    summary: str
    commands: tuple[Command, ...]
