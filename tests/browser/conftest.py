"""One shop, one server and one browser for all tests here: they start once."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser

from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from tests.browser.chrome import Missing, axe_source, browser
from tests.browser.stage import set_up
from tests.serve.site import Site


@contextmanager
def skipping() -> Iterator[None]:
    try:
        yield
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db"
    set_up(url, minutes=2)
    store = open_store(url)
    site = Site(store, ServeSettings(port=0, tend=False)).start()
    yield site
    site.stop()
    store.close()


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    with skipping():
        started = browser()
        running = started.__enter__()
    yield running
    started.__exit__(None, None, None)


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_source()
