"""Which store a command talks to: `--store`, else FOREBAY_URL, else `sqlite:///forebay.db`.

A command that only looks never makes a store: a missing file is an error that says how to make one. A store that
lives in one process alone (`memory://`) is refused: a command would see an empty one. Passwords are never shown.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from forebay.cli.exits import UNREACHABLE, USAGE, CommandFailed
from forebay.client import DEFAULT_URL
from forebay.core.errors import ForebayError
from forebay.store.open import open_store
from forebay.store.protocol import Store


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
    return urlsplit(url).scheme in ("redis", "rediss", "unix")


def masked(url: str) -> str:
    """The URL without its password, however badly it is written."""
    url = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&;](?:password|passwd|pwd|secret|token)=)[^&;#]*", r"\1***", url)


def said(error: Exception, url: str) -> str:
    """What an error says, without the URL's password: drivers quote what they do not understand."""
    text = str(error).replace(url, masked(url))
    found = re.search(r"(?<=://)[^/@:]*:(.*)@", url)
    for secret in {found[1], unquote(found[1])} if found else ():
        text = text.replace(secret if len(secret) > 3 else f'"{secret}"', "***")
    return text


def file_of(url: str) -> Path | None:
    """The file or directory of a store on this machine; None for one in memory or elsewhere."""
    parts = urlsplit(url)
    path = "" if parts.netloc else unquote(parts.path)
    match parts.scheme:
        case "sqlite" if path not in ("", "/", "/:memory:"):
            return Path(path.removeprefix("/"))
        case "memory" if path not in ("", "/"):
            return Path(path)
        case _:
            return None


def opened(url: str, *, create: bool) -> Store:
    """The store, or `CommandFailed` with the way out."""
    if urlsplit(url).scheme == "memory" and file_of(url) is None:
        raise CommandFailed(
            f"{url}: a store in memory lives in one process, this one would find it empty; "
            "use --store sqlite:///jobs.db, or memory:///directory",
            USAGE,
        )
    file = file_of(url)
    if file is not None and not create and not file.exists():
        raise _not_made(url)
    with reaching(url):
        if is_postgres(url) and not create:
            _must_be_made(url)
        return open_store(url)


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """What goes wrong inside is said in one line that names the store."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = {"psycopg": "postgres", "redis": "redis"}.get(error.name or "")
        if extra is None:
            raise
        reason = f"{error.name} is not installed; pip install 'forebay[{extra}]'"
        raise CommandFailed(f"cannot open {masked(url)}: {reason}", UNREACHABLE) from error
    except (ForebayError, OSError) as error:
        raise CommandFailed(f"cannot open {masked(url)}: {said(error, url)}", UNREACHABLE) from error


def _must_be_made(url: str) -> None:
    """Opening an empty database would make the tables."""
    from forebay.cli.postgres import steps_of

    if all(step.applied_at is None for step in steps_of(url)):
        raise _not_made(url)


def _not_made(url: str) -> CommandFailed:
    return CommandFailed(
        f"no store at {masked(url)}; make one with `forebay migrate --store {masked(url)}`, "
        "or name another by --store or FOREBAY_URL",
        UNREACHABLE,
    )
