"""An app whose isolated handler traces, in the child where it runs, into a file that FOREBAY_SPANS names."""

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from forebay.client import Forebay


class ToFile(SpanExporter):
    """One JSON object a line."""

    def export(self, spans: "list[ReadableSpan]") -> SpanExportResult:  # type: ignore[override]
        with Path(os.environ["FOREBAY_SPANS"]).open("a") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


fb = Forebay(os.environ.get("FOREBAY_URL"))
if "FOREBAY_CHILD_PIPES" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)


@fb.job(isolate=True)
def alone(n: int) -> None:
    trace.get_tracer("app").start_span("inside").end()
