"""What the long run writes down: a case for each mix, with the latencies of claims and of enqueues."""

from pathlib import Path

import pytest

from forebay_proof.lab.headline import NAME, Headline
from forebay_proof.lab.results import Results
from forebay_proof.lab.trial import Trial
from forebay_proof.load.mix import parse_mix


@pytest.mark.parametrize(
    ("given", "name"),
    [("s1", "s1"), ("s1@0.1", "s1-0.1"), ("fast=100", "fast"), ("fast=90,slow=10", "fast-90-slow-10")],
)
def test_a_mix_has_a_name_for_its_results(given: str, name: str) -> None:
    assert parse_mix(given).name == name


def test_runs_of_two_mixes_are_two_cases_with_latencies(tmp_path: Path) -> None:
    results = Results(tmp_path / "results", seed=7)
    for mix in ("fast", "s1@0.05"):
        trial = Trial(store="sqlite", rate=200, seconds=2, mix=parse_mix(mix), batch=20, processes=1)
        headline = Headline(trial=trial, kill_every=0, spark=False, picture=False)
        assert headline.run(tmp_path / mix, results, lambda _: None, lambda _: None).exit_code == 0
    rows = results.rows(NAME)
    assert {row["case"] for row in rows} == {"sqlite-fast-200", "sqlite-s1-0.05-200"}
    for case in {row["case"] for row in rows}:
        values = {row["metric"]: row["value"] for row in rows if row["case"] == case}
        for call in ("claim", "enqueue"):
            assert 0 < values[f"{call} p50"] <= values[f"{call} p99"] <= values[f"{call} p99.9"] < 2_000
