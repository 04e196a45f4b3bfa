"""Checks about jobs: none is lost, each ends once; keys, merges, due times, order, redrives, capacity and schedules."""

from collections.abc import Iterator

from forebay.core.changeset import ChangeSet, JobChange
from forebay.core.entries import LEADING
from forebay.core.job import State
from forebay.core.ledger import Change
from forebay.store.memory.changes import apply
from forebay.store.memory.facts import Facts
from forebay.store.protocol import Query
from forebay.work.cron import Timetable
from forebay_proof.sim.actors import CAPACITY, SCHEDULES
from forebay_proof.sim.case import RunCase

_LEAVES = (
    *(Change.ACKED, Change.DIED, Change.DISCARDED),
    *(Change.CANCELLED, Change.EXPIRED, Change.SHED),
)


def no_loss(case: RunCase) -> Iterator[str]:
    """Every receipt is a job that ended; a refusal left nothing; an unanswered call made at most what it sent."""
    index = case.index
    for sent_draft in case.evidence.sent_drafts.values():
        made = [*index.by_serial.get(sent_draft.serial, []), *index.merges.get(sent_draft.serial, [])]
        for job_id in sent_draft.ids:
            history = index.histories.get(job_id)
            if history is None:
                yield f"job {job_id} was accepted and is not in the ledger"
            elif len(history.ends) != history.epoch + 1:
                yield f"job {job_id} was accepted and has not ended: {history.ends}"
            elif not sent_draft.merged and job_id not in made:
                yield f"job {job_id} is another one than was accepted"
        if sent_draft.refused and made:
            yield f"draft {sent_draft.serial} was refused and became job {made}"
        if len(made) > sent_draft.copies * (1 if sent_draft.keyed else sent_draft.sent):
            yield f"draft {sent_draft.serial}, sent {sent_draft.sent} times, became jobs {made}"
    known = set(case.evidence.sent_drafts)
    for serial in (*index.by_serial, *index.merges):
        if serial not in known:
            yield f"draft {serial} was never sent"


def one_end(case: RunCase) -> Iterator[str]:
    """Done, dead or cancelled, once an epoch; done only if a handler really worked."""
    for job_id, history in case.index.histories.items():
        if len(history.ends) > history.epoch + 1 or any(end != "dead" for end in history.ends[:-1]):
            yield f"job {job_id} ended {history.ends} in {history.epoch + 1} epochs"
        if history.ends[-1:] == ["done"] and not any(
            case.evidence.effects[delivery.fence] for delivery in history.deliveries
        ):
            yield f"job {job_id} is done and had no effect"
    left = [job for state in (State.WAITING, State.READY, State.RUNNING) for job in _all(case, state)]
    for job_id in left:
        yield f"job {job_id} is still open in the store"


def _all(case: RunCase, state: State) -> list[int]:
    return [job.id for job in case.store_process.store.browse(Query(state=state), 0, 1_000).jobs]


def one_job_a_key(case: RunCase) -> Iterator[str]:
    """All receipts of one key name one job, or one in each queue of a broker."""
    for sent_draft in case.evidence.sent_drafts.values():
        made = case.index.by_serial.get(sent_draft.serial, [])
        if sent_draft.keyed and (len(set(sent_draft.ids)) > sent_draft.copies or len(made) > sent_draft.copies):
            yield f"key of draft {sent_draft.serial} belongs to jobs {sorted({*sent_draft.ids, *made})}"


def latest_wins(case: RunCase) -> Iterator[str]:
    """A newer payload that a waiting job took over is the one that runs next."""
    for sent_draft in case.evidence.sent_drafts.values():
        if not sent_draft.merged or sent_draft.answered_at is None:
            continue
        history = case.index.histories.get(sent_draft.ids[0])
        starts = (
            [
                case.evidence.starts[delivery.fence]
                for delivery in history.deliveries
                if delivery.fence in case.evidence.starts
            ]
            if history
            else []
        )
        late = [start for start in starts if start.at > sent_draft.answered_at]
        if late and (late[0].serial or 0) < sent_draft.serial:
            yield f"job {sent_draft.ids[0]} took over draft {sent_draft.serial} and ran draft {late[0].serial}"


def never_early(case: RunCase) -> Iterator[str]:
    """Not before the delay that its producer gave, nor before the pause that the verdict gave; a redrive ends both."""
    index, evidence = case.index, case.evidence
    for job_id, history in index.histories.items():
        previous = None
        for delivery in history.deliveries:
            due = history.at if previous is None else previous.ended_at
            if previous is None and not delivery.epoch:
                serials = (
                    [serial for serial, ids in index.by_serial.items() if job_id in ids]
                    if history.due_at > history.at
                    else []
                )
                due += evidence.sent_drafts[serials[0]].delay if serials and serials[0] in evidence.sent_drafts else 0
            elif previous is not None and delivery.epoch == previous.epoch:
                word = case.verdict(previous)
                durations = [sent.after for sent in evidence.sent.get(previous.fence, []) if sent.verdict == word]
                due += min(durations, default=0)
            if delivery.claimed_at < max(due, delivery.due_at):
                yield f"{delivery.fence} was handed out {max(due, delivery.due_at) - delivery.claimed_at} µs too early"
            previous = delivery


def no_resurrection(case: RunCase) -> Iterator[str]:
    """After an acknowledged end nothing is handed out; only the dead come back, by a redrive."""
    for job_id, history in case.index.histories.items():
        done_at = [
            delivery.ended for delivery in history.deliveries if delivery.ended_by(Change.ACKED, Change.DISCARDED)
        ]
        for delivery in history.deliveries:
            if done_at and delivery.began > done_at[0]:
                yield f"job {job_id} was handed out again as {delivery.fence} after its end"
    for fence, words in case.evidence.applied.items():
        known = case.index.deliveries.get(fence)
        if "Ack" in words and (known is None or not known.ended_by(Change.ACKED)):
            yield f"{fence} was acknowledged to its worker, the ledger has {None if known is None else known.ending}"


def one_redrive(case: RunCase) -> Iterator[str]:
    """No more redrives of a job were answered as done than the times it died."""
    for job_id, count in case.evidence.redriven.items():
        history = case.index.histories.get(job_id)
        deaths = 0 if history is None else history.ends.count("dead")
        if count > deaths:
            yield f"job {job_id} died {deaths} times and {count} redrives say they moved it"


def capacity(case: RunCase) -> Iterator[str]:
    """A bounded queue never holds more than its bound, whether it refuses or sheds."""
    for queue in ("small", "shed"):
        for changes in case.histories:
            yield from _capacity(case, changes, queue)


def _capacity(case: RunCase, changes: list[ChangeSet], queue: str) -> Iterator[str]:
    inside: set[int] = set()
    histories = case.index.histories
    for place, change in enumerate(changes):
        inside.update(entry.id for entry in change.entries if entry.queue == queue)
        for each in change.jobs:
            if each.change == Change.REDRIVEN:
                inside.update(job_id for job_id in each.ids if histories[job_id].entry.queue == queue)
            elif each.change in _LEAVES:
                inside.difference_update(each.ids)
        if len(inside) > CAPACITY:
            yield f"{len(inside)} jobs in {queue}, which has room for {CAPACITY}, at record {place}"


def each_tick_once(case: RunCase) -> Iterator[str]:
    """No tick twice, none backwards; with catch-up, none missed, whatever happened to the tickers."""
    for (name, tick), count in case.index.fired.items():
        if count > 1:
            yield f"{name} fired {tick} {count} times"
    for (name, tick), count in case.evidence.fires.items():
        if count > 1:
            yield f"{count} tickers were answered that they fired {name} {tick}"
    for name, rule in SCHEDULES:
        ticks = case.index.ticks.get(name, [])
        if ticks != sorted(ticks):
            yield f"{name} went back in time: {ticks}"
        if "all(" in rule and ticks:
            expected = Timetable.parse(rule).cron.ticks(ticks[0], case.last_tick_at)
            missing = sorted(set(expected) - set(ticks))
            if missing:
                yield f"{name} never fired {missing[:3]}, {len(missing)} of {len(expected)} in all"
            empty = [tick for tick in expected if case.index.ticked.get((name, tick), 1) != 1]
            if empty and "overlap=skip" not in rule:
                yield f"{name} fired {empty[:3]} without exactly one job, {len(empty)} of {len(expected)} in all"
        elif "all(" in rule:
            yield f"{name} never fired at all"


def reclaimed_first(case: RunCase) -> Iterator[str]:
    """In a FIFO queue no new job of a lane is handed out while a reclaimed or released one is ready."""
    for changes in case.histories:
        yield from _reclaimed_first(changes)


def _reclaimed_first(changes: list[ChangeSet]) -> Iterator[str]:
    facts = Facts()
    back: set[int] = set()
    for change in changes:
        for each in change.jobs:
            if each.change == Change.CLAIMED:
                yield from _passed(facts, change, each, back)
            if each.change in (Change.CLAIMED, Change.REDRIVEN):
                # One that is redriven died meanwhile, and comes back as a new job does.
                back.difference_update(each.ids)
        apply(facts, change)
        for each in change.jobs:
            if each.change == Change.RELEASED or (each.change == Change.RETRIED and each.keep_rank):
                back.update(each.ids)


def _passed(facts: Facts, change: ChangeSet, claimed: JobChange, back: set[int]) -> Iterator[str]:
    fresh: dict[object, int] = {}
    for row in (facts.rows[job_id] for job_id in claimed.ids):
        if row.entry.rank_timed == LEADING and not row.delivery and row.due_at <= row.enqueued_at:
            fresh[row.entry.queue, row.entry.cls, row.entry.gates] = row.entry.id
    for job_id in sorted(back.difference(claimed.ids)):
        found = facts.rows.get(job_id)
        if found is None or found.state is not State.READY or found.entry.rank_timed != LEADING:
            continue
        expires_at, lane = found.entry.expires_at, (found.entry.queue, found.entry.cls, found.entry.gates)
        if lane in fresh and (expires_at is None or expires_at > change.at):
            yield f"job {job_id} was reclaimed and ready at {change.at}, and job {fresh[lane]} was handed out"
