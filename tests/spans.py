"""What it means that neighbours share a span, written as plainly as can be: a `RecordBuilder` must give the same."""

from collections.abc import Iterable

from msgspec.structs import replace

from forebay.core.ledger import JobRange, Trait


def joined(spans: Iterable[JobRange]) -> list[JobRange]:
    """The same spans with alike neighbours joined; those that differ in kind alone are alike."""
    result: list[JobRange] = []
    for span in spans:
        if result and _continues(result[-1], span):
            last = result[-1]
            result[-1] = replace(last, n=last.n + span.n, traits=_both(last, span))
        else:
            result.append(span)
    return result


def expanded(spans: Iterable[JobRange]) -> list[JobRange]:
    """A span for each job, with its own kind: what spans say, however jobs share them."""
    return [_alone(span, place) for span in spans for place in range(span.n)]


def _alone(span: JobRange, place: int) -> JobRange:
    trait = (span.traits[place] if span.traits else None) or Trait()
    own = replace(trait, kind=None)
    return replace(
        span, first=span.first + place, n=1, kind=trait.kind or span.kind, traits=None if own == Trait() else [own]
    )


def _continues(last: JobRange, span: JobRange) -> bool:
    return (
        span.first == last.first + last.n
        and span.change == last.change
        and span.queue == last.queue
        and span.delivery == last.delivery
        and span.attempt == last.attempt
        and span.max_attempts == last.max_attempts
        and span.enqueued_at == last.enqueued_at
        and span.due_at == last.due_at
        and span.claimed_at == last.claimed_at
        and span.until == last.until
    )


def _both(last: JobRange, span: JobRange) -> list[Trait | None] | None:
    reported = [
        replace(trait or Trait(), kind=_other(trait, span.kind, last.kind)) for trait in span.traits or [None] * span.n
    ]
    added = [None if trait == Trait() else trait for trait in reported]
    if last.traits is None and not any(added):
        return None
    return (last.traits or [None] * last.n) + added


def _other(trait: Trait | None, kind: str, common: str) -> str | None:
    """A job's kind, unless it is the common one."""
    own = kind if trait is None or trait.kind is None else trait.kind
    return None if own == common else own
