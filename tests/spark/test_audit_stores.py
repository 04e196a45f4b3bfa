"""Real stores, worked at random by a seed: the lake of each passes every check, and DuckDB agrees."""

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.core.errors import QueueFull
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.ledger import Change, LedgerEntry
from forebay.core.outcome import ABANDONED, Ack, Cancel, DeadLetter, Failure, Release, Retry, Verdict
from forebay.core.policy import Bounded, FanOut, InOrder, KeepFor, Route, Shed
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.spark.arrow import flatten
from forebay.spark.audit import AuditOptions
from forebay.spark.lake import Lake
from forebay.spark.schemas import EVENTS
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay.testing.clock import ManualClock
from tests.command_result import Run
from tests.spark.lakes import places
from tests.spark.oracle import oracle
from tests.spark.story import SECOND, START, Story

GAVE_UP = Failure("GaveUp", "no use")
QUEUES = ("mail", "lines", "cron", "few")
OPTIONS = AuditOptions(
    drained=True,
    exactly_once=False,
    dropped=frozenset({GAVE_UP.kind}),
    ordered={"lines": "subject"},
    schedules={"tick": timedelta(seconds=30)},
    coverage=0.5,
)
ASKED = (
    *("--lake", "lake", "--receipts", "receipts.parquet", "--effects", "effects.parquet", "--json"),
    *("--drained", "--dropped", GAVE_UP.kind, "--ordered", "lines:subject"),
    *("--schedule", "tick=30s", "--coverage", "0.5"),
)
"""The same, as one says it to the command."""


class Town:
    """One producer, one worker, one ticker and one operator, who take turns. The story keeps what the first two saw."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store, self.clock, self.rng = store, clock, random.Random(seed)
        self.story = Story()
        self.held: list[Lease] = []
        self.seqs: dict[int, int] = {}
        store.put_spec(QueueSpec(name="mail", retention=KeepFor(timedelta(seconds=5))))
        store.put_spec(QueueSpec(name="lines", eligibility=InOrder()))
        store.put_spec(QueueSpec(name="few", capacity=Bounded(3, Shed())))
        store.put_spec(QueueSpec(name="news", fan_out=FanOut((Route("**", "mail"), Route("**", "few")))))
        self.tick = clock.now() + 30 * SECOND
        store.put_schedule(Schedule("tick", "every 30 s", self.tick, Draft("tick", queue="cron")))

    def live(self, turns: int) -> Story:
        """So many turns at random, and then as many as it takes until all is done."""
        choices = [self.produce, self.claim, self.claim, self.settle, self.settle, self.renew, self.operate, self.reap]
        choices.append(self.announce)
        for _ in range(turns):
            self.clock.advance(self.rng.randrange(2 * SECOND))
            self.fire()
            self.rng.choice(choices)()
        for _ in range(turns // 4):
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
            self.story.receipt(seq, receipt.id, answer, self.clock.now())
            self.seqs.setdefault(receipt.id, seq)

    def announce(self) -> None:
        """For a queue that sheds, by itself or through a broker, whose copies have receipts of their own."""
        seq, queue = self.story.seq(), self.rng.choice(["few", "news"])
        try:
            (receipt,) = self.store.enqueue([Draft("work", queue=queue, max_attempts=3)])
        except QueueFull:
            self.story.receipt(seq, None, "refused", self.clock.now())
            return
        for job_id in receipt.copies or (receipt.id,):
            self.story.receipt(seq, job_id, "accepted", self.clock.now())
            self.seqs[job_id] = seq

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
                with suppress(QueueFull):
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


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/jobs.db"
        case "journal":
            yield f"memory:///{tmp_path}/journal"
        case "redis":
            yield request.getfixturevalue("redis_url")
        case _:
            yield request.getfixturevalue("postgres_url")


def read_all(store: Store) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    while page := store.ledger(len(entries) - 1, 500):
        entries += page
    return entries


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("url", "turns"),
    [
        *(pytest.param(store, 800, marks=pytest.mark.nightly) for store in ("sqlite", "journal", "postgres", "redis")),
        ("postgres", 300),
    ],
    indirect=["url"],
)
def test_what_a_store_leaves_passes_every_check(run: Run, url: str, turns: int, tmp_path: Path) -> None:
    """By the command, from the store: the ledger goes into a lake, and is there what it was in the store."""
    clock = ManualClock(START)
    store = open_store(url, clock=clock)
    story = Town(store, clock, seed=3).live(turns)
    read = pa.Table.from_batches([flatten(read_all(store), EVENTS)])
    receipts, effects = story.evidence()
    pq.write_table(receipts, tmp_path / "receipts.parquet")
    pq.write_table(effects, tmp_path / "effects.parquet")
    # A journal is read beside its owner.
    answer = run("audit", "--store", url, *ASKED)
    store.close()
    assert answer.code == 0, answer.err
    (verdict,) = answer.json
    results = {each["check"]: each for each in verdict["results"]}
    assert verdict["answer"] == "PASS", answer.out
    assert {name for name, each in results.items() if each["outcome"] == "not run"} == {"log_gap"}
    changes = set(read["change"].to_pylist())
    assert changes == {*Change} - {Change.MERGED} | {None}
    assert results["duplicated"]["outcome"] == "ok"
    agreed, found = oracle(read, receipts, effects, OPTIONS)
    assert (agreed, {row[0] for row in found} - {"redelivered"}) == ("PASS", set())
    assert len(found) == results["redelivered"]["count"]
    lake = Lake.at("lake")
    assert sorted(places(lake)) == list(zip(read["offset"].to_pylist(), read["place"].to_pylist(), strict=True))
    assert lake.contents().tables["jobs"].rows == len(set(read["job_id"].drop_null().to_pylist()))
    assert (urlsplit(url).password or "no password") not in str(lake.table("events").settings)
