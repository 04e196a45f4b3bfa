"""Load for tests of faults: real workers by the command line, producers that write receipts, and the audit.

The audit reads the receipts, the file of effects and, when all is quiet, the store. It demands: every receipt has its
job, and that one alone; every job has ended and has a producer; one start and one effect a fence; what was acknowledged
is the last delivery, so nothing stale counted; every start was an attempt of its own, and every attempt a start or
abandoned; nothing runs.
"""

import logging
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import psycopg

from forebay import Job, State
from forebay.core.limits import ERRORS_KEPT
from tests.process.site import APP, Line, Site, by_seq
from tests.waiting import PATIENCE

log = logging.getLogger(__name__)


class ProducerResult(NamedTuple):
    """The answer that a producer got for one job. `job` is 0 where it got no receipt."""

    word: str
    seq: int
    job: int
    at: int


class Load(Site):
    """A site with a fleet and producers."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory, url)
        self.producers: list[tuple[subprocess.Popen[bytes], Path]] = []

    def workers(self, processes: int, *, lease: float = 2.0, url: str | None = None) -> subprocess.Popen[bytes]:
        words = f"--processes {processes} --concurrency 8 --visibility-timeout {lease:g} --drain-timeout 10"
        return self.run("-m", "forebay", "worker", f"{APP}:fb", *words.split(), url=url)

    def produce(self, *, threads: int = 2, pause: float = 0.05, keyed: bool = False, url: str | None = None) -> None:
        number = len(self.producers)
        receipts = self.directory / f"receipts-{number}"
        way = "keyed" if keyed else "plain"
        command = ("-m", "tests.process.producer", str(receipts), str(number), str(threads), str(pause), way)
        self.producers.append((self.run(*command, url=url), receipts))

    def stop_producing(self) -> None:
        for process, _ in self.producers:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE) == 0

    def answers(self, receipts: Path | None = None) -> list[ProducerResult]:
        """Of one producer, or of all."""
        files = [receipts] if receipts is not None else [path for _, path in self.producers]
        lines = [line for path in files if path.exists() for line in path.read_text().splitlines()]
        return [ProducerResult(word, *map(int, numbers)) for word, *numbers in (line.split() for line in lines)]

    def until_busy(self, effects: int) -> None:
        """So many more effects."""
        self.until_effects(len(self.lines("effect")) + effects)

    def until_effects(self, count: int) -> None:
        self.until(lambda: len(self.lines("effect")) >= count, f"{count} effects")

    def until_consumed(self, healed_at: int, processes: int) -> None:
        """Every producer has a new receipt and so many workers a new effect."""

        def again() -> bool:
            effects = {line.pid for line in self.lines("effect") if line.at > healed_at}
            receipts = [
                any(answer.word == "receipt" and answer.at > healed_at for answer in self.answers(path))
                for _, path in self.producers
            ]
            return len(effects) >= processes and all(receipts)

        self.until(again, f"{processes} workers and all producers go on", PATIENCE)
        log.info("all consume again after %.1f s", (now() - healed_at) / 1_000_000)

    def until_quiet(self, patience: float = PATIENCE) -> None:
        """Nothing is waiting, ready or running."""
        self.until(lambda: sum(backlog.depth for backlog in self.store.backlog()) == 0, "all ended", patience)

    def survive(
        self, kills: int, kill: Callable[[], None], start: Callable[[], None], *, workers_too: bool = False
    ) -> None:
        """The server is killed again and again under load, with a worker each time if so, and nothing is lost."""
        rng = random.Random(kills)
        fleet = self.workers(2)
        self.produce()
        self.produce(threads=1, keyed=True)
        self.until_busy(50)
        for _ in range(kills):
            time.sleep(rng.uniform(0.2, 1.0))
            if workers_too:
                os.kill(rng.choice(sorted(self.workers_of(fleet))), signal.SIGKILL)
            kill()
            time.sleep(rng.uniform(0, 0.5))
            start()
            self.until_consumed(now(), 2)
        self.stop_producing()
        self.until_quiet(60)
        assert self.end(fleet) == 0
        self.audit_load()

    def evidence(self) -> tuple[Path, Path]:
        """Files of receipts and of effects, as `forebay audit` reads them."""
        began = datetime.now(UTC) - timedelta(microseconds=now())
        receipts, effects = self.directory / "receipts.ndjson", self.directory / "effects.ndjson"
        reported = (
            {"seq": each.seq, "sent_at": began + timedelta(microseconds=each.at)}
            | ({"answer": "accepted", "job_id": each.job} if each.word == "receipt" else {"answer": "unknown"})
            for each in self.answers()
        )
        done = (
            {"seq": line.seq, "job_id": line.job, "delivery": line.delivery, "worker": str(line.pid)}
            | {"effect_at": began + timedelta(microseconds=line.at)}
            for line in self.lines("effect")
        )
        receipts.write_bytes(b"\n".join(map(msgspec.json.encode, reported)) + b"\n")
        effects.write_bytes(b"\n".join(map(msgspec.json.encode, done)) + b"\n")
        return receipts, effects

    def audit_load(self) -> list[Job]:
        jobs = self.jobs()
        answers = self.answers()
        receipts: dict[int, set[int]] = {}
        for answer in answers:
            assert answer.word != "broken", "an error that is not ours came out of the store"
            if answer.word == "receipt":
                receipts.setdefault(answer.seq, set()).add(answer.job)
        requested = {answer.seq for answer in answers} | set(range(1, len(self.ids) + 1))
        of_seq: dict[int, set[int]] = {}
        for job in jobs:
            of_seq.setdefault(seq_of(job), set()).add(job.id)
        assert not (twice := [seq for seq, ids in of_seq.items() if len(ids) > 1]), f"accepted twice: {twice[:10]}"
        assert not (lost := [seq for seq, ids in receipts.items() if of_seq.get(seq) != ids]), f"lost: {lost[:10]}"
        assert of_seq.keys() <= requested, "a job that was not sent"
        self.audit_jobs({seq_of(job): job for job in jobs})
        starts, effects = by_seq(self.lines("start")), by_seq(self.lines("effect"))
        for job in jobs:
            audit_job(job, starts.get(seq_of(job), []), effects.get(seq_of(job), []))
        return jobs


def audit_job(job: Job, starts: list[Line], effects: list[Line]) -> None:
    """One job that has ended, against what was written of its runs."""
    for line in (*starts, *effects):
        assert line.job == job.id
        assert 0 < line.delivery <= job.delivery
    assert {line.delivery for line in effects} <= {line.delivery for line in starts}
    if job.state is State.DONE:
        assert job.delivery in {line.delivery for line in effects}, f"acknowledged, and had no effect: {job}"
        assert job.result == job.delivery, f"a late acknowledgement counted: {job}"
    ran = {line.attempt for line in starts}
    abandoned = {error.attempt for error in job.errors if error.abandoned}
    given_back = {attempt for attempt, count in Counter(line.attempt for line in starts).items() if count > 1}
    assert given_back <= abandoned or len(job.errors) == ERRORS_KEPT, f"a start that was not charged: {job} {starts}"
    assert len(starts) - len(ran) <= len(job.errors), f"given back more often than its worker was lost: {job} {starts}"
    charged = set(range(1, job.attempt + 1))
    assert ran <= charged, f"it ran more often than it was charged: {job}"
    assert charged - ran <= abandoned or len(job.errors) == ERRORS_KEPT, f"charged without a start: {job}"


def seq_of(job: Job) -> int:
    payload = job.payload
    assert isinstance(payload, dict)
    seq = payload["seq"]
    assert isinstance(seq, int)
    return seq


def now() -> int:
    """Microseconds, on the clock of the lines."""
    return time.monotonic_ns() // 1_000


@contextmanager
def admin(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection that is always for writing."""
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        yield connection
