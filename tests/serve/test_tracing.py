"""Traces from producer to handler, with OpenTelemetry's own SDK and a real worker; and nothing at all without it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from forebay.client import Forebay
from forebay.core.instant import ms
from forebay.core.limits import META_ENTRIES
from forebay.core.policy import Fixed, Routing
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.tracing import PARENT, STATE, carried, spans
from forebay.work.handler import Snooze
from forebay.work.options import Options
from forebay.work.worker import Worker
from tests.serve.site import Site

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A provider for this test alone."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return kept


@pytest.fixture
def fb(tmp_path: Path) -> Iterator[Forebay]:
    app = Forebay(f"sqlite:///{tmp_path}/jobs.db")
    app.queue(QueueSpec(name="default", routing=Routing(3, Fixed(ms(1)))))
    yield app
    app.close()


@contextmanager
def working(fb: Forebay, target: str | None = None) -> Iterator[None]:
    worker = Worker(fb, Options(concurrency=4), target=target)
    worker.start()
    try:
        yield
    finally:
        worker.drain(10)


def ended(fb: Forebay, *ids: int) -> None:
    for job_id in ids:
        job = fb.wait_for(job_id, 30)
        assert job is None or job.state.terminal


def consumers(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CONSUMER]


def test_a_handler_runs_inside_a_span_that_descends_from_its_producer(
    fb: Forebay, exporter: InMemorySpanExporter
) -> None:
    seen: list[int] = []

    @fb.job
    def plain(n: int) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    @fb.job
    async def waiting(n: int) -> None:
        await asyncio.sleep(0)
        with trace.get_tracer("app").start_as_current_span("inside"):
            await asyncio.sleep(0.001)
        seen.append(trace.get_current_span().get_span_context().span_id)

    with trace.get_tracer("app").start_as_current_span("order") as order:
        ids = [plain.enqueue(1).id, waiting.enqueue(2).id, fb.enqueue("plain", {"n": 3}).id]
        ids.append(asyncio.run(waiting.aenqueue(4)).id)
    with working(fb):
        ended(fb, *ids)
    found = consumers(exporter)
    origin = order.get_span_context()
    assert len(found) == len(ids) == len(seen)
    for span in found:
        assert span.context.trace_id == origin.trace_id
        assert span.parent is not None
        assert span.parent.span_id == origin.span_id
        assert span.parent.is_remote
        assert [link.context.span_id for link in span.links] == [origin.span_id]
        assert span.name == "process default"
        assert span.status.status_code is StatusCode.UNSET
    assert sorted(span.context.span_id for span in found) == sorted(seen)
    attributes = {str((span.attributes or {})["messaging.message.id"]): dict(span.attributes or {}) for span in found}
    assert attributes[str(ids[0])] == {
        "messaging.system": "forebay",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(ids[0]),
        "messaging.message.body.size": len(b'{"n":1}'),
        "forebay.job.kind": "plain",
        "forebay.job.attempt": 1,
        "forebay.job.delivery": 1,
    }
    inner = [span for span in exporter.get_finished_spans() if span.name == "inside"]
    assert {span.parent.span_id for span in inner if span.parent} <= set(seen)
    assert len(inner) == 2


def test_jobs_at_once_do_not_mix_their_spans(fb: Forebay, exporter: InMemorySpanExporter) -> None:
    """Handlers on one loop that wait for each other: each finds its own span again."""
    met: dict[int, set[int]] = {}
    gate: list[asyncio.Event] = []

    @fb.job
    async def meeting(n: int) -> None:
        if not gate:
            gate.append(asyncio.Event())
        mine = {trace.get_current_span().get_span_context().trace_id}
        if n == 3:
            gate[0].set()
        await gate[0].wait()
        mine.add(trace.get_current_span().get_span_context().trace_id)
        met[n] = mine

    ids, traces = [], []
    for n in range(4):
        with trace.get_tracer("app").start_as_current_span(f"p{n}") as span:
            ids.append(meeting.enqueue(n).id)
            traces.append(span.get_span_context().trace_id)
    with working(fb):
        ended(fb, *ids)
    assert met == {n: {trace_id} for n, trace_id in enumerate(traces)}


def test_every_attempt_is_a_span_and_a_failure_shows_without_its_secrets(
    fb: Forebay, exporter: InMemorySpanExporter
) -> None:
    @fb.job
    def failing(password: str) -> None:
        raise RuntimeError(f"cannot log in with {password}")

    with working(fb):
        ended(fb, failing.enqueue("hunter2-and-more").id)
    found = sorted(consumers(exporter), key=lambda span: int(str((span.attributes or {})["forebay.job.attempt"])))
    assert [(span.attributes or {})["forebay.job.attempt"] for span in found] == [1, 2, 3]
    for span in found:
        assert span.status.status_code is StatusCode.ERROR
        (event,) = span.events
        assert (event.attributes or {})["exception.type"] == "RuntimeError"
        assert "hunter2" not in json.dumps(dict(event.attributes or {}))
        assert span.parent is None


def test_to_be_called_again_later_is_no_error(fb: Forebay, exporter: InMemorySpanExporter) -> None:
    @fb.job
    def patient() -> None:
        if len(consumers(exporter)) == 0:
            raise Snooze(0.001)

    with working(fb):
        ended(fb, patient.enqueue().id)
    assert [span.status.status_code for span in consumers(exporter)] == [StatusCode.UNSET] * 2


def test_an_isolated_handler_is_traced_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, kept = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "spans"
    monkeypatch.setenv("FOREBAY_URL", url)
    monkeypatch.setenv("FOREBAY_SPANS", str(kept))
    from tests.serve.traced_app import alone

    app = Forebay(url)
    app.registry.update(alone._app.registry)
    with working(app, target="tests.serve.traced_app:fb"):
        ended(app, app.enqueue("alone", {"n": 1}, meta={PARENT: GIVEN}).id)
    app.close()
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    by_name = {line["name"]: line for line in lines}
    assert by_name.keys() == {"inside", "process default"}
    assert by_name["process default"]["parent_id"] == f"0x{SPAN}"
    assert by_name["inside"]["parent_id"] == by_name["process default"]["context"]["span_id"]


def test_what_is_carried_in_meta(exporter: InMemorySpanExporter) -> None:
    assert carried(None) is None, "there is no current span"
    with trace.get_tracer("app").start_as_current_span("order") as span:
        context = span.get_span_context()
        here = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert carried({"a": "1"}) == {"a": "1", PARENT: here}
        assert carried({PARENT: "mine"}) == {PARENT: "mine"}, "what the producer says wins"
        full = {f"k{n}": "" for n in range(META_ENTRIES)}
        assert carried(full) == full, "there is no room, and the enqueue does not fail"
        assert carried(None, {PARENT: GIVEN}) == {PARENT: GIVEN}, "a request's own header wins"


@pytest.mark.parametrize(
    "parent", ["", "x", GIVEN + "0", f"00-{'0' * 32}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01", f"{GIVEN}\n"]
)
def test_a_header_that_is_none_is_not_carried(parent: str) -> None:
    assert carried(None, {PARENT: parent}) is None


def test_a_request_over_http_hands_its_trace_on(site: Site) -> None:
    producer = site.client(Role.PRODUCER, headers={"Traceparent": GIVEN, "Tracestate": "a=1"})
    job_id = producer.post("/jobs", json={"kind": "x", "meta": {"mine": "1"}}).json()["job_id"]
    (job,) = site.store.get([job_id])
    assert job is not None
    assert job.meta == {"mine": "1", PARENT: GIVEN, STATE: "a=1"}
    plain = site.client(Role.PRODUCER).post("/jobs", json={"kind": "x"}).json()["job_id"]
    (job,) = site.store.get([plain])
    assert job is not None
    assert job.meta is None


def test_every_line_of_a_batch_has_the_trace_of_its_request(site: Site) -> None:
    headers = {"Traceparent": GIVEN, "Tracestate": "a=1", "Content-Type": "application/x-ndjson"}
    lines = b'{"kind": "x"}\n{"kind": "x", "meta": {"mine": "1"}}\n{"kind": "x", "meta": {"traceparent": "own"}}\n'
    answer = site.client(Role.PRODUCER, headers=headers).post("/jobs/batch", content=lines)
    ids = [json.loads(line)["job_id"] for line in answer.text.splitlines()[:3]]
    metas = [job.meta for job in site.store.get(ids) if job is not None]
    assert metas == [{PARENT: GIVEN, STATE: "a=1"}, {"mine": "1", PARENT: GIVEN, STATE: "a=1"}, {PARENT: "own"}]


def test_a_state_that_is_too_long_or_odd_is_left_out() -> None:
    assert carried(None, {PARENT: GIVEN, STATE: "a=1"}) == {PARENT: GIVEN, STATE: "a=1"}
    assert carried(None, {PARENT: GIVEN, STATE: "ä=1"}) == {PARENT: GIVEN}
    assert carried(None, {PARENT: GIVEN, STATE: "a=" + "1" * 600}) == {PARENT: GIVEN}


def test_meta_that_is_no_trace_is_no_parent(fb: Forebay, exporter: InMemorySpanExporter) -> None:
    @fb.job
    def plain() -> None: ...

    with working(fb):
        ended(fb, fb.enqueue("plain", {}, meta={PARENT: "garbage"}).id)
    (span,) = consumers(exporter)
    assert span.parent is None
    assert span.links == ()


def test_without_a_provider_there_are_no_spans() -> None:
    assert spans() is None


OFF = """
import sys
from forebay.client import Forebay
from forebay.work.options import Options
from forebay.work.worker import Worker
fb = Forebay("memory://")
@fb.job
def plain(): ...
job = plain.enqueue()
worker = Worker(fb, Options())
worker.start()
fb.wait_for(job.id)
worker.drain(5)
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_an_app_that_does_not_trace_does_not_even_import_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
