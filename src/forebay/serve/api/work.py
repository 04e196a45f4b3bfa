"""The worker API: workers in any language hold the same fenced leases as those in Python.

    POST /claim     jobs, at once or by long poll, each with its lease token
    POST /settle    outcomes; the server decides between retry and dead letter by the queue's policy
    POST /extend    renew leases; returns whether a job should stop
    POST /progress  report progress; the same

The server keeps no state between these calls (`serve.lease_tokens`): they may go to different servers, before and after
a restart. A settle can be repeated when its response was lost: the result is the same.
"""

import random
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from fastapi import Request
from msgspec.structs import replace

from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.instant import to_datetime
from forebay.core.job import Job, Progress
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Dropped, Failed, Outcome, Verdict
from forebay.serve.actor import Actor
from forebay.serve.api.jobs import view_job
from forebay.serve.api.requests import Claim, Extend, Reports, Settle, Settlements
from forebay.serve.api.responses import (
    ClaimedLeases,
    ExtendedAll,
    ExtendedView,
    LeaseView,
    ReportedAll,
    ReportedView,
    SettledAll,
    SettledView,
)
from forebay.serve.api.routing import ContextDep, JsonBody, WorkerActor, api_router, wait_for_disconnect
from forebay.serve.api.schema import problems
from forebay.serve.context import ServerContext
from forebay.serve.lease_tokens import LeaseToken, describe_verdict, outcome_of
from forebay.serve.problems import Problem, not_found
from forebay.serve.security.redact import redact_failure, redact_note, secrets_of
from forebay.serve.security.visibility import require_queue, sees_queue
from forebay.store.protocol import Want

router = api_router("work")


@router.post("/claim", responses=problems(404, 409))
async def claim(context: ContextDep, actor: WorkerActor, body: JsonBody[Claim], request: Request) -> ClaimedLeases:
    """Claim jobs, smallest rank first. With `wait`, the response comes with the first job, or empty at the timeout."""
    for want in body.wants:
        require_queue(actor, want.queue)
    wants = [Want(want.queue, want.count) for want in body.wants]
    owner = f"{body.owner}@{actor.name}" if body.owner else actor.name
    leases = await context.claim_polls.claim(
        wants, owner, timedelta(seconds=body.lease), body.wait, partial(wait_for_disconnect, request)
    )
    return ClaimedLeases([_lease_view(context, actor, lease) for lease in leases])


def _lease_view(context: ServerContext, actor: Actor, lease: Lease) -> LeaseView:
    return LeaseView(context.signer.text(lease, actor.name), to_datetime(lease.until), view_job(actor, lease.job))


@router.post("/settle", responses=problems(404))
async def settle(context: ContextDep, actor: WorkerActor, body: JsonBody[Settlements]) -> SettledAll:
    """Settle jobs, each by itself: applied, or stale when its lease is lost. May be repeated.

    A lease of another key refuses the whole call.
    """
    settlements = body.settlements
    outcomes = [_outcome(number, each) for number, each in enumerate(settlements)]
    tokens = _read_tokens(context, actor, [each.lease for each in settlements], "settlements[{}].lease")
    views = await context.call(settle_all, context, tokens, outcomes)
    context.meters.settled_as([Settled(view.answer) for view in views])
    return SettledAll(views)


def _outcome(number: int, settlement: Settle) -> Outcome:
    try:
        return outcome_of(settlement)
    except Invalid as error:
        field = f"settlements[{number}].{'result' if settlement.outcome == 'ack' else error.field}"
        detail = f"{field}: {error.reason}; {error.remedy}"
        raise Problem(422, "invalid", "A value is invalid", detail, extra={"field": field}) from None


def _read_tokens(context: ServerContext, actor: Actor, texts: Sequence[str], field: str) -> list[LeaseToken]:
    """The tokens of these texts. One that this actor does not hold refuses the whole call; nothing is applied.

    A forged text, a lease of another key and one of a queue that the key can no longer reach are the same 404.
    """
    tokens = []
    for number, text in enumerate(texts):
        token = context.signer.read(text, actor.name)
        if token is None or not sees_queue(actor, token.queue):
            raise not_found(field.format(number))
        tokens.append(token)
    return tokens


def settle_all(context: ServerContext, tokens: Sequence[LeaseToken], outcomes: Sequence[Outcome]) -> list[SettledView]:
    """Decide the verdicts and write them."""
    leases = _leases(context, tokens)
    verdicts: list[Verdict] = [
        decide(lease.job, _without_secrets(outcome, lease.job), context.routing(lease.job.queue), random.random())
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]
    answers = context.store.settle(list(zip(leases, verdicts, strict=True)))
    return [_settled_view(*each) for each in zip(tokens, verdicts, answers, strict=True)]


def _without_secrets(outcome: Outcome, job: Job) -> Outcome:
    """The outcome with its error redacted, before it is stored: a worker may have put the payload's secrets into it."""
    if isinstance(outcome, Failed | Dropped):
        return replace(outcome, error=redact_failure(outcome.error, secrets_of(job)))
    return outcome


def _settled_view(token: LeaseToken, verdict: Verdict, answer: Settled) -> SettledView:
    if answer is Settled.STALE:
        return SettledView(token.job_id, "stale")
    became: Any
    became, after = describe_verdict(verdict)
    return SettledView(token.job_id, "applied", became, after)


def _leases(context: ServerContext, tokens: Sequence[LeaseToken]) -> list[Lease]:
    """Leases with the current state of their jobs, so that the ledger records the right state."""
    ids = list({token.job_id for token in tokens})
    jobs = dict(zip(ids, context.store.get(ids), strict=True)) if ids else {}
    return [token.lease(jobs[token.job_id]) for token in tokens]


@router.post("/extend", responses=problems(404))
async def extend(context: ContextDep, actor: WorkerActor, body: JsonBody[Extend]) -> ExtendedAll:
    """Renew leases from now on; lost ones are reported. A lease of another key refuses the whole call."""
    tokens = _read_tokens(context, actor, body.leases, "leases[{}]")
    survivors = await context.call(_extended, context, tokens, body.lease)
    views = []
    for text, token in zip(body.leases, tokens, strict=True):
        lease = survivors.get((token.job_id, token.delivery))
        if lease is None:
            views.append(ExtendedView(text, token.job_id, "lost"))
        else:
            job = lease.job
            views.append(ExtendedView(text, job.id, "extended", to_datetime(lease.until), job.cancel_requested))
    return ExtendedAll(views)


def _extended(context: ServerContext, tokens: Sequence[LeaseToken], seconds: float) -> dict[tuple[int, int], Lease]:
    """The renewed leases by fence; only leases that are still held are sent to the store."""
    held = [lease for lease in _leases(context, tokens) if lease.until]
    return {lease.fence: lease for lease in context.store.extend(held, timedelta(seconds=seconds))}


@router.post("/progress", responses=problems(404))
async def report(context: ContextDep, actor: WorkerActor, body: JsonBody[Reports]) -> ReportedAll:
    """Report progress of running jobs; once a second is enough. A lease of another key refuses the whole call."""
    tokens = _read_tokens(context, actor, [each.lease for each in body.reports], "reports[{}].lease")
    leases = await context.call(_leases, context, tokens)
    reports = [
        (lease.fence, Progress(each.portion, redact_note(each.note, lease.job)))
        for each, lease in zip(body.reports, leases, strict=True)
    ]
    answers = await context.call(context.store.report_progress, reports)
    return ReportedAll([_reported_view(*each) for each in zip(leases, answers, strict=True)])


def _reported_view(lease: Lease, answer: Settled) -> ReportedView:
    if answer is Settled.STALE:
        return ReportedView(lease.job.id, "stale")
    return ReportedView(lease.job.id, "applied", lease.job.cancel_requested)
