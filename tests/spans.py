"""What it means that neighbours share a span, written as plainly as can be: a `Scribe` must give the same."""

from collections.abc import Iterable

from msgspec.structs import replace

from forebay.core.ledger import Span, Trait


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same spans with alike neighbours joined."""
    result: list[Span] = []
    for span in spans:
        if result and _continues(result[-1], span):
            last = result[-1]
            result[-1] = replace(last, n=last.n + span.n, traits=_both(last, span))
        else:
            result.append(span)
    return result


def _continues(last: Span, span: Span) -> bool:
    return (
        span.first == last.first + last.n
        and span.change == last.change
        and span.queue == last.queue
        and span.kind == last.kind
        and span.delivery == last.delivery
        and span.attempt == last.attempt
        and span.max_attempts == last.max_attempts
        and span.enqueued_at == last.enqueued_at
        and span.due_at == last.due_at
        and span.claimed_at == last.claimed_at
        and span.until == last.until
    )


def _both(last: Span, span: Span) -> list[Trait | None] | None:
    if last.traits is None and span.traits is None:
        return None
    return (last.traits or [None] * last.n) + (span.traits or [None] * span.n)
