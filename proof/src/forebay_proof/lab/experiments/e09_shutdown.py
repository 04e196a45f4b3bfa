"""Experiment 9: SIGTERM with two hundred jobs in flight, with time to finish them and without."""

import time
from typing import Any, Final

from forebay.core.job import Draft
from forebay_proof.lab.experiments.backlogs import MAX_START, depth
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    missing,
    rounds_of,
    zero,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.load.app import QUEUE, SPEC
from forebay_proof.load.handler_log import by_seq, read_records

IN_FLIGHT: Final = 200
_LENGTHS: Final = {"enough": (600, 10.0), "short": (4_000, 0.5)}
"""Milliseconds of a job, and seconds that the worker has to drain."""

_MAX_END: Final = 60.0


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    stores = ("postgres",) if scale == "quick" else ("postgres", "redis", "sqlite")
    cases = []
    for store in stores:
        for drain, (ms, seconds) in _LENGTHS.items():
            settings = {"drain": drain, "ms": ms, "drain_seconds": seconds, "jobs": 2 * IN_FLIGHT}
            takes = 8 + 3 * ms / 1_000
            cases.append(ExperimentCase(f"{store}-{drain}", store, settings, takes, rounds_of(scale, store)))
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    given = case.settings
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    drafts = [Draft("slow", {"seq": seq, "ms": given["ms"]}, QUEUE) for seq in range(given["jobs"])]
    app.store.enqueue(drafts)
    shape: dict[str, Any] = {"processes": 1, "concurrency": IN_FLIGHT, "claim_batch": IN_FLIGHT, "starts": True}
    first = stage.fleet(lab_server, **shape, drain=given["drain_seconds"]).fleet
    stage.wait_until(lambda: len(by_seq(stage.starts)) >= IN_FLIGHT, MAX_START, "two hundred jobs in flight", 0.005)
    signalled, began = time.time(), time.monotonic()
    done_before = len(by_seq(stage.effects))
    started = by_seq(stage.starts)
    first.terminate()
    second = stage.fleet(lab_server, **shape).fleet
    code = first.stop()
    ended = time.monotonic() - began
    stage.wait_until(lambda: depth(app) == 0, _MAX_END, "the end of all jobs", 0.05)
    stage.record("second exit code", second.stop(), "")
    stage.record("in flight", len(started) - done_before, "jobs")
    stage.record("exit code", code, "")
    stage.record("ended after", ended, "s")
    _count(stage, set(started), given["jobs"], signalled)
    (end,) = app.backlog(QUEUE)
    stage.record("dead", end.dead, "jobs")


def _count(stage: Stage, in_flight: set[int], jobs: int, signalled: float) -> None:
    starts, effects = by_seq(stage.starts), by_seq(stage.effects)
    finished = {line.seq for line in read_records(stage.effects) if line.delivery == 1}
    stage.record("finished by the first", len(in_flight & finished), "jobs")
    stage.record("handed back", sum(len(starts[seq]) > 1 for seq in in_flight), "jobs")
    stage.record("lost", jobs - len(effects), "jobs")
    stage.record("effects twice", sum(len(each) > 1 for each in effects.values()), "jobs")
    again = sorted(max(at for _, at in starts[seq]) - signalled for seq in in_flight if len(starts[seq]) > 1)
    if again:
        stage.record("ran again after", again[-1], "s")


def _judge(found: ExperimentResults) -> list[Conclusion]:
    if not found.of("in flight"):
        return [missing("a shutdown")]
    least = min(cell.minimum for cell in found.of("in flight").values())
    sentences = [
        Conclusion(f"{least:,.0f} jobs or more were in flight at the signal", least >= IN_FLIGHT),
        zero(found, "lost", "jobs without an effect"),
        zero(found, "effects twice", "jobs whose effect was applied twice"),
        zero(found, "dead", "jobs that died of it"),
        zero(found, "exit code", "exit code of the drained worker"),
    ]
    for drain, claim in (("enough", "finished where there was time"), ("short", "handed back where there was none")):
        name = "finished by the first" if drain == "enough" else "handed back"
        cells = found.of(name, drain=drain)
        if cells:
            fewest = min(cell.minimum for cell in cells.values())
            sentences.append(Conclusion(f"{fewest:,.0f} of {IN_FLIGHT} were {claim}", fewest >= IN_FLIGHT))
    return sentences


EXPERIMENT: Final = Experiment(
    9,
    "Graceful shutdown",
    "After SIGTERM a worker claims nothing, finishes what it can within its drain time and hands back the rest, which "
    "another worker runs at once. Nothing is lost, nothing is acknowledged twice, and it ends with code 0.",
    "The drain timeout, and the length of the jobs where that is shorter.",
    _cases,
    _run,
    _judge,
    (
        Chart("Ended after", "Seconds from SIGTERM to the end of the process.", "ended after", " s", "drain"),
        Chart("Handed back", "Of two hundred in flight.", "handed back", "", "drain"),
    ),
)
