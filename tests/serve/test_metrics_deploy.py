"""What is shipped in deploy/ fits the program: names of metrics, alerts, their pages, and command lines."""

import json
import re
import shlex
from pathlib import Path

import pytest

from forebay.cli.parser import build, commands
from forebay.client import Forebay
from forebay.core.instant import hours
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.serve.metrics import families
from forebay.serve.metrics.server_metrics import Metrics
from forebay.store.open import open_store
from forebay.store.protocol import Capabilities, Vitals
from forebay.work.metrics_server import families as worker_families
from forebay.work.options import Options
from forebay.work.worker import Worker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES, ALERTS, TESTS = (DEPLOY / "prometheus" / name for name in ("rules.yml", "alerts.yml", "alerts_test.yml"))
BOARD = DEPLOY / "grafana" / "forebay.json"
PAGE = ROOT / "docs" / "guides" / "monitoring.md"
METRIC = re.compile(r"\bforebay_(?!proof\b)[a-z0-9_]+\b")
RECORDED = re.compile(r"\bforebay:[a-z0-9_:]+\b")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every name that a server on Postgres and a worker may show."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('names')}/jobs.db")
    store.put_spec(QueueSpec(name="log", retention=Retained(window=hours(1))))
    store.append("log", [b"1"])
    store.commit("log", "group", 0, -1)
    metrics = Metrics(store)
    metrics.poller.poll(slowly=True)
    vitals = Vitals({}, True, 0.0, {}, 0, 0, True)
    response = [*metrics.families(), *families.server(vitals, Capabilities("postgres", durable=True))]
    fb = Forebay("memory://")
    worker = Worker(fb, Options())
    worker.pool.start()
    response += worker_families(worker)
    worker.pool.close()
    fb.close()
    store.close()
    names = {family.name for family in response}
    spread = {family.name for family in response if family.kind == "histogram"}
    return names | {f"{name}_{part}" for name in spread for part in ("bucket", "count", "sum")}


def board_expressions() -> list[str]:
    board = json.loads(BOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


@pytest.mark.parametrize("file", [RULES, ALERTS, TESTS, BOARD], ids=lambda path: path.name)
def test_every_metric_that_is_used_exists(file: Path, exposed: set[str]) -> None:
    used = set(METRIC.findall(file.read_text()))
    assert used, "it uses none at all"
    assert used - exposed == set()


def test_every_metric_that_the_page_names_exists(exposed: set[str]) -> None:
    named = {name for name in METRIC.findall(PAGE.read_text()) if not name.endswith("_")}
    assert named - exposed == set()


def test_every_recorded_name_that_is_used_is_recorded() -> None:
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    used = set(RECORDED.findall(ALERTS.read_text())) | {
        name for each in board_expressions() for name in RECORDED.findall(each)
    }
    assert used <= recorded
    assert recorded - used == set(), "unused rules need not be recorded"


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text())


def test_every_alert_has_a_page_and_a_test_that_fires_it() -> None:
    names = alerts()
    assert len(names) == len(set(names)) >= 8
    sections = re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == names, "one section each, in the order of the alerts"
    tested = TESTS.read_text().split("alertname: ")[1:]
    fired = {each.split()[0] for each in tested if "exp_labels" in each.split("alertname")[0]}
    assert fired == set(names)


def test_every_section_says_where_to_look_and_what_to_do() -> None:
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        text = section.split("\n## ")[0]
        assert "*Look" in text, text[:40]
        assert "*do*" in text.lower() or "*do:*" in text.lower(), text[:40]


def test_the_board_is_whole() -> None:
    board = json.loads(BOARD.read_text())
    panels = board["panels"]
    assert next(panel["title"] for panel in panels if panel["type"] == "row") == "Rates", "rates first"
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(target["expr"] for panel in panels for target in panel.get("targets", []))


def command_lines() -> list[str]:
    """Every `forebay …` of the units, of Kubernetes, and of the page."""
    units = [line for unit in (DEPLOY / "systemd").iterdir() for line in unit.read_text().splitlines()]
    lines = [line.partition("/bin/")[2].replace("%i", "9464") for line in units if line.startswith("ExecStart=")]
    kubernetes = (DEPLOY / "kubernetes" / "forebay.yaml").read_text()
    lines += [found.replace(",", " ") for found in re.findall(r"args: \[(.*)\]", kubernetes)]
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines += [line.partition("#")[0].partition(">")[0] for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(forebay [a-z][^`|]*)", PAGE.read_text())
    return [line.strip() for line in lines if line.startswith("forebay ")]


@pytest.mark.parametrize("line", sorted(set(command_lines())))
def test_every_command_line_is_understood(line: str) -> None:
    words = [word.replace("NAME", "mail").replace("ID", "7") for word in shlex.split(line)[1:]]
    if len(words) <= 2 and not any(word.startswith("-") for word in words):
        # Named in passing, without what it needs.
        with pytest.raises(SystemExit, match="0"):
            build(commands()).parse_known_args([*words, "--help"])
        return
    chosen, left = build(commands()).parse_known_args(words)
    assert left == []
    assert chosen.command is not None
