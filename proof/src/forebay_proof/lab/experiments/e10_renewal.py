"""Experiment 10: jobs longer than their lease, without heartbeats and with them."""

import time
from itertools import pairwise
from typing import Final

from forebay.core.job import Draft
from forebay_proof.lab.experiments.backlogs import depth
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    missing,
    rounds_of,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.handler_log import by_seq

_STORES: Final = {
    "quick": ("postgres",),
    "full": ("postgres", "redis", "sqlite"),
    "release": ("postgres", "redis", "sqlite"),
}
_LEASE: Final = {"quick": 0.6, "full": 2.0, "release": 5.0}
_TIMES: Final = 2.5
"""A job runs for so many leases."""

_WARY: Final = 4.5
"""A new process reaps nothing before: others may just have had an outage."""


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    lease, jobs = _LEASE[scale], 20 if scale == "quick" else 60
    cases = []
    for store in _STORES[scale]:
        for renewing in (False, True):
            settings = {
                "lease": lease,
                "ms": 1e3 * _TIMES * lease,
                "jobs": jobs,
                "renewing": renewing,
                "renewal": "with" if renewing else "without",
                "processes": 4,
                "concurrency": 64,
                "seconds": 4 * _TIMES * lease,
            }
            takes = 6 + _WARY + (4 if not renewing else 1) * _TIMES * lease
            cases.append(
                ExperimentCase(f"{store}-{settings['renewal']}", store, settings, takes, rounds_of(scale, store))
            )
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    given = case.settings
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    shape = {name: given[name] for name in ("processes", "concurrency", "lease", "renewing")}
    stage.fleet(lab_server, **shape, starts=True, drain=0.1)
    time.sleep(_WARY)
    app.store.enqueue([Draft("long", {"seq": seq, "ms": given["ms"]}, QUEUE) for seq in range(given["jobs"])])
    deadline = time.monotonic() + given["seconds"]
    while (left := depth(app)) and time.monotonic() < deadline:
        time.sleep(0.05)
    started, done = by_seq(stage.starts), by_seq(stage.effects)
    runs, effected = sum(map(len, started.values())), sum(map(len, done.values()))
    stage.record("left", left, "jobs")
    stage.record("runs", runs, "runs")
    stage.record("ran more than once", sum(len(each) > 1 for each in started.values()), "jobs")
    stage.record("at once", sum(_overlap(each, given["ms"] / 1e3) for each in started.values()), "jobs")
    stage.record("effects more than once", effected - len(done), "effects")


def _overlap(starts: list[tuple[int, float]], length: float) -> bool:
    """Whether a run began before the one before it had ended."""
    times = sorted(at for _, at in starts)
    return any(after - before < length for before, after in pairwise(times))


def _judge(found: ExperimentResults) -> list[Conclusion]:
    with_it, without = (found.of("ran more than once", renewing=renewing) for renewing in (True, False))
    if not with_it or not without:
        return [missing("both sides")]
    jobs = sum(found.cases[case]["jobs"] for case in without)
    again = sum(cell.median for cell in without.values())
    at_once = sum(cell.median for cell in found.of("at once", renewing=False).values())
    good = max(cell.maximum for cell in with_it.values())
    sentence = f"without renewal {again:,.0f} of {jobs:,} jobs ran more than once, {at_once:,.0f} in two places at once"
    return [Conclusion(sentence, again > 0), Conclusion(f"with renewal {good:,.0f} did", good == 0)]


EXPERIMENT: Final = Experiment(
    10,
    "Lease renewal",
    "A job that outlives its lease is taken back and runs a second time while the first still runs, unless its worker "
    "extends the lease three times in its length.",
    "The lease: a job that takes two and a half of them is handed out again after one. Nothing else differs between "
    "the two sides: the same worker, whose heartbeats are words or deeds.",
    _cases,
    _run,
    _judge,
    (
        Chart("More than once", "Jobs that ran again.", "ran more than once", "", "renewal"),
        Chart("In two places at once", "Jobs of which two runs overlapped.", "at once", "", "renewal"),
        Chart("Runs", "Of so many jobs, in all.", "runs", "", "renewal"),
    ),
)
