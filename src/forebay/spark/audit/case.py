"""One audit by Spark: which exact checks have to run, and what they find. `conclusion` makes the verdict of it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.core.ledger import Change
from forebay.spark.audit.bitsets import JobSums, SeqSums, accepted_again, job_sums, seq_sums
from forebay.spark.audit.checks import AuditOptions
from forebay.spark.audit.conclusion import AuditFacts, CheckCount, conclude, counted
from forebay.spark.audit.exact_checks import ENDED, Finding, Rules
from forebay.spark.audit.findings import FINDINGS
from forebay.spark.audit.ordering import out_of_turn, slots_missing, slots_twice
from forebay.spark.audit.profile import JobProfile, fits, profile, suspects
from forebay.spark.audit.proven import EarlierAudit, Proven, ProvenTotals, Slot
from forebay.spark.audit.survey import LedgerExtent, conflicts, distinct_events, gaps, log_gaps, survey
from forebay.spark.audit.suspects import Suspects, examine, semi_join
from forebay.spark.audit.verdict import OFFENDERS, AuditVerdict, Offender
from forebay.spark.session import stage

_KEPT: Final = StorageLevel.MEMORY_AND_DISK


class AuditCase:
    """The evidence of one audit. Each part is computed once, when it is needed, and kept while the audit lasts.

    With an `earlier` audit, `events` are those that are new since; receipts and effects are all of the jobs and seqs
    that are related to these, or to new evidence.
    """

    def __init__(
        self,
        events: DataFrame,
        receipts: DataFrame | None,
        effects: DataFrame | None,
        logs: dict[str, DataFrame],
        options: AuditOptions,
        doubts: Sequence[str],
        absent: Sequence[str],
        cut: bool,
        earlier: EarlierAudit | None = None,
    ) -> None:
        self._read = events
        self._earlier = earlier
        self._receipts = receipts
        self._effects = effects
        self._logs = logs
        self._options = options
        self._doubts = doubts
        self._absent = absent
        self._cut = cut
        self._whole = options.from_offset == 0
        self._kept: list[DataFrame] = []

    def __enter__(self) -> "AuditCase":
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._kept:
            frame.unpersist()

    def verdict(self) -> AuditVerdict:
        with self._stage("ledger"):
            parts = _collected(self._of_ledger())
        with self._stage("suspects"):
            of_jobs = self._of_jobs()
            parts += _collected([of_jobs]) if isinstance(of_jobs, DataFrame) else counted(of_jobs)
        facts = AuditFacts(
            self._options,
            self._extent,
            self._totals,
            receipts=self._receipts is not None,
            effects=self._effects is not None,
            logs=bool(self._logs),
            untimed=self._untimed,
            in_full=self._in_full,
            doubts=self._doubts,
            absent=self._absent,
            cut=self._cut,
        )
        relied_on = None if self._earlier is None else self._earlier.proven.relied_on(self._first_survey.events)
        return conclude(facts, parts, self._seqs_of, relied_on)

    def proves(self) -> bool:
        """Whether a verdict of PASS is one that a later audit may rely on."""
        return self._in_full and not self._options.quick and fits(self._extent)

    def proven(self, at: str, rows: int, evidence: dict[str, list[str]], *, held_back: bool) -> Proven:
        """After PASS; see there."""
        end = self._extent.last + 1
        return Proven(end, at, rows, self._extent, self._totals, evidence, self._last_slots(), held_back)

    def open_jobs(self) -> DataFrame:
        """The ids of jobs that have no end yet; they are kept."""
        moves = semi_join(self._events.select("job_id", "offset", "place", "change"), self._profile[1], "job_id")
        last = moves.groupBy("job_id").agg(F.max_by("change", F.struct("offset", "place")).alias("change"))
        return self._keep(last.filter(~F.col("change").isin(*ENDED, Change.PURGED)).select("job_id"))

    def _last_slots(self) -> dict[str, Slot]:
        """Of each schedule."""
        if not self._extent.fires:
            return {} if self._earlier is None else self._earlier.proven.slots
        fired = self._events.filter((F.col("verb") == "fire") & F.col("tick").isNotNull())
        last = fired.groupBy("name").agg(F.max(F.struct(F.unix_micros("tick").alias("tick"), "offset")).alias("last"))
        return {row["name"]: Slot(row["last"]["tick"], row["last"]["offset"]) for row in last.collect()}

    @cached_property
    def _first_survey(self) -> LedgerExtent:
        with self._stage("survey"):
            return survey(self._read)

    @cached_property
    def _ledger(self) -> DataFrame:
        """What was read, each event once."""
        return self._keep(distinct_events(self._read)) if self._first_survey.ragged else self._read

    @cached_property
    def _events(self) -> DataFrame:
        """With earlier ones of the same jobs."""
        earlier = self._earlier
        return self._ledger if earlier is None or earlier.events is None else self._ledger.unionAll(earlier.events)

    @cached_property
    def _extent(self) -> LedgerExtent:
        with self._stage("survey"):
            found = survey(self._ledger) if self._first_survey.ragged else self._first_survey
        return found if self._earlier is None else self._earlier.proven.extent.followed_by(found)

    @cached_property
    def _seqs(self) -> SeqSums | None:
        with self._stage("seqs"):
            return None if self._receipts is None else seq_sums(self._receipts, self._effects)

    @cached_property
    def _sums(self) -> JobSums:
        """Of a quick audit."""
        with self._stage("sums"):
            return job_sums(self._events, self._receipts, self._effects)

    @cached_property
    def _in_full(self) -> bool:
        """Whether each job is checked: in any audit but a quick one whose sums are all 0."""
        if not self._options.quick or self._seqs is None or self._seqs.suspicions:
            return True
        sums = self._sums
        odd = sums.suspicions - (0 if self._options.drained else sums.unfinished) - (0 if self._whole else sums.unborn)
        return odd > 0

    @cached_property
    def _profile(self) -> tuple[JobProfile, DataFrame]:
        with self._stage("profile"):
            found = profile(self._events, self._receipts, self._effects, drained=self._options.drained)
        self._kept.append(found[1])
        return found

    @cached_property
    def _totals(self) -> ProvenTotals:
        """Of the whole ledger: what was proven, less what it counted for the jobs and seqs that are checked again."""
        seen = self._profile[0] if self._in_full else self._sums
        sent, effects = (0, 0) if self._seqs is None else (self._seqs.sent, self._seqs.effects)
        found = ProvenTotals(seen.jobs, seen.ended, seen.enqueued, seen.receipted, sent, effects)
        earlier = self._earlier
        if earlier is None:
            return found
        total = earlier.proven.totals.plus(found)
        with self._stage("totals"):
            if earlier.events is not None:
                jobs = job_sums(earlier.events, earlier.receipts, earlier.effects)
                total = total.minus(ProvenTotals(jobs.jobs, jobs.ended, jobs.enqueued, jobs.receipted, 0, 0))
            if earlier.receipts is not None:
                seqs = seq_sums(earlier.receipts, earlier.effects)
                total = total.minus(ProvenTotals(0, 0, 0, 0, seqs.sent, seqs.effects))
        return total

    @cached_property
    def _untimed(self) -> bool:
        if self._in_full:
            return self._profile[0].untimed > 0
        return self._effects is not None and not self._effects.filter(F.col("effect_at").isNull()).isEmpty()

    def _stage(self, name: str) -> AbstractContextManager[None]:
        return stage(self._read.sparkSession, f"audit: {name}")

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(_KEPT))
        return frame

    def _of_ledger(self) -> Iterator[DataFrame]:
        """What is not about single jobs."""
        options, extent = self._options, self._extent
        if self._first_survey.ragged:
            yield conflicts(self._read)
        if extent.missing + extent.ragged:
            yield gaps(self._ledger, extent, None if self._earlier is None else self._earlier.proven.end)
        if extent.fires:
            yield slots_twice(self._events)
        if options.schedules:
            yield slots_missing(self._events, options.schedules)
        if options.ordered:
            yield out_of_turn(self._events, options.ordered)
        for name, entries in self._logs.items():
            yield log_gaps(name, entries)

    def _of_jobs(self) -> list[Finding] | DataFrame:
        """The exact checks of suspects, their seqs, and the jobs that share these."""
        again = self._seqs.duplicated if self._seqs is not None else 0
        fit = fits(self._extent)
        if not self._in_full or (fit and self._profile[0].suspects + again == 0):
            return []
        seqs = accepted_again(self._receipts) if again and self._receipts is not None else None
        chosen = Suspects(suspects(self._profile[1]) if fit else None, self._profile[0].suspects, seqs)
        rules = rules_of(self._options, self._extent, self._receipts is not None, self._effects is not None)
        return examine(self._events, self._receipts, self._effects, chosen, rules, self._keep)

    def _seqs_of(self, jobs: set[int]) -> dict[int, int]:
        if self._receipts is None:
            return {}
        own = (
            self._receipts.filter(F.col("job_id").isin(*sorted(jobs))).groupBy("job_id").agg(F.min("seq").alias("seq"))
        )
        return {row["job_id"]: row["seq"] for row in own.collect()}


def rules_of(options: AuditOptions, extent: LedgerExtent, receipts: bool, effects: bool) -> Rules:
    """`receipts`, `effects`: whether they were given."""
    return Rules(
        whole=options.from_offset == 0,
        since=extent.since,
        drained=options.drained,
        dropped=options.dropped or frozenset(),
        receipts=receipts,
        effects=effects,
    )


def _collected(parts: Iterable[DataFrame]) -> list[CheckCount]:
    """One query a part."""
    order = F.struct(F.col("seq").isNull(), "seq", "job_id", "offset", "place", "note")
    first = F.min_by(F.struct(*FINDINGS.names[1:]), order, OFFENDERS)
    rows = (row for part in parts for row in part.groupBy("check").agg(F.count("*"), first).collect())
    return [(check, count, [Offender(**each.asDict()) for each in offenders]) for check, count, offenders in rows]
