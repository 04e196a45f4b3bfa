"""The lab's report from planted results: medians and extremes, findings, plots, and nothing of it runs."""

from pathlib import Path

import msgspec
import pytest

from forebay_proof.lab.results import Results
from tests.command_result import Run

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    results = Results(tmp_path / "lab-results" / "quick", seed=7, facts={"scale": "quick", "note": EVIL})
    for number, rate in ((1, 9_000.0), (2, 10_000.0), (3, 14_000.0)):
        for case, times, workers in (
            ("postgres-1x64", 0.5, 64),
            ("postgres-8x64", 1.0, 512),
            ("postgres-2x256", 1.2, 512),
        ):
            facts = {"store": "postgres", "workers": workers, "layout": case.partition("-")[2]}
            results.row("e01", case, number, "jobs/s", times * rate, "jobs/s", **facts)
            results.row("e01", case, number, "evidence/wait IO:WalSync", 40.0, "%", **facts)
            results.finish("e01", case, number)
    for name, value in (("lost", 1.0), ("accepted", 5_000.0), ("kills", 7.0), ("recovery p99", 0.5)):
        results.row("e04", "redis-worker", 1, name, value, "jobs", store="redis", recovery=3.0, victim=EVIL)
    for second in range(5):
        results.sample("e04", "redis-worker", 1, float(second), depth=10.0 * second)
    results.finish("e04", "redis-worker", 1)
    long = Results(tmp_path / "lab-results" / "headline", seed=7)
    long.row("headline", "postgres-fast-10000", 1, "lost", 0.0, "jobs", rate=10_000)
    for second in range(5):
        long.sample("headline", "postgres-fast-10000", 1, float(second), accepted=10.0 * second, acked=9.0 * second)
    long.finish("headline", "postgres-fast-10000", 1)
    return tmp_path / "lab-results"


def test_the_report_has_the_findings(planted: Path, run: Run) -> None:
    answer = run("lab", "report", "--results", str(planted), "--out", "lab.html", "--json")
    assert answer.code == 0, answer.err
    said = msgspec.json.decode(answer.out)
    findings = {each["finding"]: each["holds"] for each in said["findings"]}
    assert findings["8 × 64 claimers reach 83% of the best layout, goal 80 %"] is True
    assert findings["accepted jobs that are neither done nor dead: 1 in the worst of 1 cases"] is False
    page = Path("lab.html").read_text("utf-8")
    assert "10k (9,000 … 14k)" in page
    assert page.count("<svg") >= 4
    assert "Depth: redis-worker" in page
    assert "Jobs: postgres-fast-10000" in page
    assert "wait IO:WalSync" in page
    assert "<script" not in page
    assert "&lt;script" in page
    assert 'http-equiv="Content-Security-Policy"' in page


def test_without_results_there_is_no_report(tmp_path: Path, run: Run) -> None:
    answer = run("lab", "report", "--results", str(tmp_path / "nowhere"))
    assert answer.code == 2
    assert "measure first: forebay lab all" in answer.err
    (tmp_path / "lab-results" / "quick").mkdir(parents=True)
    assert run("lab", "report").code == 2
