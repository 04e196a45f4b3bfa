"""`POST /jobs/batch`: a stream of jobs in, a stream of answers out, line by line, in bounded memory at any length.

Each line is a job by itself: it is taken or refused alone, and a bad one does not stop the others. Its answer carries
its number and is written after the job is durable, so whoever is cut off has every answered line. Lines that are under
way together share one commit. What is under way is bounded, so a caller that sends without reading its answers is
made to wait: read while you send, or ask for `answers=problems`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from forebay.core.errors import ForebayError
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, BATCH_MOST
from forebay.serve.actor import Actor, Role
from forebay.serve.api.bodies import NewJob
from forebay.serve.api.describe import NDJSON, described
from forebay.serve.api.exchange import check_media, decoded, too_large
from forebay.serve.api.jobs import draft_of
from forebay.serve.enqueuer import Answer, enqueue_each
from forebay.serve.ground import Ground
from forebay.serve.problems import Problem, any_problem
from forebay.serve.security.door import name_queues, need, spend
from forebay.store.protocol import Receipt

router = APIRouter(tags=["jobs"])

_PARTS_AHEAD: Final = 4
"""Pieces of the stream that are read before their turn."""

_new_job: Final = msgspec.json.Decoder(NewJob)
_encode_lines: Final = msgspec.json.Encoder().encode_lines
_SENT: Final = '{"kind": "send_email", "payload": {"to": "ada@example.com"}}\n{"kind": "send_email", "queue": "?"}\n'
_ANSWERED: Final = (
    '{"line":1,"job_id":41,"duplicate":false,"merged":false}\n'
    '{"line":2,"problem":{"type":"urn:forebay:invalid","title":"A value is refused","status":422}}\n'
    '{"lines":2,"accepted":1,"duplicates":0,"problems":1}\n'
)

Line = tuple[int, bytes | None]
"""Its number, and its text; None when it was longer than a line may be."""


class LineTaken(Struct, frozen=True, omit_defaults=True):
    """The job is in; `duplicate`: its key was seen before, and this is the first job's id. `copies` as `Accepted`."""

    line: int
    job_id: int
    duplicate: bool
    merged: bool
    copies: tuple[int, ...] = ()


class LineRefused(Struct, frozen=True):
    line: int
    problem: dict[str, Any]


class Summary(Struct, frozen=True):
    """How far the stream has come; the last line of every answer."""

    lines: int = 0
    accepted: int = 0
    duplicates: int = 0
    problems: int = 0


class LineAnswer(Struct, frozen=True):
    """Any line of the answer: a job that is in, a problem, or the summary."""

    line: int | None = None
    job_id: int | None = None
    duplicate: bool | None = None
    merged: bool | None = None
    problem: dict[str, Any] | None = None
    lines: int | None = None
    accepted: int | None = None
    duplicates: int | None = None
    problems: int | None = None


@router.post(
    "/jobs/batch",
    **described(LineAnswer, example=_ANSWERED, body=NewJob, sent=_SENT, media=NDJSON),
)
async def batch(
    request: Request,
    actor: Annotated[Actor, need(Role.PRODUCER)],
    answers: Annotated[Literal["all", "problems"], Query(description="a line a job, or only a line a problem")] = "all",
) -> Response:
    """Hand in any number of jobs, a JSON object a line; the answer is a line each, and a summary at the end."""
    check_media(request, NDJSON)
    return Streamed(_Batch(request, actor, answers == "all").answers())


class Streamed(Response):
    """An answer that is written while the body is still read; starlette's own would read the body away."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(media_type=NDJSON)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Batch:
    """One stream, part by part: read, taken, answered."""

    def __init__(self, request: Request, actor: Actor, every: bool) -> None:
        self._request = request
        self._ground: Ground = request.app.state.ground
        self._actor = actor
        self._every = every
        self._sofar = Summary()

    async def answers(self) -> AsyncIterator[bytes]:
        """Ends with a summary, or with what was answered when the caller left."""
        ahead: asyncio.Queue[list[Line] | None] = asyncio.Queue(_PARTS_AHEAD)
        reading = asyncio.create_task(self._read(ahead))
        try:
            more = True
            while more:
                part, more = await _next_part(ahead)
                if part:
                    yield await self._taken(part)
            if await reading:
                yield _encode_lines([self._sofar])
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _read(self, ahead: "asyncio.Queue[list[Line] | None]") -> bool:
        """Lines into the queue, as they come: it is bounded, so the caller is held up. False: the caller has left."""
        whole = True
        try:
            async for lines in lines_of(self._request.stream(), self._ground.settings.line_most):
                await ahead.put(lines)
        except ClientDisconnect:
            whole = False
        await ahead.put(None)
        return whole

    async def _taken(self, part: list[Line]) -> bytes:
        """The answers to these lines, once their jobs are durable."""
        drafts = await self._ground.call(self._drafts, part)
        good = [draft for draft in drafts if isinstance(draft, Draft)]
        receipts: Sequence[Answer]
        try:
            name_queues(self._request, {draft.queue for draft in good})
            spend(self._request, len(good))
            receipts = await self._ground.call(enqueue_each, self._ground.store, good)
        except (Problem, ForebayError) as error:
            receipts = [error] * len(good)
        found = iter(receipts)
        told = [
            self._told(number, next(found) if isinstance(draft, Draft) else draft)
            for (number, _), draft in zip(part, drafts, strict=True)
        ]
        self._count(part[-1][0], told)
        if self._every:
            return _encode_lines(told)
        return _encode_lines([*(each for each in told if isinstance(each, LineRefused)), self._sofar])

    def _drafts(self, part: list[Line]) -> list[Draft | Exception]:
        drafts: list[Draft | Exception] = []
        headers = self._request.headers
        for _, text in part:
            try:
                if text is None:
                    raise too_large(self._ground.settings.line_most)
                drafts.append(draft_of(self._ground, self._actor, decoded(text, _new_job), headers))
            except (Problem, ForebayError) as error:
                drafts.append(error)
        return drafts

    def _told(self, number: int, answer: Answer) -> LineTaken | LineRefused:
        if isinstance(answer, Receipt):
            return LineTaken(number, answer.id, answer.duplicate, answer.merged, answer.copies)
        self._ground.meters.met(answer)
        return LineRefused(number, any_problem(answer).body())

    def _count(self, lines: int, told: list[LineTaken | LineRefused]) -> None:
        sofar = self._sofar
        taken = [each for each in told if isinstance(each, LineTaken)]
        duplicates = sum(each.duplicate for each in taken)
        self._sofar = Summary(
            lines,
            sofar.accepted + len(taken) - duplicates,
            sofar.duplicates + duplicates,
            sofar.problems + len(told) - len(taken),
        )


async def _next_part(ahead: "asyncio.Queue[list[Line] | None]") -> tuple[list[Line], bool]:
    """All that has come, up to what one call takes; and whether there may be more."""
    part: list[Line] = []
    size = 0
    while True:
        piece = await ahead.get()
        if piece is None:
            return part, False
        part += piece
        size += sum(len(text or b"") for _, text in piece)
        if ahead.empty() or len(part) + BATCH_MOST // 2 > BATCH_MOST or size > BATCH_BYTES // 4:
            return part, True


async def lines_of(chunks: AsyncIterator[bytes], most: int) -> AsyncIterator[list[Line]]:
    """Whole lines, numbered from 1, at most as many at once as one call takes; blank ones are left out."""
    number, rest, skipping = 0, b"", False
    async for chunk in chunks:
        texts = (rest + chunk).split(b"\n")
        rest = texts.pop()
        found: list[Line] = []
        for text in texts:
            number += 1
            if skipping or len(text) > most:
                found.append((number, None))
            elif not text.isspace() and text:
                found.append((number, text))
            skipping = False
        if len(rest) > most:
            rest, skipping = b"", True
        for start in range(0, len(found), BATCH_MOST // 2):
            yield found[start : start + BATCH_MOST // 2]
    if skipping or rest.strip():
        yield [(number + 1, None if skipping else rest)]
