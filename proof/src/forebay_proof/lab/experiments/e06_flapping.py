"""Experiment 6: one job in twenty needs a dependency that goes away for a while and comes back."""

import time
from collections import Counter
from typing import Final

from forebay.core.instant import ms, seconds
from forebay.core.job import Draft
from forebay.core.policy import Backoff, Fixed, FullJitter, Routing
from forebay.core.spec import QueueSpec
from forebay_proof.lab.experiments.backlogs import depth
from forebay_proof.lab.experiments.base import (
    Chart,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    ExperimentScale,
    TimeChart,
    at_most,
    rounds_of,
    zero,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.load.app import DEPENDENCY, QUEUE, SPEC
from forebay_proof.load.generator import Load
from forebay_proof.load.handler_log import by_seq
from forebay_proof.load.mix import MIXES

_HERD: Final = "herd"
_BACKOFFS: Final[dict[str, Backoff]] = {
    "fixed": Fixed(ms(1_000)),
    "jitter": FullJitter(base=ms(1_000), cap=seconds(20)),
}
_BIN: Final = 0.1
_PATIENCE: Final = 60.0


def _cases(scale: ExperimentScale) -> list[ExperimentCase]:
    outage, rate = {"quick": (14, 300), "full": (60, 1_000), "release": (60, 2_000)}[scale]
    cases = []
    for store in ("postgres", "redis") if scale == "release" else ("postgres",):
        settings = {"outage": outage, "before": 2, "after": 2, "rate": rate, "load": "steady", "backoff": "jitter"}
        takes = outage + 4 + (12 if scale == "quick" else 25)
        cases.append(ExperimentCase(f"{store}-steady", store, settings, takes, rounds_of(scale, store)))
    for backoff in _BACKOFFS:
        settings = {"outage": 3, "jobs": 500, "load": "at once", "backoff": backoff}
        cases.append(
            ExperimentCase(f"postgres-at-once-{backoff}", "postgres", settings, 12, rounds_of(scale, "postgres"))
        )
    return cases


def _run(case: ExperimentCase, stage: Stage) -> None:
    (_steady if case.settings["load"] == "steady" else _at_once)(case, stage)


def _steady(case: ExperimentCase, stage: Stage) -> None:
    given, mix = case.settings, MIXES["dependent"]
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    app.store.put_spec(SPEC)
    down = stage.directory / "down"
    tallied = stage.fleet(lab_server, processes=2, concurrency=256, starts=True, env={DEPENDENCY: str(down)})
    whole = given["before"] + given["outage"] + given["after"]
    schedule = {"rate": given["rate"], "seconds": whole, "batch": 20}
    load = Load(lab_server.url, **schedule, directory=stage.directory, mix=mix, seed=stage.seed)
    with load:
        load.start()
        stage.wait_until(lambda: tallied.claimed() > 0, _PATIENCE, "the first job")
        time.sleep(given["before"])
        down.touch()
        went = time.time()
        time.sleep(given["outage"])
        down.unlink()
        back = time.time()
        report = load.wait()
    stage.wait_until(lambda: depth(app) == 0, _PATIENCE + given["outage"], "the end of all jobs", 0.2)
    needing = {seq for seq in range(load.jobs) if mix.kind(stage.seed, seq) == "dependent"}
    _spread(stage, needing, went, back)
    (end,) = app.backlog(QUEUE)
    stage.record("accepted", report.accepted, "jobs")
    stage.record("dead", end.dead, "jobs")
    done = by_seq(stage.effects)
    others = [each[0][1] for seq, each in done.items() if seq not in needing]
    during = sum(went <= at < back for at in others) / (back - went)
    stage.record("healthy during the outage", 100 * during / (0.95 * given["rate"]), "%")


def _spread(stage: Stage, needing: set[int], went: float, back: float) -> None:
    """When jobs that met the outage were tried again."""
    starts = {seq: sorted(at for _, at in each) for seq, each in by_seq(stage.starts).items() if seq in needing}
    met = {seq: at for seq, at in starts.items() if len(at) > 1 and went <= at[0] < back}
    firsts = Counter(int(at[1] - went) for at in met.values())
    stage.record("met the outage", len(met), "jobs")
    stage.record("fullest second of first retries", 100 * max(firsts.values(), default=0) / max(1, len(met)), "%")
    stage.record("tries a job", sum(map(len, met.values())) / max(1, len(met)), "tries")
    retries = Counter(int(at - went) for tries in met.values() for at in tries[1:])
    shift = time.monotonic() - time.time()
    for second in range(int(max((at[-1] for at in met.values()), default=back) - went) + 1):
        stage.sample("retries", went + second + shift, retries[second])
        stage.sample("first retries", went + second + shift, firsts[second])
    ends = sorted(at - back for each in by_seq(stage.effects).items() if each[0] in met for _, at in each[1])
    if ends:
        stage.record("last done after recovery", ends[-1], "s")
        stage.record("half done after recovery", max(0.0, ends[len(ends) // 2]), "s")


def _at_once(case: ExperimentCase, stage: Stage) -> None:
    """All of them fail in the same moment: the crowd that a fixed delay keeps together."""
    given = case.settings
    lab_server = stage.lab_server()
    app = stage.app(lab_server)
    routing = Routing(max_attempts=25, backoff=_BACKOFFS[given["backoff"]])
    app.store.put_spec(QueueSpec(name=_HERD, routing=routing))
    down = stage.directory / "down"
    down.touch()
    app.enqueue_many(Draft("dependent", {"seq": seq, "ms": 1}, _HERD) for seq in range(given["jobs"]))
    shape = {"processes": 1, "concurrency": given["jobs"], "claim_batch": given["jobs"], "queues": (_HERD,)}
    tallied = stage.fleet(lab_server, **shape, starts=True, env={DEPENDENCY: str(down)})
    stage.wait_until(lambda: tallied.claimed() > 0, _PATIENCE, "the first job")
    time.sleep(given["outage"])
    down.unlink()
    stage.wait_until(lambda: depth(app, _HERD) == 0, _PATIENCE, "the end of all jobs", 0.1)
    starts = {seq: sorted(at for _, at in each) for seq, each in by_seq(stage.starts).items()}
    firsts = Counter(int((at[1] - at[0]) / _BIN) for at in starts.values() if len(at) > 1)
    (end,) = app.backlog(_HERD)
    stage.record("dead", end.dead, "jobs")
    stage.record("fullest tenth", 100 * max(firsts.values(), default=0) / max(1, sum(firsts.values())), "%")
    stage.record("tries a job", sum(map(len, starts.values())) / max(1, len(starts)), "tries")


def _judge(found: ExperimentResults) -> list[Conclusion]:
    sentences = [
        zero(found, "dead", "jobs in the dead letters, though the dependency came back"),
        at_most(found, "fullest second of first retries", 15.0, "the fullest second of first retries"),
    ]
    fixed, jitter = (found.value(f"postgres-at-once-{name}", "fullest tenth") for name in ("fixed", "jitter"))
    if fixed is not None and jitter is not None:
        sentences.append(
            Conclusion(
                f"of 500 that failed at once, {fixed:.0f} % came back in one tenth of a second with a fixed delay, "
                f"{jitter:.0f} % with full jitter",
                jitter < fixed / 2,
            )
        )
    for case, cell in found.of("last done after recovery").items():
        sentences.append(Conclusion(f"{case}: all that met the outage were done {cell.median:.1f} s after it"))
    for case, cell in found.of("healthy during the outage").items():
        sentences.append(Conclusion(f"{case}: the others ran at {cell.median:.0f} % of their rate", cell.median >= 90))
    return sentences


EXPERIMENT: Final = Experiment(
    6,
    "Flapping dependency",
    "Full jitter spreads what failed together, exponential growth keeps the number of tries small however long the "
    "outage is, and no job dies of it: all are done within one cap of the recovery.",
    "The backoff's cap bounds how long after the recovery the last one is done; no resource is near its bound.",
    _cases,
    _run,
    _judge,
    (Chart("In one tenth of a second", "The fullest bin of first retries.", "fullest tenth", " %", "backoff"),),
    (TimeChart("Retries", "Of jobs that met the outage, by the second.", ("retries", "first retries")),),
)
