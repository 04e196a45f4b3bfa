"""What holds for every test: a skip is a failure where CI is set, Hypothesis runs by one of three profiles, and servers
are there for tests that name them.

A skip hides a missing server or a wrong platform, and the count is overlooked. On a developer's machine it is shown
with its reason (`-ra`); on a build machine it is red. Expected failures (`xfail`) are strict and are not skips.
`FOREBAY_HYPOTHESIS_PROFILE` is `dev`, `ci`, `nightly` or `evidence`; a failing example prints the blob that replays it.
`ci` draws the same examples each time, so that a red run is the fault of a change; the others draw new ones.

`postgres`, `pgbouncer` and `redis` are real servers, one of each for a worker of xdist, started by the first test that
names them. `postgres_url` and `pgbouncer_url` are one fresh, empty database for one test, straight and through the
pooler; `redis_url` is the Redis server, emptied. `redis_cluster` is a Redis
Cluster; a store in it has a prefix of its own.

With `--dist loadgroup` all tests on Spark run in one worker: one Java for all of them, and no table is made twice.
`tests/durations.py` says which test runs where and when, and how long each took.
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from forebay_proof.evidence import happenings
from tests.durations import Durations, Schedule

if TYPE_CHECKING:
    from forebay_proof.servers.pgbouncer import PgBouncer
    from forebay_proof.servers.postgres import PostgresServer
    from forebay_proof.servers.redis import RedisServer
    from forebay_proof.servers.redis_cluster import RedisClusterServer

IN_CI = bool(os.environ.get("CI"))

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, max_examples=100)
settings.register_profile(
    "nightly",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=5_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("evidence", settings.get_profile("nightly"), max_examples=2_000)
settings.load_profile(os.environ.get("FOREBAY_HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background deaf to ctrl-c, and every child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_url() -> Iterator[None]:
    """A command line that runs in this process leaves its store in the environment, for its children: not for tests."""
    before = os.environ.get("FOREBAY_URL")
    yield
    if before is None:
        os.environ.pop("FOREBAY_URL", None)
    else:
        os.environ["FOREBAY_URL"] = before


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skipped report into a failed one with the reason of the skip."""
    if not IN_CI or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: a skip is a failure in CI. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests that are collected stay: looking through all of them for garbage took half the CPU of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


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


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in happenings():
        terminalreporter.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Schedule(config, log) if config.getvalue("dist") == "loadgroup" else None


def running(server: AbstractContextManager[Any], stack: ExitStack) -> None:
    """Start it until the stack is closed; where it cannot run, that is a skip with its reason."""
    from forebay_proof.servers.process import ServerUnavailable

    try:
        stack.enter_context(server)
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    from forebay_proof.servers.postgres import PostgresServer

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
    from forebay_proof.servers.pgbouncer import PgBouncer

    pooler = PgBouncer(postgres)
    with ExitStack() as stack:
        running(pooler, stack)
        yield pooler


@pytest.fixture
def pgbouncer_url(pgbouncer: "PgBouncer", postgres_url: str) -> str:
    return pgbouncer.url(postgres_url)


@pytest.fixture(scope="session")
def redis() -> "Iterator[RedisServer]":
    from forebay_proof.servers.redis import RedisServer

    server = RedisServer()
    with ExitStack() as stack:
        running(server, stack)
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> "Iterator[RedisClusterServer]":
    from forebay_proof.servers.redis_cluster import RedisClusterServer

    # No test of it waits for a fail-over, and a busy machine is not to cause one.
    cluster = RedisClusterServer(node_timeout=10.0)
    with ExitStack() as stack:
        running(cluster, stack)
        yield cluster


@pytest.fixture
def redis_url(redis: "RedisServer") -> str:
    redis.clear()
    return redis.url()
