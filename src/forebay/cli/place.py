"""Which store a command talks to: `--store`, else FOREBAY_URL, else `sqlite:///forebay.db`.

A command that only looks never makes a store: a missing file is an error that says how to make one. A store that
lives in one process alone (`memory://`) is refused: a command would see an empty one. Passwords are never shown.
"""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from forebay.cli.exits import UNREACHABLE, USAGE, CommandFailed
from forebay.client import DEFAULT_URL
from forebay.core.errors import ForebayError
from forebay.store.open import open_store
from forebay.store.protocol import Store


def chosen_url(option: str | None) -> str:
    return option if option is not None else os.environ.get("FOREBAY_URL") or DEFAULT_URL


def masked(url: str) -> str:
    """The URL without its password, however badly it is written."""
    url = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&;](?:password|passwd|pwd|secret|token)=)[^&;#]*", r"\1***", url)


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
        raise CommandFailed(
            f"no store at {masked(url)}; make one with `forebay migrate --store {masked(url)}`, "
            "or name another by --store or FOREBAY_URL",
            UNREACHABLE,
        )
    try:
        return open_store(url)
    except (ForebayError, OSError) as error:
        reason = str(error).replace(url, masked(url))
        raise CommandFailed(f"cannot open {masked(url)}: {reason}", UNREACHABLE) from error
