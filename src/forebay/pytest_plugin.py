"""The pytest plugin: `fb_memory` and `fb_inline`, each a `JobTester` on your app.

Name the app once in the configuration of pytest, `forebay_app = "shop.jobs:fb"`, or override the fixture `forebay_app`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forebay.testing.job_tester import JobTester

SETTING = "forebay_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, "the app of the fixtures fb_memory and fb_inline, as module:name")


@pytest.fixture
def forebay_app(request: pytest.FixtureRequest) -> Any:
    """The app under test. Override it, or set `forebay_app` in the configuration of pytest."""
    from forebay.work.app import find_app

    target = request.config.getini(SETTING)
    if not target:
        pytest.fail(f'no app: set {SETTING} = "module:name" in the configuration of pytest, or override the fixture')
    return find_app(target)


@pytest.fixture
def fb_memory(forebay_app: Any) -> "Iterator[JobTester]":
    """The app on an empty store in memory, in virtual time. Jobs run by `run_all` and `advance`."""
    from forebay.testing.job_tester import JobTester

    with JobTester(forebay_app) as tester:
        yield tester


@pytest.fixture
def fb_inline(forebay_app: Any) -> "Iterator[JobTester]":
    """As `fb_memory`, and each enqueue runs its jobs before it returns."""
    from forebay.testing.job_tester import JobTester

    with JobTester(forebay_app, inline=True) as tester:
        yield tester
