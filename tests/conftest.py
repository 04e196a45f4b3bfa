"""What holds for every test: a skip is a failure where CI is set, Hypothesis runs by one of three profiles, and servers
are there for those who ask.

A skip hides a missing server or a wrong platform, and nobody reads the count. On a developer's machine it is shown
with its reason (`-ra`); on a build machine it is red. Expected failures (`xfail`) are strict and are not skips.
`FOREBAY_HYPOTHESIS_PROFILE` chooses `dev`, `ci` or `nightly`; a failing example prints the blob that replays it.

`postgres`, `pgbouncer` and `redis` are real servers, one of each for a worker of xdist, started by the first test that
names them. `postgres_url` and `pgbouncer_url` are one fresh, empty database for one test, straight and through the
pooler; `redis_url` is the Redis server, emptied.

With `--dist loadgroup` all tests on Spark run in one worker: one Java for all of them, and no table is made twice.
"""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from forebay.testing.servers.pgbouncer import PgBouncer
    from forebay.testing.servers.postgres import PostgresServer
    from forebay.testing.servers.redis import RedisServer
    from forebay.testing.servers.server import Server

IN_CI = bool(os.environ.get("CI"))

settings.register_profile("dev", deadline=None, derandomize=True)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, max_examples=100)
settings.register_profile(
    "nightly",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=5_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("FOREBAY_HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background deaf to ctrl-c, and every child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skipped report into a failed one that tells the reason of the skip."""
    if not IN_CI or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: a skip is a failure in CI. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report


TOGETHER = ("tests/spark/", "tests/browser/")
"""Rooms whose tests share something dear, a JVM or a browser: all of them go to one process."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By the path of a test: xdist 3.8 loses the mark `xdist_group` on its way through pytest 9.2, silently."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lambda test: next((room for room in TOGETHER if test.startswith(room)), test)
    return scheduler


def running(server: "Server", stack: ExitStack) -> None:
    """Start it for as long as the stack lives; where it cannot run, that is a skip with its reason."""
    from forebay.testing.servers.process import ServerUnavailable

    try:
        stack.enter_context(server)
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    from forebay.testing.servers.postgres import PostgresServer

    server = PostgresServer()
    with ExitStack() as stack:
        running(server, stack)
        yield server


@pytest.fixture
def postgres_url(postgres: "PostgresServer") -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def pgbouncer(postgres: "PostgresServer") -> "Iterator[PgBouncer]":
    from forebay.testing.servers.pgbouncer import PgBouncer

    pooler = PgBouncer(postgres)
    with ExitStack() as stack:
        running(pooler, stack)
        yield pooler


@pytest.fixture
def pgbouncer_url(pgbouncer: "PgBouncer", postgres_url: str) -> str:
    return pgbouncer.url(postgres_url)


@pytest.fixture(scope="session")
def redis() -> "Iterator[RedisServer]":
    from forebay.testing.servers.redis import RedisServer

    server = RedisServer()
    with ExitStack() as stack:
        running(server, stack)
        yield server


@pytest.fixture
def redis_url(redis: "RedisServer") -> str:
    redis.clear()
    return redis.url()
