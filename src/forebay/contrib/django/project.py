"""The one Forebay application of a Django project: all task backends, workers and native jobs share it.

    from forebay.contrib.django import app

    fb = app()

    @fb.cron("0 3 * * *")
    def clean_up() -> None: ...

The store follows the settings: it is opened when it is first needed, and again after a setting has changed.
"""

import asyncio
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections
from django.utils.module_loading import import_string

from forebay.blobs import Blobs, PayloadCodec, blobs_of
from forebay.client import Forebay
from forebay.contrib.django.config import config
from forebay.core.policy import Priority
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Store

_guard = Lock()
_app: "ProjectForebay | None" = None


class ProjectCodec(PayloadCodec):
    """Keeps large payloads and results in the blob store of the settings."""

    @property
    def blobs(self) -> Blobs | None:
        return _blobs_of(config().BLOBS)


_blobs_of = lru_cache(maxsize=1)(blobs_of)


class ProjectForebay(Forebay):
    """`Forebay` whose stores are those of the settings, and whose jobs leave no old connection of the ORM behind."""

    def __init__(self) -> None:
        super().__init__()
        self.codec = ProjectCodec(None, None)
        self.around_job(fresh_connections)

    @property
    def url(self) -> str:
        return config().url

    @url.setter
    def url(self, _: str) -> None:
        """The settings decide."""

    def _configure(self, store: Store) -> None:
        for spec in specs():
            self._queues.setdefault(spec.name, spec)
        super()._configure(store)


def fresh_connections() -> Iterator[None]:
    """Around each job in a thread. What runs on a loop has no connections there: the ORM uses threads of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _close_old_connections()
        try:
            yield
        finally:
            _close_old_connections()
    else:
        yield


def _close_old_connections() -> None:
    """As Django does between requests, but for a connection whose transaction is the caller's: that of a `TestCase`."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def app() -> Forebay:
    """The application of this project."""
    global _app  # noqa: PLW0603
    with _guard:
        if _app is None:
            _app = ProjectForebay()
        return _app


def queue_names() -> list[str]:
    """The queues of all backends of Forebay in TASKS, which a worker serves by default."""
    backends: Any = getattr(settings, "TASKS", {}).values()
    ours = [each for each in backends if _is_ours(each.get("BACKEND", ""))]
    return sorted({name for each in ours for name in each.get("QUEUES", ["default"])})


def _is_ours(path: str) -> bool:
    """A backend that cannot be imported is not ours to complain about."""
    try:
        return getattr(import_string(path), "runs_on_forebay", False)
    except ImportError:
        return False


def specs() -> list[QueueSpec]:
    """The declared queues, and one by priority for each other queue of TASKS."""
    declared = {spec.name: spec for spec in config().QUEUES}
    by_priority = {name: QueueSpec(name=name, selection=Priority()) for name in queue_names()}
    return list((by_priority | declared).values())


def _forget_store(*, setting: str, **_: object) -> None:
    """Tests change settings: the next use opens the store of the new ones."""
    if setting in ("FOREBAY", "TASKS", "DATABASES") and _app is not None:
        _app.close()
        _app._queues.clear()


setting_changed.connect(_forget_store)
