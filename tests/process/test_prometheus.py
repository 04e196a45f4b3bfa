"""A real Prometheus with the shipped configuration, a real server and a real worker: rules work and alerts fire."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay import QueueSpec
from forebay.client import Forebay
from forebay.core.policy import Retained
from forebay_proof.servers.process import ServerUnavailable, free_port
from forebay_proof.servers.prometheus import CONFIGURATION, Prometheus, find_programs, promtool
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "prometheus"
BOARD = ROOT / "deploy" / "grafana" / "forebay.json"
JOBS = 200
APP = """
from forebay.client import Forebay
from forebay.core.breaker import Breaker
from forebay.core.instant import seconds

fb = Forebay()

@fb.job(queue="mail")
async def send(n: int) -> None: ...

@fb.job(queue="mail", max_attempts=2, breaker=Breaker(failures=2, cooldown=seconds(600)))
def broken() -> None:
    raise OSError("down")
"""


@pytest.fixture(autouse=True)
def there() -> None:
    try:
        find_programs()
    except ServerUnavailable as error:
        pytest.skip(str(error))


def test_the_shipped_files_are_content(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "prometheus")
    (folder / "forebay.key").write_text("fb_x")
    assert "SUCCESS" in promtool(folder, "check", "config", CONFIGURATION)
    assert promtool(folder, "check", "rules", "rules.yml", "alerts.yml").count("SUCCESS") == 2


def test_every_alert_fires_in_its_test(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "prometheus")
    assert "SUCCESS" in promtool(folder, "test", "rules", "alerts_test.yml")
    alerts = (folder / "alerts.yml").read_text()
    for name, before, after in MUTANTS:
        assert alerts.count(before) == 1, name
        (folder / "alerts.yml").write_text(alerts.replace(before, after))
        with pytest.raises(subprocess.CalledProcessError, match="exit status"):
            promtool(folder, "test", "rules", "alerts_test.yml")


MUTANTS = [
    (
        "a limit that is never reached",
        "forebay_postgres_held_snapshot_seconds) > 300",
        "forebay_postgres_held_snapshot_seconds) > 9e9",
    ),
    (
        "one lagging server is enough",
        "min by (job, queue) (forebay_queue_stalled",
        "max by (job, queue) (forebay_queue_stalled",
    ),
    ("another state", 'forebay_breaker_state{state="open"}', 'forebay_breaker_state{state="closed"}'),
    (
        "a share without a floor",
        "forebay:lease_reclaims:rate5m > 0.05 and forebay:lease_reclaims:rate5m /",
        "forebay:lease_reclaims:rate5m < 0.05 and forebay:lease_reclaims:rate5m /",
    ),
    (
        "a group that catches up",
        " and forebay:log_lag_entries >= forebay:log_lag_entries offset 10m",
        "",
    ),
    ("a line that is free", "(forebay_queue_blocked_lines) > 0", "(forebay_queue_blocked_lines) >= 0"),
]


@contextmanager
def running(directory: Path, url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "FOREBAY_URL": url, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(directory)))}
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", *words], cwd=directory, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def until(holds: Callable[[], bool], what: str, directory: Path) -> None:
    eventually(holds, what, PATIENCE, lambda: (directory / "log").read_text()[-2_000:])


def configuration(server: int, worker: int) -> dict[str, str]:
    """As it is shipped, but for the targets and a quicker pace."""
    files = {name: (SHIPPED / name).read_text() for name in (CONFIGURATION, "rules.yml", "alerts.yml")}
    text = files[CONFIGURATION].replace("127.0.0.1:8321", f"127.0.0.1:{server}")
    text = text.replace("127.0.0.1:9464", f"127.0.0.1:{worker}").replace("interval: 15s", "interval: 1s")
    assert text.count("127.0.0.1:") == 2
    return files | {CONFIGURATION: text}


def made_key(directory: Path, url: str) -> str:
    words = [sys.executable, "-m", "forebay", "keys", "create", "--role", "viewer", "--store", url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def board() -> list[str]:
    panels = json.loads(BOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [each.replace("$job", "forebay").replace("$queue", ".*") for each in found]


def test_what_a_real_prometheus_makes_of_it(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    server, worker = free_port(), free_port()
    files = configuration(server, worker) | {"forebay.key": made_key(tmp_path, postgres_url)}
    fb = Forebay(postgres_url)
    fb.queue(QueueSpec(name="clicks", retention=Retained(1)))
    fb.store.append("clicks", [b"1", b"2"])
    fb.store.commit("clicks", "readers", 0, 0)

    def one_more() -> bool:
        return fb.enqueue("send", {"n": 0}, queue="mail").durable

    def value(expression: str) -> float:
        samples = prometheus.query(expression)
        return float(samples[0]["value"][1]) if samples else float("nan")

    with (
        running(tmp_path, postgres_url, "serve", "--port", str(server), "--no-dashboard"),
        Prometheus(files) as prometheus,
    ):
        until(lambda: value('up{job="forebay"}') == 1, "the server is scraped", tmp_path)
        with running(tmp_path, postgres_url, "worker", "shop:fb", "--metrics", str(worker)) as process:
            until(lambda: value('up{job="forebay-workers"}') == 1, "the worker is scraped", tmp_path)
            for n in range(JOBS):
                fb.enqueue("send", {"n": n}, queue="mail")
            for _ in range(4):
                fb.enqueue("broken", {}, queue="mail")
            until(lambda: value('forebay_jobs_acked_total{kind="send"}') == JOBS, "all are counted", tmp_path)
            until(lambda: value('forebay:queue_jobs{queue="mail", state="ready"}') == 0, "none is left", tmp_path)
            # The first scrape of a counter may see its last value already: a rate needs jobs between two scrapes.
            until(lambda: one_more() and value("forebay:jobs_acked:rate1m") > 0, "rates are recorded", tmp_path)
            until(lambda: value("forebay:job_wait_seconds:p99") > 0, "percentiles are recorded", tmp_path)
            until(lambda: value("forebay:claim_duration_seconds:p99") > 0, "claims are measured", tmp_path)
            until(lambda: value('forebay_breaker_state{state="open"}') == 1, "the breaker is open", tmp_path)
            for expression in board():
                prometheus.query(expression)
            empty = [each for each in board() if not prometheus.query(each)]
            assert [each for each in empty if not RARE.search(each)] == []
            rules = [rule for group in prometheus.groups() for rule in group["rules"]]
            assert {rule["health"] for rule in rules} == {"ok"}
            assert [rule.get("lastError") for rule in rules if rule.get("lastError")] == []
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        fb.enqueue("send", {"n": 0}, queue="mail")
        until(
            lambda: prometheus.alerts().get("ForebayNoProgress") == "firing",
            "no worker runs, and the alert fires",
            tmp_path,
        )
        assert prometheus.alerts().get("ForebayWorkerDown") in ("pending", "firing")
        assert "ForebayServerDown" not in prometheus.alerts()
    fb.close()


def test_every_process_of_a_supervisor_has_its_own_port(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    port = free_port()

    def scraped(at: int) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{at}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    url = f"sqlite:///{tmp_path}/jobs.db"
    with running(tmp_path, url, "worker", "shop:fb", "--processes", "2", "--metrics", str(port)):
        until(lambda: all("forebay_worker_healthy 1" in scraped(port + n) for n in range(2)), "both answer", tmp_path)


RARE = re.compile(r"refusals|rate_limited|conflicts|dead_oldest|lateness|verb=\"claim\"|lease_reclaims|share|stalled")
"""What shows only when something is refused, dead, late or claimed over HTTP."""
