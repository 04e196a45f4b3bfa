"""Backlogs of a seed, through the front door, and fleets that work them off: what several experiments begin with."""

import time
from collections.abc import Iterator

from forebay.client import Forebay
from forebay.core.job import Draft
from forebay_proof.lab.experiments.stage import Stage, TalliedFleet, Working
from forebay_proof.lab.experiments.window import FleetWindow
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.mix import Mix

MAX_START = 60.0
_DRY = 0.95


def idle_drafts(jobs: int, start: int = 0, queue: str = QUEUE) -> Iterator[Draft]:
    """Jobs that do nothing: what is left is the queue itself."""
    return (Draft("idle", queue=queue, body=b'{"seq":%d,"ms":0}' % seq) for seq in range(start, start + jobs))


def mixed_drafts(mix: Mix, seed: int, jobs: int, queue: str = QUEUE) -> Iterator[Draft]:
    return (mix.draft(seed, seq, queue) for seq in range(jobs))


def seeded(app: Forebay, drafts: Iterator[Draft]) -> float:
    """All of them are in; the seconds that it took."""
    app.store.put_spec(SPEC)
    began = time.monotonic()
    app.enqueue_many(drafts)
    return time.monotonic() - began


def at_work(stage: Stage, tallied: TalliedFleet[Working], processes: int) -> None:
    """Every process has claimed something."""
    stage.wait_until(lambda: len(tallied.claims()) >= processes, MAX_START, "every process at work")


def depth(app: Forebay, queue: str = QUEUE) -> int:
    (backlog,) = app.backlog(queue)
    return backlog.depth


def saturated(
    stage: Stage, lab_server: LabServer, tallied: TalliedFleet[Working], jobs: int, warm_up: float, seconds: float
) -> float:
    """A window in which the fleet never lacks work: it closes early, before a backlog of so many jobs runs dry."""
    time.sleep(warm_up)
    window = FleetWindow(stage, lab_server, tallied)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and tallied.claimed() < _DRY * jobs:
        time.sleep(0.05)
    return window.close()


def flat_out(
    stage: Stage, *, jobs: int, processes: int, concurrency: int, claim_batch: int, warm_up: float, seconds: float
) -> float:
    """A backlog of idle jobs and one fleet on it, from a cold start; the rate."""
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    seeded(app, idle_drafts(jobs))
    tallied = stage.fleet(
        lab_server, processes=processes, concurrency=concurrency, claim_batch=claim_batch, effects=False
    )
    at_work(stage, tallied, processes)
    return saturated(stage, lab_server, tallied, jobs, warm_up, seconds)
