"""Checks about deliveries: holder, settlement, cost, and what the handler did meanwhile."""

from collections.abc import Iterator
from itertools import pairwise

from forebay.core.ledger import Change
from forebay.core.limits import ERRORS_KEPT
from forebay.work.start_marks import Stall
from forebay_proof.sim.case import RunCase
from forebay_proof.sim.evidence import Sent
from forebay_proof.sim.ledger_index import JobDelivery, JobHistory
from forebay_proof.sim.world import SECOND

_DRAIN_GRACE = SECOND // 5
_SLOW_CALL = 5 * SECOND


def exclusive_lease(case: RunCase) -> Iterator[str]:
    """A job is taken from its holder only when its lease is over, or its process is dead."""
    for delivery in case.index.deliveries.values():
        if (
            case.abandoned(delivery)
            and delivery.ended_at < delivery.until
            and delivery.owner not in case.evidence.died_at
        ):
            early = delivery.until - delivery.ended_at
            yield f"{delivery.fence} was taken from {delivery.owner} {early} µs before its lease was over"
    for fence, start in case.evidence.starts.items():
        known = case.index.deliveries.get(fence)
        if known is None or known.owner != start.owner:
            yield f"{start.owner} ran {fence}, the ledger has it for {known and known.owner}"


def leases_last(case: RunCase, troubles: dict[str, list[tuple[int, int]]]) -> Iterator[str]:
    """No lease runs out while nothing is wrong with its holder: that is what renewing is for."""
    for delivery in case.index.deliveries.values():
        if case.abandoned(delivery) and not case.excused(delivery, troubles):
            yield f"{delivery.fence} was lost by {delivery.owner}, to which nothing had happened"


def fencing(case: RunCase) -> Iterator[str]:
    """Every ending was sent for exactly this delivery, and every answer "applied" is an ending of this delivery."""
    for delivery in case.index.deliveries.values():
        word = case.verdict(delivery)
        if word and not any(sent.verdict == word for sent in case.evidence.sent.get(delivery.fence, [])):
            yield f"{delivery.fence} ended by {word}, which was never sent"
    for fence, words in case.evidence.applied.items():
        turn_of = case.index.deliveries.get(fence)
        ended = "" if turn_of is None else case.verdict(turn_of)
        for word in words:
            if word != ended:
                yield f"{fence} was answered that {word} was applied, the ledger has {ended or 'nothing'} for it"


def verdicts_kept(case: RunCase) -> Iterator[str]:
    """A verdict is sent as it was made, again and again until it is answered, while its process is alive."""
    evidence = case.evidence
    for fence, (owner, word) in evidence.concluded.items():
        for sent in evidence.sent.get(fence, []):
            if sent.sender == owner and sent.role == "settler" and sent.verdict != word:
                yield f"{owner} made {word} of {fence} and sent {sent.verdict}"
        gone = owner in evidence.died_at or owner in evidence.unwritten
        if fence not in evidence.answered and not gone:
            yield f"{owner} made {word} of {fence} and never had it written"
    for start in evidence.starts.values():
        if start.outcome == "Lost" and start.fence in evidence.concluded:
            yield f"{start.owner} lost {start.fence} and made a verdict of it all the same"
        over = start.outcome and start.outcome != "Lost"
        if over and start.fence not in evidence.concluded and start.owner not in evidence.died_at:
            yield f"{start.owner} ended {start.fence} with {start.outcome} and no verdict"


def attempts_counted(case: RunCase) -> Iterator[str]:
    """A start sees the attempt that the ledger counts; deaths cost an attempt, releases do not; the limit holds."""
    evidence = case.evidence
    for fence, start in evidence.starts.items():
        delivery = case.index.deliveries.get(fence)
        if delivery is not None and delivery.attempt != start.attempt:
            yield f"{fence} started as attempt {start.attempt}, the ledger counts {delivery.attempt}"
    for delivery in case.index.deliveries.values():
        every = evidence.sent.get(delivery.fence, [])
        # What is sent again later is answered alike, and changes nothing.
        first = next((sent for sent in every if sent.applied), None)
        for sent in every:
            begun = delivery.fence in evidence.starts and evidence.starts[delivery.fence].at < sent.at
            spared = sent.role == "reaper" and sent.verdict == "Release" and sent is first
            displaced = delivery.suspicious and delivery.owner in evidence.died_at
            if sent.role == "supervisor" and displaced and delivery.fence in evidence.starts:
                continue
            if delivery.owner in evidence.stalls and delivery.fence in evidence.starts:
                yield from _of_stalled(evidence.stalls[delivery.owner], delivery, sent)
                continue
            if begun and spared and not (sent.error and (displaced or not delivery.suspicious)):
                yield f"the reaper gave {delivery.fence} back for free"
            if sent.role == "supervisor" and (sent.verdict == "Release") == (delivery.fence in evidence.starts):
                yield f"the supervisor settled {delivery.fence} by {sent.verdict}"
    for history in case.index.histories.values():
        yield from _paid(case, history)


def _of_stalled(stall: Stall, delivery: JobDelivery, sent: Sent) -> Iterator[str]:
    """Only the job that held the GIL is charged; where it is not known, none is."""
    if sent.role not in ("supervisor", "reaper") or not sent.applied or delivery.suspicious:
        return
    charged = sent.verdict != "Release"
    if sent.role == "supervisor" and charged != (delivery.fence == stall.holder):
        yield f"the interpreter of {delivery.owner} was held, and {delivery.fence} was settled by {sent.verdict}"


def _paid(case: RunCase, history: JobHistory) -> Iterator[str]:
    """Each attempt that was charged was a start. Where marks could not be read, it may have been: a suspect is charged
    then, and a job with one attempt. A job is spared a few times in a row at most."""
    most = history.entry.max_attempts
    for epoch in range(history.epoch + 1):
        charged = [t for t in history.deliveries if t.epoch == epoch and t.ended_by(Change.RETRIED, Change.DIED)]
        for delivery in charged:
            unknown = case.abandoned(delivery) and (delivery.suspicious or most == 1)
            if delivery.fence not in case.evidence.starts and not unknown:
                yield f"{delivery.fence} was charged for a failure and never started"
        if len(charged) > most:
            yield f"job {history.entry.id} was charged {len(charged)} of {most} attempts"
        spared = [
            t for t in history.deliveries if t.epoch == epoch and t.ended_by(Change.RELEASED) and case.abandoned(t)
        ]
        if len(spared) > (len(charged) + 1) * ERRORS_KEPT:
            yield f"job {history.entry.id} was spared {len(spared)} times and charged {len(charged)} times"


def releases_free(case: RunCase) -> Iterator[str]:
    """What was handed back is handed out again with the same attempt."""
    for history in case.index.histories.values():
        seen = [delivery for delivery in history.deliveries if delivery.fence in case.evidence.starts]
        for delivery, following in pairwise(seen):
            between = [t for t in history.deliveries if delivery.fence <= t.fence < following.fence]
            if delivery.epoch == following.epoch and all(t.ended_by(Change.RELEASED) for t in between):
                before, after = (case.evidence.starts[t.fence].attempt for t in (delivery, following))
                if before != after:
                    yield f"{following.fence} is attempt {after}, before the hand-back it was {before}"


def effects_once(case: RunCase) -> Iterator[str]:
    for fence, count in case.evidence.effects.items():
        if count > 1:
            yield f"{fence} had its effect {count} times"


def subject_order(case: RunCase) -> Iterator[str]:
    """Per subject one handler at a time, in the order of acceptance, but for ghosts whose lease was lost."""
    lines: dict[str, list[JobHistory]] = {}
    for history in case.index.histories.values():
        if history.entry.queue == "order" and history.entry.subject is not None:
            lines.setdefault(history.entry.subject, []).append(history)
    for subject, histories in lines.items():
        deliveries = sorted(
            (delivery for history in histories for delivery in history.deliveries),
            key=lambda delivery: (delivery.began, delivery.claimed_at),
        )
        for delivery, following in pairwise(deliveries):
            if delivery.ended == 0 or delivery.ended > following.began:
                yield f"{following.fence} began while {delivery.fence} of subject {subject} was held"
        firsts = [history.deliveries[0] for history in histories if history.deliveries]
        for delivery, following in pairwise(firsts):
            if following.began < delivery.began:
                yield f"{following.fence} overtook {delivery.fence} of subject {subject}"


def drains(case: RunCase) -> Iterator[str]:
    """Nothing is claimed and started after a drain began; what was claimed before, a slow call may hold up.

    A process that is gone with all its verdicts written holds nothing.
    """
    requested = {gone.owner: gone.asked_at for gone in case.evidence.exits}
    for start in case.evidence.starts.values():
        delivery = case.index.deliveries.get(start.fence)
        begun = delivery is not None and delivery.began <= requested.get(start.owner, 0)
        if start.owner in requested and start.at > requested[start.owner] + (_SLOW_CALL if begun else _DRAIN_GRACE):
            yield f"{start.owner} started {start.fence} {start.at - requested[start.owner]} µs after its drain began"
    for gone in case.evidence.exits:
        if gone.flushed and gone.still_running:
            yield f"{gone.owner} is gone and still holds {list(gone.still_running)}"


def killers_charged(case: RunCase) -> Iterator[str]:
    """A job that kills its worker kills one process an attempt, and those in which its start was not seen."""
    for job_id, deaths in case.evidence.poison_deaths.items():
        history = case.index.histories.get(job_id)
        if history is None:
            continue
        spared = sum(delivery.ended_by(Change.RELEASED) and case.abandoned(delivery) for delivery in history.deliveries)
        if deaths > history.entry.max_attempts * (history.epoch + 1) + spared:
            yield f"job {job_id} with {history.entry.max_attempts} attempts killed {deaths} processes"
