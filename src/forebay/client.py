"""`Forebay`: the application object. Decorate functions, enqueue calls, read jobs.

    fb = Forebay()                                   # ./forebay.db, or FOREBAY_URL

    @fb.job(max_attempts=5)
    async def send_email(to: str, subject: str) -> str: ...

    send_email.enqueue("ada@example.com", subject="Hi")

The store is opened when it is first needed, so importing an app opens nothing. Enqueueing checks the call against the
function's own signature and types, here and now; the worker checks again when it runs the job.
"""

import os
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec.structs import replace

from forebay.blobs import Blobs, BlobSweeper, PayloadCodec, blobs_of
from forebay.core.clock import Clock
from forebay.core.errors import Invalid, JobCancelled, JobFailed, JobGone, ResultPending
from forebay.core.instant import from_seconds
from forebay.core.job import Draft, Job, State
from forebay.core.limits import MAX_BATCH, MAX_WAIT
from forebay.core.names import check_name
from forebay.core.payload import Json, decode_payload
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.enqueue_options import EnqueueOptions, Settings, settings_of
from forebay.explain import explain
from forebay.store.open import open_store
from forebay.store.protocol import Backlog, CancelAnswer, JobFields, Query, Receipt, Store, matching
from forebay.store.streams import enqueue_stream
from forebay.transactions import aenqueue_in, call_after_commit, check_connection, enqueue_in
from forebay.vault import Vault
from forebay.work.batches import Call, gathered
from forebay.work.cron import NEVER, CatchUp, Cron, Dst, Overlap, Timetable
from forebay.work.declare import BatchOptions, HandlerOptions, JobOptions, check_breaker, declare
from forebay.work.handler import Handler
from forebay.work.hooks import Hooked
from forebay.work.role import WorkerRole
from forebay.work.signature import Signature
from forebay.work.versions import with_version

if TYPE_CHECKING:
    from forebay.async_client import AsyncCaller
    from forebay.events import EventStream

DEFAULT_URL = "sqlite:///forebay.db"

RESULT_WAIT: Final = 30.0
"""Seconds for which a result is waited for, unless the caller says otherwise."""

_STATES: Final = frozenset(State)

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class JobReceipt(Receipt, frozen=True):
    """The receipt of one enqueue, which can wait for what becomes of the job: `result()`, or `await` it."""

    kind: str = ""
    app: "Forebay | None" = None

    def __repr__(self) -> str:
        return f"JobReceipt(id={self.id}, kind={self.kind!r}, durable={self.durable}, duplicate={self.duplicate})"

    def result(self, timeout: float = RESULT_WAIT) -> Any:
        """What the handler returned, waited for. See `Forebay.result`."""
        return self._app().result(self.id, timeout)

    async def aresult(self, timeout: float = RESULT_WAIT) -> Any:  # noqa: ASYNC109
        """As `result`, for coroutines; `await receipt` does the same."""
        return await self._app().aresult(self.id, timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aresult().__await__()

    def _app(self) -> "Forebay":
        assert self.app is not None
        handler = self.app.registry.get(self.kind)
        if handler is not None and not handler.keep_result:
            raise Invalid(self.kind, "its results are not kept", "write @fb.job(keep_result=True)")
        return self.app


class Bound(Generic[P]):
    """A job type with settings for the next enqueue: `send.using(priority=5).enqueue(...)`."""

    def __init__(self, app: "Forebay", handler: Handler, settings: Settings) -> None:
        self._app = app
        self._handler = handler
        self._settings = settings

    @property
    def app(self) -> "Forebay":
        return self._app

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """The call as a draft, for `enqueue_many` or a store's own `enqueue`."""
        payload = self._handler.signature.pack(args, kwargs)
        return self._app.make_draft(self._handler.kind, payload, self._settings)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobReceipt:
        """Enqueue the call. It is checked against the signature of the function; the job is durable on return."""
        return self._app.enqueue_draft(self.draft(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobReceipt:
        """As `enqueue`, for coroutines."""
        return await self._app.aenqueue_draft(await self._app.codec.prepare(partial(self.draft, *args, **kwargs)))

    def enqueue_in(self, connection: object, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Enqueue in your own transaction: the job is there when it commits. See docs/guides/transactions.md."""
        return self._app.enqueue_draft_in(connection, self.draft(*args, **kwargs), notify=self._settings.notify)

    async def aenqueue_in(self, connection: object, /, *args: P.args, **kwargs: P.kwargs) -> int:
        """As `enqueue_in`, on an asynchronous connection."""
        draft = await self._app.codec.prepare(partial(self.draft, *args, **kwargs))
        return await self._app.aenqueue_draft_in(connection, draft, notify=self._settings.notify)


class JobType(Bound[P], Generic[P, R]):
    """A decorated function: call it as before, or enqueue the call."""

    def __init__(self, app: "Forebay", handler: Handler, function: Callable[P, R]) -> None:
        super().__init__(app, handler, Settings())
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def using(self, **settings: Unpack[EnqueueOptions]) -> Bound[P]:
        """The same job with settings: queue, priority, run_at, delay, key, tenant, subject, expires_at, …"""
        return Bound(self._app, self._handler, settings_of(self._handler.kind, settings))

    def upgrade(self, *, from_version: int) -> Callable[[F], F]:
        """The decorated function turns a payload of this version into one of the next."""

        def decorate(step: F) -> F:
            self._handler.signature.versions.add(from_version, step)
            return step

        return decorate


class Forebay(Hooked):
    """An application: its store, its handlers, its queues, its schedules and its hooks."""

    def __init__(
        self,
        url: str | None = None,
        *,
        clock: Clock | None = None,
        vault: Vault | None = None,
        blobs: Blobs | str | None = None,
    ) -> None:
        super().__init__()
        self.url = url or os.environ.get("FOREBAY_URL") or DEFAULT_URL
        self.codec = PayloadCodec(vault, blobs_of(blobs))
        self.registry: dict[str, Handler] = {}
        self.timetables: dict[str, tuple[Timetable, Draft]] = {}
        self._queues: dict[str, QueueSpec] = {}
        self._clock = clock
        self._store: Store | None = None
        self._replacement: Store | None = None
        self._caller: AsyncCaller | None = None
        self._opening = Lock()

    @property
    def store(self) -> Store:
        with self._opening:
            if self._replacement is not None:
                return self._replacement
            if self._store is None:
                store = open_store(self.url, clock=self._clock)
                try:
                    self._configure(store)
                except BaseException:
                    store.close()
                    raise
                self._store = store
            return self._store

    @property
    def store_replaced(self) -> bool:
        """Whether a `JobTester` has put a store of its own in place: no transaction of a caller can join that."""
        return self._replacement is not None

    def replace_store(self, store: Store | None) -> Store | None:
        """Use this store instead of the app's own; None: no longer. Returns the replacement before."""
        if store is not None:
            self._configure(store)
        before, self._replacement = self._replacement, store
        return before

    def close(self) -> None:
        """Close the app's own store. The next call that needs one opens it again."""
        with self._opening:
            if self._store is not None:
                self._store.close()
                self._store = None
            caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()

    async def aclose(self) -> None:
        """As `close`, for coroutines."""
        import asyncio

        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        """`with Forebay() as fb:` closes the store at the end; `async with` does too."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def roles(self) -> list[WorkerRole]:
        """What workers of this app do besides their own roles: sweep its blob store."""
        return [] if self.codec.blobs is None else [BlobSweeper(self.store, self.codec.blobs)]

    def queue(self, spec: QueueSpec) -> QueueSpec:
        """Declare a queue; it is written to the store when that is opened."""
        self._queues[spec.name] = spec
        self._declare()
        return spec

    @overload
    def job(self, function: Callable[P, R], /) -> JobType[P, R]: ...

    @overload
    def job(self, **options: Unpack[JobOptions]) -> Callable[[Callable[P, R]], JobType[P, R]]: ...

    @overload
    def job(
        self, *, batch: int, wait: float = ..., **options: Unpack[BatchOptions]
    ) -> Callable[[Callable[Concatenate[list[Call[T]], ...], Any]], JobType[[T], Any]]: ...

    def job(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Make a function a kind of job, with `JobOptions`.

        `batch`, `wait`: gather up to so many jobs, for so many seconds, for one call with a list of `Call`.
        """
        if functions:
            return self._register(functions[0], {})
        return lambda decorated: self._register(decorated, options)

    def webhook(
        self,
        kind: str,
        *,
        url: str,
        secret: str | Sequence[str],
        allow: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float = 15.0,
        **options: Unpack[HandlerOptions],
    ) -> JobType[..., int]:
        """A kind of job that is a signed POST to this URL; further options as of `job`. See docs/guides/webhooks.md."""
        from forebay.work.webhook import Endpoint

        endpoint = Endpoint(url, secret, allow=allow, headers=headers, timeout=timeout)
        return self._register(endpoint.handler(kind), {"kind": kind, **options})

    def cron(
        self,
        rule: str,
        *,
        name: str | None = None,
        tz: str = "UTC",
        dst: Dst = "once",
        catch_up: str = "last",
        overlap: Overlap = "allow",
        jitter: int = 0,
    ) -> Callable[[Callable[[], R]], JobType[[], R]]:
        """Run a function by the clock: `@fb.cron("30 1 * * *", tz="Europe/Berlin")`, alone or above `@fb.job(...)`."""
        timetable = Timetable(Cron(rule, tz, dst), CatchUp.parse(catch_up), overlap, jitter)

        def decorate(function: Callable[[], R]) -> JobType[[], R]:
            job = function if isinstance(function, JobType) else self._register(function, {})
            draft = job.draft()
            self.timetables[check_name("schedule", name or draft.kind)] = (timetable, draft)
            self._declare()
            return job

        return decorate

    def enqueue(self, kind: str, payload: Json = None, **settings: Unpack[EnqueueOptions]) -> JobReceipt:
        """The plain form: any kind, any JSON payload."""
        return self.enqueue_draft(self.make_draft(kind, payload, settings_of(kind, settings)))

    def enqueue_draft(self, draft: Draft) -> JobReceipt:
        """Enqueue one draft, inside the layers of `around_enqueue`."""
        with ExitStack() as stack:
            draft = self.hooks.enter_enqueue(stack, draft)
            (taken,) = self.store.enqueue([draft])
            return self._receipt(taken, draft)
        raise _suppressed()

    async def aenqueue(self, kind: str, payload: Json = None, **settings: Unpack[EnqueueOptions]) -> JobReceipt:
        """As `enqueue`, for coroutines."""
        given = settings_of(kind, settings)
        return await self.aenqueue_draft(await self.codec.prepare(partial(self.make_draft, kind, payload, given)))

    async def aenqueue_draft(self, draft: Draft) -> JobReceipt:
        """As `enqueue_draft`, for coroutines: those that call at the same time share one call of the store."""
        with ExitStack() as stack:
            draft = self.hooks.enter_enqueue(stack, draft)
            return self._receipt(await self._async().enqueue(draft), draft)
        raise _suppressed()

    def enqueue_draft_in(self, connection: object, draft: Draft, *, notify: bool = True) -> int:
        """As `enqueue_draft`, in your own transaction; the job's id. Under a `JobTester` 0: there is none yet."""
        if self.store_replaced:
            return call_after_commit(connection, partial(self.enqueue_draft, draft))
        check_connection(self.url, connection)
        with ExitStack() as stack:
            return enqueue_in(connection, [self.hooks.enter_enqueue(stack, draft)], notify=notify)[0]
        raise _suppressed()

    async def aenqueue_draft_in(self, connection: object, draft: Draft, *, notify: bool = True) -> int:
        if self.store_replaced:
            return call_after_commit(connection, partial(self.enqueue_draft, draft))
        check_connection(self.url, connection)
        with ExitStack() as stack:
            return (await aenqueue_in(connection, [self.hooks.enter_enqueue(stack, draft)], notify=notify))[0]
        raise _suppressed()

    def enqueue_in(
        self, connection: object, kind: str, payload: Json = None, **settings: Unpack[EnqueueOptions]
    ) -> int:
        """The plain form, in your own transaction: the job's id; the job is there when that commits."""
        given = settings_of(kind, settings)
        return self.enqueue_draft_in(connection, self.make_draft(kind, payload, given), notify=given.notify)

    async def aenqueue_in(
        self, connection: object, kind: str, payload: Json = None, **settings: Unpack[EnqueueOptions]
    ) -> int:
        """As `enqueue_in`, on an asynchronous connection."""
        given = settings_of(kind, settings)
        draft = await self.codec.prepare(partial(self.make_draft, kind, payload, given))
        return await self.aenqueue_draft_in(connection, draft, notify=given.notify)

    def enqueue_many(self, drafts: Iterable[Draft], progress: Callable[[int], object] | None = None) -> int:
        """Any number of drafts, from any iterator, in bounded memory; how many were taken.

        They go in part by part, each all or nothing. An error says how many are in (`accepted`): go on after those.
        """
        report = None if progress is None else lambda tally: progress(tally.taken)
        return enqueue_stream(self.store, self._prepared(drafts), report).taken

    def _prepared(self, drafts: Iterable[Draft]) -> Iterable[Draft]:
        """Encoded, and through the layers of `around_enqueue`, which end before the drafts are stored."""
        encoded = map(self.codec.encoded, drafts)
        return map(self._through_layers, encoded) if self.hooks.enqueue_layers else encoded

    def _through_layers(self, draft: Draft) -> Draft:
        with ExitStack() as stack:
            return self.hooks.enter_enqueue(stack, draft)
        raise _suppressed()

    async def aenqueue_many(
        self, drafts: Iterable[Draft] | AsyncIterable[Draft], progress: Callable[[int], object] | None = None
    ) -> int:
        """As `enqueue_many`, for coroutines; also from an async iterator. A plain iterator is read in a thread."""
        return await self._async().enqueue_many(drafts, progress)

    def get(self, job_id: int) -> Job | None:
        """The job, its payload opened if the app has a vault; None if the store does not have it."""
        return self.get_all([job_id])[0]

    def get_all(self, ids: Sequence[int]) -> list[Job | None]:
        """As `get`, for several ids in one call."""
        return [None if job is None else self.codec.open_job(job) for job in self.store.get(ids)]

    async def aget(self, job_id: int) -> Job | None:
        """As `get`, for coroutines."""
        return await self._async().get(job_id)

    def payload(self, job: Job) -> Json:
        """The payload of a job, also one that is kept in the blob store."""
        return decode_payload(self.codec.open(job.kind, job.body))

    def wait_for(self, job_id: int, timeout: float = RESULT_WAIT) -> Job | None:
        """The job once it has ended, or as it is at the timeout; None if it is no longer kept."""
        store = self.store
        deadline = store.now() + from_seconds("timeout", timeout)
        while (job := self.get(job_id)) is not None and not job.state.terminal and (left := deadline - store.now()) > 0:
            store.wait_ended([job_id], min(timedelta(microseconds=left), MAX_WAIT))
        return job

    async def await_for(self, job_id: int, timeout: float = RESULT_WAIT) -> Job | None:  # noqa: ASYNC109
        """As `wait_for`, for coroutines."""
        return await self._async().wait_for(job_id, timeout)

    def result(self, job_id: int, timeout: float = RESULT_WAIT) -> Any:
        """What the job's handler returned, once it is done; by the annotation of the handler, where this app has it.

        `JobFailed`: it is dead. `JobCancelled`, `JobGone`: there will be no result. `ResultPending`: not in time.
        """
        return self._result(job_id, self.wait_for(job_id, timeout), timeout)

    async def aresult(self, job_id: int, timeout: float = RESULT_WAIT) -> Any:  # noqa: ASYNC109
        """As `result`, for coroutines."""
        job = await self.await_for(job_id, timeout)
        return await self.codec.prepare(partial(self._result, job_id, job, timeout))

    def _result(self, job_id: int, job: Job | None, timeout: float) -> Any:
        if job is None:
            raise JobGone(job_id)
        if job.state is State.DEAD:
            error = job.errors[-1]
            raise JobFailed(job_id, job.attempt, error.kind, error.message)
        if job.state is State.CANCELLED:
            raise JobCancelled(job_id)
        if job.state is not State.DONE:
            raise ResultPending(job_id, job.state, timeout)
        handler = self.registry.get(job.kind)
        if job.result_body is None:
            return None
        body = self.codec.open(job.kind, job.result_body)
        return decode_payload(body) if handler is None or handler.result is None else handler.result.decode(body)

    def jobs(self, query: Query = Query(), **fields: Unpack[JobFields]) -> Iterator[Job]:  # noqa: B008
        """All jobs that match, page by page: `fb.jobs(queue="mail", state="dead")`, or by a `Query`."""
        return map(self.codec.open_job, matching(self.store, _narrowed(query, fields)))

    def ajobs(self, query: Query = Query(), **fields: Unpack[JobFields]) -> AsyncIterator[Job]:  # noqa: B008
        """As `jobs`, for `async for`."""
        return self._async().jobs(_narrowed(query, fields))

    def events(
        self,
        *,
        queue: str | Collection[str] | None = None,
        kinds: str | Collection[str] | None = None,
        changes: str | Collection[str] = (),
        since: int | str | datetime | None = None,
        follow: bool = True,
    ) -> "EventStream":
        """What happens to jobs, for `for` and `async for`: from now on, or after `since`: docs/guides/events.md."""
        from forebay.events import EventFilter, EventReader, EventStream

        return EventStream(EventReader(self.store, EventFilter.of(queue, kinds, changes), since), follow=follow)

    def cancel(self, job_id: int) -> CancelAnswer:
        """Cancel the job, or request the end of its run: `cancelled`, `requested`, or `gone` if it has ended."""
        return self.cancel_all([job_id])[0]

    def cancel_all(self, ids: Sequence[int]) -> list[CancelAnswer]:
        """As `cancel`, for several ids in one call."""
        return self.store.cancel(ids)

    async def acancel(self, job_id: int) -> CancelAnswer:
        """As `cancel`, for coroutines."""
        return await self._async().cancel(job_id)

    def redrive(self, job_ids: Iterable[int] | None = None, *, queue: str | None = None) -> int:
        """Dead letters live again: these, or all of a queue; how many."""
        if job_ids is None:
            job_ids = [job.id for job in matching(self.store, Query(queue=queue, state=State.DEAD))]
        ids = list(job_ids)
        return sum(len(self.store.redrive(ids[start : start + MAX_BATCH])) for start in range(0, len(ids), MAX_BATCH))

    def backlog(self, *queues: str) -> list[Backlog]:
        """Depth and age of these queues; without names, of all queues."""
        return self.store.backlog(queues or None)

    def explain(self, job_id: int) -> list[str]:
        """Why the job is where it is, in sentences."""
        return explain(self.store, job_id)

    def _receipt(self, taken: Receipt, draft: Draft) -> JobReceipt:
        return JobReceipt(taken.id, taken.durable, taken.duplicate, taken.merged, taken.copies, draft.kind, self)

    def _async(self) -> "AsyncCaller":
        with self._opening:
            if self._caller is None:
                from forebay.async_client import AsyncCaller

                self._caller = AsyncCaller(self)
            return self._caller

    def make_draft(self, kind: str, payload: Json, settings: Settings) -> Draft:
        """What is enqueued for this payload. A large one is written to the blob store by this."""
        handler = self.registry.get(kind)
        queue, max_attempts = (handler.queue, handler.max_attempts) if handler else ("default", None)
        cost = handler.cost if handler else 1
        version = handler.signature.versions.current if handler else 1
        settings = settings if version == 1 else replace(settings, meta=with_version(settings.meta, version))
        return self.codec.draft(lambda given: settings.draft(kind, given, queue, max_attempts, cost), payload)

    def _register(self, function: Callable[..., Any], options: dict[str, Any]) -> JobType[..., Any]:
        kind = check_name("kind", options.pop("kind", None) or getattr(function, "__name__", "?"))
        known = self.registry.get(kind)
        if known is not None and _place(known.function) != _place(function):
            raise Invalid(kind, "another function has this kind already", "give one of them kind=…")
        decorated, providers = function, self.hooks.providers
        if "batch" in options:
            function = gathered(kind, function, options, providers)
        signature = Signature(kind, function, self.codec, providers, options.pop("version", 1))
        handler = declare(kind, function, signature, options)
        check_breaker(handler, self.registry.values())
        self.registry[kind] = handler
        return JobType(self, handler, decorated)

    def _declare(self) -> None:
        """What is declared late reaches a store that is open already."""
        if store := self._replacement or self._store:
            self._configure(store)

    def _configure(self, store: Store) -> None:
        """Write down queues and schedules that the store does not have as they are declared here."""
        known = {spec.name: spec for spec in store.specs()}
        for spec in self._queues.values():
            if known.get(spec.name) != spec:
                store.put_spec(spec)
        schedules = {schedule.name: schedule for schedule in store.schedules()}
        for name, (timetable, draft) in self.timetables.items():
            cron, was = timetable.cron, schedules.get(name)
            if was is None or was.rule != timetable.rule or was.zone != cron.zone:
                first = cron.next_after(store.now()) or NEVER
                store.put_schedule(Schedule(name, timetable.rule, first, draft, cron.zone))
            elif _fields(was.draft) != _fields(draft):
                store.put_schedule(replace(was, draft=draft))


def _narrowed(query: Query, fields: JobFields) -> Query:
    state = fields.get("state")
    given: Any = {**fields, "state": State(state)} if state in _STATES else fields
    try:
        return replace(query, **given)
    except TypeError as error:
        raise Invalid("jobs", str(error), f"use {', '.join(JobFields.__annotations__)}, or a Query") from None


def _suppressed() -> Invalid:
    return Invalid("around_enqueue", "a layer suppressed the error of an enqueue", "raise it again")


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """Where a function is written: the same place again is a reload."""
    return function.__module__, function.__qualname__


def _fields(draft: Draft) -> list[object]:
    """Everything that a draft has; the payload by its bytes."""
    return [getattr(draft, name) for name in Draft.__struct_fields__ if name != "payload"]
