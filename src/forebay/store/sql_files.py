"""SQL in files: statements by name, and numbered migrations.

A statement starts with `-- name: word` and a line that says what it is for. Words in braces stand for lists of columns.
A name that is given twice, and migrations with a gap, are errors when the files are read. How migrations are applied is
the store's own business.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final, TypeVar

from msgspec import Struct

from forebay.core.errors import Invalid

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Statements:
    """Every statement of these files, as an attribute by its name; a test looks up all that are used."""

    def __init__(self, package: str, names: Sequence[str], words: Mapping[str, str]) -> None:
        vars(self).update(read_statements(package, names, words))

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"there is no statement {name!r}")


def read_statements(package: str, names: Sequence[str], words: Mapping[str, str]) -> dict[str, str]:
    """Every statement of these files by its name."""
    found: dict[str, str] = {}
    for file in names:
        text = (files(package) / file).read_text("utf-8")
        for word, meaning in words.items():
            text = text.replace("{" + word + "}", meaning)
        parts = _NAME.split(text)[1:]
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise LookupError(f"{file}: the statement {name!r} is there twice")
            lines = [line for line in body.splitlines() if not line.startswith("--")]
            found[name] = "\n".join(lines).strip().rstrip(";")
    return found


class Migration(Struct, frozen=True):
    """One file of `migrations/`."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()


M = TypeVar("M", bound=Migration)


def check_applied(store: str, applied: Mapping[int, str], known: Sequence[Migration]) -> None:
    """Refuse a schema that is newer than this program, or that it would have made otherwise. `applied`: checksums."""
    newest = max(applied, default=0)
    if newest > len(known):
        reason = f"{store} has schema {newest}, this program has {len(known)}"
        raise Invalid("store URL", reason, "upgrade forebay before you open it")
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            reason = f"schema {migration.number} of {store} is not the one in {migration.name}"
            remedy = "a migration that was applied is never edited: install the version that made it"
            raise Invalid("store URL", reason, remedy)


def read_migrations(package: str, kind: type[M]) -> tuple[M, ...]:
    """All of them, in order."""
    folder = files(package) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    found = tuple(kind(int(name[:4]), name, (folder / name).read_text("utf-8")) for name in names)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise LookupError(f"migrations are not numbered 1, 2, 3 …: {names}")
    return found
