"""One audit from the evidence to the verdict: which exact checks have to run, what they find, whether it suffices."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.spark.audit.checks import CHECKS, Check, Options, Tier, Weight
from forebay.spark.audit.evidence import Ground, conflicts, gaps, log_gaps, once, survey
from forebay.spark.audit.life import life_faults
from forebay.spark.audit.lines import out_of_turn, slots_missing, slots_twice
from forebay.spark.audit.told import duplicated, effect_faults, known_jobs, receipt_faults, unfenced, unfinished
from forebay.spark.audit.verdict import OFFENDERS, Answer, Offender, Outcome, Result, Verdict
from forebay.spark.audit.words import JobSums, SeqSums, job_sums, seq_sums, unfenced_sum

Stage = tuple[bool, Callable[[], DataFrame]]
"""Whether it has to run: it was asked for, or the proof is suspicious. And the exact check."""


_KEPT: Final = StorageLevel.MEMORY_AND_DISK
_OUTCOMES: Final[dict[Weight, Outcome]] = {"failure": "failed", "note": "noted", "doubt": "missing"}


class Case:
    """The evidence of one audit. What is asked of it twice is worked out once."""

    def __init__(
        self,
        events: DataFrame,
        receipts: DataFrame | None,
        effects: DataFrame | None,
        logs: dict[str, DataFrame],
        options: Options,
        doubts: Sequence[str],
    ) -> None:
        self._read = events
        self._receipts = receipts
        self._effects = effects
        self._logs = logs
        self._options = options
        self._doubts = doubts
        self._whole = options.begins == 0

    def verdict(self) -> Verdict:
        try:
            found = _found([exact() for needed, exact in self._stages() if needed], self._receipts)
        finally:
            if self._first_look.ragged:
                self._events.unpersist()
        results = [self._result(check, *found.get(check.id, (0, []))) for check in CHECKS.values()]
        reasons = [*self._doubts, *self._missing()]
        reasons += [_doubt(result) for result in results if result.outcome == "missing"]
        failed = any(result.outcome == "failed" for result in results)
        answer: Answer = "FAIL" if failed else "INVALID" if reasons else "PASS"
        skipped = [
            result.check for result in results if result.outcome == "not asked" and self._is_left_out(result.check)
        ]
        return Verdict(answer, reasons, self._facts(), results, skipped)

    @cached_property
    def _first_look(self) -> Ground:
        return survey(self._read)

    @cached_property
    def _events(self) -> DataFrame:
        """Each once. Kept while the audit lasts if that took work."""
        return once(self._read).persist(_KEPT) if self._first_look.ragged else self._read

    @cached_property
    def _ground(self) -> Ground:
        return survey(self._events) if self._first_look.ragged else self._first_look

    @cached_property
    def _jobs(self) -> JobSums:
        return job_sums(self._events, self._receipts, self._effects)

    @cached_property
    def _seqs(self) -> SeqSums | None:
        return None if self._receipts is None else seq_sums(self._receipts, self._effects)

    def _stages(self) -> Iterator[Stage]:
        options, ground = self._options, self._ground
        yield self._first_look.ragged > 0, lambda: conflicts(self._read)
        yield ground.missing + ground.ragged > 0, lambda: gaps(self._events, ground)
        yield self._lived, lambda: life_faults(self._events, options)
        if ground.fires:
            yield True, lambda: slots_twice(self._events)
        if options.schedules:
            yield True, lambda: slots_missing(self._events, options.schedules)
        if options.ordered:
            yield True, lambda: out_of_turn(self._events, options.ordered)
        for name, entries in self._logs.items():
            yield True, lambda name=name, entries=entries: log_gaps(name, entries)  # type: ignore[misc]
        yield from self._told_stages()

    def _told_stages(self) -> Iterator[Stage]:
        """What needs more than the ledger."""
        known, sums, seqs, whole = known_jobs(self._events), self._jobs, self._seqs, self._whole
        receipts, effects = self._receipts, self._effects
        if self._options.drained:
            yield sums.unfinished + sums.redriven > 0, lambda: unfinished(known)
        if receipts is not None and seqs is not None:
            since = self._ground.since
            yield sums.lost + sums.told_twice > 0, lambda: receipt_faults(known, receipts, whole=whole, since=since)
            yield seqs.duplicated + seqs.again + sums.untold > 0, lambda: duplicated(known, receipts, effects)
        if effects is not None:
            odd = seqs is None or seqs.again + seqs.unexpected + seqs.recovered > 0
            odd |= sums.undone + sums.stray + sums.undead > 0
            yield odd, lambda: effect_faults(known, receipts, effects, whole=whole)
            fences = not self._options.quick and unfenced_sum(self._events, effects) > 0
            yield fences, lambda: unfenced(self._events, effects, whole=whole)

    @cached_property
    def _lived(self) -> bool:
        """Whether each job's events are looked at side by side."""
        sums = self._jobs
        odd = sums.born_twice + sums.ended_twice + sums.redriven > 0 or (self._whole and sums.unborn > 0)
        return not self._options.quick or odd

    def _result(self, check: Check, count: int, offenders: list[Offender]) -> Result:
        outcome: Outcome = "ok"
        if not self._has(*check.needs):
            outcome = "no evidence" if {"receipts", "effects"} & set(check.needs) else "not asked"
        elif (check.id == "unborn" and not self._whole) or (check.tier is Tier.EVERY and not self._was_asked(check)):
            outcome = "not asked"
        elif count:
            outcome = _OUTCOMES[self._options.weight(check)]
        return Result(check.id, check.invariant, check.what, outcome, count, offenders)

    def _is_left_out(self, name: str) -> bool:
        """Whether a full audit would have asked."""
        check = CHECKS[name]
        return self._options.quick and check.tier is Tier.EVERY and self._has(*check.needs)

    def _was_asked(self, check: Check) -> bool:
        return not self._options.quick if check.id == "unfenced_effect" else self._lived

    def _has(self, *needs: str) -> bool:
        there = {
            "receipts": self._receipts is not None,
            "effects": self._effects is not None,
            "drained": self._options.drained,
            "ordered": bool(self._options.ordered),
            "schedules": bool(self._options.schedules),
            "logs": bool(self._logs),
        }
        return all(there[need] for need in needs)

    def _missing(self) -> Iterator[str]:
        """Why the evidence does not suffice for PASS."""
        options, ground, sums = self._options, self._ground, self._jobs
        if not ground.records:
            yield "there are no events"
        elif ground.first > options.begins:
            yield f"the ledger begins at offset {ground.first}, not {options.begins}: what was before is not known"
        if ground.silences:
            yield f"the ledger was switched off {ground.silences} times: what happened meanwhile is not known"
        if sums.jobs < options.least_jobs:
            yield f"{sums.jobs} jobs were accepted, {options.least_jobs} is the least that proves something"
        if self._seqs is None:
            yield "there are no receipts: what producers were told is not known, so nothing can be said of loss"
        elif not self._seqs.sent:
            yield "the receipts are empty"
        elif sums.receipted < options.coverage * sums.enqueued:
            yield f"{sums.receipted} of {sums.enqueued} enqueued jobs have a receipt, less than {options.coverage:.0%}"
        if self._effects is not None and not self._effects.filter(F.col("effect_at").isNull()).isEmpty():
            yield "effects have no effect_at: one that was repeated is not told from a line that was"

    def _facts(self) -> dict[str, Any]:
        ground, sums, seqs = self._ground, self._jobs, self._seqs
        facts: dict[str, Any] = {
            "events": ground.events,
            "records": ground.records,
            "offsets": f"{ground.first} … {ground.last}" if ground.records else "none",
            "from": str(ground.since),
            "to": str(ground.until),
            "jobs": sums.jobs,
            "ended": sums.ended,
            "with_a_receipt": sums.receipted,
        }
        if seqs is not None:
            facts |= {"seqs_sent": seqs.sent, "effects": seqs.effects}
        return facts


def _doubt(result: Result) -> str:
    first, last = (result.offenders[place].seq for place in (0, -1))
    seqs = f"seq {first}" if result.count == 1 else f"seqs {first} … {last}"
    more = "" if result.count == len(result.offenders) else " and more"
    return (
        f"{result.count} effects ({seqs}{more}) have no receipt, and the ledger accepted their jobs: "
        f"a file of receipts is missing, or a producer writes none"
    )


def _found(parts: list[DataFrame], receipts: DataFrame | None) -> dict[str, tuple[int, list[Offender]]]:
    """By check: how many offenders, and the first of them with their seqs. One query a part."""
    order = F.struct(F.col("seq").isNull(), "seq", "job_id", "offset", "place", "note")
    first = F.min_by(F.struct(*Offender.__struct_fields__), order, OFFENDERS)
    counts: dict[str, int] = {}
    named: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for check, count, rows in part.groupBy("check").agg(F.count("*"), first).collect():
            counts[check] = counts.get(check, 0) + count
            named.setdefault(check, []).extend(row.asDict() for row in rows)
    unnamed = {row["job_id"] for rows in named.values() for row in rows if row["seq"] is None} - {None}
    seqs = _seqs_of(unnamed, receipts)
    for row in (row for rows in named.values() for row in rows if row["seq"] is None):
        row["seq"] = seqs.get(row["job_id"])
    return {check: (count, [Offender(**row) for row in named[check][:OFFENDERS]]) for check, count in counts.items()}


def _seqs_of(jobs: set[int], receipts: DataFrame | None) -> dict[int, int]:
    if receipts is None or not jobs:
        return {}
    own = receipts.filter(F.col("job_id").isin(*sorted(jobs))).groupBy("job_id").agg(F.min("seq").alias("seq"))
    return {row["job_id"]: row["seq"] for row in own.collect()}
