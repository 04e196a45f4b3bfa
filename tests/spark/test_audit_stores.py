"""Real stores, worked at random by a seed: the ledger that they leave passes every check, and DuckDB agrees."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.ledger import Change, LedgerEntry
from forebay.core.outcome import ABANDONED, Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.policy import InOrder, KeepFor
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.spark.arrow import flatten
from forebay.spark.audit import Options, audit
from forebay.spark.schemas import EVENTS
from forebay.store.open import open_store
from forebay.store.protocol import Ledgered, Store, Want
from forebay.testing.clock import ManualClock
from tests.spark.oracle import oracle
from tests.spark.story import SECOND, START, Story

GAVE_UP = Failure("GaveUp", "no use")
TURNS = 800
REST = 200
QUEUES = ("mail", "lines", "cron")
OPTIONS = Options(
    every_check=True,
    drained=True,
    exactly_once=False,
    dropped=frozenset({GAVE_UP.kind}),
    ordered={"lines": "subject"},
    schedules={"tick": timedelta(seconds=30)},
    coverage=0.5,
)


class Town:
    """One producer, one worker, one ticker and one operator, who take turns. The story keeps what the first two saw."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store, self.clock, self.rng = store, clock, random.Random(seed)
        self.story = Story()
        self.held: list[Lease] = []
        self.seqs: dict[int, int] = {}
        store.put_spec(QueueSpec(name="mail", retention=KeepFor(timedelta(seconds=5))))
        store.put_spec(QueueSpec(name="lines", eligibility=InOrder()))
        self.tick = clock.now() + 30 * SECOND
        store.put_schedule(Schedule("tick", "every 30 s", self.tick, Draft("tick", queue="cron")))

    def live(self) -> Story:
        turns = [self.produce, self.claim, self.claim, self.settle, self.settle, self.renew, self.operate, self.reap]
        for _ in range(TURNS):
            self.clock.advance(self.rng.randrange(2 * SECOND))
            self.fire()
            self.rng.choice(turns)()
        for _ in range(REST):
            self.clock.advance(10 * SECOND)
            self.claim()
            self.end([(lease, Ack()) for lease in self.held])
            self.reap()
        return self.story

    def produce(self) -> None:
        drafts = []
        for _ in range(self.rng.randint(1, 6)):
            delay, expires = self.rng.choice([(0, None), (0, None), (3 * SECOND, None), (0, self.clock.now() + SECOND)])
            queue = self.rng.choice(["mail", "mail", "lines"])
            subject = f"s{self.rng.randrange(3)}" if queue == "lines" else None
            key = self.rng.choice([None, f"k{self.rng.randrange(30)}"])
            fields = {"delay": delay, "expires_at": expires, "subject": subject, "key": key, "max_attempts": 3}
            drafts.append(Draft("work", queue=queue, **fields))  # type: ignore[arg-type]
        for receipt in self.store.enqueue(drafts):
            seq = self.story.seq()
            answer = "duplicate" if receipt.duplicate else "accepted"
            self.story.told(seq, receipt.id, answer, self.clock.now())
            self.seqs.setdefault(receipt.id, seq)

    def claim(self) -> None:
        wants = [Want(queue, self.rng.randint(1, 8)) for queue in QUEUES]
        self.held += self.store.claim(wants, "w1", timedelta(seconds=20))

    def settle(self) -> None:
        some = self.rng.sample(self.held, min(len(self.held), 5))
        self.end([(lease, self.verdict(lease)) for lease in some])

    def verdict(self, lease: Lease) -> Verdict:
        left = lease.job.attempt < lease.job.max_attempts
        choices: list[Verdict] = [Ack(), Ack(), Ack(), Release(), Release(SECOND), DeadLetter(GAVE_UP), Cancel()]
        failure = Failure("Timeout", "no answer from 10.0.0.7")
        choices.append(Retry(self.rng.randrange(5 * SECOND), failure) if left else DeadLetter(failure))
        return self.rng.choice(choices)

    def end(self, settlements: list[tuple[Lease, Verdict]]) -> None:
        """An effect is left before its settle, as handlers do; late ones may have been reaped meanwhile."""
        for start in range(0, len(settlements), 50):
            part = settlements[start : start + 50]
            for lease, verdict in part:
                if isinstance(verdict, Ack) and lease.job.id in self.seqs:
                    self.story.effect(self.seqs[lease.job.id], *lease.fence, self.clock.now())
            answers = self.store.settle(part)
            assert set(answers) <= {Settled.APPLIED, Settled.STALE}
            done = {lease.fence for lease, _ in part}
            self.held = [lease for lease in self.held if lease.fence not in done]

    def renew(self) -> None:
        self.store.extend(self.held[:5], timedelta(seconds=20))

    def reap(self) -> None:
        lost = self.store.overdue(100)
        gone = Failure(ABANDONED, "its worker is gone")
        self.store.settle(
            [(each, Retry(0, gone) if each.job.attempt < each.job.max_attempts else DeadLetter(gone)) for each in lost]
        )
        self.store.promote(100)

    def operate(self) -> None:
        ids = self.rng.sample(sorted(self.seqs), min(len(self.seqs), 3))
        match self.rng.randrange(4):
            case 0:
                self.store.cancel(ids)
            case 1:
                self.store.redrive(ids)
            case 2:
                self.store.purge(self.rng.choice([State.DONE, State.DEAD]), self.clock.now() - 20 * SECOND, 5)
            case _:
                self.store.pause("mail", self.clock.now() + SECOND)

    def fire(self) -> None:
        while self.clock.now() >= self.tick:
            given_up = self.rng.random() < 0.2
            draft = None if given_up else Draft("tick", queue="cron")
            assert self.store.fire("tick", self.tick, self.tick + 30 * SECOND, draft)
            assert not self.store.fire("tick", self.tick, self.tick + 30 * SECOND, draft)
            self.tick += 30 * SECOND


@pytest.fixture(params=[*(pytest.param(name, marks=pytest.mark.nightly) for name in ("sqlite", "journal")), "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/jobs.db"
        case "journal":
            yield f"memory:///{tmp_path}/journal"
        case _:
            yield request.getfixturevalue("postgres_url")


def read_all(store: Ledgered) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    while page := store.ledger(len(entries) - 1, 500):
        entries += page
    return entries


def test_what_a_store_leaves_passes_every_check(spark: SparkSession, url: str) -> None:
    clock = ManualClock(START)
    store = open_store(url, clock=clock)
    try:
        story = Town(store, clock, seed=3).live()
        assert isinstance(store, Ledgered)
        read = pa.Table.from_batches([flatten(read_all(store), EVENTS)])
    finally:
        store.close()
    _, receipts, effects = story.frames(spark)
    verdict = audit(spark.createDataFrame(read), receipts, effects, options=OPTIONS)
    assert verdict.answer == "PASS", verdict.text()
    changes = set(read["change"].to_pylist())
    assert changes == {*Change} - {Change.MERGED} | {None}
    found = oracle(read, receipts.toArrow(), effects.toArrow(), OPTIONS)
    assert {row[0] for row in found} <= {"redelivered"}
    assert len(found) == verdict.result("redelivered").count
