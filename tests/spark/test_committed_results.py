"""The figures of docs/internals/findings.md are those of the results beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from forebay_proof.lab.experiments import EXPERIMENTS
from forebay_proof.lab.headline import NAME as HEADLINE
from forebay_proof.lab.report import judged, page, read, read_headline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DOCS: Final = Path(__file__).parents[2] / "docs"
_RESULTS: Final = _DOCS / "results"


def test_findings_agree_with_the_results(spark: "SparkSession") -> None:
    results = judged(read(spark, _RESULTS / "full"))
    assert [each.number for each, _ in results] == [each.number for each in EXPERIMENTS]
    text = (_DOCS / "internals" / "findings.md").read_text()
    sentences = [finding.sentence for _, findings in results for finding in findings]
    assert [sentence for sentence in sentences if f"| {sentence} |" not in text] == []
    broken = [finding.sentence for _, findings in results for finding in findings if finding.holds is False]
    assert [sentence for sentence in broken if f"| **does not hold** | {sentence} |" not in text] == []


def test_the_headline_is_that_of_the_results(spark: "SparkSession") -> None:
    measured = read_headline(spark, _RESULTS / HEADLINE)
    assert measured is not None
    found = measured.found[HEADLINE]
    accepted = [case for case, cell in found.of("accepted, by Spark").items() if cell.minimum == 12_000_000]
    assert accepted
    for name in ("lost, by Spark", "doubled, by Spark", "unfinished, by Spark"):
        assert {found.of(name)[case].maximum for case in accepted} == {0}
    assert "| 12,000,000;" in (_DOCS / "internals" / "findings.md").read_text()
    assert HEADLINE.title() in page(read(spark, _RESULTS / "full"), measured, "forebay lab report")
