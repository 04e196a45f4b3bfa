"""`open_store(url)`: the only place that names concrete stores."""

from urllib.parse import unquote, urlsplit

from forebay.core.clock import Clock
from forebay.core.errors import Invalid
from forebay.store.protocol import Store


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store behind a URL.

    memory://                 in this process;  memory:///directory: with a journal
    sqlite:///jobs.db         a file below the working directory;  sqlite:////var/jobs.db: an absolute path

    postgresql://user@host/db  a Postgres database, with the extra forebay[postgres]

    A clock may be injected where the store keeps time itself.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return _open_memory(url, parts.netloc, unquote(parts.path), clock)
        case "sqlite":
            if parts.query or parts.fragment:
                raise Invalid("store URL", f"{url!r} has options", "a path is all it takes; write ? as %3F, # as %23")
            return _open_sqlite(url, parts.netloc, unquote(parts.path), clock)
        case "postgresql" | "postgres":
            return _open_postgres(url, clock)
        case _:
            raise Invalid(
                "store URL",
                f"no store has the scheme {parts.scheme!r}",
                "use sqlite:///jobs.db, postgresql://host/db or memory://",
            )


def _open_memory(url: str, host: str, path: str, clock: Clock | None) -> Store:
    if host:
        raise Invalid("store URL", f"{url!r} names a host", "write three slashes: memory:///directory")
    if path in ("", "/"):
        from forebay.store.memory.store import MemoryStore

        return MemoryStore(clock=clock)
    from forebay.store.memory.journaled import open_journaled

    return open_journaled(path, clock=clock)


def _open_sqlite(url: str, host: str, path: str, clock: Clock | None) -> Store:
    if host:
        raise Invalid("store URL", f"{url!r} names a host", "write three slashes: sqlite:///jobs.db")
    if path in ("", "/", "/:memory:"):
        raise Invalid("store URL", f"{url!r} names no file", "write sqlite:///jobs.db, or memory:// to keep nothing")
    from forebay.store.sqlite.store import SqliteStore

    return SqliteStore(path.removeprefix("/"), clock=clock)


def _open_postgres(url: str, clock: Clock | None) -> Store:
    try:
        from forebay.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise Invalid("store URL", "psycopg is not installed", "pip install 'forebay[postgres]'") from error
    return PostgresStore(url, clock=clock)
