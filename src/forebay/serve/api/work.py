"""Work over HTTP, so that a worker in any language holds the same fenced leases as one in Python.

    POST /claim    jobs, at once or as soon as there are any (long poll); each with the text of its lease
    POST /settle   what became of them; the server decides between retry and dead letter by the queue's rules
    POST /extend   more time, and whether somebody wants a job to stop
    POST /progress how far they are, and the same

The server keeps nothing between these calls (`serve.leases`): they may go to different servers, before and after a
restart. A reply that was lost is no harm: settle again, and what was applied is applied again.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace

from forebay.core.decide import decide
from forebay.core.errors import Invalid
from forebay.core.instant import to_datetime
from forebay.core.job import Job, Progress
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Dropped, Failed, Outcome, Verdict
from forebay.serve.actor import Actor, Role
from forebay.serve.api.answers import (
    ExtendedAll,
    ExtendedView,
    Leases,
    LeaseView,
    ReportedAll,
    ReportedView,
    SettledAll,
    SettledView,
)
from forebay.serve.api.bodies import Claim, Extend, Reports, Settle, Settlements, length_of
from forebay.serve.api.describe import described
from forebay.serve.api.exchange import Answer, body_of, gone, must_rule, picture, rules
from forebay.serve.ground import Ground
from forebay.serve.leases import Proof, outcome_of, words_of
from forebay.serve.problems import Problem, absent
from forebay.serve.security.door import need
from forebay.serve.security.redact import redact_failure, redact_note, secrets_of
from forebay.store.protocol import Want

router = APIRouter(tags=["work"])

_claim: Final = msgspec.json.Decoder(Claim)
_settle: Final = msgspec.json.Decoder(Settlements)
_extend: Final = msgspec.json.Decoder(Extend)
_reports: Final = msgspec.json.Decoder(Reports)
_NOTHING: Final = Answer(Leases([]))
_LEASE: Final = "q83vEjRW…"
_CLAIMED: Final = {"wants": [{"queue": "mail", "count": 10}], "owner": "worker-1", "lease": 30, "wait": 20}
_REPORTED: Final = {"reports": [{"lease": _LEASE, "portion": 0.4, "note": "page 40 of 100"}]}
_SETTLED: Final = {
    "settlements": [
        {"lease": _LEASE, "outcome": "ack"},
        {"lease": _LEASE, "outcome": "fail", "error": {"kind": "SMTPError", "message": "greylisted"}},
    ]
}


@router.post("/claim", **described(Leases, example={"leases": []}, body=Claim, sent=_CLAIMED, problems=(404, 409)))
async def claim(request: Request, actor: Annotated[Actor, need(Role.WORKER)]) -> Response:
    """Jobs, smallest rank first. With `wait` the answer comes with the first job, or empty when the time is up."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _claim, ground.settings.body_most)
    for want in asked.wants:
        must_rule(actor, want.queue)
    wants = [Want(want.queue, want.count) for want in asked.wants]
    owner = f"{asked.owner}@{actor.name}" if asked.owner else actor.name
    leases = await ground.waiting.claim(wants, owner, length_of(asked.lease), asked.wait, partial(gone, request))
    return Answer(Leases([_lease_view(ground, actor, lease) for lease in leases])) if leases else _NOTHING


def _lease_view(ground: Ground, actor: Actor, lease: Lease) -> LeaseView:
    return LeaseView(ground.signer.text(lease, actor.name), to_datetime(lease.until), picture(actor, lease.job))


@router.post(
    "/settle",
    **described(
        SettledAll,
        example={"settled": [{"job_id": 41, "answer": "applied", "became": "done", "after": None}]},
        body=Settlements,
        sent=_SETTLED,
        problems=(404,),
    ),
)
async def settle(request: Request, actor: Annotated[Actor, need(Role.WORKER)]) -> Response:
    """What became of jobs, each by itself: applied, or stale when the job is in other hands. May be repeated.

    A lease that was not given to this key refuses them all.
    """
    ground: Ground = request.app.state.ground
    said = (await body_of(request, _settle, ground.settings.body_most)).settlements
    outcomes = [_outcome(number, each) for number, each in enumerate(said)]
    proofs = _must_hold(ground, actor, [each.lease for each in said], "settlements[{}].lease")
    views = await ground.call(settle_all, ground, proofs, outcomes)
    ground.meters.settled_as([Settled(view.answer) for view in views])
    return Answer(SettledAll(views))


def _outcome(number: int, said: Settle) -> Outcome:
    try:
        return outcome_of(said)
    except Invalid as error:
        field = f"settlements[{number}].{'result' if said.outcome == 'ack' else error.field}"
        detail = f"{field}: {error.reason}; {error.remedy}"
        raise Problem(422, "invalid", "A value is refused", detail, extra={"field": field}) from None


def _must_hold(ground: Ground, actor: Actor, texts: Sequence[str], field: str) -> list[Proof]:
    """What these leases prove. One that this actor does not hold refuses the whole call: nothing of it is applied.

    A text that nobody here ever gave away, a lease of another key and one of a queue that the key no longer reaches
    are all the same 404.
    """
    proofs = []
    for number, text in enumerate(texts):
        proof = ground.signer.proof(text, actor.name)
        if proof is None or not rules(actor, proof.queue):
            raise absent(field.format(number))
        proofs.append(proof)
    return proofs


def settle_all(ground: Ground, proofs: Sequence[Proof], outcomes: Sequence[Outcome]) -> list[SettledView]:
    """Decide and write."""
    leases = _leases(ground, proofs)
    verdicts: list[Verdict] = [
        decide(lease.job, _without_secrets(outcome, lease.job), ground.routing(lease.job.queue), random.random())
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]
    answers = ground.store.settle(list(zip(leases, verdicts, strict=True)))
    return [_settled_view(*each) for each in zip(proofs, verdicts, answers, strict=True)]


def _without_secrets(outcome: Outcome, job: Job) -> Outcome:
    """An error as it is kept: without what its worker wrote into it of the payload's secrets."""
    if isinstance(outcome, Failed | Dropped):
        return replace(outcome, error=redact_failure(outcome.error, secrets_of(job)))
    return outcome


def _settled_view(proof: Proof, verdict: Verdict, answer: Settled) -> SettledView:
    if answer is Settled.STALE:
        return SettledView(proof.job_id, "stale")
    became: Any
    became, after = words_of(verdict)
    return SettledView(proof.job_id, "applied", became, after)


def _leases(ground: Ground, proofs: Sequence[Proof]) -> list[Lease]:
    """Leases with their jobs as they look now: the store's ledger is told the truth about them."""
    ids = list({proof.job_id for proof in proofs})
    jobs = dict(zip(ids, ground.store.get(ids), strict=True)) if ids else {}
    return [proof.lease(jobs[proof.job_id]) for proof in proofs]


@router.post("/extend", **described(ExtendedAll, body=Extend, sent={"leases": [_LEASE], "lease": 30}, problems=(404,)))
async def extend(request: Request, actor: Annotated[Actor, need(Role.WORKER)]) -> Response:
    """More time for leases, from now on; those that are lost are said to be so. One of another key refuses them all."""
    ground: Ground = request.app.state.ground
    asked = await body_of(request, _extend, ground.settings.body_most)
    proofs = _must_hold(ground, actor, asked.leases, "leases[{}]")
    survivors = await ground.call(_extended, ground, proofs, asked.lease)
    views = []
    for text, proof in zip(asked.leases, proofs, strict=True):
        lease = survivors.get((proof.job_id, proof.delivery))
        if lease is None:
            views.append(ExtendedView(text, proof.job_id, "lost"))
        else:
            job = lease.job
            views.append(ExtendedView(text, job.id, "extended", to_datetime(lease.until), job.cancel_requested))
    return Answer(ExtendedAll(views))


def _extended(ground: Ground, proofs: Sequence[Proof], seconds: float) -> dict[tuple[int, int], Lease]:
    """Only what is held now is asked for; a job's picture is the one of this moment."""
    held = [lease for lease in _leases(ground, proofs) if lease.until]
    return {lease.fence: lease for lease in ground.store.extend(held, length_of(seconds))}


@router.post("/progress", **described(ReportedAll, body=Reports, sent=_REPORTED, problems=(404,)))
async def report(request: Request, actor: Annotated[Actor, need(Role.WORKER)]) -> Response:
    """How far running jobs are, for people to see; once a second is enough. A lease of another key refuses them all."""
    ground: Ground = request.app.state.ground
    said = (await body_of(request, _reports, ground.settings.body_most)).reports
    proofs = _must_hold(ground, actor, [each.lease for each in said], "reports[{}].lease")
    leases = await ground.call(_leases, ground, proofs)
    reports = [
        (lease.fence, Progress(each.portion, redact_note(each.note, lease.job)))
        for each, lease in zip(said, leases, strict=True)
    ]
    answers = await ground.call(ground.store.report_progress, reports)
    return Answer(ReportedAll([_reported_view(*each) for each in zip(leases, answers, strict=True)]))


def _reported_view(lease: Lease, answer: Settled) -> ReportedView:
    if answer is Settled.STALE:
        return ReportedView(lease.job.id, "stale")
    return ReportedView(lease.job.id, "applied", lease.job.cancel_requested)
