"""The exact checks of one job: each of its events compared with the one before it, and with its receipts and effects.
And those of one seq, the producer's own number: the jobs that receipts and effects name for it.

Plain functions of plain values. `suspects` applies them to suspects: on the driver where these are few, in tasks of
Spark where they are many. Instants are microseconds.

Events that change neither state nor lease (`merged`, `cancel_requested`) are left out. Values that a redrive, an expiry
or a cancel does not carry (delivery, attempts) are taken from the events before it. A job that was accepted before the
evidence starts is judged from its second event on.

Rows of receipts or effects that are equal in every column are one: a file that was read twice adds nothing. So an
effect needs its time, or a repeated effect could not be distinguished from a repeated line.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from forebay.core.ledger import Change
from forebay.core.outcome import ABANDONED

_OPEN: Final = (Change.ACCEPTED, Change.RETRIED, Change.RELEASED, Change.REDRIVEN)
_RUNNING: Final = (Change.CLAIMED, Change.EXTENDED)
ENDED: Final = (Change.ACKED, Change.DIED, Change.DISCARDED, Change.CANCELLED, Change.EXPIRED, Change.SHED)
_OVER: Final = (*ENDED, Change.PURGED)
_DEAD: Final = (Change.DIED, Change.EXPIRED, Change.SHED)
_UNRUN: Final = (Change.CANCELLED, Change.EXPIRED, Change.SHED)
_FENCED: Final = (Change.ACKED, Change.RETRIED, Change.DIED, Change.RELEASED, Change.DISCARDED, Change.EXTENDED)
MOVES: Final = (*_OPEN, *_RUNNING, *ENDED, Change.PURGED)

NAMED: Final = ("accepted", "duplicate", "merged")
"""Answers that name a job."""

EVENT, RECEIPT, EFFECT = range(3)


class EvidenceRow(NamedTuple):
    """An event, a receipt or an effect, by its `part`. Of a receipt `change` is the answer and `at` is `sent_at`."""

    job_id: int | None
    part: int
    offset: int | None
    place: int | None
    change: str | None
    queue: str | None
    delivery: int | None
    attempt: int | None
    max_attempts: int | None
    at: int | None
    due_at: int | None
    next_at: int | None
    lease_until: int | None
    error_kind: str | None
    seq: int | None
    worker: str | None

    @property
    def position(self) -> tuple[int, int]:
        return self.offset or 0, self.place or 0


class Finding(NamedTuple):
    """One offender of one check. `seq`: the producer's number, where it is known. `offset`, `place`: the event that is
    wrong, or the last one of those that contradict each other."""

    check: str
    seq: int | None = None
    job_id: int | None = None
    delivery: int | None = None
    offset: int | None = None
    place: int | None = None
    note: str | None = None


class Rules(Struct, frozen=True):
    """What the checks depend on besides the entries.

    whole      the ledger begins at offset 0; where it does not, receipts from before `since` are skipped
    receipts, effects   whether such evidence was given
    """

    whole: bool
    since: int | None
    drained: bool
    dropped: frozenset[str]
    receipts: bool
    effects: bool


class Mention(NamedTuple):
    """A seq in a receipt or an effect (`answer` is None), with the facts of its job in the ledger.

    known     the ledger has an event of it    accepted  its acceptance, if the ledger is whole
    named     any receipt names it
    """

    seq: int
    job_id: int | None
    answer: str | None
    known: bool = False
    accepted: bool = False
    named: bool = False
    queue: str | None = None


class _Facts(NamedTuple):
    """Facts of a job in the ledger."""

    known: bool
    queue: str | None
    born: bool
    over: bool
    acked: bool
    died: bool


def check_job(job_id: int, entries: Sequence[EvidenceRow], rules: Rules) -> Iterator[Finding | Mention]:
    """All findings about one job, and the mentions of seqs in its evidence."""
    events = sorted((each for each in entries if each.part == EVENT), key=lambda each: each.position)
    receipts = [each for each in entries if each.part == RECEIPT]
    effects = [each for each in entries if each.part == EFFECT]
    facts = _facts(events)
    accepted = facts.born if rules.whole else facts.known
    seq = min((each.seq for each in receipts if each.seq is not None), default=None)
    yield from _check_events(job_id, [each for each in events if each.change in MOVES], seq, rules)
    if rules.drained and facts.born and not facts.over:
        yield Finding("unfinished", seq, job_id, note="accepted, and it has no end")
    yield from _check_receipts(job_id, receipts, accepted, rules)
    if facts.acked and rules.effects and not effects:
        named = [each.seq for each in receipts if each.change in NAMED and each.seq is not None]
        if named:
            yield Finding("undone", min(named), job_id, note="acked, and there is no effect")
    yield from _check_effects(job_id, effects, facts)
    claims = {each.delivery for each in events if each.change == Change.CLAIMED}
    if facts.born if rules.whole else claims:
        yield from _unfenced(job_id, effects, claims)
    for each in (*receipts, *effects):
        answer = each.change if each.part == RECEIPT else None
        yield Mention(each.seq or 0, job_id, answer, facts.known, accepted, bool(receipts), facts.queue)


def _facts(events: Sequence[EvidenceRow]) -> _Facts:
    changes = {each.change for each in events}
    births = [each.queue for each in events if each.change == Change.ACCEPTED and each.queue is not None]
    queues = births or [each.queue for each in events if each.queue is not None]
    ended = max((each.position for each in events if each.change in ENDED), default=None)
    redriven = max((each.position for each in events if each.change == Change.REDRIVEN), default=None)
    over = Change.PURGED in changes or (ended is not None and (redriven is None or ended > redriven))
    born, acked, died = (change in changes for change in (Change.ACCEPTED, Change.ACKED, Change.DIED))
    return _Facts(bool(events), min(queues, default=None), born, over, acked, died)


def _check_events(job_id: int, moves: Iterable[EvidenceRow], seq: int | None, rules: Rules) -> Iterator[Finding]:
    was: EvidenceRow | None = None
    delivery, attempts, until = 0, None, None
    for now in moves:
        faults = list(_faults(now, was, delivery, until, rules))
        attempt = now.attempt
        if attempts is not None and attempt is not None and now.change in (Change.CLAIMED, Change.DIED):
            if attempt > attempts:
                faults.append("too_many_attempts")
            if now.change == Change.DIED and attempt < attempts and now.error_kind not in rules.dropped:
                faults.append("died_early")
        for check in faults:
            note = _note(now, was, attempts)
            yield Finding(check, seq, job_id, now.delivery or 0, now.offset, now.place, note)
        delivery = max(delivery, now.delivery or 0)
        if now.max_attempts is not None:
            attempts = max(attempts or now.max_attempts, now.max_attempts)
        until = now.lease_until if now.lease_until is not None else until
        was = now


def _faults(now: EvidenceRow, was: EvidenceRow | None, delivery: int, until: int | None, rules: Rules) -> Iterator[str]:
    """Checks that an event breaks. Before it, `delivery` was the largest one and `until` the last end of a lease."""
    change = now.change
    if was is None:
        if rules.whole and change != Change.ACCEPTED:
            yield "unborn"
        if change == Change.CLAIMED and _is_before(now.at, now.due_at):
            yield "early_claim"
        return
    before, over = was.change, was.change in _OVER
    if change == Change.ACCEPTED:
        yield "born_twice"
    elif change == Change.CLAIMED:
        yield from _claim_faults(now, was, delivery, until)
    elif change in ENDED and over:
        yield "ended_twice"
    elif change in _FENCED and not (before in _RUNNING and (was.delivery or 0) == (now.delivery or 0)):
        yield "stale_settle"
    if (
        (change in _UNRUN and before in _RUNNING)
        or (change == Change.REDRIVEN and before not in _DEAD)
        or (change == Change.PURGED and before not in ENDED)
    ):
        yield "illegal"


def _claim_faults(now: EvidenceRow, was: EvidenceRow, delivery: int, until: int | None) -> Iterator[str]:
    before = was.change
    if before in _OVER:
        yield "resurrected"
    if before in _RUNNING and _is_before(now.at, was.lease_until):
        yield "lease_overlap"
    if was.error_kind == ABANDONED and _is_before(now.at, until):
        yield "early_take_back"
    due = was.due_at if before == Change.ACCEPTED else was.next_at
    if _is_before(now.at, now.due_at) or (before in _OPEN and _is_before(now.at, due)):
        yield "early_claim"
    if (now.delivery or 0) != delivery + 1:
        yield "delivery_step"
    expected = None
    if before in (Change.ACCEPTED, Change.REDRIVEN):
        expected = 1
    elif before == Change.RELEASED:
        expected = was.attempt or 0
    elif before == Change.RETRIED or before in _RUNNING:
        expected = (was.attempt or 0) + 1
    if expected is not None and (now.attempt or 0) != expected:
        yield "miscounted_attempts"


def _is_before(at: int | None, bound: int | None) -> bool:
    return at is not None and bound is not None and at < bound


def _note(now: EvidenceRow, was: EvidenceRow | None, attempts: int | None) -> str:
    known = now.attempt is not None and attempts is not None
    of = f", attempt {now.attempt} of {attempts}" if known else ""
    before, fence = ("nothing", 0) if was is None else (was.change, was.delivery or 0)
    return f"{now.change} by delivery {now.delivery or 0}{of}, after {before} by delivery {fence}"


def _check_receipts(job_id: int, receipts: Iterable[EvidenceRow], accepted: bool, rules: Rules) -> Iterator[Finding]:
    """lost: the job is not in the ledger, or its id was given to another seq later: a store that lost its last calls
    assigns their ids again."""
    named = [each for each in receipts if each.change in NAMED]
    if not rules.whole:
        named = [each for each in named if each.at is not None and rules.since is not None and each.at >= rules.since]
    if not named:
        return
    if not accepted:
        seq = min(each.seq or 0 for each in named)
        yield Finding("lost", seq, job_id, note="a receipt names it, and it is not in the ledger")
        return
    sent: dict[int, tuple[bool, int]] = {}
    for each in named:
        if each.change == "accepted":
            at = (each.at is not None, each.at or 0)
            sent[each.seq or 0] = max(sent.get(each.seq or 0, at), at)
    last = max(sent, key=lambda seq: (sent[seq], seq), default=None)
    note = "its id was given to another seq later: the store had lost it"
    yield from (Finding("lost", seq, job_id, note=note) for seq in sent if seq != last)


def _check_effects(job_id: int, effects: Iterable[EvidenceRow], facts: _Facts) -> Iterator[Finding]:
    fences = Counter((each.seq or 0, each.delivery or 0) for each in set(effects))
    deliveries: dict[int, list[int]] = {}
    for (seq, delivery), count in sorted(fences.items()):
        deliveries.setdefault(seq, []).append(delivery)
        if count > 1:
            yield Finding("repeated_effect", seq, job_id, delivery, note=f"{count} effects by one fence")
    for seq, own in deliveries.items():
        if len(own) > 1:
            listed = ", ".join(map(str, own))
            yield Finding("redelivered", seq, job_id, own[-1], note=f"effects by deliveries {listed}")
        if facts.died and not facts.acked:
            yield Finding("effect_of_dead", seq, job_id, own[-1], note="it died, and there is an effect")


def _unfenced(job_id: int, effects: Iterable[EvidenceRow], claims: set[int | None]) -> Iterator[Finding]:
    """Of a job in the ledger; one that is not there is unexpected as a whole."""
    seqs: dict[int, int] = {}
    for each in effects:
        if each.delivery not in claims:
            delivery, seq = each.delivery or 0, each.seq or 0
            seqs[delivery] = min(seqs.get(delivery, seq), seq)
    for delivery, seq in seqs.items():
        yield Finding("unfenced_effect", seq, job_id, delivery, note="this delivery was never claimed")


def check_seq(seq: int, mentions: Sequence[Mention], rules: Rules) -> Iterator[Finding]:
    """All findings about one seq."""
    answers = {each.answer for each in mentions} - {None}
    effects = {each.job_id: each for each in mentions if each.answer is None and each.job_id is not None}
    if rules.receipts:
        yield from _duplicated(seq, mentions)
    if "unknown" in answers and answers <= {"refused", "unknown"} and effects:
        yield Finding("recovered", seq, min(effects), note="the reply was lost, the job was done")
    named = {each.job_id for each in mentions if each.answer is not None}
    for job_id, each in sorted(effects.items()):
        reasons = ["the ledger has no such job"] if rules.whole and not each.accepted else []
        if not rules.receipts:
            pass
        elif answers <= {"refused"}:
            # It matches the ledger, and no receipt has its seq or its job: evidence is missing.
            if not answers and not each.named and each.accepted:
                note = "the ledger accepted the job, and there is no receipt of it"
                yield Finding("unreceipted", seq, job_id, note=note)
            else:
                reasons.insert(0, "it was not sent")
        elif each.named and job_id not in named and "unknown" not in answers:
            # Where the seq's reply was lost, it may have been a duplicate of theirs.
            yield Finding("foreign_effect", seq, job_id, note="the receipts name the job for other seqs")
        if reasons:
            yield Finding("unexpected", seq, job_id, note="; ".join(reasons))


def _duplicated(seq: int, mentions: Sequence[Mention]) -> Iterator[Finding]:
    """A broker makes a copy in each queue; of a job that the ledger does not have the queue is not known."""
    jobs: dict[str | None, set[int]] = {}
    for each in mentions:
        if each.job_id is not None and each.known and each.answer in ("accepted", "duplicate", None):
            jobs.setdefault(each.queue, set()).add(each.job_id)
    for own in jobs.values():
        if len(own) > 1:
            listed = ", ".join(map(str, sorted(own)))
            yield Finding("duplicated", seq, max(own), note=f"jobs {listed}")
