"""The report: one HTML page with plots, tables and the audit's verdict, readable without a network.

All values from a store, error messages above all, are escaped as text. The page stays small, however long the history.
"""

from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from forebay.core.humanize import number
from forebay.spark.audit import AuditVerdict
from forebay.spark.document import document, save, section, table
from forebay.spark.figures import MAX_GROUPS, Figures, figures
from forebay.spark.lake import Lake
from forebay.spark.plots import Curve, bars, lines
from forebay.spark.tables.service_levels import MEASURES

_MAX_OFFENDERS: Final = 5
_MEANINGS: Final = {
    "wait": "from acceptance to the first claim",
    "late": "from due to claimed",
    "run": "from claimed to the end of a delivery",
    "total": "from acceptance to the end",
}


def write_report(spark: SparkSession, lake: Lake, out: Path, verdict: AuditVerdict | None, command: str = "") -> None:
    """Write the page atomically. `command`: shown at its foot."""
    save(page(figures(spark, lake), verdict, command), out)


def page(found: Figures, verdict: AuditVerdict | None, command: str = "") -> str:
    return document(
        "Forebay report",
        _head(found, verdict),
        section("Flow", _throughput(found), _depth(found), _latency(found, "wait"), _latency(found, "run")),
        section("Queues", _queues(found)),
        section("Lengths of time", _curve(found), _latency(found, "late"), _latency(found, "total")),
        section("Deliveries and retries", _deliveries(found), _retry_plot(found), _retries(found)),
        section("Dead letters", _deaths(found)),
        section("Fairness", _fairness(found)),
        "" if verdict is None else section("Every check", _checks(verdict)),
        _foot(found, command),
    )


def _head(found: Figures, verdict: AuditVerdict | None) -> str:
    facts = {
        "jobs": found.rows.get("jobs", 0),
        "deliveries": found.rows.get("attempts", 0),
        "events": found.events,
        "dead": sum(row["deaths"] for row in found.deaths),
    }
    tiles = "".join(f"<div><b>{count:,}</b><span>{name}</span></div>" for name, count in facts.items())
    times = f"{_time(found.since)} … {_time(found.until)} UTC" if found.since else "no events yet"
    return f"<header><h1>Forebay report</h1><p>{times}</p></header>{_verdict(verdict)}<div class='tiles'>{tiles}</div>"


def _verdict(verdict: AuditVerdict | None) -> str:
    if verdict is None:
        way = "run <code>forebay audit --report</code> with receipts and effects for a verdict"
        return f'<section class="verdict none"><b>not audited</b><p>{way}</p></section>'
    failed = [each for each in verdict.results if each.outcome == "failed"]
    words = {
        "PASS": "No promise was broken, and there was enough to judge by.",
        "FAIL": f"{len(failed)} of {len(verdict.results)} checks found a broken promise.",
        "INVALID": "Nothing wrong was found, but there was too little to find it with.",
    }
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    reasons += "".join(f"<li>{escape(each.check)}: {each.count:,}. {escape(each.what)}</li>" for each in failed)
    return (
        f'<section class="verdict {verdict.answer.lower()}"><b>{verdict.answer}</b>'
        f"<p>{words[verdict.answer]}</p><ul>{reasons}</ul></section>"
    )


def _throughput(found: Figures) -> str:
    names = ("accepted", "claimed", "acked", "retried", "died")
    peak = max((row["acked"] for row in found.steps), default=0)
    series = [Curve(name, [(_x(row["at"]), row[name]) for row in found.steps]) for name in names]
    return lines("Throughput", f"Jobs a second. At its best {number(peak)} were acked.", series, "/s", _ends(found))


def _depth(found: Figures) -> str:
    queues = sorted({row["queue"] for row in found.depths})
    series = [
        Curve(queue, [(_x(row["at"]), row["depth"]) for row in found.depths if row["queue"] == queue])
        for queue in queues
    ]
    peak = max((row["depth"] for row in found.depths), default=0)
    return lines("Depth", f"Jobs without an end. At most {number(peak)} in one queue.", series, "", _ends(found))


def _latency(found: Figures, measure: str) -> str:
    series = [
        Curve(f"p{rank}", [(_x(row["at"]), row[f"{measure}_p{rank}"]) for row in found.steps]) for rank in (50, 95, 99)
    ]
    sentence = f"Seconds {_MEANINGS[measure]}."
    return lines(f"Latency: {measure}", sentence, series, " s", _ends(found))


def _curve(found: Figures) -> str:
    series = [Curve(name, [(row["rank"], row[name]) for row in found.curve]) for name in MEASURES]
    sentence = "So many seconds at most, for so many percent of all."
    return lines("Percentiles", sentence, series, " s", ("1 %", "99 %"))


def _queues(found: Figures) -> str:
    counts = ("accepted", "claimed", "acked", "retried", "died", "expired", "cancelled", "redriven")
    heads = ["queue", *counts, *(f"{each} p{rank}" for each in ("wait", "run") for rank in (50, 99))]
    rows = [
        [row["queue"], *(f"{row[name]:,}" for name in counts)]
        + [_seconds(row[f"{each}_p{rank}"]) for each in ("wait", "run") for rank in (50, 99)]
        for row in found.queues
    ]
    return table(heads, rows)


def _deliveries(found: Figures) -> str:
    values = [(str(row["deliveries"]), float(row["jobs"])) for row in found.deliveries]
    again = sum(row["jobs"] for row in found.deliveries if row["deliveries"] > 1)
    return bars("Deliveries a job", f"{again:,} jobs were handed out more than once.", values, "")


def _retry_plot(found: Figures) -> str:
    values = [(f"{row['queue']} {row['attempt']}", float(row["p50"] or 0)) for row in found.retries]
    return bars("Median delay by queue and attempt", "Seconds between a failure and the next try.", values, " s")


def _retries(found: Figures) -> str:
    heads = ["queue", "attempt", "retries", "delay p50", "p95", "p99", "most", "same delay", "burst"]
    rows = [
        [row["queue"], str(row["attempt"]), f"{row['retries']:,}"]
        + [_seconds(row[name]) for name in ("p50", "p95", "p99", "most")]
        + [_share(row["same_delay"]), _share(row["burst"])]
        for row in found.retries
    ]
    note = "Near 100 % of one delay, or of a crowd back within one second, is jitter that was lost."
    return table(heads, rows) + (f'<p class="note">{note}</p>' if rows else "")


def _deaths(found: Figures) -> str:
    heads = ["deaths", "queue", "kind", "error", "message", "first", "last", "jobs"]
    rows = [
        [
            f"{row['deaths']:,}",
            row["queue"],
            row["kind"],
            row["error_kind"] or "expired",
            row["example"] or row["message"] or "",
            _time(row["first_at"]),
            _time(row["last_at"]),
            ", ".join(map(str, row["job_ids"][:3])),
        ]
        for row in found.deaths
    ]
    more = f'<p class="note">and {found.more_deaths:,} groups more than {MAX_GROUPS}</p>' if found.more_deaths else ""
    return table(heads, rows) + more


def _fairness(found: Figures) -> str:
    series = [
        Curve("evenest minute", [(_x(row["at"]), row["most"]) for row in found.fairness]),
        Curve("least even minute", [(_x(row["at"]), row["least"]) for row in found.fairness]),
    ]
    starved = sum(row["starved"] for row in found.fairness)
    sentence = f"Jain's index over tenants: 1 is even. {starved:,} times a tenant waited a minute and got nothing."
    return lines("Fairness", sentence, series, "", _ends(found))


def _checks(verdict: AuditVerdict) -> str:
    heads = ["check", "invariant", "outcome", "count", "meaning", "the first of them"]
    rows = [
        [
            each.check,
            each.invariant,
            each.outcome,
            f"{each.count:,}" if each.outcome in {"ok", "failed", "noted"} else "",
            each.what,
            " · ".join(map(str, each.offenders[:_MAX_OFFENDERS])),
        ]
        for each in verdict.results
    ]
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_fact(value))}</dd>" for name, value in verdict.facts.items())
    return table(heads, rows) + f"<dl>{facts}</dl>"


def _foot(found: Figures, command: str) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{count:,} rows</dd>" for name, count in found.rows.items())
    shown = f"<p><code>{escape(command)}</code></p>" if command else ""
    times = f"{_time(found.since)} … {_time(found.until)} UTC" if found.since else "no events"
    return (
        f"<footer>{shown}<p>{escape(found.store)}: {found.records:,} records of the ledger, {found.events:,} events, "
        f"{times}</p><dl>{rows}</dl></footer>"
    )


def _ends(found: Figures) -> tuple[str, str]:
    return _time(found.since), _time(found.until)


def _x(at: datetime) -> float:
    return at.timestamp()


def _time(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{number(value)} s"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
