"""The audit: what producers were told and what handlers did, held against the ledger. Nothing is asked of the store.

    verdict = audit(events, receipts, effects, options=Options(drained=True))
    print(verdict.text())
    sys.exit(verdict.exit_code)

First the proof: a survey of the ledger's offsets, then sets of jobs and of seqs as words of bits (`words`). Where a sum
is not 0 the exact checks run (`life`, `told`, `lines`, `evidence`) and name each offender; those that compare a job's
events side by side run in any case, unless a quick audit is asked for. The answer is the same under any partitioning,
any order of rows and any file read twice.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from forebay.spark.audit.checks import CHECKS, Check, Options, Tier
from forebay.spark.audit.evidence import with_sizes
from forebay.spark.audit.judge import Case
from forebay.spark.audit.verdict import Offender, Result, Verdict
from forebay.spark.schemas import EFFECTS, EVENTS, RECEIPTS, conform

__all__ = ["CHECKS", "Check", "Offender", "Options", "Result", "Tier", "Verdict", "audit"]


def audit(
    events: DataFrame,
    receipts: DataFrame | None = None,
    effects: DataFrame | None = None,
    *,
    logs: Mapping[str, DataFrame] | None = None,
    options: Options | None = None,
    doubts: Sequence[str] = (),
) -> Verdict:
    """`events`: the whole ledger as EVENTS. `logs`: entries of retained logs by name, with `partition` and `offset`.

    `doubts`: what is known to be wrong with the evidence; each is a reason for INVALID.
    """
    return Case(
        conform(with_sizes(events), EVENTS, "events"),
        None if receipts is None else conform(receipts, RECEIPTS, "receipts"),
        None if effects is None else conform(effects, EFFECTS, "effects"),
        dict(logs or {}),
        options or Options(),
        doubts,
    ).verdict()
