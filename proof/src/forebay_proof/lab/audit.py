"""The audit of a run: every accepted seq is done or dead, and its effect was applied once.

    audit_quickly(receipts, effects, store)   in plain Python, a few seconds per million; dead letters by the store
    audit(receipts, effects, url, lake)       `forebay audit` on Spark, from the ledger alone

PASS: nothing was lost and nothing doubled. FAIL: something was. INVALID: nothing wrong was found, but the run proves
too little: too few jobs, or fewer faults than it was to survive.

Handlers are idempotent consumers that know a seq: what counts is whether each seq's effect is there, and whether it was
the same job. Effects by several deliveries of a job are what at-least-once means, and are counted (`redelivered`); two
effects by one fence are not (`doubled`), nor are two jobs for one seq. The last line of a file may be torn.
"""

import os
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from forebay.core.errors import ForebayError, Invalid
from forebay.core.job import State
from forebay.core.limits import MAX_BATCH
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store

AuditAnswer = Literal["PASS", "FAIL", "INVALID"]
EXITS: Final[dict[AuditAnswer, int]] = {"PASS": 0, "FAIL": 1, "INVALID": 2}
MAX_SEQ: Final = 400_000_000
"""A seq takes twenty bytes here; larger runs are audited on Spark."""

_BLOCK: Final = 1 << 23
_NAMED: Final = 5
T = TypeVar("T")


class AuditFailed(ForebayError):
    """`forebay audit` failed to run."""


class AuditResult(Struct, frozen=True, kw_only=True):
    """The answer, the counts that it rests on, and the first offenders.

    accepted     seqs that a producer has a receipt for;  effects: what handlers did, repetitions too
    dead         seqs in the dead letters
    lost         accepted, and neither done nor dead nor still open
    unfinished   accepted, and still open: a failure once all is to be drained
    doubled      two effects by one fence, or two jobs for one seq
    redelivered  seqs with effects by several deliveries;  unknown: seqs whose only answer was lost
    unexpected   effects of seqs that were never sent
    torn         files that end in the middle of a line
    """

    answer: AuditAnswer
    reasons: list[str]
    accepted: int = 0
    effects: int = 0
    dead: int = 0
    lost: int = 0
    unfinished: int = 0
    doubled: int = 0
    redelivered: int = 0
    unexpected: int = 0
    unknown: int = 0
    torn: int = 0
    offenders: dict[str, list[int]] = {}

    @property
    def exit_code(self) -> int:
        return EXITS[self.answer]


class SentReceipt(Struct):
    seq: int
    answer: str
    job_id: int | None = None


class Effect(Struct):
    seq: int
    job_id: int
    delivery: int
    effect_at: str | None = None


class NdjsonLines:
    """Files of NDJSON below a path, read block by block."""

    def __init__(self, path: Path, what: str) -> None:
        self._what = what
        self._path = path
        self.torn = 0

    def read(self, kind: type[T]) -> Iterator[list[T]]:
        decoder = msgspec.json.Decoder(kind)
        for file in self._files():
            rest = b""
            with file.open("rb") as opened:
                while block := opened.read(_BLOCK):
                    whole, _, rest = (rest + block).rpartition(b"\n")
                    yield self._decoded(decoder, whole)
            if rest:
                try:
                    yield [decoder.decode(rest)]
                except msgspec.DecodeError:
                    self.torn += 1

    def _files(self) -> list[Path]:
        if self._path.is_dir():
            return [file for file in sorted(self._path.rglob("*")) if file.is_file() and file.name[0] not in "._"]
        if self._path.exists():
            return [self._path]
        raise Invalid(f"{self._what} {self._path}", "there is no such file or directory", "name NDJSON, or a directory")

    def _decoded(self, decoder: "msgspec.json.Decoder[T]", lines: bytes) -> list[T]:
        try:
            return decoder.decode_lines(lines)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(
                f"{self._what} {self._path}", f"a line cannot be read: {error}", "see docs/guides/audit.md"
            ) from None


class SeqColumns:
    """Whole numbers by seq, 0 where there is none."""

    def __init__(self, *codes: str) -> None:
        self.of = [array(code) for code in codes]

    def reach(self, seq: int) -> None:
        """Extend the columns to this seq."""
        if not 0 <= seq < MAX_SEQ:
            raise Invalid("seq", f"{seq} is not within 0 … {MAX_SEQ - 1}", "judge so many by `forebay audit`")
        for column in self.of:
            if seq >= len(column):
                column.frombytes(bytes(column.itemsize * (seq + 1 - len(column) + len(column) // 4)))


class QuickAudit:
    """The evidence of one run, folded into columns."""

    def __init__(self) -> None:
        self._columns = SeqColumns("q", "q", "i")
        self._accepted, self._done, self._delivery = self._columns.of
        self._unknown: set[int] = set()
        self._again: dict[int, set[tuple[int, int]]] = {}
        self._fences: dict[tuple[int, int, int], set[str]] = {}
        self._doubled: set[int] = set()
        self._unexpected: set[int] = set()
        self._effects = 0
        self.torn = 0

    def add_receipts(self, receipts: NdjsonLines) -> None:
        """Receipts of producers. A job whose only answer was lost may or may not be in the store."""
        accepted_ids = self._accepted
        for lines in receipts.read(SentReceipt):
            for line in lines:
                seq, job_id = line.seq, line.job_id
                if seq >= len(accepted_ids):
                    self._columns.reach(seq)
                if line.answer == "unknown":
                    self._unknown.add(seq)
                elif job_id is not None:
                    if accepted_ids[seq] and accepted_ids[seq] != job_id:
                        self._doubled.add(seq)
                    accepted_ids[seq] = job_id
        self._unknown = {seq for seq in self._unknown if not accepted_ids[seq]}
        self.torn += receipts.torn

    @property
    def unknown(self) -> int:
        """Seqs whose only answer was lost."""
        return len(self._unknown)

    def add_effects(self, effects: NdjsonLines) -> None:
        """Effects that handlers applied."""
        accepted_ids, done, delivery = self._accepted, self._done, self._delivery
        reached = len(accepted_ids)
        for lines in effects.read(Effect):
            self._effects += len(lines)
            for line in lines:
                seq = line.seq
                if seq >= reached or (accepted_ids[seq] != line.job_id and not self._is_expected(seq, line.job_id)):
                    self._unexpected.add(seq)
                elif not done[seq]:
                    done[seq], delivery[seq] = line.job_id, line.delivery
                else:
                    first = (done[seq], delivery[seq])
                    if first == (line.job_id, line.delivery):
                        self._fences[seq, *first] = set()
                    self._again.setdefault(seq, {first}).add((line.job_id, line.delivery))
        self.torn += effects.torn
        if self._fences:
            self._find_repeated(effects)

    def _is_expected(self, seq: int, job_id: int) -> bool:
        """The job of a lost answer is unknown; two jobs for one seq are doubled, not unexpected."""
        if seq in self._unknown:
            return True
        if self._accepted[seq]:
            self._doubled.add(seq)
            return True
        return False

    def _find_repeated(self, effects: NdjsonLines) -> None:
        """A line that was read twice is one effect; another time of the same fence is another."""
        for lines in effects.read(Effect):
            for line in lines:
                times = self._fences.get((line.seq, line.job_id, line.delivery))
                if times is not None:
                    times.add(str(line.effect_at))
        self._doubled.update(seq for (seq, _, _), times in self._fences.items() if len(times) > 1)

    def judge(
        self, dead: Sequence[int], unfinished: Sequence[int], *, drained: bool, min_jobs: int, missing: Sequence[str]
    ) -> AuditResult:
        accepted_ids, done = self._accepted, self._done
        ended = set(dead)
        still = set(unfinished)
        lost = [
            seq
            for seq in range(len(accepted_ids))
            if accepted_ids[seq] and not done[seq] and seq not in ended and seq not in still
        ]
        accepted = sum(1 for job_id in accepted_ids if job_id)
        redelivered = [seq for seq, fences in self._again.items() if len({d for _, d in fences}) > 1]
        found = {"lost": lost, "doubled": sorted(self._doubled), "unexpected": sorted(self._unexpected)}
        if drained:
            found["unfinished"] = sorted(still)
        reasons = list(missing)
        if accepted < min_jobs:
            reasons.append(f"{accepted} jobs were accepted, fewer than the {min_jobs} that the audit needs")
        return AuditResult(
            answer="FAIL" if any(found.values()) else "INVALID" if reasons else "PASS",
            reasons=reasons,
            accepted=accepted,
            effects=self._effects,
            dead=len(ended),
            lost=len(lost),
            unfinished=len(still),
            doubled=len(self._doubled),
            redelivered=len(redelivered),
            unexpected=len(self._unexpected),
            unknown=self.unknown,
            torn=self.torn,
            offenders={name: seqs[:_NAMED] for name, seqs in found.items() if seqs},
        )


def audit_quickly(
    receipts: Path,
    effects: Path,
    store: Store,
    *,
    queue: str | None = None,
    drained: bool = True,
    min_jobs: int = 1,
    faults: int = 0,
    min_faults: int = 0,
) -> AuditResult:
    """Compares receipts with effects; the store says which jobs are dead and which are still open."""
    quick = QuickAudit()
    quick.add_receipts(NdjsonLines(receipts, "receipts"))
    quick.add_effects(NdjsonLines(effects, "effects"))
    dead = list(_seqs(store, queue, State.DEAD))
    states = (State.WAITING, State.READY, State.RUNNING)
    depth = sum(each.depth for each in store.backlog([queue] if queue is not None else None))
    unfinished = [seq for state in states for seq in _seqs(store, queue, state)] if depth else []
    return quick.judge(dead, unfinished, drained=drained, min_jobs=min_jobs, missing=too_few(faults, min_faults))


def too_few(faults: int, min_faults: int) -> list[str]:
    """Why a run that was to be disturbed proves nothing."""
    return (
        [f"{faults} faults were made, fewer than the {min_faults} that the audit needs"] if faults < min_faults else []
    )


def _seqs(store: Store, queue: str | None, state: State) -> Iterator[int]:
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(queue=queue, state=state), after, MAX_BATCH)
        yield from (job.payload["seq"] for job in page.jobs)
        after = page.next


def audit(
    receipts: Path,
    effects: Path,
    url: str,
    lake: Path,
    *,
    drained: bool = True,
    min_jobs: int = 1,
    faults: int = 0,
    min_faults: int = 0,
    report: Path | None = None,
) -> AuditResult:
    """The same by `forebay audit`, in a process of its own. Dead letters are as the store counts them."""
    words = audit_command(receipts, effects, url, lake, drained=drained, min_jobs=min_jobs)
    words += ["--report", str(report)] if report is not None else []
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "forebay", *words],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode not in EXITS.values() or not done.stdout.startswith(b"{"):
        answered = done.stderr.decode(errors="replace")[-2_000:]
        raise AuditFailed(f"forebay audit ended with {done.returncode}: {answered}")
    return read_spark_result(done.stdout, receipts, url, too_few(faults, min_faults))


def audit_command(receipts: Path, effects: Path, url: str, lake: Path, *, drained: bool, min_jobs: int) -> list[str]:
    """The arguments of `forebay audit`."""
    words = ["audit", "--lake", lake, "--store", url, "--receipts", receipts, "--effects", effects, "--json"]
    words += ["--min-jobs", str(min_jobs), *(["--drained"] if drained else [])]
    return [str(word) for word in words]


def read_spark_result(answer: str | bytes, receipts: Path, url: str, missing: Sequence[str] = ()) -> AuditResult:
    """The result of `forebay audit --json` as an `AuditResult`."""
    answered = msgspec.json.decode(answer)
    results = {each["check"]: each for each in answered["results"]}
    counts = QuickAudit()
    counts.add_receipts(NdjsonLines(receipts, "receipts"))
    with closing(open_store(url)) as store:
        dead = sum(each.dead for each in store.backlog())

    def count(*checks: str) -> int:
        return sum(results[check]["count"] for check in checks)

    failed = {name: each["offenders"] for name, each in results.items() if each["outcome"] == "failed"}
    named = {name: [each["seq"] for each in first if each.get("seq") is not None] for name, first in failed.items()}
    return AuditResult(
        answer="INVALID" if answered["answer"] == "PASS" and missing else answered["answer"],
        reasons=[*answered["reasons"], *missing],
        accepted=answered["facts"]["with_a_receipt"],
        effects=answered["facts"]["effects"],
        dead=dead,
        lost=count("lost", "undone"),
        unfinished=count("unfinished"),
        doubled=count("repeated_effect", "duplicated"),
        redelivered=count("redelivered"),
        unexpected=count("unexpected"),
        unknown=counts.unknown,
        torn=counts.torn,
        offenders={name: seqs[:_NAMED] for name, seqs in named.items()},
    )
