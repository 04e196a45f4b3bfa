"""The setting `FOREBAY`, checked, and the database whose transactions an enqueue joins.

    FOREBAY = {"URL": "redis://localhost/0", "DASHBOARD_URL": "/jobs/ui/"}

It is read anew at each use: a test runner changes the name of a database after the project was imported.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings
from django.db import connections
from msgspec import Struct

from forebay.blobs import Blobs
from forebay.client import DEFAULT_URL
from forebay.core.errors import Invalid
from forebay.core.spec import QueueSpec
from forebay.transactions import POSTGRES, database_of, is_file_of

SCHEMES: Final = (
    *POSTGRES,
    "sqlite",
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "unix",
    "memory",
)


class Config(Struct, frozen=True, kw_only=True):
    """The setting `FOREBAY`.

    URL            the store; by default FOREBAY_URL, else the Postgres database of `DATABASE`, else sqlite:///forebay.db
    DATABASE       the alias of the database whose transactions an enqueue joins, or whose commit it waits for
    QUEUES         `QueueSpec` values; a queue of TASKS without one orders its jobs by priority
    TASK_MODULES   modules of installed apps that are imported for their tasks
    DASHBOARD_URL  where the dashboard is, for the link in the admin
    BLOBS          the blob store of large payloads and results: a URL of fsspec, or `Blobs`
    """

    URL: str | None = None
    DATABASE: str = "default"
    QUEUES: tuple[QueueSpec, ...] = ()
    TASK_MODULES: tuple[str, ...] = ("tasks",)
    DASHBOARD_URL: str | None = None
    BLOBS: Blobs | str | None = None

    @property
    def url(self) -> str:
        return self.URL or os.environ.get("FOREBAY_URL") or self._database_url() or DEFAULT_URL

    @property
    def joins(self) -> bool:
        """Whether the store is the database itself: an enqueue is part of the caller's transaction there."""
        connection = connections[self.DATABASE]
        if connection.vendor == "sqlite":
            return is_file_of(self.url, str(connection.settings_dict["NAME"]))
        own = self._database_url()
        return own is not None and database_of(self.url) == database_of(own)

    def _database_url(self) -> str | None:
        connection = connections[self.DATABASE]
        return url_of(connection.settings_dict) if connection.vendor == "postgresql" else None


def config() -> Config:
    """The setting as it is now; `Invalid` names what is wrong with it."""
    given = getattr(settings, "FOREBAY", {})
    if not isinstance(given, Mapping):
        raise Invalid("FOREBAY", f"it is a {type(given).__name__}", "write a dict")
    known = Config.__struct_fields__
    if unknown := sorted(str(name) for name in given.keys() - set(known)):
        raise Invalid("FOREBAY", f"unknown: {', '.join(unknown)}", f"use {', '.join(known)}")
    checked = {name: _checked(name, value) for name, value in given.items()}
    found = Config(**checked)
    if found.DATABASE not in connections:
        raise Invalid("FOREBAY['DATABASE']", f"{found.DATABASE!r} is not in DATABASES", f"use {', '.join(connections)}")
    scheme = urlsplit(found.url).scheme
    if scheme not in SCHEMES:
        raise Invalid("FOREBAY['URL']", f"{scheme!r} is not a scheme of a store", f"use {', '.join(SCHEMES)}")
    return found


def _checked(name: str, value: Any) -> Any:
    field = f"FOREBAY[{name!r}]"
    if name in ("QUEUES", "TASK_MODULES"):
        kind = QueueSpec if name == "QUEUES" else str
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, kind) for v in value):
            raise Invalid(field, "it is not a list of such values", f"write [{kind.__name__}, …]")
        return tuple(value)
    if name == "BLOBS" and isinstance(value, Blobs):
        return value
    if not isinstance(value, str) and not (value is None and name in ("URL", "DASHBOARD_URL", "BLOBS")):
        raise Invalid(field, f"{type(value).__name__} is not a string", "write a string")
    return value


def url_of(database: Mapping[str, Any]) -> str:
    """The URL of a Postgres database of DATABASES, with those of its options that a URL can carry."""
    options = {name: str(value) for name, value in database.get("OPTIONS", {}).items() if isinstance(value, str | int)}
    options = {name: value for name, value in options.items() if name in ("service", "passfile") or name[:3] == "ssl"}
    host = str(database.get("HOST") or "")
    if host.startswith("/"):
        options["host"], host = host, ""
    user, password = (quote(str(database.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    login = f"{user}{f':{password}' if password else ''}@" if user else ""
    hosts, ports = host.split(","), str(database.get("PORT") or "").split(",")
    if not host and ports[0]:
        options["port"], ports = ports[0], [""]
    ports = ports * len(hosts) if len(ports) == 1 else ports
    servers = ",".join(f"{name}:{port}" if port else name for name, port in zip(hosts, ports, strict=True))
    place = f"postgresql://{login}{servers}/{quote(str(database['NAME']), safe='')}"
    return f"{place}?{urlencode(options)}" if options else place
