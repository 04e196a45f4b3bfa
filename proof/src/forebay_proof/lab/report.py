"""The lab's report: Spark reads the Parquet of the results and groups it, and one HTML page shows what it says.

Of every experiment: what was believed, what the figures say about it, plots, all figures with their spread, and what
bounds them. Everything is in the results: the page can be made again from them alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.humanize import number
from forebay.spark.document import document, save, section, table
from forebay.spark.plots import Curve, SweepPoint, lines, number_of, sweep
from forebay_proof.lab.experiments import EXPERIMENTS
from forebay_proof.lab.experiments.base import Chart, Conclusion, Experiment, ExperimentResults, Statistic, TimeChart
from forebay_proof.lab.headline import NAME as HEADLINE
from forebay_proof.lab.results import ROWS, SAMPLES
from forebay_proof.lab.runner import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVIDENCE: Final = "evidence/"
_MAX_CASES: Final = 6
_SECONDS: Final = (
    TimeChart("Jobs", "Accepted, and done.", ("accepted", "acked")),
    TimeChart("Depth", "Jobs without an end.", ("depth",)),
    TimeChart("Left", "Jobs that are still to be done.", ("left",)),
    TimeChart("Memory", "Of supervisor and workers, bytes.", ("fleet_rss",)),
    TimeChart("Open files", "Of supervisor and workers.", ("fleet_descriptors",)),
)
_WORDS: Final = {True: "holds", False: "does not hold", None: ""}

PlotSeries = Mapping[tuple[str, str], Sequence[tuple[float, float]]]


class LabResults(Struct, frozen=True):
    """All results of a folder: by experiment what was found, samples by case and name, and where it was measured."""

    found: Mapping[str, ExperimentResults]
    samples: Mapping[str, PlotSeries]
    machine: Mapping[str, Any]


def read(spark: "SparkSession", folder: Path) -> LabResults:
    """Medians and extremes over the rounds; the samples of each case's first round."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = _frame(spark, folder / ROWS)
    by_case = rows.groupBy("experiment", "case", "metric").agg(
        F.median("value").alias("median"),
        F.min("value").alias("minimum"),
        F.max("value").alias("maximum"),
        F.count("value").alias("rounds"),
        F.first("unit").alias("unit"),
        F.first("facts").alias("facts"),
    )
    cells: dict[str, dict[tuple[str, str], Statistic]] = {}
    cases: dict[str, dict[str, Any]] = {}
    for row in by_case.orderBy("experiment", "case", "metric").collect():
        cell = Statistic(row["median"], row["minimum"], row["maximum"], row["rounds"], row["unit"])
        cells.setdefault(row["experiment"], {})[row["case"], row["metric"]] = cell
        cases.setdefault(row["experiment"], {})[row["case"]] = msgspec.json.decode(row["facts"])
    found = {name: ExperimentResults(cells[name], cases[name]) for name in cells}
    latest = rows.orderBy(F.desc("at")).select("machine").first()
    machine = msgspec.json.decode(latest["machine"]) if latest is not None else {}
    return LabResults(found, _series(spark, folder / SAMPLES), machine)


def _series(spark: "SparkSession", folder: Path) -> dict[str, dict[tuple[str, str], list[tuple[float, float]]]]:
    found: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    if not any(folder.glob("*.parquet")):
        return found
    for row in _frame(spark, folder).filter("round = 1").orderBy("experiment", "case", "metric", "at").collect():
        series = found.setdefault(row["experiment"], {})
        series.setdefault((row["case"], row["metric"]), []).append((row["at"], row["value"]))
    return found


def _frame(spark: "SparkSession", folder: Path) -> "DataFrame":
    if not any(folder.glob("*.parquet")):
        raise Invalid("results", f"there are none below {folder}", "measure first: forebay lab all --scale quick")
    return spark.read.parquet(str(folder.resolve()))


def read_headline(spark: "SparkSession", folder: Path) -> LabResults | None:
    """The long runs, if there were any."""
    return read(spark, folder) if any((folder / ROWS).glob("*.parquet")) else None


def judged(measured: LabResults) -> list[tuple[Experiment, list[Conclusion]]]:
    """The experiments of which there are results, and what those say."""
    return [
        (each, each.judge(measured.found[name_of(each)])) for each in EXPERIMENTS if name_of(each) in measured.found
    ]


def write_report(measured: LabResults, headline: LabResults | None, out: Path, output: str) -> None:
    save(page(measured, headline, output), out)


def page(measured: LabResults, headline: LabResults | None, output: str) -> str:
    whole = judged(measured)
    parts = [_head(whole, measured.machine), _summary(whole)]
    parts += [] if headline is None else [_headline(headline)]
    parts += [_experiment(each, findings, measured) for each, findings in whole]
    return document("Forebay lab", *parts, _foot(measured.machine, output))


def _head(whole: Sequence[tuple[Experiment, list[Conclusion]]], machine: Mapping[str, Any]) -> str:
    findings = [finding for _, each in whole for finding in each if finding.holds is not None]
    broken = sum(not finding.holds for finding in findings)
    answer, word = ("fail", f"{broken} of {len(findings)}") if broken else ("pass", f"all {len(findings)}")
    sentence = "findings do not hold" if broken else "findings hold"
    where = f"{machine.get('processor', '')}, {machine.get('cores', '?')} cores, {machine.get('scale', '')} scale"
    return (
        f"<header><h1>Forebay lab</h1><p>{escape(where)}</p></header>"
        f'<section class="verdict {answer}"><b>{word}</b><p>{sentence}</p></section>'
    )


def _summary(whole: Sequence[tuple[Experiment, list[Conclusion]]]) -> str:
    rows = [
        [str(each.number), each.title, finding.sentence, _WORDS[finding.holds]]
        for each, findings in whole
        for finding in findings
    ]
    return section("What was found", table(["", "experiment", "finding", ""], rows))


def _experiment(each: Experiment, findings: Iterable[Conclusion], measured: LabResults) -> str:
    found = measured.found[name_of(each)]
    words = f"<p class='note'><b>Hypothesis.</b> {escape(each.hypothesis)}</p>"
    words += "".join(f"<p class='note'>{_mark(finding)} {escape(finding.sentence)}</p>" for finding in findings)
    words += f"<p class='note'><b>Bound.</b> {escape(each.bound)}</p>"
    plots = [_chart(chart, found) for chart in each.charts]
    plots += [plot for line in each.timelines for plot in _timelines(line, measured.samples.get(name_of(each), {}))]
    return section(f"{each.number}. {each.title}", words, *plots, _figures(found), _evidence(found))


def _headline(measured: LabResults) -> str:
    """What was seen second by second, and what came of it."""
    samples = measured.samples.get(HEADLINE, {})
    plots = [plot for line in _SECONDS for plot in _timelines(line, samples)]
    output = f"<p class='note'><code>{escape(str(measured.machine.get('command', '')))}</code></p>"
    return section("Headline", output, *plots, _figures(measured.found[HEADLINE]))


def _mark(finding: Conclusion) -> str:
    return {True: "✓", False: "✗", None: "·"}[finding.holds]


def _chart(chart: Chart, found: ExperimentResults) -> str:
    cells = found.of(chart.metric, **chart.only)
    used = {case: found.cases[case] for case in cells if chart.over in found.cases[case]}
    places = sorted({settings[chart.over] for settings in used.values()}, key=_order)
    names = sorted({str(settings[chart.line]) for settings in used.values()})
    series = [
        (
            name,
            [
                SweepPoint(str(settings[chart.over]), cells[case].median, cells[case].minimum, cells[case].maximum)
                for case, settings in sorted(used.items(), key=lambda pair: _order(pair[1][chart.over]))
                if str(settings[chart.line]) == name
            ],
        )
        for name in names
    ]
    return sweep(chart.title, chart.sentence, [str(place) for place in places], series, chart.unit)


def _order(value: object) -> tuple[bool, float, str]:
    """Numbers first, by size; words by the alphabet."""
    return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, str(value))


def _timelines(wanted: TimeChart, samples: PlotSeries) -> list[str]:
    cases = sorted({case for case, name in samples if name in wanted.names})
    drawn = []
    for case in cases[:_MAX_CASES]:
        series = [Curve(name, samples[case, name]) for name in wanted.names if (case, name) in samples]
        times = [at for line in series for at, _ in line.points]
        ends = (f"{min(times):.0f} s", f"{max(times):.0f} s")
        drawn.append(lines(f"{wanted.title}: {case}", wanted.sentence, series, wanted.unit, ends))
    return drawn


def _figures(found: ExperimentResults) -> str:
    rows = [
        [case, metric, _spread(cell), cell.unit, str(cell.rounds)]
        for (case, metric), cell in found.cells.items()
        if not metric.startswith(_EVIDENCE)
    ]
    return _details("All figures: the median, the minimum and the maximum of the rounds", rows)


def _evidence(found: ExperimentResults) -> str:
    rows = [
        [case, metric.removeprefix(_EVIDENCE), _spread(cell), cell.unit, str(cell.rounds)]
        for (case, metric), cell in found.cells.items()
        if metric.startswith(_EVIDENCE)
    ]
    return _details("ServerStats: what the server and the kernel said meanwhile", rows) if rows else ""


def _details(title: str, rows: Sequence[Sequence[str]]) -> str:
    body = table(["case", "metric", "value", "unit", "rounds"], rows)
    return f"<details class='note'><summary>{escape(title)}</summary>{body}</details>"


def _spread(cell: Statistic) -> str:
    return number_of(SweepPoint("", cell.median, cell.minimum, cell.maximum))


def _foot(machine: Mapping[str, Any], output: str) -> str:
    flat = {name: value for name, value in machine.items() if not isinstance(value, dict)}
    flat |= machine.get("packages", {})
    rows = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(number(value) if isinstance(value, float) else str(value))}</dd>"
        for name, value in flat.items()
    )
    return f"<footer><p><code>{escape(output)}</code></p><dl>{rows}</dl></footer>"
