"""What it means that neighbours share a range, written as plainly as can be: a `RecordBuilder` must give the same."""

from collections.abc import Iterable

from msgspec.structs import replace

from forebay.core.ledger import JobRange, Trait


def joined(ranges: Iterable[JobRange]) -> list[JobRange]:
    """The same ranges with alike neighbours joined; those that differ in kind alone are alike."""
    result: list[JobRange] = []
    for job_range in ranges:
        if result and _continues(result[-1], job_range):
            last = result[-1]
            result[-1] = replace(last, n=last.n + job_range.n, traits=_both(last, job_range))
        else:
            result.append(job_range)
    return result


def expanded(ranges: Iterable[JobRange]) -> list[JobRange]:
    """A range for each job, with its own kind: what ranges say, however jobs share them."""
    return [_alone(job_range, place) for job_range in ranges for place in range(job_range.n)]


def _alone(job_range: JobRange, place: int) -> JobRange:
    trait = (job_range.traits[place] if job_range.traits else None) or Trait()
    own = replace(trait, kind=None)
    return replace(
        job_range,
        first=job_range.first + place,
        n=1,
        kind=trait.kind or job_range.kind,
        traits=None if own == Trait() else [own],
    )


def _continues(last: JobRange, job_range: JobRange) -> bool:
    return (
        job_range.first == last.first + last.n
        and job_range.change == last.change
        and job_range.queue == last.queue
        and job_range.delivery == last.delivery
        and job_range.attempt == last.attempt
        and job_range.max_attempts == last.max_attempts
        and job_range.enqueued_at == last.enqueued_at
        and job_range.due_at == last.due_at
        and job_range.claimed_at == last.claimed_at
        and job_range.until == last.until
    )


def _both(last: JobRange, job_range: JobRange) -> list[Trait | None] | None:
    reported = [
        replace(trait or Trait(), kind=_other(trait, job_range.kind, last.kind))
        for trait in job_range.traits or [None] * job_range.n
    ]
    added = [None if trait == Trait() else trait for trait in reported]
    if last.traits is None and not any(added):
        return None
    return (last.traits or [None] * last.n) + added


def _other(trait: Trait | None, kind: str, common: str) -> str | None:
    """A job's kind, unless it is the common one."""
    own = kind if trait is None or trait.kind is None else trait.kind
    return None if own == common else own
