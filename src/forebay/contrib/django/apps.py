"""The app: its checks, its import of tasks, and the schema of a store in the project's own database."""

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from forebay.blobs import blobs_of
from forebay.contrib.django.config import config
from forebay.contrib.django.project import specs
from forebay.core.errors import Invalid
from forebay.store.open import open_store


class ForebayConfig(AppConfig):
    name = "forebay.contrib.django"
    label = "forebay"
    verbose_name = "Forebay"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        checks.register(check_settings, "forebay")
        post_migrate.connect(create_schema, sender=self)
        try:
            autodiscover_modules(*config().TASK_MODULES)
        except Invalid:
            """`check_settings` reports it."""


def check_settings(**_: Any) -> Iterable[checks.CheckMessage]:
    try:
        found = config()
        url = found.url
        blobs_of(found.BLOBS)
    except Invalid as error:
        return [checks.Error(str(error), id="forebay.E010")]
    if url.startswith("memory:"):
        hint = "use a Postgres database, sqlite:////srv/jobs.db or redis://localhost"
        return [checks.Error("FOREBAY['URL']: a worker cannot open a store in memory", hint, id="forebay.E011")]
    return []


def create_schema(using: str, **_: Any) -> None:
    """After `manage.py migrate`, also of a test runner: the store in the project's database, with its queues."""
    found = config()
    if found.joins and using == found.DATABASE:
        with closing(open_store(found.url, shared=True)) as store:
            known = {spec.name: spec for spec in store.specs()}
            for spec in specs():
                if known.get(spec.name) != spec:
                    store.put_spec(spec)
