"""The experiments: every one is whole and bounded, its judgement bites, and a run goes on where it stopped."""

import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import playwright
import pytest

from forebay.core.errors import Invalid
from forebay.core.lease import Heartbeat, Lease
from forebay.store.protocol import Beating
from forebay_proof.lab.experiments import EXPERIMENTS, e09_shutdown, experiment
from forebay_proof.lab.experiments.base import (
    SCALES,
    STORES,
    Conclusion,
    Experiment,
    ExperimentCase,
    ExperimentResults,
    Statistic,
)
from forebay_proof.lab.experiments.stage import Stage
from forebay_proof.lab.experiments.window import evenness
from forebay_proof.lab.runner import ExperimentRunner, RunStep, name_of, results_at, steps_of
from forebay_proof.load.probed_store import ProbedStore, ignore_claim
from forebay_proof.tally import CLAIM, ENQUEUE, Tallies, TallyFile

ROOT = Path(__file__).parents[2]
NODE = Path(playwright.__file__).parent / "driver" / "node"
"""The one that the wheel of Playwright carries."""

MINUTES = {"quick": 8, "full": 75, "release": 300}


@pytest.mark.parametrize("each", EXPERIMENTS, ids=name_of)
def test_every_experiment_is_whole(each: Experiment) -> None:
    assert len(each.hypothesis) > 40
    assert len(each.bound) > 40
    for scale in SCALES:
        cases = each.cases(scale)
        names = [case.name for case in cases]
        assert len(set(names)) == len(names) > 1
        assert all(0 < case.seconds < 600 and 1 <= case.rounds <= 5 for case in cases)
        assert "postgres" in {case.store for case in cases}
    used = {key for case in each.cases("full") for key in (*case.settings, "store")}
    assert {chart.over for chart in each.charts} | {chart.line for chart in each.charts} <= used
    assert all(0 < len(finding.sentence) < 300 for finding in each.judge(ExperimentResults({}, {})))
    assert not any(finding.holds for finding in each.judge(ExperimentResults({}, {})))


def test_there_are_ten_within_their_time() -> None:
    assert [each.number for each in EXPERIMENTS] == list(range(1, 11))
    for scale in SCALES:
        assert sum(each.seconds(scale) for each in EXPERIMENTS) < 60 * MINUTES[scale]
    assert experiment(4).title == "Job loss"
    with pytest.raises(Invalid, match="use 1 … 10"):
        experiment(11)


@pytest.mark.parametrize(("name", "store"), [("A", "sqlite"), ("", "sqlite"), ("a/b", "sqlite"), ("a", "memory")])
def test_a_case_has_a_name_and_a_store_of_the_lab(name: str, store: str) -> None:
    with pytest.raises(Invalid):
        ExperimentCase(name, store, {}, 1)


def found(**values: tuple[dict[str, Any], dict[str, float]]) -> ExperimentResults:
    """Of cases: settings and metrics."""
    cells = {
        (case.replace("_", "-"), metric): Statistic(value, value, value, 1, "")
        for case, (_, metrics) in values.items()
        for metric, value in metrics.items()
    }
    return ExperimentResults(cells, {case.replace("_", "-"): settings for case, (settings, _) in values.items()})


def broken(number: int, measured: ExperimentResults) -> list[str]:
    return [finding.sentence for finding in experiment(number).judge(measured) if finding.holds is False]


LOSS = {"lost": 0, "doubled": 0, "unfinished": 0, "cut off and never again": 0, "recovery p99": 0.4, "passed": 1}
SHUT = {"in flight": 200, "lost": 0, "effects twice": 0, "dead": 0, "exit code": 0, "finished by the first": 200}
LATE = {"late p99": 30.0, "not fired": 0, "fired twice": 0, "too early": 0}


@pytest.mark.parametrize(
    ("number", "settings", "good", "bad"),
    [
        (4, {"recovery": 3.0}, LOSS, {"lost": 1}),
        (4, {"recovery": 3.0}, LOSS, {"doubled": 1}),
        (4, {"recovery": 3.0}, LOSS, {"recovery p99": 3.5}),
        (4, {"recovery": 3.0}, LOSS, {"passed": 0}),
        (8, {"backlog": 9}, LATE, {"late p99": 1_500.0}),
        (8, {"backlog": 9}, LATE, {"too early": 1}),
        (9, {"drain": "enough"}, SHUT, {"in flight": 199}),
        (9, {"drain": "enough"}, SHUT, {"finished by the first": 180}),
        (9, {"drain": "enough"}, SHUT, {"exit code": 1}),
        (6, {}, {"dead": 0, "fullest second of first retries": 4.0}, {"fullest second of first retries": 16.0}),
        (7, {}, {"poison not dead": 0, "wrong attempts": 0}, {"wrong attempts": 2}),
    ],
)
def test_a_judgement_bites(
    number: int, settings: dict[str, Any], good: dict[str, float], bad: dict[str, float]
) -> None:
    assert broken(number, found(one=(settings, good), two=(settings, good))) == []
    assert broken(number, found(one=(settings, good), two=(settings, good | bad))) != []


def test_without_renewal_there_must_be_harm_and_with_it_none() -> None:
    def judged(with_it: float, without: float) -> list[str]:
        cases = {
            "a_with": ({"renewing": True, "jobs": 9}, {"ran more than once": with_it}),
            "a_without": ({"renewing": False, "jobs": 9}, {"ran more than once": without, "at once": without}),
        }
        return broken(10, found(**cases))

    assert judged(0, 5) == []
    assert len(judged(0, 0)) == 1
    assert len(judged(1, 5)) == 1


def test_the_ceiling_is_named_by_what_is_taken_away() -> None:
    whole = ({"without": "nothing"}, {"jobs/s": 100.0, "machine": 99.0})
    measured = found(postgres_without_nothing=whole, postgres_without_a_core=({"without": "a-core"}, {"jobs/s": 55.0}))
    sentences = [finding.sentence for finding in experiment(2).judge(measured)]
    assert any("half the cores, 0.55 × the rate" in sentence for sentence in sentences)
    assert broken(2, found(postgres_without_nothing=whole, postgres_without_a_core=whole)) != []


def test_a_tally_is_read_while_it_is_written(tmp_path: Path) -> None:
    written = TallyFile.of_this_process(tmp_path)
    for micros in range(1, 1_001):
        written.add(CLAIM, micros / 1e6)
        written.count(3)
    tallies = Tallies(tmp_path)
    (read,) = tallies.all().values()
    before = read.histogram(CLAIM)
    assert (read.jobs, before.total, read.histogram(ENQUEUE).total) == (3_000, 1_000, 0)
    assert before.percentile(99) == pytest.approx(990e-6, rel=0.03)
    assert read.seconds(CLAIM) == pytest.approx(500_500e-6)
    written.add(CLAIM, 1e9)
    written.count()
    assert (tallies.jobs(), tallies.histogram(CLAIM).minus(before).total) == (3_001, 1)
    (tmp_path / "1.tally").write_bytes(b"")
    assert len(tallies.all()) == 1


def test_node_writes_the_same_tally(tmp_path: Path) -> None:
    """The peers in Node have a writer of their own; both must agree on every bucket."""
    latencies = [0.0, 1e-7, 1e-6, 1.000001e-6, 3.3e-5, 0.0123, 1.0, 7200.0]
    script = f"""
        const {{ Tally }} = require("./proof/src/forebay_proof/bench/clients/tally.cjs");
        const tally = new Tally({str(tmp_path)!r});
        for (const seconds of {latencies}) tally.add("enqueue", seconds);
        tally.jobs += 5;
        tally.flush();
    """
    subprocess.run([NODE, "-e", script], check=True, cwd=ROOT, timeout=60)
    mine = TallyFile(tmp_path / "mine", new=True)
    for seconds in latencies:
        mine.add(ENQUEUE, seconds)
    (read,) = Tallies(tmp_path).all().values()
    assert read.jobs == 5
    assert read.histogram(ENQUEUE) == mine.histogram(ENQUEUE)
    assert read.seconds(ENQUEUE) == pytest.approx(mine.seconds(ENQUEUE))


def test_evenness_is_one_where_all_have_as_much_and_a_share_where_one_has_all() -> None:
    assert evenness([5, 5, 5, 5]) == 1
    assert evenness([20, 0, 0, 0]) == 0.25
    assert evenness([]) == 1


def test_a_worker_whose_heartbeats_are_words_has_no_other_way_to_renew() -> None:
    """Whatever a store learns to renew by, a worker without renewal must not have it."""

    class Beats:
        def beat(self, leases: object, lease_for: object) -> Heartbeat:
            raise AssertionError("the store was called")

        def extend(self, leases: object, lease_for: object) -> list[Lease]:
            raise AssertionError("the store was called")

        def now(self) -> int:
            return 7

    store: Any = Beats()
    assert isinstance(ProbedStore(store, ignore_claim, renewing=True), Beating)
    silent = ProbedStore(store, ignore_claim, renewing=False)
    assert not isinstance(silent, Beating)
    assert silent.extend([], timedelta(seconds=1)) == []
    assert silent.now() == 7


def imaginary(run: Callable[[ExperimentCase, Stage], None]) -> Experiment:
    """On no store at all."""
    cases = [ExperimentCase(name, "sqlite", {"size": size}, 1.0, 2) for size, name in enumerate(("a", "b", "c"))]
    return Experiment(1, "t", "h", "b", lambda _: cases, run, lambda _: [Conclusion("s")])


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(case: ExperimentCase, stage: Stage) -> None:
        ran.append(case.name)
        stage.record("size", case.settings["size"], "m")
        if case.name == "b" and ran.count("b") == 1:
            raise ArithmeticError("no")
        if len(ran) == 4:
            raise KeyboardInterrupt

    def go() -> list[str]:
        results = results_at(tmp_path, "quick", 7)
        return ExperimentRunner(results, 7, output.append).run(steps_of([imaginary(run)], "quick"))

    output: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        go()
    assert ran == ["a", "b", "c", "a"]
    assert go() == []
    assert ran == ["a", "b", "c", "a", "b", "a", "b", "c"]
    assert go() == []
    assert len(ran) == 8
    assert "failed: 1 t: b, round 1 of 2: ArithmeticError: no" in output
    rows = results_at(tmp_path, "quick", 7).rows("e01")
    assert sorted((row["case"], row["round"], row["value"]) for row in rows) == [
        (name, number, size) for size, name in enumerate("abc") for number in (1, 2)
    ]
    assert not results_at(tmp_path, "full", 7).done("e01", "a", 1)


def test_a_store_alone_can_be_chosen() -> None:
    chosen = steps_of(EXPERIMENTS, "full", ["redis"])
    assert {step.case.store for step in chosen} == {"redis"}
    assert len(steps_of(EXPERIMENTS, "full")) == sum(case.rounds for each in EXPERIMENTS for case in each.cases("full"))
    assert set(STORES) == {step.case.store for step in steps_of(EXPERIMENTS, "full")}


def test_a_real_experiment_on_sqlite(tmp_path: Path) -> None:
    settings = {"drain": "enough", "ms": 400, "drain_seconds": 10.0, "jobs": 250}
    each = e09_shutdown.EXPERIMENT
    results = results_at(tmp_path, "quick", 7)
    assert (
        ExperimentRunner(results, 7, lambda _: None).run(
            [RunStep(each, ExperimentCase("sqlite-enough", "sqlite", settings, 5), 1)]
        )
        == []
    )
    rows = {row["metric"]: row["value"] for row in results.rows("e09")}
    assert rows["in flight"] == rows["finished by the first"] == 200, rows
    assert (rows["lost"], rows["effects twice"], rows["exit code"], rows["second exit code"]) == (0, 0, 0, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("each", EXPERIMENTS, ids=name_of)
def test_every_experiment_runs(each: Experiment, tmp_path: Path) -> None:
    results = results_at(tmp_path, "quick", 7)
    assert ExperimentRunner(results, 7, lambda _: None).run(steps_of([each], "quick")) == []
    assert {row["case"] for row in results.rows(name_of(each))} == {case.name for case in each.cases("quick")}
