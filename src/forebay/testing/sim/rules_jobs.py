"""Checks about jobs: none is lost, each ends once, keys, merges, due times, redrives, capacity and schedules."""

from collections.abc import Iterator

from forebay.core.event import (
    Acked,
    Cancelled,
    Dismissed,
    Enqueued,
    Fired,
    Promoted,
    Redriven,
    Released,
    Retried,
    SettledAll,
)
from forebay.core.job import State
from forebay.store.protocol import Query
from forebay.testing.sim.case import Case
from forebay.testing.sim.people import CAPACITY, SCHEDULES
from forebay.work.cron import Timetable


def no_loss(case: Case) -> Iterator[str]:
    """Every receipt is a job that ended; a refusal left nothing; an unheard call made at most what it was sent for."""
    book = case.book
    for wish in case.evidence.wishes.values():
        made = [*book.by_serial.get(wish.serial, []), *book.merges.get(wish.serial, [])]
        for job_id in wish.ids:
            life = book.lives.get(job_id)
            if life is None:
                yield f"job {job_id} was accepted and is not in the ledger"
            elif len(life.ends) != life.epoch + 1:
                yield f"job {job_id} was accepted and has not ended: {life.ends}"
            elif not wish.merged and job_id not in made:
                yield f"job {job_id} is another one than was accepted"
        if wish.refused and made:
            yield f"draft {wish.serial} was refused and became job {made}"
        if len(made) > wish.copies * (1 if wish.keyed else wish.sent):
            yield f"draft {wish.serial}, sent {wish.sent} times, became jobs {made}"
    known = set(case.evidence.wishes)
    for serial in (*book.by_serial, *book.merges):
        if serial not in known:
            yield f"draft {serial} was never sent"


def one_end(case: Case) -> Iterator[str]:
    """Done, dead or cancelled, once an epoch; done only if a handler really worked."""
    for job_id, life in case.book.lives.items():
        if len(life.ends) > life.epoch + 1 or any(end != "dead" for end in life.ends[:-1]):
            yield f"job {job_id} ended {life.ends} in {life.epoch + 1} epochs"
        if life.ends[-1:] == ["done"] and not any(case.evidence.effects[turn.fence] for turn in life.turns):
            yield f"job {job_id} is done and had no effect"
    left = [job for state in (State.WAITING, State.READY, State.RUNNING) for job in _all(case, state)]
    for job_id in left:
        yield f"job {job_id} is still open in the store"


def _all(case: Case, state: State) -> list[int]:
    return [job.id for job in case.depot.store.browse(Query(state=state), 0, 1_000).jobs]


def one_job_a_key(case: Case) -> Iterator[str]:
    """All receipts of one key name one job, or one in each queue of a broker."""
    for wish in case.evidence.wishes.values():
        made = case.book.by_serial.get(wish.serial, [])
        if wish.keyed and (len(set(wish.ids)) > wish.copies or len(made) > wish.copies):
            yield f"key of draft {wish.serial} stands for jobs {sorted({*wish.ids, *made})}"


def latest_wins(case: Case) -> Iterator[str]:
    """A newer payload that a waiting job took over is the one that runs next."""
    for wish in case.evidence.wishes.values():
        if not wish.merged or wish.answered_at is None:
            continue
        life = case.book.lives.get(wish.ids[0])
        starts = (
            [case.evidence.starts[turn.fence] for turn in life.turns if turn.fence in case.evidence.starts]
            if life
            else []
        )
        late = [start for start in starts if start.at > wish.answered_at]
        if late and (late[0].serial or 0) < wish.serial:
            yield f"job {wish.ids[0]} took over draft {wish.serial} and ran draft {late[0].serial}"


def never_early(case: Case) -> Iterator[str]:
    """Not before the delay that its producer gave, nor before the pause that the verdict gave; a redrive ends both."""
    book, evidence = case.book, case.evidence
    for job_id, life in book.lives.items():
        previous = None
        for turn in life.turns:
            due = life.at if previous is None else previous.ended_at
            if previous is None and not turn.epoch:
                serials = (
                    [serial for serial, ids in book.by_serial.items() if job_id in ids] if life.due_at > life.at else []
                )
                due += evidence.wishes[serials[0]].delay if serials and serials[0] in evidence.wishes else 0
            elif previous is not None and turn.epoch == previous.epoch:
                word = case.verdict(previous)
                spans = [sent.after for sent in evidence.sent.get(previous.fence, []) if sent.verdict == word]
                due += min(spans, default=0)
            if turn.claimed_at < max(due, turn.due_at):
                yield f"{turn.fence} was handed out {max(due, turn.due_at) - turn.claimed_at} µs too early"
            previous = turn


def no_resurrection(case: Case) -> Iterator[str]:
    """After an acknowledged end nothing is handed out; only the dead come back, by a redrive."""
    for job_id, life in case.book.lives.items():
        done_at = [turn.ended for turn in life.turns if isinstance(turn.ending, Acked | Dismissed)]
        for turn in life.turns:
            if done_at and turn.began > done_at[0]:
                yield f"job {job_id} was handed out again as {turn.fence} after its end"
    for fence, words in case.evidence.applied.items():
        known = case.book.turns.get(fence)
        if "Ack" in words and (known is None or not isinstance(known.ending, Acked)):
            yield f"{fence} was acknowledged to its worker, the ledger has {None if known is None else known.ending}"


def one_redrive(case: Case) -> Iterator[str]:
    """The calls that were told they moved a job are no more than the times it died."""
    for job_id, count in case.evidence.redriven.items():
        life = case.book.lives.get(job_id)
        deaths = 0 if life is None else life.ends.count("dead")
        if count > deaths:
            yield f"job {job_id} died {deaths} times and {count} redrives say they moved it"


def capacity(case: Case) -> Iterator[str]:
    """A bounded queue never holds more than its bound, whether it refuses or sheds."""
    for queue in ("small", "shed"):
        yield from _capacity(case, queue)


def _capacity(case: Case, queue: str) -> Iterator[str]:
    inside: set[int] = set()
    lives = case.book.lives
    for place, event in enumerate(case.book.events):
        match event:
            case Enqueued() | Fired():
                inside.update(entry.id for entry in event.entries if entry.queue == queue)
                inside.difference_update(event.shed)
            case SettledAll():
                for ending in event.endings:
                    if not isinstance(ending, Retried | Released):
                        inside.discard(ending.id)
            case Cancelled() | Promoted():
                inside.difference_update(event.ids if isinstance(event, Cancelled) else event.expired)
            case Redriven():
                inside.update(job_id for job_id in event.ids if lives[job_id].entry.queue == queue)
            case _:
                continue
        if len(inside) > CAPACITY:
            yield f"{len(inside)} jobs in {queue}, which has room for {CAPACITY}, at record {place}"


def each_tick_once(case: Case) -> Iterator[str]:
    """No tick twice, none backwards; with catch-up, none missed, whatever happened to the tickers."""
    for (name, tick), count in case.book.fired.items():
        if count > 1:
            yield f"{name} fired {tick} {count} times"
    for (name, tick), count in case.evidence.fires.items():
        if count > 1:
            yield f"{count} tickers were told that they fired {name} {tick}"
    for name, rule in SCHEDULES:
        ticks = case.book.ticks.get(name, [])
        if ticks != sorted(ticks):
            yield f"{name} went back in time: {ticks}"
        if "all(" in rule and ticks:
            expected = Timetable.parse(rule).cron.ticks(ticks[0], case.last_tick_at)
            missing = sorted(set(expected) - set(ticks))
            if missing:
                yield f"{name} never fired {missing[:3]}, {len(missing)} of {len(expected)} in all"
            empty = [tick for tick in expected if case.book.ticked.get((name, tick), 1) != 1]
            if empty and "overlap=skip" not in rule:
                yield f"{name} fired {empty[:3]} without exactly one job, {len(empty)} of {len(expected)} in all"
        elif "all(" in rule:
            yield f"{name} never fired at all"
