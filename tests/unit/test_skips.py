"""A skip is shown on a developer's machine and is a failure in CI; an expected failure is neither."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
CONFTEST = ROOT / "tests" / "conftest.py"
SKIPS = """
    import pytest

    @pytest.mark.skip(reason="no server here")
    def test_marked(): ...

    def test_called():
        pytest.skip("not on this platform")

    @pytest.mark.xfail
    def test_expected():
        raise AssertionError
"""


def run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}")
    pytester.makepyfile(body)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--disable-plugin-autoload")


def test_a_skip_is_a_failure_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(pytester, SKIPS)
    result.assert_outcomes(errors=1, failed=1, xfailed=1)
    result.stdout.fnmatch_lines_random(
        ["*a skip is a failure in CI*no server here*", "*a skip is a failure in CI*not on this platform*"]
    )


def test_a_whole_module_may_not_skip_itself_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(pytester, "import pytest; pytest.skip('no driver', allow_module_level=True)")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a skip is a failure in CI*no driver*"])


def test_a_skip_is_only_a_skip_elsewhere(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    run(pytester, SKIPS).assert_outcomes(skipped=2, xfailed=1)
