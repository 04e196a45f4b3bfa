"""What holds for every test: a skip is a failure where CI is set, and Hypothesis runs by one of three profiles.

A skip hides a missing server or a wrong platform, and nobody reads the count. On a developer's machine it is shown
with its reason (`-ra`); on a build machine it is red. Expected failures (`xfail`) are strict and are not skips.
`FOREBAY_HYPOTHESIS_PROFILE` chooses `dev`, `ci` or `nightly`; a failing example prints the blob that replays it.
"""

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

IN_CI = bool(os.environ.get("CI"))

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=False, print_blob=True, max_examples=100)
settings.register_profile(
    "nightly",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=5_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("FOREBAY_HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))


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
