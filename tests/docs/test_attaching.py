"""Sentry, structlog and OpenTelemetry attach by the lines of the guide, with the real libraries and a real worker."""

import asyncio
import re
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
import structlog
from opentelemetry import metrics
from opentelemetry.metrics import _internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sentry_sdk.envelope import Envelope

from forebay import Forebay, Snooze
from forebay.work.worker import Worker

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "hooks.md"
FIRST = "import time\nfrom collections.abc import Iterator\nfrom forebay import Context, Draft, Forebay\nfb = Forebay('memory://')\n"
MAX_LINES = 10


def attached(heading: str, tmp_path: Path) -> Forebay:
    """An app with the lines of this part of the guide, and a plain and an async handler that fail."""
    section = GUIDE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for block in blocks:
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert len(lines) <= MAX_LINES, "it attaches by ten lines besides imports"
    script = tmp_path / "attach.py"
    script.write_text(FIRST + "\n".join(blocks))
    fb: Forebay = runpy.run_path(str(script))["fb"]
    log = structlog.get_logger()

    @fb.job(max_attempts=1)
    def plain(n: int) -> None:
        log.info("plain", n=n)
        raise ValueError("plainly")

    @fb.job(max_attempts=1)
    async def awaited(n: int) -> None:
        await asyncio.sleep(0)
        log.info("awaited", n=n)
        raise KeyError("awaited")

    @fb.job
    def later() -> None:
        raise Snooze(3600)

    return fb


@contextmanager
def worked_on(fb: Forebay) -> Iterator[list[int]]:
    """The ids of one job of each kind, once they have run."""
    worker = Worker(fb)
    worker.start()
    try:
        snoozed = fb.enqueue("later").id
        ids = [fb.enqueue("plain", {"n": 1}).id, fb.enqueue("awaited", {"n": 2}).id]
        for job_id in ids:
            fb.wait_for(job_id)
        worker.drain(5)
        yield [*ids, snoozed]
    finally:
        fb.close()


class _Kept(sentry_sdk.Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [item.payload.json for item in envelope.items if item.type == "event"]


def test_sentry_gets_each_failure_with_its_job_and_no_snooze(tmp_path: Path) -> None:
    transport = _Kept()
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1", transport=transport, include_local_variables=False, ignore_errors=[Snooze]
    )
    try:
        with worked_on(attached("Sentry", tmp_path)):
            pass
    finally:
        sentry_sdk.get_client().close()
        sentry_sdk.init()
    found = {event["tags"]["kind"]: event["exception"]["values"][-1]["type"] for event in transport.events}
    assert found == {"plain": "ValueError", "awaited": "KeyError"}
    assert len(transport.events) == 2
    assert all(event["tags"]["queue"] == "default" for event in transport.events)
    assert all(event["tags"]["attempt"] == "1" for event in transport.events)


def test_structlog_names_the_job_in_every_line(tmp_path: Path) -> None:
    merge = structlog.contextvars.merge_contextvars
    with structlog.testing.capture_logs(processors=[merge]) as lines, worked_on(attached("structlog", tmp_path)) as ids:
        pass
    found = {line["event"]: (line["job"], line["kind"], line["attempt"]) for line in lines}
    assert found == {"plain": (ids[0], "plain", 1), "awaited": (ids[1], "awaited", 1)}
    assert structlog.contextvars.get_contextvars() == {}


def test_opentelemetry_measures_runs_and_enqueues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(_internal, "_METER_PROVIDER", provider)
    assert metrics.get_meter_provider() is provider
    with worked_on(attached("OpenTelemetry", tmp_path)):
        data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {
        metric.name: [(dict(point.attributes or {}), point) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    runs = {point[0].get("error.type"): point[1] for point in found["messaging.process.duration"]}
    assert {name: point.count for name, point in runs.items()} == {"ValueError": 1, "KeyError": 1, "Snooze": 1}
    ((attributes, sent),) = found["messaging.client.sent.messages"]
    assert attributes == {"messaging.system": "forebay", "messaging.destination.name": "default"}
    assert sent.value == 3
    provider.shutdown()
