"""The audit: receipts of producers and effects of handlers, compared with the ledger. The store itself is not queried.

    verdict = audit(events, receipts, effects, options=Options(drained=True))
    print(verdict.text())
    sys.exit(verdict.exit_code)

First a survey of the ledger's offsets (`survey`), then one aggregate by job that finds suspects (`profile`). Spark
gathers the suspects' entries (`suspects`); plain functions judge them job by job and seq by seq (`exact_checks`) and
name each offender. A quick audit compares sets of jobs and of seqs as 64-bit words (`bitsets`), and looks for suspects
only where a sum is not 0. What is ordered across jobs has queries of its own (`ordering`). Little that is new since an
earlier audit is judged without Spark (`small_case`). `conclusion` makes the verdict of what was found.
The answer is the same under any partitioning, any order of rows and any file read twice.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from forebay.core.errors import Invalid
from forebay.spark.audit.case import AuditCase
from forebay.spark.audit.checks import CHECKS, AuditOptions, Check, Tier
from forebay.spark.audit.survey import with_sizes
from forebay.spark.audit.verdict import AuditVerdict, CheckResult, Offender
from forebay.spark.schemas import EFFECTS, EVENTS, RECEIPTS, conform

__all__ = ["CHECKS", "Check", "Offender", "AuditOptions", "CheckResult", "Tier", "AuditVerdict", "audit"]


def audit(
    events: DataFrame,
    receipts: DataFrame | None = None,
    effects: DataFrame | None = None,
    *,
    logs: Mapping[str, DataFrame] | None = None,
    options: AuditOptions | None = None,
    doubts: Sequence[str] = (),
    absent: Sequence[str] = (),
    cut: bool = False,
) -> AuditVerdict:
    """`events`: the whole ledger as EVENTS. `logs`: entries of retained logs by name, with `partition` and `offset`.

    `doubts`: known defects of the evidence; each is a reason for INVALID. `absent`: files of receipts
    that were given to an earlier audit; they are named where receipts are missing. `cut`: one of the doubts
    is that events are missing.
    """
    if "cell" in events.columns and not events.filter("cell IS NOT NULL").isEmpty():
        reason = "their offsets are of the ledgers of several cells"
        raise Invalid("events", reason, "audit a lake of them: forebay audit --store cells:cells.toml --lake lake")
    case = AuditCase(
        conform(with_sizes(events), EVENTS, "events"),
        None if receipts is None else conform(receipts, RECEIPTS, "receipts"),
        None if effects is None else conform(effects, EFFECTS, "effects"),
        dict(logs or {}),
        options or AuditOptions(),
        doubts,
        absent,
        cut,
    )
    with case:
        return case.verdict()
