"""The curves of the findings as pictures: `python -m tests.docs.curves` draws them from docs/results into docs/img.

The plots are those of `forebay lab report`, each in the report's colours for light and for dark; the site shows
the one of its scheme.
"""

import re
import sys
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay.spark.plots import Curve, lines

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


CURVES: Final = {
    "headline-depth": ShownCurve("headline", "headline", "postgres-fast-10000", "depth", "Jobs without an end", 1_260),
    "headline-memory": ShownCurve(
        "headline", "headline", "postgres-fast-10000", "fleet_rss", "Memory of the fleet", 1_260
    ),
    "drain": ShownCurve("headline", "headline", "postgres-cold", "left", "Jobs left of five million"),
    "kills": ShownCurve("full", "e04", "postgres-worker", "depth", "Jobs without an end, workers killed"),
}


SCHEMES: Final = {"": False, "-dark": True}
"""Endings of the names of files: whether they are dark."""


def drawn(curve: ShownCurve, *, dark: bool = False) -> str:
    """One plot as an SVG of its own."""
    table = pq.read_table(ROOT / "docs" / "results" / curve.results / "samples")
    for column, wanted in (("experiment", curve.experiment), ("case", curve.case)):
        table = table.filter(pc.equal(table[column], wanted))
    table = table.filter(pc.equal(table["round"], pc.min(table["round"]))).sort_by("at")
    table = table.filter(pc.less_equal(table["at"], curve.seconds))
    rows = table.filter(pc.equal(table["metric"], curve.metric))
    points = list(zip(rows["at"].to_pylist(), rows["value"].to_pylist(), strict=True))
    ends = (f"{points[0][0]:.0f} s", f"{points[-1][0]:.0f} s")
    figure = lines(curve.title, "", [Curve(curve.metric, points)], "", ends)
    found = re.search(r"<svg(.*?)>(.*)</svg>", figure, re.DOTALL)
    assert found is not None
    namespace = "" if "xmlns" in found[1] else ' xmlns="http://www.w3.org/2000/svg"'
    background = '<rect width="100%" height="100%" style="fill: var(--card)"/>'
    return f"<svg{namespace}{found[1]}><style>{_colours(dark=dark)}</style>{background}{found[2]}</svg>\n"


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
