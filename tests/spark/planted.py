"""Clean histories of any size from a seed, and anomalies planted into them: each kind a few jobs of its own.

A plant says what an audit has to find: (check, seq, job) triples, no more and no less. Every kind breaks one promise in
the smallest way that it can be broken.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from forebay.core.instant import seconds
from forebay.core.ledger import Trait
from forebay.core.outcome import ABANDONED
from forebay.spark.audit import AuditOptions
from tests.spark.story import LEASE, SECOND, START, Life, Story

DROPPED = "Drop"
OPTIONS = AuditOptions(
    drained=True,
    dropped=frozenset({DROPPED}),
    ordered={"lines": "subject", "tenants": "tenant"},
    schedules={"tick": seconds(60)},
)

Found = tuple[str, int | None, int | None]
"""A check, the seq and the job."""


MAX_LONG = 2**63 - 1


def _edges() -> Iterator[int]:
    """Seqs at both ends of a long, around the ends of 64-bit words, and below zero; each once."""
    yield from (MAX_LONG, -MAX_LONG - 1, -1, MAX_LONG - 63, MAX_LONG - 64, -64, -65, 2**32, 2**31, -(2**31) - 1)
    yield from count(-1_000, -63)


@dataclass
class PlantedStory:
    """A story with anomalies. `gone`: records that the reader never saw. `torn`: jobs and changes that are missing in
    their record. `altered`: jobs, changes and columns that were also read with a larger value. `schedules`: those that
    were to fire every minute, and how many of their slots are missing."""

    story: Story
    rng: random.Random
    found: set[Found] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)
    torn: list[tuple[int, str]] = field(default_factory=list)
    altered: list[tuple[int, str, str]] = field(default_factory=list)
    schedules: dict[str, int] = field(default_factory=dict)
    edges: Iterator[int] = field(default_factory=_edges)

    @property
    def options(self) -> AuditOptions:
        every = {name: seconds(60) for name in self.schedules}
        return replace(OPTIONS, schedules=OPTIONS.schedules | every)

    def moment(self) -> int:
        return START + self.rng.randrange(3_600 * SECOND)

    def life(self, **options: Any) -> Life:
        return Life(self.story, self.moment(), **options)

    def expect(self, life: Life, *checks: str) -> None:
        self.found |= {(check, life.seqs[0] if life.seqs else None, life.first) for check in checks}

    def at_edge(self) -> Life:
        """A job whose producer counts it by an extreme seq."""
        life = self.life().accept(receipt=False)
        life.seqs = [next(self.edges)]
        self.story.receipt(life.seqs[0], life.first, at=life.at)
        return life

    def pair(self, queue: str = "mail") -> tuple[Life, Life]:
        """Two jobs, each with a seq of its own and no receipt yet; the second one in this queue."""
        pair = self.life(), self.life(queue=queue)
        for life in pair:
            life.accept(receipt=False).seqs = [self.story.seq()]
        return pair


def clean(seed: int, jobs: int, *, id_step: int = 0, redrives: bool = True) -> PlantedStory:
    """Jobs of all sorts over an hour, a line of jobs in order, a schedule by the minute."""
    rng = random.Random(seed)
    planted_story = PlantedStory(Story(id_step=id_step), rng)
    for _ in range(jobs):
        _random_life(planted_story, redrives)
    for subject in range(5):
        at = planted_story.moment()
        for _ in range(6):
            life = Life(planted_story.story, at, queue="lines")
            life.accept(traits=[Trait(subject=f"s{subject}")])
            life.claim(at=at + SECOND).after(SECOND).ack()
            at = life.at + SECOND
    for _ in range(5):
        _copies(planted_story)
    for minute in range(60):
        tick = START + minute * 60 * SECOND
        if minute % 7 == 3:
            planted_story.story.record(tick + 5, "fire", "tick", tick)
        else:
            fired = Life(planted_story.story, tick + 5, queue="cron")
            fired.accept(name="tick", tick=tick).claim().after(SECOND).ack()
    for number in range(40):
        planted_story.story.record(planted_story.moment(), "pause", f"q{number}")
    return planted_story


def _random_life(planted_story: PlantedStory, redrives: bool) -> None:
    rng = planted_story.rng
    life = planted_story.life(n=rng.randint(1, 4), max_attempts=rng.randint(2, 4), delay=rng.choice([0, 0, 5 * SECOND]))
    tenant = rng.choice([None, "ada", "bob"])
    life.accept(traits=None if tenant is None else [Trait(tenant=tenant) for _ in life.ids])
    fate = rng.random()
    if fate < 0.04:
        life.cancel().after(SECOND).purge()
        return
    if fate < 0.07:
        life.after(60 * SECOND).expire()
        return
    if fate < 0.1:
        life.after(SECOND).shed()
        if not redrives or rng.random() < 0.5:
            return
        life.after(SECOND).redrive()
    while True:
        life.claim().after(rng.randrange(1, 2 * SECOND))
        step = rng.random()
        if step < 0.1:
            life.extend().after(SECOND)
        if step < 0.15:
            life.release(rng.choice([0, SECOND]))
        elif step < 0.35 and life.attempt < life.max_attempts:
            life.retry(rng.randrange(10 * SECOND))
        elif step < 0.4 or (life.attempt == life.max_attempts and step < 0.5):
            life.die("Timeout" if life.attempt == life.max_attempts else DROPPED)
            if not redrives or rng.random() < 0.5:
                return
            life.after(SECOND).redrive()
        elif step < 0.43:
            life.discard()
            return
        else:
            life.ack()
            return


def _copies(g: PlantedStory) -> None:
    """What a broker makes of one draft: a job in each of its queues."""
    first, second = g.life().accept(), g.life(queue="copies").accept(receipt=False)
    second.seqs = first.seqs
    g.story.receipt(first.seqs[0], second.first)
    for life in (first, second):
        life.claim().ack()


def _lost(g: PlantedStory) -> None:
    seq, job = g.story.seq(), g.story.ids(1)
    g.story.receipt(seq, job)
    g.found.add(("lost", seq, job))


def _given_again(g: PlantedStory) -> None:
    """The store forgot the first one, and gave its id to the second."""
    life = g.life().accept().claim().ack()
    seq = g.story.seq()
    g.story.receipt(seq, life.first, at=START - SECOND)
    g.found.add(("lost", seq, life.first))


def _unfinished(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim(), "unfinished")


def _undone(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack(effect=False), "undone")


def _unsent(g: PlantedStory) -> None:
    life = g.life().accept(receipt=False).claim()
    seq = g.story.seq()
    g.story.effect(seq, life.first, 1, life.at)
    life.ack(effect=False)
    g.found.add(("unreceipted", seq, life.first))


def _other_seq(g: PlantedStory) -> None:
    """The receipt names the job under another seq."""
    life = g.life().accept().claim()
    seq = g.story.seq()
    g.story.effect(seq, life.first, 1, life.at)
    life.ack(effect=False)
    g.found.add(("unexpected", seq, life.first))


def _refused(g: PlantedStory) -> None:
    life = g.life().accept(receipt=False).claim()
    seq = g.story.seq()
    g.story.receipt(seq, None, "refused")
    g.story.effect(seq, life.first, 1, life.at)
    life.ack(effect=False)
    g.found.add(("unexpected", seq, life.first))


def _from_nowhere(g: PlantedStory) -> None:
    seq, job = g.story.seq(), g.story.ids(1)
    g.story.receipt(seq, None, "unknown")
    g.story.effect(seq, job, 1, g.moment())
    g.found |= {("unexpected", seq, job), ("recovered", seq, job)}


def _duplicated(g: PlantedStory) -> None:
    first, second = g.life().accept(), g.life().accept(receipt=False)
    second.seqs = first.seqs
    g.story.receipt(first.seqs[0], second.first)
    for life in (first, second):
        life.claim().ack()
    g.expect(second, "duplicated")


def _duplicated_unseen(g: PlantedStory) -> None:
    """The producer has one, handlers saw two."""
    first, second = g.life().accept(), g.life().accept(receipt=False)
    second.seqs = first.seqs
    for life in (first, second):
        life.claim().ack()
    g.expect(second, "duplicated")


def _recovered(g: PlantedStory) -> None:
    life = g.life().accept(receipt=False)
    life.seqs = [g.story.seq()]
    g.story.receipt(life.seqs[0], None, "unknown")
    life.claim().ack()
    g.expect(life, "recovered")


def _repeated_effect(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(SECOND)
    life.effect(1, life.at - 5).ack()
    g.expect(life, "repeated_effect")


def _redelivered(g: PlantedStory) -> None:
    life = g.life().accept().claim().effect(1).after(1).retry().claim().ack()
    g.expect(life, "redelivered")


def _effect_of_dead(g: PlantedStory) -> None:
    g.expect(g.life(max_attempts=1).accept().claim().effect(1).after(1).die(), "effect_of_dead")


def _taken_back_early(g: PlantedStory) -> None:
    """Its holder is said to be gone, and might still be at work."""
    life = g.life().accept().claim().after(SECOND).retry(0, kind=ABANDONED).claim().after(1).ack()
    g.expect(life, "early_take_back")


def _swapped(g: PlantedStory) -> None:
    """The claim and its ack have changed places."""
    life = g.life().accept().after(1)
    life.ack(effect=False, delivery=1, attempt=1).after(1).claim()
    for check in ("stale_settle", "resurrected", "delivery_step"):
        g.expect(life, check)
    life.effect(1)


def _attempt_beyond(g: PlantedStory) -> None:
    life = g.life(max_attempts=2).accept().claim(attempt=3).after(1).ack()
    g.expect(life, "too_many_attempts")
    g.expect(life, "miscounted_attempts")


def _unborn(g: PlantedStory) -> None:
    g.expect(g.life().claim().ack(effect=False), "unborn")


def _born_twice(g: PlantedStory) -> None:
    life = g.life().accept().after(1)
    life.accept(receipt=False).after(1).claim().ack()
    g.expect(life, "born_twice")


def _ended_twice(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).ack(effect=False), "ended_twice")


def _cancelled_when_done(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).cancel(), "ended_twice")


def _unfenced(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().effect(7).ack(effect=False), "unfenced_effect")


def _resurrected(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().ack().after(1).claim(), "resurrected")


def _stale_settle(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).retry(5).claim().after(1)
    life.ack(delivery=1)
    g.expect(life, "stale_settle")


def _settled_open(g: PlantedStory) -> None:
    """Two endings of one delivery; the second one finds the job open again."""
    g.expect(g.life().accept().claim().after(1).retry(5).after(1).ack(), "stale_settle")


def _lease_overlap(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(LEASE - 1).claim().after(1).ack()
    g.expect(life, "lease_overlap")


def _overlap_of_an_extended(g: PlantedStory) -> None:
    """Long after the first lease, and within its extension."""
    life = g.life().accept().claim().after(LEASE - 5).extend().after(LEASE - 5).claim().after(1).ack()
    g.expect(life, "lease_overlap")


def _early_claim(g: PlantedStory) -> None:
    life = g.life(delay=SECOND).accept()
    life.claim(at=life.due - 1).after(1).ack()
    g.expect(life, "early_claim")


def _early_retry(g: PlantedStory) -> None:
    """The claim's own record has a wrong due time."""
    life = g.life().accept().claim().after(1).retry(SECOND)
    life.due = life.at + 5
    life.claim(at=life.at + 10).after(1).ack()
    g.expect(life, "early_claim")


def _delivery_step(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim(delivery=2).after(1).ack(), "delivery_step")


def _delivery_again(g: PlantedStory) -> None:
    """The fence starts anew with a redrive."""
    life = g.life(max_attempts=1).accept().claim().after(1).die().after(1).redrive().claim(delivery=1).after(1).ack()
    g.expect(life, "delivery_step")


def _too_many_attempts(g: PlantedStory) -> None:
    g.expect(g.life(max_attempts=1).accept().claim().after(1).retry().claim().after(1).ack(), "too_many_attempts")


def _miscounted(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).retry().claim(attempt=1).after(1).ack()
    g.expect(life, "miscounted_attempts")


def _died_early(g: PlantedStory) -> None:
    g.expect(g.life(max_attempts=3).accept().claim().after(1).die(), "died_early")


def _cancelled_running(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).cancel(), "illegal")


def _shed_and_run(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).shed().after(1).claim(), "resurrected")


def _shed_running(g: PlantedStory) -> None:
    g.expect(g.life().accept().claim().after(1).shed(), "illegal")


def _shed_twice(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).shed().after(1).shed(), "ended_twice")


def _copied_twice(g: PlantedStory) -> None:
    """A broker's draft that became two jobs in one of its queues."""
    copies = [g.life(queue=queue).accept(receipt=False) for queue in ("mail", "copies", "copies")]
    seq = g.story.seq()
    for life in copies:
        life.seqs = [seq]
        g.story.receipt(seq, life.first)
        life.claim().ack()
    g.expect(copies[2], "duplicated")


def _purged_alive(g: PlantedStory) -> None:
    g.expect(g.life().accept().after(1).purge(), "illegal")


def _out_of_turn(g: PlantedStory) -> None:
    at = g.moment()
    subject = Trait(subject=f"broken{at}")
    first, second = (Life(g.story, at, queue="lines") for _ in range(2))
    first.accept(traits=[subject]).claim(at=at + 10).after(100).ack()
    second.accept(traits=[subject]).claim(at=at + 50).after(1).ack()
    g.expect(second, "out_of_turn")


def _slot_twice(g: PlantedStory) -> None:
    tick = START + 7_200 * SECOND + len(g.found) * SECOND
    fired = [Life(g.story, tick + at, queue="cron").accept(name=f"s{tick}", tick=tick) for at in (1, 2)]
    for life in fired:
        life.claim().ack()
    g.expect(fired[1], "slot_twice")


def _ledger_gap(g: PlantedStory) -> None:
    name = f"gone{len(g.gone)}"
    g.story.record(g.moment(), "pause", name)
    g.gone.append(name)


def _conflict(g: PlantedStory) -> None:
    life = g.life().accept().claim().after(1).retry().claim().after(1).ack()
    g.altered.append((life.first, "retried", "error"))
    g.expect(life, "conflict")


KINDS: list[Callable[[PlantedStory], None]] = [
    *(_lost, _given_again, _unfinished, _undone, _unsent, _refused, _from_nowhere, _duplicated, _duplicated_unseen),
    *(_recovered, _repeated_effect, _redelivered, _unborn, _born_twice, _ended_twice, _cancelled_when_done),
    *(_unfenced, _resurrected, _stale_settle, _settled_open, _lease_overlap, _overlap_of_an_extended, _early_claim),
    *(_early_retry, _delivery_step, _delivery_again, _too_many_attempts, _miscounted, _died_early, _cancelled_running),
    *(_purged_alive, _out_of_turn, _slot_twice, _ledger_gap, _conflict, _shed_and_run, _shed_running, _shed_twice),
    *(_copied_twice, _other_seq, _effect_of_dead, _taken_back_early, _swapped, _attempt_beyond),
]


def planted(
    seed: int, jobs: int, each: int, kinds: Sequence[Callable[[PlantedStory], None]] = KINDS, *, id_step: int = 0
) -> PlantedStory:
    planted_story = clean(seed, jobs, id_step=id_step)
    for _ in range(each):
        for plant in kinds:
            plant(planted_story)
    return planted_story


def events_of(planted_story: PlantedStory) -> tuple[pa.Table, set[int]]:
    """The events as a reader saw them, and the offsets at which it missed something."""
    table = planted_story.story.table()
    gone = pc.is_in(table["name"], value_set=pa.array(planted_story.gone, pa.string()))
    offsets = set(table.filter(gone)["offset"].to_pylist())
    starts = {offset for offset in offsets if offset - 1 not in offsets}
    rows = {(job, change): row for row, (job, change) in enumerate(zip(*_ids(table), strict=True))}
    torn = [rows[job, change] for job, change in planted_story.torn]
    starts |= set(table["offset"].take(pa.array(torn, pa.int64())).to_pylist())
    kept = pc.invert(pc.or_(gone, pc.is_in(pa.array(range(len(table))), value_set=pa.array(torn, pa.int64()))))
    copies = [
        _larger(table.slice(rows[job, change], 1), table.column_names.index(column))
        for job, change, column in planted_story.altered
    ]
    return pa.concat_tables([table.filter(kept), *copies]), starts


def _ids(table: pa.Table) -> tuple[list[Any], list[Any]]:
    return table["job_id"].to_pylist(), table["change"].to_pylist()


def _larger(row: pa.Table, column: int) -> pa.Table:
    """The same event with one column changed."""
    kind = row.schema.field(column)
    (value,) = row.column(column).to_pylist()
    more = value + (
        "~" if isinstance(value, str) else timedelta(milliseconds=1) if pa.types.is_timestamp(kind.type) else 1
    )
    return row.set_column(column, kind, pa.array([more], kind.type))
