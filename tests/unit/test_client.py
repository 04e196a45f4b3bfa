"""The application object: decorators, typed calls, settings, batches, looking at jobs, queues and schedules.

On the memory store and a clock that the tests turn; where something waits for real, the clock is the machine's.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from forebay import client
from forebay.client import Forebay
from forebay.core.breaker import Breaker
from forebay.core.clock import Clock
from forebay.core.errors import Invalid, KeyConflict
from forebay.core.instant import seconds
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_BATCH, PAYLOAD_BYTES
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import AtMost, Fixed, InOrder, KeepFor, Rate, Routing, Until
from forebay.core.presence import Presence
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import CancelAnswer, Query, Receipt, Store, Want
from forebay.testing.clock import ManualClock
from forebay.work.ticker import Ticker
from forebay_proof.faulty import ConnectionLost, Fault, FaultyStore, scripted

SECOND = 1_000_000
HOUR = 3_600 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fb(clock: ManualClock) -> Forebay:
    return Forebay("memory://", clock=clock)


def draft_of(fb: Forebay, receipt: Receipt) -> Draft:
    """What was stored, as far as a producer says it."""
    job = fb.get(receipt.id)
    assert job is not None
    return Draft(
        job.kind,
        job.payload,
        job.queue,
        job.priority,
        deadline=job.deadline,
        expires_at=job.expires_at,
        key=job.key,
        tenant=job.tenant,
        subject=job.subject,
        max_attempts=job.max_attempts,
        meta=job.meta,
    )


# Decorators


def test_a_bare_decorator_makes_a_job_that_can_still_be_called(fb: Forebay) -> None:
    @fb.job
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    assert add(2) == 3
    assert (vars(add)["__name__"], add.__doc__) == ("add", "Adds.")
    stored = fb.get(add.enqueue(2, b=5).id)
    assert stored is not None
    assert (stored.kind, stored.payload, stored.queue, stored.state) == (
        "add",
        {"a": 2, "b": 5},
        "default",
        State.READY,
    )


def test_a_decorator_with_options_keeps_them(fb: Forebay) -> None:
    breaker = Breaker(failures=2)

    @fb.job(
        kind="mail.send",
        queue="mail",
        max_attempts=7,
        timeout=2.5,
        retry_on=[OSError],
        drop_on=[ValueError],
        breaker=breaker,
        keep_result=True,
    )
    async def send(to: str) -> str:
        return to

    handler = fb.registry["mail.send"]
    assert (handler.queue, handler.max_attempts, handler.timeout, handler.where) == ("mail", 7, 2_500_000, "loop")
    assert (handler.retry_on, handler.drop_on, handler.breaker) == ((OSError,), (ValueError,), breaker)
    assert handler.keep_result is True
    assert asyncio.run(send("ada")) == "ada"
    stored = fb.get(send.enqueue("ada").id)
    assert stored is not None
    assert (stored.kind, stored.queue, stored.max_attempts) == ("mail.send", "mail", 7)


def test_where_a_handler_runs_follows_from_what_it_is(fb: Forebay) -> None:
    @fb.job
    def plain() -> None: ...

    @fb.job
    async def asynchronous() -> None: ...

    @fb.job(isolate=True)
    def alone() -> None: ...

    @fb.job(isolate=True, timeout=timedelta(seconds=3))
    async def alone_and_asynchronous() -> None: ...

    assert [handler.where for handler in fb.registry.values()] == ["thread", "loop", "process", "process"]
    assert fb.registry["alone_and_asynchronous"].timeout == 3 * SECOND


def test_a_generator_is_no_handler(fb: Forebay) -> None:
    with pytest.raises(Invalid, match="return instead of yield"):

        @fb.job
        def numbers() -> Iterator[int]:
            yield 1


def test_two_functions_of_one_kind_are_refused(fb: Forebay) -> None:
    @fb.job(kind="mail")
    def first() -> None: ...

    with pytest.raises(Invalid, match="kind"):

        @fb.job(kind="mail")
        def second() -> None: ...

    assert fb.registry["mail"].function.__name__ == "first"


def test_a_function_that_is_loaded_again_takes_the_place_of_its_former_self(fb: Forebay) -> None:
    def made(answer: int) -> None:
        @fb.job
        def answers() -> int:
            return answer

    made(1)
    made(2)
    assert fb.registry["answers"].function() == 2


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"timeout": -1},
        {"timeout": "soon"},
        {"kind": "not a name!"},
        {"queue": ""},
        {"queue": "not a name!"},
        {"max_attempts": 0},
        {"max_attempts": -3},
        {"breaker": 5},
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_refused_at_the_decorator(fb: Forebay, options: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        fb.job(**options)(lambda: None)  # type: ignore[call-overload]


# Enqueueing


def test_a_wrong_call_is_refused_where_it_is_written_and_nothing_is_stored(fb: Forebay) -> None:
    @fb.job
    def send(to: str) -> None: ...

    with pytest.raises(Invalid, match=r"call it as send\(to: str\)"):
        send.enqueue(5)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        send.enqueue()  # type: ignore[call-arg]
    assert fb.store.backlog(["default"])[0].depth == 0


def test_every_setting_reaches_the_job(fb: Forebay, clock: ManualClock) -> None:
    @fb.job(max_attempts=9)
    def send(to: str) -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    receipt = send.using(
        queue="other",
        priority=5,
        deadline=at,
        expires_at=at,
        key="k",
        tenant="acme",
        subject="order-1",
        max_attempts=2,
        meta={"trace": "x"},
    ).enqueue("ada")
    instant = int(at.timestamp()) * SECOND
    assert draft_of(fb, receipt) == Draft(
        "send",
        {"to": "ada"},
        "other",
        5,
        deadline=instant,
        expires_at=instant,
        key="k",
        tenant="acme",
        subject="order-1",
        max_attempts=2,
        meta={"trace": "x"},
    )


def test_a_delay_and_a_time_of_day_are_kept(fb: Forebay, clock: ManualClock) -> None:
    @fb.job
    def send() -> None: ...

    ids = [
        send.using(delay=1.5).enqueue().id,
        send.using(delay=timedelta(minutes=2)).enqueue().id,
        send.using(run_at=datetime(2030, 1, 1, tzinfo=UTC)).enqueue().id,
    ]
    due = [job.due_at for job in fb.store.get(ids) if job is not None]
    assert due == [clock.now() + 1_500_000, clock.now() + 120 * SECOND, 1_893_456_000 * SECOND]


@pytest.mark.parametrize(
    "settings",
    [
        {"colour": "red"},
        {"priority": "high"},
        {"delay": -1},
        {"delay": float("nan")},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"run_at": 5},
        {"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"max_attempts": 0},
        {"queue": ""},
        {"key": ""},
        {"tenant": "not a name!"},
    ],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_refused(fb: Forebay, settings: Any) -> None:
    @fb.job
    def send() -> None: ...

    with pytest.raises(Invalid):
        send.using(**settings).enqueue()
    with pytest.raises(Invalid):
        fb.enqueue("send", None, **settings)
    assert list(fb.jobs()) == []


def test_a_key_makes_one_job_and_another_payload_is_a_conflict(fb: Forebay) -> None:
    @fb.job
    def send(to: str) -> None: ...

    first = send.using(key="k").enqueue("ada")
    again = send.using(key="k").enqueue("ada")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(KeyConflict):
        send.using(key="k").enqueue("bob")


def test_the_plain_form_takes_any_kind_and_knows_the_registered_ones(fb: Forebay) -> None:
    @fb.job(queue="mail", max_attempts=4)
    def send() -> None: ...

    known, unknown = fb.enqueue("send"), fb.enqueue("elsewhere", [1, 2], priority=3)
    jobs = fb.store.get([known.id, unknown.id])
    assert [(job.queue, job.max_attempts, job.payload) for job in jobs if job] == [
        ("mail", 4, None),
        ("default", 25, [1, 2]),
    ]


def test_asynchronous_callers_enqueue_too(fb: Forebay) -> None:
    @fb.job
    async def send(to: str) -> None: ...

    async def produce() -> list[Receipt]:
        return [
            await send.aenqueue("ada"),
            await send.using(priority=1).aenqueue("bob"),
            await fb.aenqueue("other", {"x": 1}),
        ]

    receipts = asyncio.run(produce())
    assert [job.payload for job in fb.store.get([receipt.id for receipt in receipts]) if job] == [
        {"to": "ada"},
        {"to": "bob"},
        {"x": 1},
    ]


class Watched(MemoryStore):
    """Remembers how large the batches were."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def enqueue(self, drafts: object) -> list[Receipt]:
        assert isinstance(drafts, list)
        self.batches.append(len(drafts))
        return super().enqueue(drafts)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    store = Watched()
    monkeypatch.setattr(client, "open_store", lambda url, *, clock: store)
    return store


def test_many_drafts_go_in_bounded_batches_from_a_generator_that_is_read_as_it_goes(watched: Watched) -> None:
    fb = Forebay("memory://")
    made = 0
    ahead: list[int] = []

    def drafts() -> Iterator[Draft]:
        nonlocal made
        for number in range(2 * MAX_BATCH + 7):
            made += 1
            yield Draft("k", number)

    assert fb.enqueue_many(drafts(), progress=lambda taken: ahead.append(made - taken)) == 2 * MAX_BATCH + 7
    assert watched.batches == [MAX_BATCH, MAX_BATCH, 7]
    assert max(ahead) <= 1, "no more was read than was sent"
    assert watched.backlog(["default"])[0].depth == 2 * MAX_BATCH + 7


def test_large_drafts_make_smaller_batches(watched: Watched) -> None:
    fb = Forebay("memory://")
    large = Draft("k", "x" * (PAYLOAD_BYTES - 2))
    assert fb.enqueue_many([large] * 130) == 130
    assert sum(watched.batches) == 130
    assert max(watched.batches) <= 64


def test_no_drafts_are_no_batch(watched: Watched) -> None:
    assert Forebay("memory://").enqueue_many(iter(())) == 0
    assert watched.batches == []


def test_a_draft_that_cannot_be_made_stops_the_rest_and_keeps_the_batches_before(watched: Watched) -> None:
    fb = Forebay("memory://")
    reported: list[int] = []

    def drafts() -> Iterator[Draft]:
        for number in range(MAX_BATCH + 1):
            yield Draft("k", number)
        raise RuntimeError("the file ended early")

    with pytest.raises(RuntimeError):
        fb.enqueue_many(drafts(), reported.append)
    assert reported == [MAX_BATCH]
    assert watched.backlog(["default"])[0].depth == MAX_BATCH


# Looking at jobs


def test_a_job_is_found_by_its_id_and_an_unknown_one_is_none(fb: Forebay) -> None:
    receipt = fb.enqueue("k")
    job = fb.get(receipt.id)
    assert job is not None
    assert job.id == receipt.id
    assert fb.get(10**9) is None


def claimed_and(fb: Forebay, verdict: Ack | DeadLetter | Retry, count: int = 1) -> None:
    leases = fb.store.claim([Want("default", count)], "ada", seconds(30))
    assert len(leases) == count
    fb.store.settle([(lease, verdict) for lease in leases])


def test_waiting_for_a_job_ends_when_it_has_ended() -> None:
    fb = Forebay("memory://")
    fb.queue(QueueSpec(name="default", retention=KeepFor(seconds(600))))
    job_id = fb.enqueue("k").id
    answers: list[object] = []
    waiter = Thread(target=lambda: answers.append(fb.wait_for(job_id, 60)), daemon=True)
    waiter.start()
    claimed_and(fb, Ack(b'"done"'))
    waiter.join(30)
    (job,) = answers
    assert job is not None
    assert (job.state, job.result) == (State.DONE, "done")  # type: ignore[attr-defined]


def test_waiting_for_a_job_gives_up_in_time_and_says_how_it_is() -> None:
    fb = Forebay("memory://")
    job_id = fb.enqueue("k").id
    job = fb.wait_for(job_id, 0.05)
    assert job is not None
    assert job.state is State.READY
    assert fb.wait_for(10**9, 0.05) is None
    claimed_and(fb, Ack())
    assert fb.wait_for(job_id, 0.05) is None, "done and removed"


def test_all_jobs_come_page_by_page(fb: Forebay) -> None:
    fb.enqueue_many(Draft("even" if number % 2 == 0 else "odd", number) for number in range(2_500))
    assert [job.payload for job in fb.jobs()] == list(range(2_500))
    assert [job.payload for job in fb.jobs(Query(kind="odd"))] == list(range(1, 2_500, 2))
    assert list(fb.jobs(Query(queue="elsewhere"))) == []
    assert list(fb.jobs(kind="odd", state="ready")) == list(fb.jobs(Query(kind="odd")))
    assert list(fb.jobs(state=State.DONE)) == []
    assert list(fb.jobs(Query(kind="odd"), state="done")) == []
    with pytest.raises(Invalid, match="use waiting"):
        fb.jobs(state="lost")
    with pytest.raises(Invalid, match="use queue"):
        fb.jobs(colour="red")  # type: ignore[call-arg]


def test_a_cancelled_job_does_not_run_and_a_running_one_is_asked(fb: Forebay) -> None:
    waiting, running = fb.enqueue("k").id, fb.enqueue("k").id
    assert fb.cancel(waiting) is CancelAnswer.CANCELLED
    (lease,) = fb.store.claim([Want("default", 5)], "ada", seconds(30))
    assert lease.job.id == running
    assert fb.cancel(running) is CancelAnswer.REQUESTED
    assert fb.cancel(10**9) is CancelAnswer.GONE


def test_dead_jobs_live_again_by_id_by_queue_and_all_together(fb: Forebay) -> None:
    fb.enqueue_many(Draft("k", queue=queue) for queue in ("default", "default", "default", "other"))
    for queue in ("default", "other"):
        leases = fb.store.claim([Want(queue, 10)], "ada", seconds(30))
        fb.store.settle([(lease, DeadLetter(Failure("x"))) for lease in leases])
    assert fb.redrive([1]) == 1
    assert fb.redrive([1]) == 0
    assert fb.redrive(queue="default") == 2
    assert fb.redrive() == 1
    assert fb.redrive() == 0
    assert [backlog.dead for backlog in fb.backlog("default", "other")] == [0, 0]


def test_more_dead_jobs_than_fit_one_call_live_again(fb: Forebay) -> None:
    fb.enqueue_many(Draft("k", number) for number in range(1_500))
    for _ in range(2):
        leases = fb.store.claim([Want("default", 1_000)], "ada", seconds(30))
        fb.store.settle([(lease, DeadLetter(Failure("x"))) for lease in leases])
    assert fb.redrive(iter(range(1, 1_501))) == 1_500


def test_a_backlog_without_names_is_that_of_all_queues(fb: Forebay) -> None:
    fb.enqueue_many([Draft("k", queue="a"), Draft("k", queue="b")])
    assert [backlog.queue for backlog in fb.backlog()] == ["a", "b"]
    assert [backlog.ready for backlog in fb.backlog("b", "c")] == [1, 0]


# Explaining


def explained(fb: Forebay, job_id: int) -> str:
    return "\n".join(fb.explain(job_id))


def test_an_unknown_job_is_said_to_be_unknown(fb: Forebay) -> None:
    assert fb.explain(77) == ["job 77 is unknown: it never existed, or it was done and removed, or purged"]


def test_a_kind_that_no_worker_handles_is_explained(fb: Forebay) -> None:
    job_id = fb.store.enqueue([Draft("resize")])[0].id
    assert fb.explain(job_id)[2] == "no worker of queue default has announced itself: start one, forebay worker app:fb"
    assert "no worker handles" not in explained(fb, job_id), "there is no worker at all"
    fb.store.announce(Presence("a", "host", 1, ("default",), ("mail",)), seconds(60))
    fb.store.announce(Presence("b", "host", 2, ("other",), ("resize",)), seconds(60))
    assert fb.explain(job_id)[1] == (
        "no worker handles kind resize: 1 worker of queue default and no handler for it; "
        "start one that does, and it runs"
    )
    (lease,) = fb.store.claim([Want("default", 1)], "a", seconds(30))
    fb.store.settle([(lease, Release(1_000_000))])
    assert fb.explain(job_id)[1].endswith("; it came back 1 time, uncharged")
    fb.store.announce(Presence("c", "host", 3, ("default",), ("mail", "resize")), seconds(60))
    assert "no worker" not in explained(fb, job_id)


def test_every_state_is_explained(fb: Forebay, clock: ManualClock) -> None:
    fb.queue(QueueSpec(name="default", retention=KeepFor(seconds(600)), routing=Routing(2, Fixed(seconds(90)))))
    job_id = fb.enqueue("k", delay=60).id
    assert "it is due in 60.0 s" in explained(fb, job_id)
    clock.advance(61 * SECOND)
    fb.store.promote(10)
    assert "may be claimed at any time; ready in the queue: 1 job, 0 jobs of its lane" in explained(fb, job_id)
    (lease,) = fb.store.claim([Want("default", 1)], "ada", seconds(30))
    assert "ada holds it, delivery 1; the lease ends in 30.0 s" in explained(fb, job_id)
    fb.store.settle([(lease, Retry(90 * SECOND, Failure("OSError", "no route")))])
    assert "its retry is due in 90.0 s" in explained(fb, job_id)
    assert "attempt 1 failed: OSError: no route" in explained(fb, job_id)
    clock.advance(91 * SECOND)
    claimed_and(fb, DeadLetter(Failure("OSError", "no route")))
    assert "it used 2 of 2 attempts; redrive it" in explained(fb, job_id)
    fb.redrive([job_id])
    claimed_and(fb, Ack())
    assert "it has ended" in explained(fb, job_id)
    assert "default = {keep 10 min" in explained(fb, job_id)


def test_a_pause_and_a_closed_gate_are_explained(fb: Forebay) -> None:
    fb.queue(QueueSpec(name="default", eligibility=InOrder()))
    first, second, third = (fb.enqueue("k", subject="s").id for _ in range(3))
    reported = explained(fb, third)
    assert "it is due and waits in the line order/default/subject/s: in order, one at a time" in reported
    assert f"job {first} is first in line, ready" in reported
    assert "1 job of the line between its head and this one" in reported
    assert f"job {first} is first in line, ready" in explained(fb, second)
    fb.store.pause("default")
    assert "the queue is paused until" in explained(fb, first)


def test_the_gate_that_holds_a_job_is_named_with_when_it_opens(fb: Forebay, clock: ManualClock) -> None:
    fb.queue(QueueSpec(name="cap", eligibility=AtMost(1)))
    fb.queue(QueueSpec(name="rate", eligibility=Rate(1, seconds(60))))
    fb.queue(QueueSpec(name="until", eligibility=Until("stock")))
    fb.queue(QueueSpec(name="line", eligibility=InOrder(dead_head="block")))
    names = ("cap", "rate", "until", "line")
    jobs = {name: [fb.enqueue("k", queue=name, subject="s").id for _ in range(2)][-1] for name in names}
    assert "it may be claimed at any time; ready in the queue: 2 jobs, 1 job of its lane before it" in explained(
        fb, jobs["cap"]
    )
    fb.store.claim([Want("rate", 1), Want("cap", 1)], "ada", seconds(30))
    assert "the gate cap/cap holds it: running jobs use 1 of its 1 slot" in explained(fb, jobs["cap"])
    clock.advance(20 * SECOND)
    assert "rate/rate holds it: the rate admits the next job in 40.0 s, at " in explained(fb, jobs["rate"])
    assert "until/stock holds it: it is closed until it is set or released" in explained(fb, jobs["until"])
    (lease,) = fb.store.claim([Want("line", 1)], "ada", seconds(30))
    fb.store.settle([(lease, DeadLetter(Failure("OSError", "no route")))])
    assert "is first in line and dead: it blocks the line until it is redriven or purged" in explained(fb, jobs["line"])


# The store


def test_importing_an_app_opens_nothing_and_the_first_use_does(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_store(url: str, *, clock: Clock | None) -> Store:
        opened.append(url)
        return MemoryStore(clock=clock)

    monkeypatch.setattr(client, "open_store", open_store)
    fb = Forebay("sqlite:///somewhere.db")
    fb.queue(QueueSpec(name="q"))

    @fb.cron("@daily")
    @fb.job
    def nightly() -> None: ...

    fb.close()
    assert opened == []
    threads = [Thread(target=lambda: fb.enqueue("k"), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert opened == ["sqlite:///somewhere.db"]
    assert fb.backlog("default")[0].ready == 8


def test_a_closed_app_opens_its_store_again_when_it_is_used() -> None:
    fb = Forebay("memory://")
    before = fb.store
    fb.close()
    fb.close()
    assert fb.store is not before


def test_the_url_comes_from_the_argument_then_the_environment_then_a_file_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    assert Forebay().url == "sqlite:///forebay.db"
    monkeypatch.setenv("FOREBAY_URL", f"sqlite:///{tmp_path}/jobs.db")
    assert Forebay("memory://").url == "memory://"
    fb = Forebay()
    fb.enqueue("k")
    assert (tmp_path / "jobs.db").exists()
    fb.close()


class Counting(MemoryStore):
    """Counts what is written about queues and schedules."""

    puts = 0

    def put_spec(self, spec: QueueSpec) -> None:
        self.puts += 1
        super().put_spec(spec)

    def put_schedule(self, schedule: object) -> None:
        self.puts += 1
        super().put_schedule(schedule)  # type: ignore[arg-type]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Counting:
    """Every app of the test is on this one store, as processes are on one file."""
    store = Counting(clock=clock)
    monkeypatch.setattr(client, "open_store", lambda url, *, clock: store)
    return store


def test_a_queue_is_written_once_and_again_when_it_was_edited(shared: Counting) -> None:
    spec = QueueSpec(name="q", key_window=seconds(60))
    for _ in range(3):
        fb = Forebay()
        assert fb.queue(spec) is spec
        assert fb.store.specs() == [spec]
        assert fb.store.specs() == [spec]
    assert shared.puts == 1
    edited = QueueSpec(name="q", key_window=seconds(90))
    fb = Forebay()
    fb.queue(edited)
    assert fb.store.specs() == [edited]
    assert shared.puts == 2


def test_a_queue_declared_after_the_store_was_opened_is_written_at_once(shared: Counting) -> None:
    fb = Forebay()
    assert fb.store.specs() == []
    fb.queue(QueueSpec(name="q"))
    assert [spec.name for spec in shared.specs()] == ["q"]


def test_a_store_that_could_not_be_set_up_is_set_up_at_the_next_use(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore()
    plan = scripted(("put_spec", Fault.REFUSED))
    monkeypatch.setattr(client, "open_store", lambda url, *, clock: FaultyStore(inner, plan))
    monkeypatch.setattr(inner, "close", lambda: None)
    fb = Forebay()
    fb.queue(QueueSpec(name="q"))
    with pytest.raises(ConnectionLost):
        _ = fb.store
    assert [spec.name for spec in fb.store.specs()] == ["q"]


# Schedules


def declared(rule: str, **options: str) -> Forebay:
    fb = Forebay()

    @fb.cron(rule, name="nightly", **options)  # type: ignore[arg-type]
    @fb.job
    def report() -> None: ...

    _ = fb.store
    return fb


def test_a_schedule_is_written_once_by_any_number_of_processes(shared: Counting, clock: ManualClock) -> None:
    for _ in range(3):
        declared("0 * * * *")
    (schedule,) = shared.schedules()
    assert shared.puts == 1
    assert (schedule.name, schedule.rule, schedule.zone, schedule.draft.kind) == (
        "nightly",
        "0 * * * *",
        "UTC",
        "report",
    )
    assert schedule.next_at == (clock.now() // HOUR + 1) * HOUR


def test_a_schedule_named_by_its_function_without_options(shared: Counting) -> None:
    fb = Forebay()

    @fb.cron("@hourly", tz="Europe/Berlin", catch_up="all(3)", overlap="skip", jitter=5)
    async def sweep() -> None: ...

    _ = fb.store
    (schedule,) = shared.schedules()
    assert (schedule.name, schedule.zone) == ("sweep", "Europe/Berlin")
    assert schedule.rule == "@hourly ; catch_up=all(3) overlap=skip jitter=5s"
    assert fb.registry["sweep"].where == "loop"


def test_an_edited_rule_moves_the_next_tick_and_never_fires_a_past_one(shared: Counting, clock: ManualClock) -> None:
    declared("0 * * * *")
    clock.advance(HOUR)
    ticker = Ticker(shared)
    ticker.step()
    assert ticker.fired == 1
    declared("30 * * * *")
    (schedule,) = shared.schedules()
    assert shared.puts == 2
    assert schedule.next_at > clock.now()
    ticker.step()
    declared("0 * * * *")
    ticker.step()
    assert ticker.fired == 1, "declaring it again fired nothing"
    clock.advance(HOUR)
    ticker.step()
    assert ticker.fired == 2


def test_an_edited_zone_or_option_is_written(shared: Counting) -> None:
    declared("0 3 * * *")
    declared("0 3 * * *", tz="Asia/Tokyo")
    assert shared.schedules()[0].zone == "Asia/Tokyo"
    declared("0 3 * * *", tz="Asia/Tokyo", overlap="skip")
    assert shared.schedules()[0].rule == "0 3 * * * ; overlap=skip"
    assert shared.puts == 3


@pytest.mark.parametrize("options", [{"queue": "slow"}, {"max_attempts": 3}, {"kind": "report.v2"}], ids=str)
def test_an_edited_job_is_what_the_schedule_enqueues_next(
    shared: Counting, clock: ManualClock, options: dict[str, object]
) -> None:
    declared("0 * * * *")
    at = shared.schedules()[0].next_at
    fb = Forebay()

    @fb.cron("0 * * * *", name="nightly")
    @fb.job(**options)  # type: ignore[call-overload, untyped-decorator, unused-ignore]
    def report() -> None: ...

    _ = fb.store
    (schedule,) = shared.schedules()
    assert schedule.next_at == at
    assert schedule.draft.queue == options.get("queue", "default")
    assert schedule.draft.kind == options.get("kind", "report")
    assert schedule.draft.max_attempts == options.get("max_attempts")


def test_a_paused_schedule_is_not_woken_by_a_restart(shared: Counting) -> None:
    declared("0 * * * *")
    (schedule,) = shared.schedules()
    shared.put_schedule(type(schedule)("nightly", schedule.rule, schedule.next_at, schedule.draft, paused=True))
    declared("0 * * * *")
    assert shared.schedules()[0].paused


def test_a_cron_function_takes_no_arguments(fb: Forebay) -> None:
    with pytest.raises(Invalid):

        @fb.cron("@hourly")  # type: ignore[arg-type]
        def needs(to: str) -> None: ...


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("not a rule", {}),
        ("0 0 30 2 *", {}),
        ("@daily", {"tz": "Mars/Olympus"}),
        ("@daily", {"catch_up": "some"}),
        ("@daily", {"overlap": "maybe"}),
        ("@daily", {"dst": "never"}),
        ("@daily", {"name": "not a name!"}),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_where_it_is_written(
    fb: Forebay, rule: str, options: dict[str, str]
) -> None:
    with pytest.raises(Invalid):
        fb.cron(rule, **options)(lambda: None)  # type: ignore[arg-type]
