"""The answer of an audit: PASS, FAIL or INVALID, for people, for programs and for the shell.

FAIL: a promise was broken. INVALID: nothing wrong was found, but the evidence does not suffice. PASS: neither. The text
names the first offenders; the JSON holds up to `OFFENDERS` a check.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

OFFENDERS: Final = 100
SHOWN: Final = 5

AuditAnswer = Literal["PASS", "FAIL", "INVALID"]
CheckOutcome = Literal["ok", "failed", "noted", "missing", "not run", "no evidence"]

_EXITS: Final[dict[AuditAnswer, int]] = {"PASS": 0, "FAIL": 1, "INVALID": 2}
_MARKS: Final[dict[CheckOutcome, str]] = {
    "ok": "ok",
    "failed": "FAIL",
    "noted": "note",
    "missing": "MISS",
    "not run": "-",
    "no evidence": "-",
}


class Offender(Struct, frozen=True, omit_defaults=True):
    """The known fields of an offender. `cell`: the name of the job's cell, in a lake of several."""

    seq: int | None = None
    job_id: int | None = None
    delivery: int | None = None
    offset: int | None = None
    place: int | None = None
    note: str | None = None
    cell: str | None = None

    def __str__(self) -> str:
        at = None if self.offset is None else f"{self.offset}" + (f"/{self.place}" if self.place is not None else "")
        parts = {"cell": self.cell, "seq": self.seq, "job": self.job_id, "offset": at}
        return " ".join(f"{name} {value}" for name, value in parts.items() if value is not None) + f": {self.note}"


class CheckResult(Struct, frozen=True):
    """One check. `count` is exact; `offenders` are the first ones by seq, job and offset."""

    check: str
    invariant: str
    what: str
    outcome: CheckOutcome
    count: int
    offenders: list[Offender]


class EarlierProof(Struct, frozen=True):
    """What an incremental audit relies on: offsets `first` … `end` - 1 were proven at that instant. `new_events`: those
    from `end` on."""

    first: int
    end: int
    at: str
    new_events: int

    def __str__(self) -> str:
        return (
            f"offsets {self.first} … {self.end - 1} were proven by the audit of {self.at}, which this one relies on; "
            f"it checked {self.new_events:,} new events, and earlier ones of the same jobs. --whole checks all"
        )


class AuditVerdict(Struct, frozen=True):
    """`reasons`: why the evidence does not suffice. `facts`: how much was checked. `skipped`: checks that a quick audit
    left out although it had the evidence. `earlier`: of an incremental audit; its results are about new and related
    rows."""

    answer: AuditAnswer
    reasons: list[str]
    facts: dict[str, Any]
    results: list[CheckResult]
    skipped: list[str] = []
    earlier: EarlierProof | None = None

    @property
    def exit_code(self) -> int:
        return _EXITS[self.answer]

    def result(self, check: str) -> CheckResult:
        return next(result for result in self.results if result.check == check)

    def json(self) -> str:
        return msgspec.json.encode(self).decode()

    def line(self) -> str:
        """One line, for --follow."""
        facts = self.facts
        new = "" if self.earlier is None else f", {self.earlier.new_events:,} new events"
        notes = sum(result.count for result in self.results if result.outcome == "noted")
        noted = f", {notes:,} notes" if notes else ""
        return f"{self.answer}: offsets {facts['offsets']}, up to {facts['to']}, {facts['jobs']:,} jobs{new}{noted}"

    def text(self) -> str:
        """A table, then the offenders, then the answer."""
        lines = [f"{name.replace('_', ' '):19} {_number(value)}" for name, value in self.facts.items()]
        lines += ["", f"{'check':19} {'inv.':5} {'':5} {'count':>9}  meaning"]
        for each in self.results:
            count = f"{each.count:,}" if each.outcome in {"ok", "failed", "noted", "missing"} else each.outcome
            lines.append(f"{each.check:19} {each.invariant:5} {_MARKS[each.outcome]:5} {count:>9}  {each.what}")
        for each in self.results:
            if each.offenders:
                lines += ["", f"{each.check}: {each.count:,}"]
                lines += [f"  {offender}" for offender in each.offenders[:SHOWN]]
                more = each.count - min(SHOWN, len(each.offenders))
                lines += [f"  … and {more:,} more"] if more else []
        lines += [""]
        if self.skipped:
            lines.append(f"--quick left out {len(self.skipped)} checks: {', '.join(self.skipped)}")
        if self.earlier is not None:
            lines.append(str(self.earlier))
        lines += [*(f"INVALID because {reason}" for reason in self.reasons), self.answer]
        return "\n".join(lines)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
