"""What SQL users put into queues with rules: it waits in the inbox until somebody who knows the rules takes it in."""

from typing import Any, Final

import msgspec

from forebay.core.errors import Invalid, WrongQueueKind
from forebay.core.fanout import copies
from forebay.core.job import Draft
from forebay.core.ledger import Change, Trait
from forebay.core.limits import BATCH_MOST
from forebay.core.outcome import Failure
from forebay.core.scribe import Scribe
from forebay.store.postgres.base import Turn
from forebay.store.postgres.connect import Json
from forebay.store.postgres.intake import Batch
from forebay.store.postgres.queries import statement
from forebay.store.postgres.runs import text_of

_INBOX: Final = statement("inbox")
_REFUSE: Final = statement("refuse")


def take_inbox(turn: Turn) -> None:
    """What SQL users put into queues with rules takes its place, whatever the bounds; or it is a dead letter."""
    rows = turn.fetch(_INBOX, (BATCH_MOST,))
    for job_id, text in sorted(rows):
        try:
            draft = _draft_of(text)
            turn.hold([draft.queue])
            known = turn.known(draft.queue)
            if known.stamper.is_log:
                raise WrongQueueKind(draft.queue, is_log=True)
            drafts = copies(known.spec, draft)
            turn.hold({each.queue for each in drafts})
            batch = Batch(turn)
            batch.take_as(job_id, drafts)
            batch.write()
            turn.scribe.tell("enqueue")
        except (Invalid, msgspec.ValidationError) as error:
            failure = Failure(type(error).__name__, str(error), at=turn.now)
            turn.execute(_REFUSE, (job_id, turn.now, text_of([failure]), Json(text)))
            _tell_refused(turn.scribe, job_id, text, failure)


def _tell_refused(scribe: Scribe, job_id: int, text: bytes, failure: Failure) -> None:
    put = msgspec.json.decode(text, type=dict[str, Any])
    where = (str(put.get("queue") or "default"), str(put.get("kind") or "unknown"))
    scribe.tell("enqueue")
    scribe.job(Change.ACCEPTED, job_id, *where, 0, 0, 1, failure.at, failure.at)
    scribe.job(Change.DIED, job_id, *where, trait=Trait(error_kind=failure.kind, error=failure.message))


class _Put(msgspec.Struct):
    """A draft as `forebay.enqueue_draft` leaves it."""

    kind: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    queue: str | None = None
    delay: int | None = None
    run_at: int | None = None
    priority: int | None = None
    key: str | None = None
    tenant: str | None = None
    subject: str | None = None
    max_attempts: int | None = None
    expires_at: int | None = None
    deadline: int | None = None
    meta: dict[str, str] | None = None
    cost: int | None = None


def _draft_of(text: bytes) -> Draft:
    put = msgspec.json.decode(text, type=_Put)
    return Draft(
        put.kind,
        body=bytes(put.body),
        queue=put.queue or "default",
        delay=0 if put.run_at is not None else put.delay or 0,
        run_at=put.run_at,
        priority=put.priority or 0,
        key=put.key,
        tenant=put.tenant,
        subject=put.subject,
        max_attempts=put.max_attempts,
        expires_at=put.expires_at,
        deadline=put.deadline,
        meta=put.meta,
        cost=put.cost or 1,
    )
