"""One shop, one server and one browser for all tests of a file: they start once.

They end with the file, because the browser's driver keeps an event loop in this thread, which no other test may meet.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import Browser

from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from tests.browser.chrome import BrowserMissing, axe_source, browser
from tests.browser.stage import set_up
from tests.serve.site import Site


@contextmanager
def skipping() -> Iterator[None]:
    try:
        yield
    except BrowserMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db"
    set_up(url, minutes=2)
    store = open_store(url)
    site = Site(store, ServeSettings(port=0, maintain=False)).start()
    yield site
    site.stop()
    store.close()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with ExitStack() as stack:
        with skipping():
            running = stack.enter_context(browser())
        yield running


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_source()
