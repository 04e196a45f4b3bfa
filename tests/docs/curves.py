"""The curves of the findings as pictures: `python -m tests.docs.curves` draws them from docs/results into docs/img.

Samples over time are a `ShownCurve`, figures over a setting a `ShownChart`. The plots are those of `forebay lab
report`, each in the report's colours for light and for dark; the site shows the one of its scheme.
"""

import re
import sys
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.spark.plots import Curve, lines
from forebay_proof.lab.experiments import EXPERIMENTS
from forebay_proof.lab.experiments.base import ExperimentResults, Statistic
from forebay_proof.lab.report import draw_chart
from forebay_proof.lab.runner import name_of

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "img"
COLOURS: Final = (ROOT / "src" / "forebay" / "spark" / "report.css").read_text()


class ShownCurve(NamedTuple):
    results: str
    experiment: str
    case: str
    metric: str
    title: str
    seconds: float = 3_600.0
    """How much of it is shown: samples go on while a run is audited."""


class ShownChart(NamedTuple):
    """A chart of the lab's report, by the number of its experiment and its title there."""

    results: str
    number: int
    title: str


CURVES: Final[dict[str, ShownCurve | ShownChart]] = {
    "headline-depth": ShownCurve("headline", "headline", "postgres-fast-10000", "depth", "Jobs without an end", 1_260),
    "headline-memory": ShownCurve(
        "headline", "headline", "postgres-fast-10000", "fleet_rss", "Memory of the fleet", 1_260
    ),
    "drain": ShownCurve("headline", "headline", "postgres-cold", "left", "Jobs left of five million"),
    "kills": ShownCurve("full", "e04", "postgres-worker", "depth", "Jobs without an end, workers killed"),
    "workers": ShownChart("full", 1, "Jobs a second"),
    "ceiling": ShownChart("full", 2, "What is taken away"),
    "claims": ShownChart("full", 3, "Jobs a second"),
    "claims-p99": ShownChart("full", 3, "Claim p99"),
    "backlog": ShownCurve("full", "e05", "postgres-cold", "left", "Jobs left of a million"),
    "retries": ShownCurve("full", "e06", "postgres-steady", "retries", "Retries a second"),
    "lateness": ShownChart("full", 8, "Lateness p99"),
}


SCHEMES: Final = {"": False, "-dark": True}
"""Endings of the names of files: whether they are dark."""


def drawn(curve: ShownCurve | ShownChart, *, dark: bool = False) -> str:
    """One plot as an SVG of its own."""
    figure = _over_time(curve) if isinstance(curve, ShownCurve) else _over_a_setting(curve)
    found = re.search(r"<svg(.*?)>(.*)</svg>", figure, re.DOTALL)
    assert found is not None
    namespace = "" if "xmlns" in found[1] else ' xmlns="http://www.w3.org/2000/svg"'
    background = '<rect width="100%" height="100%" style="fill: var(--card)"/>'
    content = f"<style>{_colours(dark=dark)}</style>{background}{found[2]}{_legend(figure)}"
    return f"<svg{namespace}{found[1]}>{content}</svg>\n"


def _legend(figure: str) -> str:
    """The names of several lines, in their colours; the report has them beside the plot."""
    names = re.findall(r'<span class="k(\d)">(.*?)</span>', figure)
    texts = [f'<text class="c{colour}" x="{60 + 80 * int(colour)}" y="11">{name}</text>' for colour, name in names]
    return "".join(texts) if len(texts) > 1 else ""


def _over_a_setting(shown: ShownChart) -> str:
    experiment = EXPERIMENTS[shown.number - 1]
    (chart,) = (chart for chart in experiment.charts if chart.title == shown.title)
    return draw_chart(chart, results_of(shown.results, name_of(experiment)))


@cache
def results_of(results: str, experiment: str) -> ExperimentResults:
    """What was measured of one experiment, over its rounds."""
    rows = pq.read_table(ROOT / "docs" / "results" / results / "rows").to_pylist()
    values: dict[tuple[str, str], list[float]] = {}
    cases: dict[str, Any] = {}
    units: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["experiment"] == experiment:
            key = row["case"], row["metric"]
            values.setdefault(key, []).append(row["value"])
            units[key] = row["unit"]
            cases[row["case"]] = msgspec.json.decode(row["facts"])
    cells = {
        key: Statistic(median(found), min(found), max(found), len(found), units[key]) for key, found in values.items()
    }
    return ExperimentResults(cells, cases)


def _over_time(curve: ShownCurve) -> str:
    table = pq.read_table(ROOT / "docs" / "results" / curve.results / "samples")
    for column, wanted in (("experiment", curve.experiment), ("case", curve.case)):
        table = table.filter(pc.equal(table[column], wanted))
    table = table.filter(pc.equal(table["round"], pc.min(table["round"]))).sort_by("at")
    table = table.filter(pc.less_equal(table["at"], curve.seconds))
    rows = table.filter(pc.equal(table["metric"], curve.metric))
    points = list(zip(rows["at"].to_pylist(), rows["value"].to_pylist(), strict=True))
    ends = (f"{points[0][0]:.0f} s", f"{points[-1][0]:.0f} s")
    return lines(curve.title, "", [Curve(curve.metric, points)], "", ends)


def _colours(*, dark: bool) -> str:
    """What of the report's style a plot needs: the variables of the scheme, strokes, fills and texts."""
    light, _, other = COLOURS[: COLOURS.index("* {")].partition("@media (prefers-color-scheme: dark) {\n")
    variables = light.replace("  color-scheme: light dark;\n", "")
    if dark:
        variables += other.strip().removesuffix("}") + "\n"
    rules = [line for line in COLOURS.splitlines() if re.match(r"(svg text|text\.|\.g |polyline|\.s\d|\.c\d)", line)]
    return variables + "\n".join(rules)


if __name__ == "__main__":
    for (name, curve), (suffix, dark) in product(CURVES.items(), SCHEMES.items()):
        (IMAGES / f"{name}{suffix}.svg").write_text(drawn(curve, dark=dark))
        sys.stdout.write(f"docs/img/{name}{suffix}.svg\n")
