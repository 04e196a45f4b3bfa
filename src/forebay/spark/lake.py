"""A lake: a directory that holds the ledger's events and the tables made from them, in Parquet.

    lake.json                                  the contents: what is valid, replaced in one step
    events/version=7/day=…/queue=…/*.parquet   events of neighbouring offsets
    tables/jobs/version=9/day=…/queue=…/…      rows of some days, or of all
    checkpoint/                                Spark's place in the ledger
    work/                                      what is being written; nobody reads it
        landing/…/day=…/queue=…/*.parquet      by tasks of Spark; what they told the driver of is moved on

A directory is written aside, made durable, renamed to its place, and then named by the contents, so a reader sees the
lake before a step or after it. What a version holds never changes. A version that is no longer named stays for a while,
for those who still read it. A lake belongs to one store, and one pipeline at a time writes to it.

It is a path that the driver and all executors see; nothing here needs Spark, or a server.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError, Invalid

FORMAT: Final = 1
CONTENTS: Final = "lake.json"
WHOLE: Final = ""
"""Stands for the day of a table that is not kept by days."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_GRACE_SECONDS: Final = 600
"""How long a reader may go on with what was replaced."""


class Part(Struct, frozen=True):
    """The events of the offsets `first` … `end` - 1. `level`: how often parts were merged to make it."""

    version: int
    first: int
    end: int
    events: int
    level: int = 0


class Piece(Struct, frozen=True):
    """Where the rows of a day are, and how many."""

    version: int
    rows: int


class Held(Struct, frozen=True):
    """A table by days, made from all events below the offset `end` by code of this `revision`."""

    end: int
    revision: int
    days: dict[str, Piece]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.days.values())


class Contents(Struct, frozen=True):
    """What a lake holds. `versions`: how many were given out."""

    format: int
    store: str
    versions: int = 0
    events: list[Part] = []
    tables: dict[str, Held] = {}

    @property
    def first(self) -> int:
        return self.events[0].first if self.events else 0

    @property
    def end(self) -> int:
        return self.events[-1].end if self.events else 0

    @property
    def event_count(self) -> int:
        return sum(part.events for part in self.events)


def identity(url: str) -> str:
    """What a store is known by: its place, whoever asks for it."""
    parts = urlsplit(url)
    if parts.scheme in ("sqlite", "memory"):
        path = unquote(parts.path)
        return f"{parts.scheme}:{Path(path.removeprefix('/') if parts.scheme == 'sqlite' else path).resolve()}"
    scheme = parts.scheme if parts.scheme.startswith(("redis", "unix")) else "postgresql"
    prefix = dict(parse_qsl(parts.query)).get("prefix") if scheme != "postgresql" else None
    return f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{f'?prefix={prefix}' if prefix else ''}"


def lake_directory(location: str | Path) -> Path:
    """The directory of a lake: a path, or a `file:` URI of this machine. Any other scheme is refused by name."""
    text = str(location)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(location).resolve()
    parts = urlsplit(text)
    way_out = "name a directory that the driver and all executors see, such as /mnt/lake or file:/mnt/lake"
    if parts.scheme != "file":
        raise Invalid(f"lake {text}", f"lakes on {parts.scheme}: are not supported", way_out)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"lake {text}", f"the directory is on the host {parts.netloc}", way_out)
    return Path(unquote(parts.path)).resolve()


class Lake:
    """A lake on disk. Reading needs no lock; `writing` keeps others from writing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def at(cls, path: str | Path) -> "Lake":
        """The lake that is there."""
        lake = cls(lake_directory(path))
        lake.contents()
        return lake

    @classmethod
    def of(cls, path: str | Path, url: str) -> "Lake":
        """The lake of a store, made if nothing is there yet."""
        lake, store = cls(lake_directory(path)), identity(url)
        if not lake.path.exists() or (lake.path.is_dir() and not any(lake.path.iterdir())):
            lake.path.mkdir(parents=True, exist_ok=True)
            lake.replace(Contents(FORMAT, store))
        owner = lake.contents().store
        if owner != store:
            raise Invalid(
                f"lake {lake.path}", f"it belongs to {owner}, not to {store}", "name that store, or another directory"
            )
        return lake

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def contents(self) -> Contents:
        file = self.path / CONTENTS
        try:
            contents = msgspec.json.decode(file.read_bytes(), type=Contents)
        except (FileNotFoundError, NotADirectoryError):
            way_out = "name the directory that `forebay pipeline run --lake` made, or an empty one to make it there"
            raise Invalid(f"lake {self.path}", f"there is no {CONTENTS}", way_out) from None
        except msgspec.DecodeError as error:
            raise Invalid(f"lake {self.path}", f"{CONTENTS} cannot be read: {error}", "make another lake") from None
        if contents.format != FORMAT:
            reason = f"it has the format {contents.format}, this Forebay knows {FORMAT}"
            raise Invalid(f"lake {self.path}", reason, "use the Forebay that wrote it, or make another lake")
        return contents

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For the one who writes. What an interrupted one left behind is removed."""
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ForebayError(
                    f"another pipeline writes to the lake {self.path}; wait until it has ended"
                ) from None
            self.sweep()
            yield

    def replace(self, contents: Contents) -> None:
        """The commit point."""
        draft = self.path / f"{CONTENTS}.new"
        with draft.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contents), indent=1))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / CONTENTS)
        _sync(self.path)

    def draft(self, name: str) -> Path:
        """An empty place to write to."""
        place = self.path / "work" / name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        return place

    @property
    def landing(self) -> Path:
        """Where tasks write, each below a name of its own."""
        return self.path / "work" / "landing"

    def landed(self, files: Iterable[str]) -> Path:
        """These files of the landing, as a draft; where they are below a task's own folder says where they belong."""
        draft = self.draft("events")
        for file in files:
            target = draft.joinpath(*Path(file).parts[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.landing / file).rename(target)
        return draft

    def put(self, draft: Path, table: str, version: int) -> Path:
        """Move what was written to its place. Nobody sees it before the contents name it."""
        place = self.place(table, version)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(parents=True, exist_ok=True)
        for folder, _, files in os.walk(draft):
            for file in files:
                _sync(Path(folder, file))
            _sync(Path(folder))
        draft.rename(place)
        _sync(place.parent)
        return place

    def place(self, table: str, version: int) -> Path:
        return self.home(table) / f"version={version}"

    def home(self, table: str) -> Path:
        return self.path / "events" if table == "events" else self.path / "tables" / table

    def sweep(self) -> None:
        """Remove what nobody names: drafts at once, replaced versions when their time is over.

        A version's time begins when it is seen to be replaced; the file system's clock counts.
        """
        shutil.rmtree(self.path / "work", ignore_errors=True)
        contents = self.contents()
        named = {self.place("events", part.version) for part in contents.events}
        named |= {
            self.place(table, piece.version) for table, held in contents.tables.items() for piece in held.days.values()
        }
        now = (self.path / CONTENTS).stat().st_mtime
        for place in {*self.path.glob("events/version=*"), *self.path.glob("tables/*/version=*")} - named:
            mark = place / "_replaced"
            if not mark.exists():
                mark.touch()
            elif now - mark.stat().st_mtime > _GRACE_SECONDS:
                shutil.rmtree(place, ignore_errors=True)


def holes(contents: Contents) -> list[str]:
    """Where the events are not what dense offsets promise; empty when the lake is whole."""
    found = []
    following = contents.first
    for part in contents.events:
        if part.first != following:
            found.append(f"offsets {following} … {part.first - 1} are missing before version {part.version}")
        following = part.end
    return found


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
