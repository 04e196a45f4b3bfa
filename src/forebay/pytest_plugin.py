"""The pytest plugin: `fb_memory` and `fb_inline`, each a `JobTester` on your app, and `fb_sim`, a `JobSimulator`.

Name the app once in the configuration of pytest, `forebay_app = "shop.jobs:fb"`, or override the fixture `forebay_app`.
A test that takes `fb_sim` runs once for each seed: `--forebay-seeds 200` for more of them, `--forebay-seed 17` to
replay one. A failure says how.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from forebay.testing.job_tester import JobTester
    from forebay.testing.simulator import JobSimulator

SETTING = "forebay_app"
_SEEDS: Final = 10
_MAX_SEEDS: Final = 100_000
_FAULTS_SHOWN: Final = 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTING, "the app of the fixtures fb_memory, fb_inline and fb_sim, as module:name")
    group = parser.getgroup("forebay")
    group.addoption("--forebay-seeds", type=int, default=_SEEDS, help="seeds for each test with fb_sim (default: 10)")
    group.addoption("--forebay-seed", type=int, default=None, help="replay tests with fb_sim with this seed alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fb_sim" not in metafunc.fixturenames:
        return
    count, one = metafunc.config.getoption("--forebay-seeds"), metafunc.config.getoption("--forebay-seed")
    if not 1 <= count <= _MAX_SEEDS:
        raise pytest.UsageError(f"--forebay-seeds: {count} is not in 1 … {_MAX_SEEDS}")
    seeds = range(count) if one is None else [one]
    metafunc.parametrize("forebay_seed", seeds, ids=[f"seed{seed}" for seed in seeds])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say how a failed simulation is replayed, and what it injected."""
    report = yield
    sim = getattr(item, "funcargs", {}).get("fb_sim")
    if sim is not None and report.when == "call" and report.failed:
        name = item.nodeid.partition("[")[0]
        shown = "".join(f"\n  {fault}" for fault in sim.faults[-_FAULTS_SHOWN:]) or "\n  none"
        text = f"replay it: pytest --forebay-seed {sim.seed} '{name}'\ninjected, newest last:{shown}"
        report.sections.append(("forebay", text))
    return report


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


@pytest.fixture
def fb_sim(forebay_app: Any, forebay_seed: int) -> "Iterator[JobSimulator]":
    """As `fb_memory`, under crashes, redeliveries, delays and other orders, once for each seed."""
    from forebay.testing.simulator import JobSimulator

    with JobSimulator(forebay_app, seed=forebay_seed) as simulator:
        yield simulator
