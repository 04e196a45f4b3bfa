"""What tests of the HTTP side start from.

    def test_it(site: Site) -> None:                        # on memory://
        answer = site.client(Role.PRODUCER).post("/jobs", json={"kind": "hello"})

`serve_on(store)` serves any store, with settings or an app of one's own. All are stopped when their test ends.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from forebay.core.instant import days, seconds
from forebay.core.policy import Fixed, KeepFor, Routing
from forebay.core.spec import QueueSpec
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Store
from tests.serve.site import Serving, Site


@pytest.fixture
def serve_on() -> Iterator[Serving]:
    """Serve a store until the test ends; the caller that opened the store closes it."""
    sites: list[Site] = []

    def serve(store: Store, settings: ServeSettings | None = None, app: FastAPI | None = None) -> Site:
        sites.append(Site(store, settings, app).start())
        return sites[-1]

    yield serve
    for site in reversed(sites):
        site.stop()


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_store("memory://")
    yield opened
    opened.close()


@pytest.fixture
def site(store: Store, serve_on: Serving) -> Site:
    """A server on a store in memory."""
    return serve_on(store)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Every store has its own idea of a lease."""
    match request.param:
        case "memory":
            url = "memory://"
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case _:
            url = request.getfixturevalue(f"{request.param}_url")
    store = open_store(url)
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(days(1)), routing=Routing(2, Fixed(seconds(60)))))
    yield store
    store.close()
