"""The store of a command: `--store`, else FOREBAY_URL, else `sqlite:///forebay.db`.

A command that only reads never creates a store: a missing file is an error that says how to create one. A store that
belongs to one process (`memory://`) is refused, because a command would find it empty. Passwords are never shown.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from forebay.cli.exits import UNREACHABLE, USAGE, CommandFailed
from forebay.client import DEFAULT_URL
from forebay.core.errors import REOPEN, ForebayError, StoreFailed
from forebay.store.connection_pool import REMEDY
from forebay.store.open import open_store
from forebay.store.protocol import Store

_TO_OPEN: Final = {
    REMEDY: "check that the server runs and the URL is right, or choose another store by --store or FOREBAY_URL",
    REOPEN: "fix the cause, or choose another store by --store or FOREBAY_URL",
}
"""Remedies for stores that cannot be opened, in place of those for stores that were open."""


def chosen_url(option: str | None) -> str:
    url = option if option is not None else os.environ.get("FOREBAY_URL") or DEFAULT_URL
    try:
        urlsplit(url)
    except ValueError as error:
        raise CommandFailed(f"{masked(url)} is not a URL: {error}; use --store sqlite:///jobs.db", USAGE) from None
    return url


def is_postgres(url: str) -> bool:
    return urlsplit(url).scheme in ("postgresql", "postgres")


def is_redis(url: str) -> bool:
    return urlsplit(url).scheme in ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")


def masked(url: str) -> str:
    """The URL without its password, even if it is malformed."""
    url = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&;](?:password|passwd|pwd|secret|token)=)[^&;#]*", r"\1***", url)


def error_text(error: Exception | str, url: str) -> str:
    """The error's text without the URL's password: drivers quote what they cannot parse."""
    text = str(error).replace(url, masked(url))
    found = re.search(r"(?<=://)[^/@:]*:(.*)@", url)
    for secret in {found[1], unquote(found[1])} if found else ():
        text = text.replace(secret if len(secret) > 3 else f'"{secret}"', "***")
    return text


def store_path(url: str) -> Path | None:
    """The file or directory of a local store; None for one in memory or on a server."""
    parts = urlsplit(url)
    path = "" if parts.netloc else unquote(parts.path)
    match parts.scheme:
        case "sqlite" if path not in ("", "/", "/:memory:"):
            return Path(path.removeprefix("/"))
        case "memory" if path not in ("", "/"):
            return Path(path)
        case _:
            return None


def open_at(url: str, *, create: bool) -> Store:
    """The store, or `CommandFailed` with the remedy."""
    if urlsplit(url).scheme == "memory" and store_path(url) is None:
        raise CommandFailed(
            f"{url}: a store in memory belongs to one process, and this one would find it empty; "
            "use --store sqlite:///jobs.db, or memory:///directory",
            USAGE,
        )
    file = store_path(url)
    if file is not None and not create and not file.exists():
        raise _missing_store(url)
    with connecting(url):
        if is_postgres(url) and not create:
            _require_schema(url)
        return open_store(url)


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Turn errors of the block into one line that names the store."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = {"psycopg": "postgres", "redis": "redis"}.get(error.name or "")
        if extra is None:
            raise
        reason = f"{error.name} is not installed; pip install 'forebay[{extra}]'"
        raise CommandFailed(f"cannot open {masked(url)}: {reason}", UNREACHABLE) from error
    except StoreFailed as error:
        remedy = _TO_OPEN.get(error.remedy, error.remedy)
        reason = error_text(error.reason, url).removesuffix(".")
        raise CommandFailed(f"cannot open {masked(url)}: {reason}; {remedy}", UNREACHABLE) from error
    except (ForebayError, OSError) as error:
        raise CommandFailed(f"cannot open {masked(url)}: {error_text(error, url)}", UNREACHABLE) from error


def _require_schema(url: str) -> None:
    """Fail on an empty database, where opening the store would create the tables."""
    from forebay.cli.postgres import steps_of

    if all(step.applied_at is None for step in steps_of(url)):
        raise _missing_store(url)


def _missing_store(url: str) -> CommandFailed:
    return CommandFailed(
        f"no store at {masked(url)}; create one with `forebay migrate --store {masked(url)}`, "
        "or choose another by --store or FOREBAY_URL",
        UNREACHABLE,
    )
