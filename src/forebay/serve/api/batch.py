"""`POST /jobs/batch`: a stream of jobs in, a stream of results out, line by line, in bounded memory.

Each line is a job of its own: it is accepted or refused alone, and a bad line does not stop the others. Its result
carries its number and is written after the job is durable, so that after a disconnect every line with a result is
accepted. Lines in flight together share one commit. Their number is bounded, so a caller that does not read its results
is slowed down: read while sending, or use `answers=problems`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Query, Request
from fastapi.responses import Response
from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from forebay.core.errors import ForebayError
from forebay.core.job import Draft
from forebay.core.limits import BATCH_BYTES, MAX_BATCH
from forebay.serve.actor import Actor
from forebay.serve.api.jobs import draft_of
from forebay.serve.api.requests import NewJob
from forebay.serve.api.routing import BodyDecoder, ContextDep, ProducerActor, api_router, check_media
from forebay.serve.api.schema import ResponseModel, problems, reference
from forebay.serve.context import ServerContext
from forebay.serve.enqueuer import IntakeResult, enqueue_each
from forebay.serve.problems import Problem, to_problem
from forebay.serve.security.auth import charge_jobs, charge_queue_names
from forebay.serve.security.request_limits import too_large
from forebay.store.protocol import Receipt

router = api_router("jobs")

_PARTS_AHEAD: Final = 4
"""Chunks of the stream that are read ahead."""

_new_job: Final = BodyDecoder[NewJob](NewJob)
NDJSON: Final = "application/x-ndjson"
_encode_lines: Final = msgspec.json.Encoder().encode_lines
_SENT: Final = '{"kind": "send_email", "payload": {"to": "ada@example.com"}}\n{"kind": "send_email", "queue": "?"}\n'
_ANSWERED: Final = (
    '{"line":1,"job_id":41,"duplicate":false,"merged":false}\n'
    '{"line":2,"problem":{"type":"urn:forebay:invalid","title":"A value is invalid","status":422}}\n'
    '{"lines":2,"accepted":1,"duplicates":0,"problems":1}\n'
)

NumberedLine = tuple[int, bytes | None]
"""Its number and its text; None for a line beyond the limit."""


class LineTaken(Struct, frozen=True, omit_defaults=True):
    """An accepted job. `duplicate`: the key was used before; this is the first job's id. `copies`: see `Accepted`."""

    line: int
    job_id: int
    duplicate: bool
    merged: bool
    copies: tuple[int, ...] = ()


class LineRefused(Struct, frozen=True):
    line: int
    problem: dict[str, Any]


class Summary(Struct, frozen=True):
    """The counts so far; the last line of the response."""

    lines: int = 0
    accepted: int = 0
    duplicates: int = 0
    problems: int = 0


class LineAnswer(ResponseModel, frozen=True):
    """Any line of the response: an accepted job, a problem, or the summary."""

    line: int | None = None
    job_id: int | None = None
    duplicate: bool | None = None
    merged: bool | None = None
    problem: dict[str, Any] | None = None
    lines: int | None = None
    accepted: int | None = None
    duplicates: int | None = None
    problems: int | None = None


class Streamed(Response):
    """A response that is written while the body is still read; Starlette's own would consume the body."""

    media_type = NDJSON

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# A body that is read line by line cannot be declared in a signature.
_STREAM: Final = problems(400, 415) | {200: {"content": {NDJSON: {"example": _ANSWERED}}}}
_BODY: Final = {"requestBody": {"required": True, "content": {NDJSON: {"schema": reference(NewJob), "example": _SENT}}}}


@router.post(
    "/jobs/batch",
    status_code=200,
    response_class=Streamed,
    response_model=LineAnswer,
    responses=_STREAM,
    openapi_extra=_BODY,
)
async def batch(
    context: ContextDep,
    actor: ProducerActor,
    request: Request,
    answers: Annotated[Literal["all", "problems"], Query(description="a line per job, or per problem only")] = "all",
) -> Streamed:
    """Enqueue any number of jobs, one JSON object per line. The response has a line for each, and a summary."""
    check_media(request, NDJSON)
    return Streamed(_Batch(context, request, actor, answers == "all").answers())


class _Batch:
    """One stream: reads parts of lines, enqueues them, yields their results."""

    def __init__(self, context: ServerContext, request: Request, actor: Actor, every: bool) -> None:
        self._context = context
        self._request = request
        self._actor = actor
        self._every = every
        self._summary = Summary()

    async def answers(self) -> AsyncIterator[bytes]:
        """The results, and a summary unless the caller disconnects."""
        ahead: asyncio.Queue[list[NumberedLine] | None] = asyncio.Queue(_PARTS_AHEAD)
        reading = asyncio.create_task(self._read(ahead))
        try:
            more = True
            while more:
                part, more = await _next_part(ahead)
                if part:
                    yield await self._enqueue(part)
            if await reading:
                yield _encode_lines([self._summary])
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _read(self, ahead: "asyncio.Queue[list[NumberedLine] | None]") -> bool:
        """Put lines into the bounded queue, which slows the caller down. False: the caller disconnected."""
        whole = True
        try:
            async for lines in lines_of(self._request.stream(), self._context.settings.max_line):
                await ahead.put(lines)
        except ClientDisconnect:
            whole = False
        await ahead.put(None)
        return whole

    async def _enqueue(self, part: list[NumberedLine]) -> bytes:
        """The results of these lines, once their jobs are durable."""
        drafts = await self._context.call(self._drafts, part)
        good = [draft for draft in drafts if isinstance(draft, Draft)]
        receipts: Sequence[IntakeResult]
        try:
            charge_queue_names(self._request, {draft.queue for draft in good})
            charge_jobs(self._request, len(good))
            receipts = await self._context.call(enqueue_each, self._context.store, good)
        except (Problem, ForebayError) as error:
            receipts = [error] * len(good)
        found = iter(receipts)
        results = [
            self._result(number, next(found) if isinstance(draft, Draft) else draft)
            for (number, _), draft in zip(part, drafts, strict=True)
        ]
        self._count(part[-1][0], results)
        if self._every:
            return _encode_lines(results)
        return _encode_lines([*(each for each in results if isinstance(each, LineRefused)), self._summary])

    def _drafts(self, part: list[NumberedLine]) -> list[Draft | Exception]:
        drafts: list[Draft | Exception] = []
        headers = self._request.headers
        for _, text in part:
            try:
                if text is None:
                    raise too_large(self._context.settings.max_line)
                drafts.append(draft_of(self._context, self._actor, _new_job.decode(text), headers))
            except (Problem, ForebayError) as error:
                drafts.append(error)
        return drafts

    def _result(self, number: int, answer: IntakeResult) -> LineTaken | LineRefused:
        if isinstance(answer, Receipt):
            return LineTaken(number, answer.id, answer.duplicate, answer.merged, answer.copies)
        self._context.meters.count_error(answer)
        return LineRefused(number, to_problem(answer).body())

    def _count(self, lines: int, results: list[LineTaken | LineRefused]) -> None:
        before = self._summary
        taken = [each for each in results if isinstance(each, LineTaken)]
        duplicates = sum(each.duplicate for each in taken)
        self._summary = Summary(
            lines,
            before.accepted + len(taken) - duplicates,
            before.duplicates + duplicates,
            before.problems + len(results) - len(taken),
        )


async def _next_part(ahead: "asyncio.Queue[list[NumberedLine] | None]") -> tuple[list[NumberedLine], bool]:
    """The lines read so far, up to the bounds of one store call, and whether there may be more."""
    part: list[NumberedLine] = []
    size = 0
    while True:
        piece = await ahead.get()
        if piece is None:
            return part, False
        part += piece
        size += sum(len(text or b"") for _, text in piece)
        if ahead.empty() or len(part) + MAX_BATCH // 2 > MAX_BATCH or size > BATCH_BYTES // 4:
            return part, True


async def lines_of(chunks: AsyncIterator[bytes], max_line: int) -> AsyncIterator[list[NumberedLine]]:
    """Complete lines, numbered from 1, in lists within the bounds of one store call; blank lines are skipped."""
    number, rest, skipping = 0, b"", False
    async for chunk in chunks:
        texts = (rest + chunk).split(b"\n")
        rest = texts.pop()
        found: list[NumberedLine] = []
        for text in texts:
            number += 1
            if skipping or len(text) > max_line:
                found.append((number, None))
            elif not text.isspace() and text:
                found.append((number, text))
            skipping = False
        if len(rest) > max_line:
            rest, skipping = b"", True
        for start in range(0, len(found), MAX_BATCH // 2):
            yield found[start : start + MAX_BATCH // 2]
    if skipping or rest.strip():
        yield [(number + 1, None if skipping else rest)]
