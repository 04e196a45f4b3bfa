"""From findings to the verdict: the outcome of each check, whether the evidence suffices, and the facts.

There is no query and no rule about jobs in here: `case` finds by Spark, `small_case` without it, and both use this
module.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.instant import Instant, to_datetime
from forebay.spark.audit.checks import CHECKS, AuditOptions, Check, Tier, Weight
from forebay.spark.audit.exact_checks import Finding
from forebay.spark.audit.proven import ProvenTotals
from forebay.spark.audit.survey import LedgerExtent
from forebay.spark.audit.verdict import (
    OFFENDERS,
    SHOWN,
    AuditAnswer,
    AuditVerdict,
    CheckOutcome,
    CheckResult,
    EarlierProof,
    Offender,
)

_OUTCOMES: Final[dict[Weight, CheckOutcome]] = {"failure": "failed", "note": "noted", "doubt": "missing"}

CheckCount = tuple[str, int, list[Offender]]
"""A check, the number of its offenders, and the first of them."""

SeqsOf = Callable[[set[int]], dict[int, int]]
"""The smallest seq of each of these jobs that a receipt names."""


class AuditFacts(Struct, frozen=True):
    """Facts besides findings.

    receipts, effects, logs   whether such evidence was given
    untimed                   whether effects have no time
    in_full                   whether each job was checked; not so in a quick audit whose sums are all 0
    doubts, absent, cut       see `forebay.spark.audit.audit`
    """

    options: AuditOptions
    extent: LedgerExtent
    totals: ProvenTotals
    receipts: bool
    effects: bool
    logs: bool
    untimed: bool
    in_full: bool
    doubts: Sequence[str]
    absent: Sequence[str]
    cut: bool

    @property
    def lacks_records(self) -> bool:
        """Whether records of the ledger are missing, besides those between others."""
        late = self.extent.records > 0 and self.extent.first > self.options.from_offset
        return self.cut or late or self.extent.silences > 0

    def has(self, *needs: str) -> bool:
        there = {
            "receipts": self.receipts,
            "effects": self.effects,
            "drained": self.options.drained,
            "ordered": bool(self.options.ordered),
            "schedules": bool(self.options.schedules),
            "logs": self.logs,
        }
        return all(there[need] for need in needs)


def conclude(
    facts: AuditFacts, parts: Iterable[CheckCount], seqs_of: SeqsOf, earlier: EarlierProof | None
) -> AuditVerdict:
    """`earlier`: what an incremental audit relies on."""
    found = _found(parts, seqs_of)
    lacking = facts.lacks_records or "ledger_gap" in found
    results = [_result(facts, check, *found.get(check.id, (0, [])), lacking=lacking) for check in CHECKS.values()]
    reasons = [*facts.doubts, *_missing(facts)]
    reasons += _doubts([result for result in results if result.outcome == "missing"], facts.absent)
    failed = any(result.outcome == "failed" for result in results)
    answer: AuditAnswer = "FAIL" if failed else "INVALID" if reasons else "PASS"
    skipped = [result.check for result in results if result.outcome == "not run" and _is_left_out(facts, result.check)]
    return AuditVerdict(answer, reasons, _described(facts), results, skipped, earlier)


def counted(findings: Iterable[Finding]) -> list[CheckCount]:
    """Findings by check."""
    by_check: dict[str, list[Finding]] = {}
    for each in findings:
        by_check.setdefault(each.check, []).append(each)
    return [
        (check, len(own), [Offender(*each[1:]) for each in nsmallest(OFFENDERS, own, key=_order)])
        for check, own in by_check.items()
    ]


def _result(facts: AuditFacts, check: Check, count: int, offenders: list[Offender], *, lacking: bool) -> CheckResult:
    """`lacking`: records of the ledger are missing."""
    outcome: CheckOutcome = "ok"
    if not facts.has(*check.needs):
        outcome = "no evidence" if {"receipts", "effects"} & set(check.needs) else "not run"
    elif (check.id == "unborn" and facts.options.from_offset) or (check.tier is Tier.EVERY and not facts.in_full):
        outcome = "not run"
    elif count:
        weight = facts.options.weight(check)
        outcome = _OUTCOMES["doubt" if lacking and weight == "failure" and not check.robust else weight]
    return CheckResult(check.id, check.invariant, check.what, outcome, count, offenders)


def _is_left_out(facts: AuditFacts, name: str) -> bool:
    """Whether a full audit would have run the check."""
    check = CHECKS[name]
    return facts.options.quick and check.tier is Tier.EVERY and facts.has(*check.needs)


def _missing(facts: AuditFacts) -> Iterator[str]:
    """Why the evidence does not suffice for PASS."""
    options, extent, totals = facts.options, facts.extent, facts.totals
    if not extent.records:
        yield "there are no events"
    elif extent.first > options.from_offset:
        yield f"the ledger starts at offset {extent.first}, not {options.from_offset}: earlier events are missing"
    if extent.silences:
        yield f"the ledger was switched off {extent.silences} times: events are missing"
    if totals.jobs < options.min_jobs:
        yield f"{totals.jobs} jobs were accepted, at least {options.min_jobs} are required"
    if not facts.receipts:
        yield "there are no receipts: without them loss cannot be detected"
    elif not totals.sent:
        yield "the receipts are empty"
    elif totals.receipted < options.coverage * totals.enqueued:
        share = f"{options.coverage:.0%}"
        yield f"{totals.receipted} of {totals.enqueued} enqueued jobs have a receipt, less than {share}"
    if facts.untimed:
        yield "effects have no effect_at: a repeated effect cannot be distinguished from a repeated line"


def _described(facts: AuditFacts) -> dict[str, Any]:
    extent, totals = facts.extent, facts.totals
    described: dict[str, Any] = {
        "events": extent.events,
        "records": extent.records,
        "offsets": f"{extent.first} … {extent.last}" if extent.records else "none",
        "from": _shown(extent.since),
        "to": _shown(extent.until),
        "jobs": totals.jobs,
        "ended": totals.ended,
        "with_a_receipt": totals.receipted,
    }
    return described | ({"seqs_sent": totals.sent, "effects": totals.effects} if facts.receipts else {})


def _shown(at: Instant | None) -> str:
    return str(None if at is None else to_datetime(at))


def _doubts(results: Sequence[CheckResult], absent: Sequence[str]) -> Iterator[str]:
    """Why the results that say so are missing evidence."""
    for each in results:
        if each.check == "ledger_gap":
            first = min(one.offset or 0 for one in each.offenders)
            yield f"the ledger is not whole in {each.count} places, the first of them at offset {first}"
        elif each.check == "unreceipted":
            yield _unreceipted(each, absent)
    follow = [f"{each.check} ({each.count})" for each in results if CHECKS[each.check].weight != "doubt"]
    if follow:
        yield f"records of the ledger are missing, which may be the cause of {', '.join(follow)}"


def _unreceipted(result: CheckResult, absent: Sequence[str]) -> str:
    first, last = (result.offenders[place].seq for place in (0, -1))
    seqs = f"seq {first}" if result.count == 1 else f"seqs {first} … {last}"
    more = "" if result.count == len(result.offenders) else " and more"
    why = "a file of receipts is missing, or a producer does not write them"
    if absent:
        why += f"; an earlier audit was also given {', '.join(absent[:SHOWN])}"
    return f"{result.count} effects ({seqs}{more}) have no receipt, and the ledger accepted their jobs: {why}"


def _order(one: Finding) -> tuple[object, ...]:
    """Spark's order: nulls first, except for the seq."""
    known = [(value is not None, value or 0) for value in (one.job_id, one.offset, one.place)]
    return (one.seq is None, one.seq or 0, *known, one.note or "")


def _found(parts: Iterable[CheckCount], seqs_of: SeqsOf) -> dict[str, tuple[int, list[Offender]]]:
    """Merged by check, with the seqs of jobs that have one."""
    counts: dict[str, int] = {}
    named: dict[str, list[Offender]] = {}
    for check, count, offenders in parts:
        counts[check] = counts.get(check, 0) + count
        named.setdefault(check, []).extend(offenders)
    unnamed = {each.job_id for own in named.values() for each in own if each.seq is None and each.job_id is not None}
    seqs = seqs_of(unnamed) if unnamed else {}
    return {
        check: (count, [_named(each, seqs) for each in named[check][:OFFENDERS]]) for check, count in counts.items()
    }


def _named(one: Offender, seqs: dict[int, int]) -> Offender:
    return one if one.job_id is None else replace(one, seq=seqs.get(one.job_id, one.seq))
