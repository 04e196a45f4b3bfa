"""Migrations: numbered files of SQL, without gaps. How they are applied is the store's own business."""

from hashlib import sha256
from importlib.resources import files
from typing import TypeVar

from msgspec import Struct


class Migration(Struct, frozen=True):
    """One file of `migrations/`."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()


M = TypeVar("M", bound=Migration)


def read_migrations(package: str, kind: type[M]) -> tuple[M, ...]:
    """All of them, in order."""
    folder = files(package) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    found = tuple(kind(int(name[:4]), name, (folder / name).read_text("utf-8")) for name in names)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise LookupError(f"migrations are not numbered 1, 2, 3 …: {names}")
    return found
