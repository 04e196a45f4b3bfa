"""A Django project in this process: its settings once, its database and its store anew for each test.

`project` is it on SQLite with a SQLite store, `postgres_project` in one Postgres database with its store,
`one_file_project` in one SQLite file with its store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from tests.contrib.task_api import APPS

settings.configure(
    SECRET_KEY="only for tests",
    USE_TZ=True,
    ROOT_URLCONF="tests.contrib.shop.urls",
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        *APPS,
        "forebay.contrib.django",
        "tests.contrib.shop",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    MIGRATION_MODULES=dict.fromkeys(("admin", "auth", "contenttypes", "sessions")),
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    TASKS={"default": {"BACKEND": "forebay.contrib.django.ForebayBackend", "QUEUES": ["default", "mail"]}},
    FOREBAY={"URL": "memory://"},
)
django.setup()


def _connect(database: dict[str, Any]) -> None:
    known = connections["default"]
    known.close()
    if known.connection is not None:  # Django leaves a database in memory open
        known.connection.close()
    connections.settings["default"] = database
    del connections["default"]


@contextmanager
def on(database: dict[str, Any], forebay: dict[str, Any]) -> Iterator[None]:
    """The project on this database, with its tables."""
    before = connections.settings["default"]
    _connect(before | database)
    try:
        with override_settings(FOREBAY=forebay):
            call_command("migrate", verbosity=0, run_syncdb=True)
            yield
    finally:
        _connect(before)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[None]:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db"), "OPTIONS": {"timeout": 20}}
    with on(database, {"URL": f"sqlite:///{tmp_path}/jobs.db"}):
        yield


@pytest.fixture
def one_file_project(tmp_path: Path) -> Iterator[None]:
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "all.db", "OPTIONS": options}
    with on(database, {"URL": f"sqlite:///{tmp_path}/all.db"}):
        yield


@pytest.fixture
def postgres_project(postgres_url: str) -> Iterator[None]:
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(postgres_url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {name: str(given.get(key) or "") for name, key in names.items()}
    with on({"ENGINE": "django.db.backends.postgresql", "OPTIONS": {}, **database}, {}):
        yield
