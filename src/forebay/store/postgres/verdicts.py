"""Verdicts on their way to `forebay.settle`: grouped by the runs of their jobs, as the arguments of one call."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.instant import Instant, Span
from forebay.core.lease import Lease, Settlement, presumes_expiry
from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT
from forebay.core.outcome import Ack, Cancel, DeadLetter, Release, Retry, Verdict
from forebay.core.scribe import Scribe
from forebay.store.postgres.connect import array_of
from forebay.store.postgres.graves import grave_of
from forebay.store.postgres.runs import Ref, errors_before, ref_of, span_kept, text_of
from forebay.store.postgres.specs import Specs

CODES: Final[dict[type, str]] = {Ack: "a", Retry: "r", DeadLetter: "d", Release: "l", Cancel: "c"}
SETTLE_CALL: Final = (
    "forebay.settle(%s::bigint, %s::integer[], %s::integer[], %s::text[], %s::integer[], %s::integer[], %s::boolean[], "
    "%s::bigint[], %s::integer[], %s::text[], %s::bigint[], %s::integer[], %s::bigint[], %s::integer[], %s::text[], "
    "%s::json, %s::text)"
)
SETTLE: Final = f"SELECT {SETTLE_CALL}"
_encode: Final = msgspec.json.Encoder().encode

Item = tuple[int, Lease, Verdict]
"""A settlement with its number in the call."""

Group = tuple[Ref, list[Item]]
"""Settlements of jobs of one run."""


def grouped(settlements: Sequence[Settlement]) -> tuple[list[Group], list[Item]]:
    """Settlements run by run, in the order in which runs are locked; and those that are looked at one by one."""
    groups: dict[int, Group] = {}
    later: list[Item] = []
    twice = _twice([lease.job.id for lease, _ in settlements])
    for number, (lease, verdict) in enumerate(settlements):
        ref = ref_of(lease)
        if ref is None or lease.job.id in twice:
            later.append((number, lease, verdict))
            continue
        group = groups.get(id(ref))
        if group is None:
            group = groups[id(ref)] = (ref, [])
        group[1].append((number, lease, verdict))
    # Two references to one run, as from a claim and a look at what is overdue, cannot be settled in one call.
    found: dict[tuple[bool, int], Group] = {}
    for ref, items in groups.values():
        if found.setdefault(ref.key, (ref, items))[1] is not items:
            later += items
    return [found[key] for key in sorted(found)], later


def _twice(ids: Sequence[int]) -> set[int]:
    """Jobs that are settled more than once in a call: these are taken one by one, in order."""
    if len(set(ids)) == len(ids):
        return set()
    return {job_id for job_id, count in Counter(ids).items() if count > 1}


class SettleCall:
    """The arguments of one call of `forebay.settle`."""

    def __init__(
        self,
        at: Instant | None,
        mine: Sequence[int],
        specs: Specs,
        groups: Sequence[Group],
        claimed: Sequence[str] = (),
    ) -> None:
        """`claimed`: queues from which a claim follows in the same transaction; their locks are taken here too."""
        self._runs: list[tuple[bool, int, int, str | None, Instant | None]] = []
        self._memo: list[tuple[int, int, int, str]] = []
        self._outs: list[dict[str, Any]] = []
        self._told: list[bytes] = []
        self._keeps: dict[str, Span] = {}
        self._graves: dict[str, dict[str, Any]] = {}
        locks = specs.locks({items[0][1].job.queue for _, items in groups}, claimed)
        names = (array_of(locks.names), array_of(locks.versions))
        self._said = (at, array_of(locks.alone), array_of(locks.beside), *names, array_of(mine))
        self._specs = specs
        for number, (ref, items) in enumerate(groups, 1):
            self._add(number, ref, items)

    def parameters(self) -> tuple[Any, ...]:
        runs = [array_of(column) for column in zip(*self._runs, strict=True)]
        memo = [array_of(column) for column in zip(*self._memo, strict=True)] if self._memo else ["{}"] * 4
        return (*self._said, *runs, *memo, text_of(self._outs) if self._outs else None, b"\n".join(self._told).decode())

    def _add(self, number: int, ref: Ref, items: Sequence[Item]) -> None:
        job = items[0][1].job
        plain = all(type(verdict) is Ack and not verdict.keep_for for _, _, verdict in items)
        if plain and len(items) == ref.n and not self._keep(job.queue, 0):
            self._memo.append((number, ref.last_id - ref.n + 1, ref.n, "a"))
            self._runs.append((ref.single, ref.last_id, ref.delivery, None, None))
            scribe = Scribe(0)
            scribe.leased(Change.ACKED, [lease.job for _, lease, _ in items], 0)
            self._told.append(_encode(scribe.spans())[1:-1])
            return
        outs = len(self._outs)
        renewed: Instant | None = None
        bits = ["0"] * ref.n
        items = sorted(items, key=lambda item: item[1].job.id)
        for _, lease, verdict in items:
            job = lease.job
            bits[ref.place(job.id)] = "1"
            code, keep = CODES[type(verdict)], 0
            if isinstance(verdict, Ack | Cancel):
                keep = self._keep(job.queue, verdict.keep_for)
            if isinstance(verdict, Ack | Cancel) and not keep:
                self._memorise(number, job.id, code)
            else:
                self._outs.append(_out(number, ref, lease, verdict, code, keep))
                if code == "d":
                    self._outs[-1] |= self._grave(job.queue)
            if presumes_expiry(verdict):
                renewed = lease.until if renewed is None else min(renewed, lease.until)
        whole = len(items) == ref.n and len(self._outs) == outs
        self._runs.append((ref.single, ref.last_id, ref.delivery, None if whole else "".join(bits), renewed))
        self._told.append(self._spans(items))

    def _spans(self, items: Sequence[Item]) -> bytes:
        """For the ledger; what lies ahead is told as a length of time, to which the server's now is added."""
        scribe = Scribe(0)
        for _, lease, verdict in items:
            match verdict:
                case Ack(_, keep_for):
                    scribe.held(Change.ACKED, lease.job, self._keep(lease.job.queue, keep_for))
                case Cancel(keep_for):
                    scribe.held(Change.DISMISSED, lease.job, self._keep(lease.job.queue, keep_for))
                case Retry(after, error):
                    scribe.held(Change.RETRIED, lease.job, after, error)
                case DeadLetter(error):
                    scribe.held(Change.DIED, lease.job, 0, error)
                case Release(after, error):
                    scribe.held(Change.RELEASED, lease.job, after, error)
        return _encode(scribe.spans())[1:-1]

    def _memorise(self, number: int, job_id: int, code: str) -> None:
        if self._memo:
            run, first, size, last = self._memo[-1]
            if run == number and last == code and first + size == job_id:
                self._memo[-1] = (run, first, size + 1, code)
                return
        self._memo.append((number, job_id, 1, code))

    def _grave(self, queue: str) -> dict[str, Any]:
        """What an out says of where its job will lie, if not in its queue for good."""
        grave = self._graves.get(queue)
        if grave is None:
            found = grave_of(self._specs, queue, 0)
            grave = self._graves[queue] = {"queue": found.queue, "keep": found.kept_until or None}
        return grave

    def _keep(self, queue: str, keep_for: Span) -> Span:
        """How long a job of this queue stays readable, by its queue or its verdict."""
        keep = self._keeps.get(queue)
        if keep is None:
            keep = self._keeps[queue] = span_kept(self._specs.of(queue).stamper)
        return max(keep, keep_for)


def _out(number: int, ref: Ref, lease: Lease, verdict: Verdict, code: str, keep: int) -> dict[str, Any]:
    job = lease.job
    out: dict[str, Any] = {"run": number, "id": job.id, "place": ref.place(job.id), "code": code}
    match verdict:
        case Ack(result):
            out |= {"keep": keep, "result": None if result is None else result.decode()}
        case Cancel():
            out["keep"] = keep
        case Retry(after, error, keep_rank):
            out |= {"after": after, "errors": errors_before(job, error, ERRORS_KEPT), "keep_rank": keep_rank}
        case DeadLetter(error):
            out["errors"] = errors_before(job, error, ERRORS_KEPT)
        case Release(after, error):
            out |= {"after": after, "keep_rank": True}
            if error is not None:
                out["errors"] = errors_before(job, error, ERRORS_KEPT)
    return out
