"""Rows that decide have the names and goals of their issue; one that is named after a peer is ours over theirs."""

from typing import Final

import pytest

from forebay_proof.bench import postgres
from forebay_proof.bench.clients.cell import Measurement
from forebay_proof.bench.clients.peer import Peers
from forebay_proof.bench.measure import Figure, run
from forebay_proof.bench.pg import flow
from forebay_proof.bench.pg.server import Bench
from forebay_proof.bench.pg.sweep import Sweep
from forebay_proof.bench.rd.comparison import drain_figures
from forebay_proof.bench.rd.server import RedisBench
from tests.docs.figures import RUNS

OURS, THEIRS = 6.0, 2.0
OVER_PEERS: Final = {
    "drain/graphile": "≥ 5",
    "drain_unlike/graphile": "≥ 3.5",
    "end_to_end/pgbench": "≥ 0.8",
    "single_enqueue/pgqueuer": "≥ 1",
    "latency/graphile": "≤ 0.8",
}
GOALS: Final = {
    **OVER_PEERS,
    "failing/none": "≥ 0.85",
    "defaults/tuned": "≥ 0.8",
    "drain_unlike/forebay": "≥ 60,000",
    "fleet/8x64": "≥ 40,000",
    "fleet/8x64/claim-p99": "< 15",
    "latency/80-percent/claim-p99": "< 10",
    "single_claim/forebay/server-cpu": "≤ 200",
    "snapshot/held": "≥ 0.8 ×",
    "scale/queues-1000/per-cpu-second": "≥ 0.83 ×",
    "scale/tenants-100000/per-cpu-second": "≥ 0.83 ×",
    "scale/fair-tenants-100000/per-cpu-second": "≥ 0.83 ×",
    "scale/depth-singles-10M/per-cpu-second": "≥ 0.83 ×",
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Those of Postgres at full length where every peer and pgbench are installed; what each would read is known."""
    every = property(lambda peers: {peer.project: "1.0" for peer in peers._known})
    monkeypatch.setattr(Peers, "versions", every)
    monkeypatch.setattr(flow, "find_pgbench", lambda: "pgbench")
    monkeypatch.setattr(Measurement, "read", lambda cell, *_: OURS if "forebay" in cell.name else THEIRS)
    bench = Bench()
    themes = postgres.themes(bench, False, Sweep(bench, 1, 1))
    return {figure.name: figure for group, _ in themes for figure in group}


@pytest.mark.parametrize(("name", "goal"), GOALS.items())
def test_a_row_has_the_goal_of_its_issue(figures: dict[str, Figure], name: str, goal: str) -> None:
    assert figures[name].goal == goal


@pytest.mark.parametrize("name", OVER_PEERS)
def test_a_row_named_after_a_peer_is_ours_over_theirs(figures: dict[str, Figure], name: str) -> None:
    assert figures[name].unit == "×"
    assert figures[name].measure() == OURS / THEIRS
    raw = [f"{name.replace('_unlike', '')}-{what}" for what in ("rate", "time")]
    assert [figures[each].measure() for each in raw if each in figures] == [THEIRS]


def test_a_backlog_on_redis_has_its_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {figure.name: figure.goal for figure in drain_figures(RedisBench("everysec"), 1)}[
        "drain/forebay"
    ] == "≥ 40,000"


@pytest.mark.parametrize("command", [command for command in RUNS.values() if "run postgres" in command])
def test_a_recorded_command_selects_figures_by_each_of_its_words(figures: dict[str, Figure], command: str) -> None:
    assert "--quick" not in command
    for word in command.rpartition(" ")[2].split(","):
        assert [name for name in figures if name.startswith(word)], word


def test_only_takes_several_parts_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    def figure(name: str, baseline: str | None = None) -> Figure:
        return Figure(name, "jobs/s", lambda: 1.0, baseline)

    made = [figure("drain/a"), figure("drain_unlike/b", "base"), figure("bulk/c"), figure("base")]
    run(made, rounds=1, only="drain/,unlike", as_json=False)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["drain/a", "drain_unlike/b", "base"]
