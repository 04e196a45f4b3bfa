"""Checks about deliveries: who held a job, who settled it, what it cost, and what the handler did meanwhile."""

from collections.abc import Iterator
from itertools import pairwise

from forebay.core.event import Died, Released, Retried
from forebay.core.limits import ERRORS_KEPT
from forebay.testing.sim.book import Life, Turn
from forebay.testing.sim.case import Case
from forebay.testing.sim.evidence import Sent
from forebay.testing.sim.world import SECOND
from forebay.work.start_marks import Stall

_DRAIN_GRACE = SECOND // 5
_SLOW_CALL = 5 * SECOND


def exclusive_lease(case: Case) -> Iterator[str]:
    """A job is taken from its holder only when its lease is over, or its process is dead."""
    for turn in case.book.turns.values():
        if case.abandoned(turn) and turn.ended_at < turn.until and turn.owner not in case.evidence.died_at:
            yield f"{turn.fence} was taken from {turn.owner} {turn.until - turn.ended_at} µs before its lease was over"
    for fence, start in case.evidence.starts.items():
        known = case.book.turns.get(fence)
        if known is None or known.owner != start.owner:
            yield f"{start.owner} ran {fence}, the ledger has it for {known and known.owner}"


def leases_last(case: Case, troubles: dict[str, list[tuple[int, int]]]) -> Iterator[str]:
    """No lease runs out while nothing is wrong with its holder: that is what renewing is for."""
    for turn in case.book.turns.values():
        if case.abandoned(turn) and not case.excused(turn, troubles):
            yield f"{turn.fence} was lost by {turn.owner}, to which nothing had happened"


def fencing(case: Case) -> Iterator[str]:
    """Every ending was sent for exactly this delivery, and every answer "applied" is an ending of this delivery."""
    for turn in case.book.turns.values():
        word = case.verdict(turn)
        if word and not any(sent.verdict == word for sent in case.evidence.sent.get(turn.fence, [])):
            yield f"{turn.fence} ended by {word}, which nobody sent"
    for fence, words in case.evidence.applied.items():
        turn_of = case.book.turns.get(fence)
        ended = "" if turn_of is None else case.verdict(turn_of)
        for word in words:
            if word != ended:
                yield f"{fence} was told that {word} counts, the ledger has {ended or 'nothing'} for it"


def verdicts_kept(case: Case) -> Iterator[str]:
    """A verdict is sent as it was made, again and again until it is answered, while its process lives."""
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


def lives_counted(case: Case) -> Iterator[str]:
    """A start sees the attempt that the ledger counts; deaths cost a life, hand-backs do not; none is over the top."""
    evidence = case.evidence
    for fence, start in evidence.starts.items():
        turn = case.book.turns.get(fence)
        if turn is not None and turn.attempt != start.attempt:
            yield f"{fence} started as attempt {start.attempt}, the ledger counts {turn.attempt}"
    for turn in case.book.turns.values():
        every = evidence.sent.get(turn.fence, [])
        # What is sent again later is answered alike, and changes nothing.
        first = next((sent for sent in every if sent.applied), None)
        for sent in every:
            begun = turn.fence in evidence.starts and evidence.starts[turn.fence].at < sent.at
            spared = sent.role == "reaper" and sent.verdict == "Release" and sent is first
            displaced = turn.suspicious and turn.owner in evidence.died_at
            if sent.role == "supervisor" and displaced and turn.fence in evidence.starts:
                continue
            if turn.owner in evidence.stalls and turn.fence in evidence.starts:
                yield from _of_stalled(evidence.stalls[turn.owner], turn, sent)
                continue
            if begun and spared and not (sent.error and (displaced or not turn.suspicious)):
                yield f"the reaper gave {turn.fence} back for free"
            if sent.role == "supervisor" and (sent.verdict == "Release") == (turn.fence in evidence.starts):
                yield f"the supervisor settled {turn.fence} by {sent.verdict}"
    for life in case.book.lives.values():
        yield from _paid(case, life)


def _of_stalled(stall: Stall, turn: Turn, sent: Sent) -> Iterator[str]:
    """The one that held the interpreter is charged alone; where that is not known, nobody is."""
    if sent.role not in ("supervisor", "reaper") or not sent.applied or turn.suspicious:
        return
    charged = sent.verdict != "Release"
    if sent.role == "supervisor" and charged != (turn.fence == stall.holder):
        yield f"the interpreter of {turn.owner} was held, and {turn.fence} was settled by {sent.verdict}"


def _paid(case: Case, life: Life) -> Iterator[str]:
    """Each attempt that was charged was a start. Where marks could not be read, it may have been: a suspect is charged
    then, and a job with one attempt. A job is spared a few times in a row at most."""
    most = life.entry.max_attempts
    for epoch in range(life.epoch + 1):
        charged = [t for t in life.turns if t.epoch == epoch and isinstance(t.ending, Retried | Died)]
        for turn in charged:
            unknown = case.abandoned(turn) and (turn.suspicious or most == 1)
            if turn.fence not in case.evidence.starts and not unknown:
                yield f"{turn.fence} was charged for a failure and never started"
        if len(charged) > most:
            yield f"job {life.entry.id} was charged {len(charged)} of {most} lives"
        spared = [t for t in life.turns if t.epoch == epoch and isinstance(t.ending, Released) and case.abandoned(t)]
        if len(spared) > (len(charged) + 1) * ERRORS_KEPT:
            yield f"job {life.entry.id} was spared {len(spared)} times and charged {len(charged)} times"


def releases_free(case: Case) -> Iterator[str]:
    """What was handed back is handed out again with the same attempt."""
    for life in case.book.lives.values():
        seen = [turn for turn in life.turns if turn.fence in case.evidence.starts]
        for turn, following in pairwise(seen):
            between = [t for t in life.turns if turn.fence <= t.fence < following.fence]
            if turn.epoch == following.epoch and all(isinstance(t.ending, Released) for t in between):
                before, after = (case.evidence.starts[t.fence].attempt for t in (turn, following))
                if before != after:
                    yield f"{following.fence} is attempt {after}, before the hand-back it was {before}"


def effects_once(case: Case) -> Iterator[str]:
    for fence, count in case.evidence.effects.items():
        if count > 1:
            yield f"{fence} had its effect {count} times"


def subject_order(case: Case) -> Iterator[str]:
    """Per subject one handler at a time, in the order of acceptance, but for ghosts whose lease was lost."""
    lines: dict[str, list[Life]] = {}
    for life in case.book.lives.values():
        if life.entry.queue == "order" and life.entry.subject is not None:
            lines.setdefault(life.entry.subject, []).append(life)
    for subject, lives in lines.items():
        turns = sorted((turn for life in lives for turn in life.turns), key=lambda turn: (turn.began, turn.claimed_at))
        for turn, following in pairwise(turns):
            if turn.ended == 0 or turn.ended_at > following.claimed_at:
                yield f"{following.fence} began while {turn.fence} of subject {subject} was held"
        firsts = [life.turns[0] for life in lives if life.turns]
        for turn, following in pairwise(firsts):
            if following.claimed_at < turn.claimed_at:
                yield f"{following.fence} overtook {turn.fence} of subject {subject}"


def drains(case: Case) -> Iterator[str]:
    """Nothing is claimed and started after a drain began; what was claimed before, a slow call may hold up.

    A process that is gone with all its verdicts written holds nothing.
    """
    told = {gone.owner: gone.told_at for gone in case.evidence.exits}
    for start in case.evidence.starts.values():
        turn = case.book.turns.get(start.fence)
        begun = turn is not None and turn.began <= told.get(start.owner, 0)
        if start.owner in told and start.at > told[start.owner] + (_SLOW_CALL if begun else _DRAIN_GRACE):
            yield f"{start.owner} started {start.fence} {start.at - told[start.owner]} µs after it was told to drain"
    for gone in case.evidence.exits:
        if gone.flushed and gone.still_running:
            yield f"{gone.owner} is gone and still holds {list(gone.still_running)}"


def poison_pays(case: Case) -> Iterator[str]:
    """A killer kills no more processes than it has attempts, and those for which nobody saw that it had begun."""
    for job_id, deaths in case.evidence.poison_deaths.items():
        life = case.book.lives.get(job_id)
        if life is None:
            continue
        spared = sum(isinstance(turn.ending, Released) and case.abandoned(turn) for turn in life.turns)
        if deaths > life.entry.max_attempts * (life.epoch + 1) + spared:
            yield f"job {job_id} with {life.entry.max_attempts} lives killed {deaths} processes"
