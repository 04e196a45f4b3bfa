"""The roles of a worker, step by step on a store and a clock that the tests hold; and the threads that repeat them.

Claimer, settler, renewer, reaper, promoter and ticker are called directly, as a simulator would; `RoleThread` and
`Worker` run in real threads.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest
from msgspec.structs import replace

from forebay.client import Forebay
from forebay.core.errors import Invalid, StoreFailed
from forebay.core.instant import seconds
from forebay.core.job import Draft, Job, Progress, State
from forebay.core.lease import Fence, Lease, Settled, Settlement
from forebay.core.outcome import ABANDONED, Ack, Failure, Release, Retry, Verdict
from forebay.core.policy import Bounded, Fixed, KeepFor, Retained, Routing
from forebay.core.presence import Presence, unhandled_kinds
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import ProgressReport, Promotion, Want
from forebay.testing.clock import ManualClock
from forebay.work.capacity import fit_count, slots_of
from forebay.work.claimer import _MAX_RESERVED_STEPS, Claimer
from forebay.work.heartbeat import Announcer, CancelListener, ProgressReporter, Renewer
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.reaper import Promoter, Reaper
from forebay.work.role import STALLED_SECONDS, RoleThread, ThrottledLogger, WorkerRole
from forebay.work.settler import Settler
from forebay.work.start_marks import RUN_DIRECTORY, ProcessMarks, read_marks
from forebay.work.ticker import Ticker
from forebay.work.worker import Worker
from forebay_proof.faulty import ConnectionLost, Fault, FaultyStore, ReplyLost, scripted
from tests.waiting import PATIENCE, eventually

SECOND = 1_000_000
MINUTE = 60 * SECOND
ROUTING = Routing(max_attempts=2, backoff=Fixed(seconds(5)))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claimer without jobs waits for a hint for up to a second, and a drain waits for it to return."""
    monkeypatch.setattr("forebay.work.claimer._IDLE", seconds(0.05))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000_000 // MINUTE * MINUTE)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    store = MemoryStore(clock=clock)
    store.put_spec(QueueSpec(name="default", routing=ROUTING, retention=KeepFor(seconds(100_000))))
    return store


def routing(queue: str) -> Routing:
    return ROUTING


def leased(store: MemoryStore, count: int = 1, lease: float = 10.0, owner: str = "ada") -> list[Lease]:
    store.enqueue([Draft("k", number) for number in range(count)])
    return store.claim([Want("default", count)], owner, seconds(lease))


def job(store: MemoryStore, job_id: int) -> Job:
    (found,) = store.get([job_id])
    assert found is not None
    return found


# Settler


def test_a_settler_writes_what_it_was_given(store: MemoryStore) -> None:
    settler = Settler(store)
    for lease in leased(store, 3):
        settler.put([(lease, Ack(b"1"))])
    assert [settler.empty, settler.step(), settler.empty] == [False, 0.0, True]
    assert (settler.applied, settler.stale) == (3, 0)
    assert [job(store, number).state for number in (1, 2, 3)] == [State.DONE] * 3


def test_a_settler_tries_the_write_again_until_it_is_in_and_in_order(store: MemoryStore) -> None:
    faulty = FaultyStore(
        store, scripted(("settle", Fault.REFUSED), ("settle", Fault.REPLY_LOST), ("settle", Fault.REFUSED))
    )
    reported: list[tuple[Fence, Settled]] = []
    settler = Settler(faulty, lambda lease, answer: reported.append((lease.fence, answer)))
    first, second = leased(store, 2)
    settler.put([(first, Retry(0, Failure("x")))])
    for error in (ConnectionLost, ReplyLost, ConnectionLost):
        with pytest.raises(error):
            settler.step()
        assert not settler.empty
        settler.put([(second, Ack())])
    while not settler.empty:
        settler.step()
    assert reported[0] == (first.fence, Settled.APPLIED), "the reply was lost, the repeat is applied all the same"
    assert {fence for fence, _ in reported[1:]} == {second.fence}
    assert settler.stale == 0
    assert job(store, first.job.id).attempt == 1, "it counted once"


def test_a_settler_counts_what_came_too_late_and_goes_on(store: MemoryStore, clock: ManualClock) -> None:
    settler = Settler(store)
    (late,) = leased(store)
    clock.advance(11 * SECOND)
    Reaper(store, routing).step()
    (current,) = store.claim([Want("default", 1)], "bob", seconds(10))
    assert current.job.id == late.job.id
    settler.put([(late, Ack())])
    settler.step()
    assert (settler.applied, settler.stale) == (0, 1)
    assert job(store, late.job.id).state is State.RUNNING
    settler.put([(current, Ack())])
    settler.step()
    assert (settler.applied, settler.stale) == (1, 1)


def test_large_results_are_written_in_smaller_batches(store: MemoryStore) -> None:
    settler = Settler(store)
    for lease in leased(store, 150):
        settler.put([(lease, Ack(b'"' + b"x" * 250_000 + b'"'))])
    steps = 0
    while not settler.empty:
        settler.step()
        steps += 1
    assert settler.applied == 150
    assert steps < 50


class Narrow:
    """A store that refuses more than three verdicts at once, and one of them always."""

    def __init__(self, poison: Fence) -> None:
        self.poison = poison
        self.written: list[Fence] = []

    def settle(self, settlements: Sequence[tuple[Lease, Verdict]]) -> list[Settled]:
        fences = [lease.fence for lease, _ in settlements]
        if len(fences) > 3 or self.poison in fences:
            raise Invalid("settle", "too much", "split the call")
        self.written += fences
        return [Settled.APPLIED] * len(fences)


def test_one_verdict_that_the_store_refuses_does_not_hold_back_the_others(store: MemoryStore) -> None:
    leases = leased(store, 20)
    narrow = Narrow(leases[7].fence)
    settler = Settler(narrow)  # type: ignore[arg-type]
    for lease in leases:
        settler.put([(lease, Ack())])
    for _ in range(200):
        if settler.empty:
            break
        try:
            settler.step()
        except Invalid:
            continue
    assert settler.empty
    assert narrow.written == [lease.fence for lease in leases if lease.fence != narrow.poison], "in their order"


def test_an_idle_settler_is_woken_by_a_verdict(store: MemoryStore) -> None:
    settler = Settler(store)
    beat = RoleThread(settler)
    beat.start()
    (lease,) = leased(store)
    settler.put([(lease, Ack())])
    eventually(lambda: settler.applied == 1)
    assert beat.stop(PATIENCE)


# Renewer


class Holding:
    """The part of a pool that the renewer uses."""

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = leases
        self.ends: dict[Fence, float] = {}
        self.lost: list[Fence] = []
        self.requested: list[Fence] = []

    def held(self) -> list[Lease]:
        return self.leases

    def renewed(self, fences: Iterable[Fence], lease_ends: float) -> None:
        self.ends.update(dict.fromkeys(fences, lease_ends))

    def mark_lost(self, fences: Sequence[Fence]) -> None:
        self.lost += fences

    def request_cancel(self, fences: Sequence[Fence]) -> None:
        self.requested += fences


def test_a_renewer_keeps_leases_alive_three_times_a_lease(store: MemoryStore, clock: ManualClock) -> None:
    holding = Holding(leased(store, 3))
    renewer = Renewer(store, holding, Options(lease_for=seconds(9)))
    for _ in range(20):
        rest = renewer.step()
        assert rest == 3.0
        clock.advance(int(rest * SECOND))
        assert store.overdue(10) == []
    assert (renewer.renewed, renewer.lost, holding.lost) == (60, 0, [])


def test_a_renewer_says_until_when_leases_last_counted_from_before_the_call(store: MemoryStore) -> None:
    holding = Holding(leased(store, 2))
    kept, taken = holding.leases
    store.settle([(taken, Release())])
    times = iter((100.0, 101.0))
    Renewer(store, holding, Options(lease_for=seconds(9)), lambda: next(times)).step()
    assert holding.ends == {kept.fence: 109.0}


def test_a_renewer_reports_what_is_lost_and_what_is_to_end(store: MemoryStore, clock: ManualClock) -> None:
    holding = Holding(leased(store, 3))
    kept, taken, cancelled = holding.leases
    store.settle([(taken, Release())])
    store.cancel([cancelled.job.id])
    renewer = Renewer(store, holding, Options())
    renewer.step()
    assert holding.lost == [taken.fence]
    assert holding.requested == [cancelled.fence]
    assert (renewer.renewed, renewer.lost) == (2, 1)
    assert kept.fence not in holding.lost


class ReportingPool:
    """A pool whose jobs say how far they are."""

    def __init__(self) -> None:
        self.output: list[ProgressReport] = []

    def progress(self) -> list[ProgressReport]:
        return list(self.output)


def test_progress_is_written_once_a_second_many_jobs_at_a_time_and_only_what_is_new(store: MemoryStore) -> None:
    counting, saying = FaultyStore(store, lambda verb: Fault.NONE), ReportingPool()
    leases = [lease for _ in range(2) for lease in leased(store, 1_000)]
    reporter = ProgressReporter(counting, saying)

    def calls() -> int:
        return sum(verb == "report_progress" for verb, _ in counting.history)

    assert reporter.step() == 1.0
    assert calls() == 0
    saying.output = [(lease.fence, Progress(0.25)) for lease in leases]
    reporter.step()
    assert calls() == 2
    reporter.step()
    assert calls() == 2, "nothing is new"
    saying.output[7] = (leases[7].fence, Progress(0.5, "newest"))
    reporter.step()
    assert calls() == 3
    (job,) = store.get([leases[7].job.id])
    assert job is not None
    assert job.progress is not None
    assert (job.progress.portion, job.progress.note) == (0.5, "newest")


def test_a_cancel_listener_reports_each_request_once(store: MemoryStore, clock: ManualClock) -> None:
    holding = Holding(leased(store, 3))
    first, second, _ = holding.leases
    listener = CancelListener(store, holding, first.owner)
    store.cancel([first.job.id])
    assert listener.step() == 0
    assert holding.requested == [first.fence]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(listener.step)
        clock.until_asleep(1)
        store.cancel([second.job.id])
        assert waiting.result(PATIENCE) == 0
    assert holding.requested == [first.fence, second.fence]


def test_a_cancel_listener_rests_while_nothing_runs(store: MemoryStore) -> None:
    assert CancelListener(store, Holding([]), "ada").step() > 0


def test_a_renewer_goes_through_any_number_of_leases(store: MemoryStore) -> None:
    leases = [lease for _ in range(3) for lease in leased(store, 1_000)]
    renewer = Renewer(store, Holding(leases), Options())
    renewer.step()
    assert renewer.renewed == 3_000
    Renewer(store, Holding([]), Options()).step()


# Reaper and promoter


def test_a_reaper_takes_back_what_fell_silent_and_charges_a_suspect(store: MemoryStore, clock: ManualClock) -> None:
    """The holder's marks cannot be read: the job is spared the first time, and charged once it runs in quarantine."""
    reaper = Reaper(store, routing)
    (lease,) = leased(store)
    assert reaper.step() > 0
    assert reaper.reaped == 0
    clock.advance(11 * SECOND)
    reaper.step()
    abandoned = job(store, lease.job.id)
    assert abandoned.state in (State.WAITING, State.READY)
    assert (abandoned.suspect, abandoned.attempt) == (True, 0)
    for attempt in (1, 2):
        (lease,) = store.claim([Want("default", 1)], "bob", seconds(10))
        assert (lease.job.needs_quarantine, lease.job.attempt) == (True, attempt)
        clock.advance(11 * SECOND)
        reaper.step()
    dead = job(store, lease.job.id)
    assert (dead.state, dead.attempt, reaper.reaped) == (State.DEAD, 2, 3)
    assert [error.kind for error in dead.errors] == [ABANDONED] * 3
    assert "bob" not in dead.errors[-1].message


@pytest.mark.parametrize(
    ("alive", "begun", "attempt", "errors"),
    [
        (False, True, 1, ["the process died while running it"]),
        (False, False, 0, []),
        (True, True, 0, ["its lease ran out: the worker died, hung or was cut off"]),
        (True, False, 0, []),
    ],
)
def test_a_reaper_reads_the_marks_of_its_machine(
    store: MemoryStore, clock: ManualClock, alive: bool, begun: bool, attempt: int, errors: list[str]
) -> None:
    (lease,) = leased(store)
    marks = {lease.owner: ProcessMarks({lease.fence: 0} if begun else {}, alive)}
    clock.advance(11 * SECOND)
    Reaper(store, routing, marks=marks.get).step()
    found = job(store, lease.job.id)
    assert (found.attempt, [error.message for error in found.errors]) == (attempt, errors)
    assert found.state in (State.WAITING, State.READY)


class UnreachableStore(MemoryStore):
    """A store that is out of reach, wholly or but for reads, until the test changes it."""

    readable = writable = True

    def overdue(self, limit: int) -> list[Lease]:
        if not self.readable:
            raise StoreFailed("it", "out of reach")
        return super().overdue(limit)

    def promote(self, limit: int) -> Promotion:
        if not self.writable:
            raise StoreFailed("it", "read-only")
        return super().promote(limit)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if not self.writable:
            raise StoreFailed("it", "read-only")
        return super().settle(settlements)


def test_a_reaper_does_not_take_from_its_own_process_what_it_runs(store: MemoryStore, clock: ManualClock) -> None:
    """After an outage: the job runs here, and the renewer is about to say so. What never arrived is taken back."""
    runs, never_arrived = leased(store, 2)
    marks = {runs.owner: ProcessMarks({runs.fence: 0}, alive=True)}
    clock.advance(11 * SECOND)
    reaper = Reaper(store, routing, marks=marks.get, owner=runs.owner)
    assert reaper.step() > 0
    assert [job(store, lease.job.id).state for lease in (runs, never_arrived)] == [State.RUNNING, State.READY]
    assert reaper.reaped == 1
    clock.advance(60 * SECOND)
    reaper.step()
    assert reaper.reaped == 2, "a minute later nothing renews it, so it is not left for ever"


@pytest.mark.parametrize("readable", [False, True])
def test_after_an_outage_a_reaper_lets_live_workers_renew_first(clock: ManualClock, readable: bool) -> None:
    store = UnreachableStore(clock=clock)
    alive, silent = leased(store, 2)
    reaper = Reaper(store, routing)
    clock.advance(11 * SECOND)
    store.readable, store.writable = readable, False
    for _ in range(10):
        with pytest.raises(StoreFailed):
            reaper.step()
    store.readable = store.writable = True
    assert reaper.step() > 1, "it rests, and takes nothing"
    assert len(store.extend([alive], seconds(10))) == 1
    reaper.step()
    assert reaper.reaped == 1
    assert (job(store, alive.job.id).state, job(store, silent.job.id).suspect) == (State.RUNNING, True)


class RacingReapers(MemoryStore):
    """Two reapers see the same overdue jobs before either settles."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.barrier = Barrier(2)

    def overdue(self, limit: int) -> list[Lease]:
        found = super().overdue(limit)
        self.barrier.wait(PATIENCE)
        return found


def test_two_reapers_that_race_take_each_job_back_once(clock: ManualClock) -> None:
    store = RacingReapers(clock)
    leased(store, 50)
    clock.advance(11 * SECOND)
    reapers = [Reaper(store, routing) for _ in range(2)]
    threads = [Thread(target=reaper.step, daemon=True) for reaper in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert all(reaper.reaped for reaper in reapers)
    assert {job(store, number).attempt for number in range(1, 51)} == {0}
    assert {len(job(store, number).errors) for number in range(1, 51)} == {1}


def test_a_reaper_with_more_than_it_takes_at_once_does_not_rest(store: MemoryStore, clock: ManualClock) -> None:
    leased(store, 450)
    clock.advance(11 * SECOND)
    reaper = Reaper(store, routing)
    assert [reaper.step() for _ in range(2)] == [0.0, 0.0]
    assert reaper.step() > 0
    assert reaper.reaped == 450


def test_a_promoter_moves_what_is_due_and_rests_until_the_next(store: MemoryStore, clock: ManualClock) -> None:
    promoter = Promoter(store, interval=60.0)
    assert promoter.step() == 60.0
    store.enqueue([Draft("k", delay=5 * SECOND), Draft("k", delay=20 * SECOND)])
    assert promoter.step() == 5.0
    clock.advance(5 * SECOND)
    assert promoter.step() == 15.0
    assert promoter.promoted <= 1
    assert store.backlog(["default"])[0].ready == 1


def test_a_promoter_with_more_than_it_takes_at_once_does_not_rest(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([Draft("k", delay=SECOND)] * 450)
    clock.advance(2 * SECOND)
    promoter = Promoter(store)
    rests = [promoter.step() for _ in range(4)]
    assert store.backlog(["default"])[0].ready == 450
    assert rests[-1] > 0


# Claimer


class Slots:
    """The part of a pool that the claimer uses: so many places, and what was started in them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.places = 64
        self.apart: list[Lease] = []
        self.running: list[Lease] = []
        self.most = 0
        self.waits = 0

    @property
    def free(self) -> int:
        return self.size - sum(slots_of(lease.job, self.size) for lease in self.running)

    @property
    def idle(self) -> bool:
        return not self.running

    def fits(self, leases: Sequence[Lease]) -> int:
        return fit_count(leases, self.free, self.size)

    def submit(self, leases: Sequence[Lease], lease_ends: float) -> None:
        self.running += leases
        self.lease_ends = lease_ends
        self.most = max(self.most, len(self.running))

    def wait_for_capacity(self, timeout: float, minimum: int = 0) -> None:
        self.waits += 1

    def quarantine(self, leases: Sequence[Lease], lease_ends: float) -> int:
        count = min(len(leases), self.places - len(self.apart))
        self.apart += leases[:count]
        return count


class ClaimerBench:
    """A claimer, its places, and what it handed back."""

    def __init__(self, store: MemoryStore, size: int = 4, queues: tuple[str, ...] = ("default",), batch: int = 100):
        self.slots = Slots(size)
        self.returned: list[Settlement] = []
        self.claimer = Claimer(
            store,
            self.slots,
            Options(queues=queues, concurrency=size, claim_batch=batch, lease_for=seconds(10)),
            "ada",
            self.settle,
            draw=lambda: 0.5,
        )
        self._store = store

    def settle(self, verdicts: Sequence[Settlement]) -> None:
        self.returned += verdicts
        self._store.settle(verdicts)

    def end(self, job_id: int) -> None:
        (lease,) = [lease for lease in self.slots.running if lease.job.id == job_id]
        self.slots.running.remove(lease)
        self._store.settle([(lease, Ack())])

    @property
    def started(self) -> list[int]:
        return [lease.job.id for lease in self.slots.running]


def suspects(store: MemoryStore, count: int) -> None:
    """Jobs whose last two holders died."""
    for leases in (leased(store, count), store.claim([Want("default", count)], "bob", seconds(10))):
        store.settle([(lease, Retry(0, Failure(ABANDONED, "gone"))) for lease in leases])


def test_a_job_takes_as_many_slots_as_it_costs(store: MemoryStore) -> None:
    store.enqueue([Draft("k", cost=3), Draft("k", cost=3), Draft("k"), Draft("k", cost=99)])
    bench = ClaimerBench(store, size=4)
    bench.claimer.step()
    assert bench.started == [1]
    assert [lease.job.id for lease, _ in bench.returned] == [2, 3, 4]
    assert {verdict for _, verdict in bench.returned} == {Release()}
    for _ in range(3):
        bench.claimer.step()
    assert (bench.started, bench.slots.waits) == ([1], 3), "the light one does not pass the heavy one"
    bench.end(1)
    while bench.started != [2, 3]:
        bench.claimer.step()
    for job_id in (2, 3):
        bench.end(job_id)
    while bench.started != [4]:
        bench.claimer.step()
    assert bench.slots.free == 0, "a job that costs more than there is takes all of it"


def test_a_heavy_job_that_finds_no_room_for_long_lets_others_go_on(store: MemoryStore) -> None:
    store.enqueue([Draft("k"), Draft("k", cost=4), *[Draft("k")] * 9])
    bench = ClaimerBench(store, size=4, batch=2)
    for _ in range(_MAX_RESERVED_STEPS + 20):
        bench.claimer.step()
    assert bench.started[0] == 1
    assert len(bench.started) == 4, "light ones fill what is left"
    heavy = [verdict for lease, verdict in bench.returned if lease.job.id == 2]
    assert heavy[0] == Release()
    assert heavy[-1] == Release(3_000_000), "it comes by later"


def test_claims_follow_what_the_last_jobs_cost(store: MemoryStore) -> None:
    store.enqueue([Draft("k", cost=2)] * 40)
    bench = ClaimerBench(store, size=8)
    bench.claimer.step()
    assert len(bench.started) == 4
    before = len(bench.returned)
    for _ in range(5):
        for job_id in list(bench.started):
            bench.end(job_id)
        bench.claimer.step()
        assert len(bench.started) == 4
    assert len(bench.returned) == before, "what comes fits"


def test_a_claimer_never_claims_more_than_there_is_room_for(store: MemoryStore) -> None:
    store.enqueue([Draft("k")] * 20)
    bench = ClaimerBench(store, size=4)
    for _ in range(3):
        bench.claimer.step()
    assert bench.started == [1, 2, 3, 4]
    assert bench.slots.waits == 2, "full: it waits for room instead of asking the store"
    assert store.backlog(["default"])[0].running == 4
    del bench.slots.running[:3]
    bench.claimer.step()
    assert bench.started == [4, 5, 6, 7]
    assert (bench.claimer.claims, bench.claimer.claimed) == (2, 7)


def test_the_deadline_of_a_claim_counts_from_before_the_call(store: MemoryStore) -> None:
    """A process that is stopped while the answer is on its way must find afterwards that its leases have ended."""
    bench = ClaimerBench(store)
    now = [100.0]
    bench.claimer._clock = lambda: now[0]

    class Late:
        def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
            now[0] += 50
            return store.claim(wants, owner, lease_for)

    bench.claimer._claim = Late().claim
    store.enqueue([Draft("job")])
    bench.claimer.step()
    assert (bench.started, bench.slots.lease_ends) == ([1], 110.0)


def test_a_claimer_claims_no_more_than_its_batch(store: MemoryStore) -> None:
    store.enqueue([Draft("k")] * 20)
    bench = ClaimerBench(store, size=16, batch=5)
    bench.claimer.step()
    assert bench.started == [1, 2, 3, 4, 5]


def test_queues_take_turns_so_that_a_full_one_does_not_starve_the_others(store: MemoryStore) -> None:
    store.enqueue([Draft("k", queue="busy")] * 50 + [Draft("k", queue="calm")] * 3)
    bench = ClaimerBench(store, size=1, queues=("busy", "calm"))
    queues = []
    for _ in range(12):
        bench.claimer.step()
        queues += [lease.job.queue for lease in bench.slots.running]
        bench.slots.running.clear()
    assert queues.count("calm") == 3
    bench = ClaimerBench(store, size=4, queues=("busy", "calm"))
    bench.claimer.step()
    assert {lease.job.queue for lease in bench.slots.running} == {"busy"}


def test_an_idle_claimer_sleeps_in_the_store_and_wakes_for_work(clock: ManualClock, store: MemoryStore) -> None:
    bench = ClaimerBench(store)
    beat = RoleThread(bench.claimer)
    beat.start()
    clock.until_asleep(1)
    claims = bench.claimer.claims
    store.enqueue([Draft("k")])
    eventually(lambda: bench.started == [1])
    assert claims <= 3, "it does not claim again and again"
    beat.stop(0)
    clock.advance(5 * SECOND)
    assert beat.stop(PATIENCE)


def test_a_hint_that_is_wrong_again_and_again_is_not_chased(store: MemoryStore, clock: ManualClock) -> None:
    """A lease that is to be reaped makes every wait end at once, and there is nothing to claim."""
    leased(store, 1)
    clock.advance(11 * SECOND)
    bench = ClaimerBench(store)
    rests = [bench.claimer.step() for _ in range(12)]
    assert all(first + second > 0 for first, second in zip(rests[-6:], rests[-5:], strict=False))
    store.enqueue([Draft("k")])
    bench.claimer.step()
    assert bench.started == [2]


class HintingStore(MemoryStore):
    """Every wait ends with a hint."""

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        return True


def test_a_hint_is_tested_before_any_rest_though_the_last_one_brought_nothing() -> None:
    """Another worker is quicker now and then: the next job must not wait for that."""
    store = HintingStore()
    bench = ClaimerBench(store)
    for number in range(1, 20):
        assert [bench.claimer.step(), bench.claimer.step()] == [0.0, 0.0]
        store.enqueue([Draft("k")])
        assert bench.claimer.step() == 0.0
        assert bench.started == [number]
        bench.end(number)


def test_suspects_go_to_quarantine_and_the_pool_goes_on(store: MemoryStore, clock: ManualClock) -> None:
    bench = ClaimerBench(store)
    bench.slots.running += leased(store, 1)
    suspects(store, 1)
    store.enqueue([Draft("k")] * 5)
    bench.claimer.step()
    assert ([lease.job.id for lease in bench.slots.apart], bench.started) == ([2], [1, 3, 4])
    assert bench.returned == []
    bench.claimer.step()
    assert bench.started == [1, 3, 4, 5], "it takes no room of the pool"


def test_suspects_beyond_the_places_of_the_quarantine_go_back_for_a_moment(
    store: MemoryStore, clock: ManualClock
) -> None:
    suspects(store, 6)
    bench = ClaimerBench(store, size=8)
    bench.slots.places = 4
    bench.claimer.step()
    assert len(bench.slots.apart) == 4
    assert [lease.job.id for lease, _ in bench.returned] == [5, 6]
    assert all(isinstance(verdict, Release) and 0 < verdict.after <= 2 * SECOND for _, verdict in bench.returned)
    assert {job(store, number).attempt for number in (5, 6)} == {1}, "the claim is not charged"


def test_a_job_that_ran_during_one_death_runs_beside_others_again(store: MemoryStore) -> None:
    store.enqueue([Draft("k", max_attempts=3)] * 3)
    leases = store.claim([Want("default", 3)], "bob", seconds(10))
    store.settle([(lease, Retry(0, Failure(ABANDONED, "gone"))) for lease in leases])
    store.enqueue([Draft("k")])
    bench = ClaimerBench(store)
    bench.claimer.step()
    assert (len(bench.started), bench.returned) == (4, [])


def test_without_a_quarantine_a_suspect_runs_alone_when_the_pool_is_empty() -> None:
    """An app that no other process can import. Nothing is claimed while it waits or runs, without a busy loop."""
    hold, alone = Event(), Event()
    fb = Forebay("memory://")
    beside: list[int] = []

    @fb.job
    def first() -> None:
        hold.wait(PATIENCE)

    @fb.job
    def suspect() -> None:
        beside.append(pool.running)
        alone.set()

    fb.enqueue("suspect", max_attempts=2)
    (lease,) = fb.store.claim([Want("default", 1)], "bob", seconds(30))
    fb.store.settle([(lease, Retry(0, Failure(ABANDONED, "gone")))])
    verdicts: list[Settlement] = []
    pool = Pool(fb.registry, Options(), routing, verdicts.extend)
    claimer = Claimer(fb.store, pool, Options(), "ada", verdicts.extend)
    pool.submit(leased_kind(fb, "first"))
    claimer.step()
    assert pool.free == 0, "it makes room for the suspect"
    pool.step()
    assert not alone.is_set()
    hold.set()
    eventually(lambda: pool.running == 1)
    pool.step()
    assert alone.wait(PATIENCE)
    eventually(lambda: len(verdicts) == 2 and pool.idle)
    assert pool.free == 0, "its verdict is not durable yet"
    pool.settled(next(lease.fence for lease, _ in verdicts if lease.job.kind == "suspect"))
    assert pool.free >= 64, "all slots, and what the pool prefetches"
    assert beside == [1]
    pool.close()


def leased_kind(fb: Forebay, kind: str) -> list[Lease]:
    fb.enqueue(kind)
    leases = fb.store.claim([Want("default", 2)], "ada", seconds(30))
    others = [lease for lease in leases if lease.job.kind != kind]
    fb.store.settle([(lease, Release()) for lease in others])
    return [lease for lease in leases if lease.job.kind == kind]


def test_a_closed_claimer_claims_nothing(store: MemoryStore) -> None:
    bench = ClaimerBench(store)
    bench.claimer.close()
    store.enqueue([Draft("k")] * 3)
    for _ in range(5):
        assert bench.claimer.step() > 0
    assert (bench.started, bench.returned) == ([], [])
    assert store.backlog(["default"])[0].ready == 3


class Gate:
    """Lets a test hold one call of a store under way."""

    def __init__(self, inner: MemoryStore, verb: str) -> None:
        self._inner = inner
        self._verb = verb
        self.entered = Event()
        self.go = Event()

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name != self._verb:
            return found

        def held(*args: object, **kwargs: object) -> object:
            self.entered.set()
            assert self.go.wait(PATIENCE)
            return found(*args, **kwargs)

        return held


def test_a_claim_that_was_under_way_when_it_closed_is_handed_back(store: MemoryStore) -> None:
    bench = ClaimerBench(store)
    gate = Gate(store, "claim")
    bench.claimer._store = gate  # type: ignore[assignment]
    store.enqueue([Draft("k")] * 3)
    step = Thread(target=bench.claimer.step, daemon=True)
    step.start()
    assert gate.entered.wait(PATIENCE)
    bench.claimer.close()
    gate.go.set()
    step.join(PATIENCE)
    assert bench.started == []
    assert [lease.job.id for lease, _ in bench.returned] == [1, 2, 3]
    assert {release for _, release in bench.returned} == {Release()}


# Ticker


def scheduled(store: MemoryStore, name: str = "each", rule: str = "@every 60s", **fields: object) -> Schedule:
    schedule = Schedule(name, rule, fields.pop("next_at", store.now() + MINUTE), Draft("k", queue=name), **fields)  # type: ignore[arg-type]
    store.put_schedule(schedule)
    return schedule


def fired(store: MemoryStore, name: str = "each") -> int:
    (backlog,) = store.backlog([name])
    return backlog.depth


def test_a_ticker_fires_at_the_tick_and_not_before(store: MemoryStore, clock: ManualClock) -> None:
    scheduled(store)
    ticker = Ticker(store)
    assert ticker.step() == 1.0
    clock.advance(MINUTE - SECOND // 2)
    assert ticker.step() == 0.5
    assert fired(store) == 0
    clock.advance(SECOND // 2)
    ticker.step()
    ticker.step()
    assert (fired(store), ticker.fired) == (1, 1)


def test_two_tickers_fire_each_tick_once(store: MemoryStore, clock: ManualClock) -> None:
    for number in range(5):
        scheduled(store, f"s{number}")
    tickers = [Ticker(store) for _ in range(2)]
    for _ in range(20):
        clock.advance(MINUTE)
        barrier = Barrier(2)

        def tick(ticker: Ticker, barrier: Barrier = barrier) -> None:
            barrier.wait(PATIENCE)
            ticker.step()

        threads = [Thread(target=tick, args=(ticker,), daemon=True) for ticker in tickers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sum(ticker.fired for ticker in tickers) == 100
    assert [fired(store, f"s{number}") for number in range(5)] == [20] * 5


@pytest.mark.parametrize(
    ("option", "jobs", "missed"), [("none", 0, 10), ("last", 1, 9), ("all(3)", 3, 7), ("all(99)", 10, 0)]
)
def test_what_was_missed_is_caught_up_as_the_rule_says(
    store: MemoryStore, clock: ManualClock, option: str, jobs: int, missed: int
) -> None:
    scheduled(store, rule=f"@every 600s ; catch_up={option}", next_at=store.now() // (10 * MINUTE) * 10 * MINUTE)
    base = store.schedules()[0].next_at
    clock.advance(base + 9 * 10 * MINUTE + 5 * MINUTE - clock.now())
    ticker = Ticker(store)
    ticker.step()
    ticker.step()
    assert (fired(store), ticker.fired, ticker.missed) == (jobs, jobs, missed)
    clock.advance(5 * MINUTE)
    ticker.step()
    assert fired(store) == jobs + 1, "and then it goes on"


def test_a_slow_job_makes_its_schedule_skip_where_it_says_so(store: MemoryStore, clock: ManualClock) -> None:
    scheduled(store, "skips", rule="@every 60s ; overlap=skip")
    scheduled(store, "allows")
    ticker = Ticker(store)
    for _ in range(3):
        clock.advance(MINUTE)
        ticker.step()
    assert (fired(store, "skips"), fired(store, "allows"), ticker.skipped) == (1, 3, 2)
    (lease,) = store.claim([Want("skips", 1)], "ada", seconds(600))
    store.settle([(lease, Ack())])
    clock.advance(MINUTE)
    ticker.step()
    assert fired(store, "skips") == 1
    assert ticker.skipped == 2


def test_a_slow_job_makes_the_next_slots_wait_where_its_schedule_says_so(
    store: MemoryStore, clock: ManualClock
) -> None:
    scheduled(store, rule="@every 60s ; overlap=queue catch_up=all(2)")
    ticker = Ticker(store)
    for minute in range(1, 5):
        clock.advance(MINUTE)
        ticker.step()
        assert (fired(store), ticker.missed) == (1, max(0, minute - 3)), "two of the slots that wait are kept"
    for waiting in (1, 0):
        (lease,) = store.claim([Want("each", 1)], "ada", seconds(600))
        store.settle([(lease, Ack())])
        ticker.step()
        assert fired(store) == 1
        assert len([each for each in store.schedules() if each.next_at <= store.now()]) == waiting


def test_the_next_slot_cancels_a_slow_job_where_its_schedule_says_so(store: MemoryStore, clock: ManualClock) -> None:
    scheduled(store, rule="@every 60s ; overlap=cancel")
    ticker, stale = Ticker(store), Ticker(store)
    clock.advance(MINUTE)
    ticker.step()
    (slow,) = store.claim([Want("each", 1)], "ada", seconds(600))
    clock.advance(MINUTE)
    (before,) = store.schedules()
    ticker.step()
    running, newer = store.get([slow.job.id, slow.job.id + 1])
    assert running is not None
    assert running.cancel_requested
    assert newer is not None
    assert newer.state is State.READY
    stale._fire(before, store.now())
    assert store.get([newer.id]) == [newer], "a ticker that comes late cancels nothing"
    clock.advance(MINUTE)
    ticker.step()
    assert [job.state for job in store.get([newer.id, newer.id + 1]) if job] == [State.READY]


def test_a_layer_that_raises_cancels_no_job(store: MemoryStore, clock: ManualClock) -> None:
    def refuse(stack: ExitStack, draft: Draft) -> Draft:
        raise RuntimeError("not now")

    scheduled(store, rule="@every 60s ; overlap=cancel")
    clock.advance(MINUTE)
    Ticker(store).step()
    clock.advance(MINUTE)
    Ticker(store, layers=refuse).step()
    assert fired(store) == 1


def test_a_full_queue_keeps_the_slot_until_there_is_room(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_spec(QueueSpec(name="each", capacity=Bounded(1)))
    store.enqueue([Draft("k", queue="each")])
    scheduled(store)
    scheduled(store, "other")
    clock.advance(MINUTE)
    ticker = Ticker(store)
    for _ in range(3):
        ticker.step()
    assert (fired(store), fired(store, "other"), ticker.fired) == (1, 1, 1)
    assert "is delayed" in caplog.text
    (lease,) = store.claim([Want("each", 1)], "ada", seconds(600))
    store.settle([(lease, Ack())])
    ticker.step()
    assert (fired(store), ticker.fired) == (1, 2)


@pytest.mark.parametrize(
    "trouble",
    [
        {"zone": "Mars/Olympus"},
        {"rule": "not a rule"},
        {"draft": Draft("k", {"other": 1}, queue="taken", key="k")},
        {"draft": Draft("k", queue="log")},
    ],
    ids=["zone", "rule", "key conflict", "log"],
)
def test_one_schedule_in_trouble_does_not_stop_the_others(
    store: MemoryStore, clock: ManualClock, trouble: dict[str, object]
) -> None:
    store.put_spec(QueueSpec(name="log", retention=Retained()))
    store.put_spec(QueueSpec(name="taken", key_window=seconds(10_000)))
    store.enqueue([Draft("k", {"first": 1}, queue="taken", key="k")])
    fields: dict[str, object] = {"rule": "@every 60s", "draft": Draft("k"), "zone": "UTC", **trouble}
    store.put_schedule(Schedule("bad", next_at=store.now() + MINUTE, **fields))  # type: ignore[arg-type]
    scheduled(store)
    clock.advance(MINUTE)
    ticker = Ticker(store)
    for _ in range(3):
        ticker.step()
    assert fired(store) == 1


def test_a_paused_schedule_does_not_fire(store: MemoryStore, clock: ManualClock) -> None:
    scheduled(store, paused=True)
    clock.advance(10 * MINUTE)
    ticker = Ticker(store)
    assert ticker.step() == 1.0
    assert fired(store) == 0


def test_a_lost_reply_of_a_fire_does_not_fire_twice(store: MemoryStore, clock: ManualClock) -> None:
    scheduled(store)
    clock.advance(MINUTE)
    ticker = Ticker(FaultyStore(store, scripted(("fire", Fault.REPLY_LOST))))
    with pytest.raises(ReplyLost):
        ticker.step()
    ticker.step()
    assert fired(store) == 1


# RoleThread


class Flaky:
    """A role that fails for a while."""

    name = "flaky"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.steps = 0
        self.well = Event()

    def step(self) -> float:
        self.steps += 1
        if self.steps <= self.failures:
            raise ConnectionError("the store is away")
        self.well.set()
        return 60.0


class SkippedRests(Event):
    """Records the rests of a role thread, and returns from all but the long one at once."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.rests.append(timeout or 0.0)
        return super().wait(timeout if timeout == 60.0 else 0)


def test_a_role_thread_outlives_exceptions_backs_off_and_logs_little(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    role, rests = Flaky(6), SkippedRests()
    thread = RoleThread(role)
    thread._woken = rests
    monkeypatch.setattr("forebay.work.role.random.uniform", lambda low, high: (low + high) / 2)
    monkeypatch.setattr("forebay.work.role.monotonic", lambda: sum(rests.rests))
    with caplog.at_level(logging.WARNING, "forebay.work"):
        thread.start()
        assert role.well.wait(PATIENCE)
    eventually(lambda: len(rests.rests) == 7)
    assert thread.alive
    assert thread.stop(PATIENCE)
    assert rests.rests == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 60.0]
    lines = [record.getMessage() for record in caplog.records if record.name == "forebay.work"]
    assert len(lines) == 2, "after 0 and 1.55 seconds: at most a line a second"
    assert "flaky: ConnectionError: the store is away" in lines[0]


def test_roles_that_fail_for_long_log_at_most_a_line_a_second_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr("forebay.work.role.monotonic", lambda: now)
    log = ThrottledLogger()
    with caplog.at_level(logging.WARNING, "forebay.work"):
        for number in range(1_000):
            now += 0.01
            log.log_failure(f"role {number % 7}", OSError("down"))
    assert 9 <= len(caplog.records) <= 11


def test_a_nudge_and_a_stop_end_a_rest_early() -> None:
    role = Flaky(0)
    beat = RoleThread(role)
    beat.start()
    eventually(lambda: role.steps == 1)
    beat.wake()
    eventually(lambda: role.steps == 2)
    assert beat.stop(PATIENCE)
    assert role.steps == 2
    assert not beat.alive


def test_a_beat_remembers_when_it_last_went_well() -> None:
    role = Flaky(2)
    beat = RoleThread(role)
    before = beat.progressed_at
    beat.start()
    assert role.well.wait(PATIENCE)
    eventually(lambda: beat.progressed_at > before)
    assert beat.stop(PATIENCE)
    assert role.steps == 3


def test_a_beat_that_was_stopped_before_it_began_does_nothing() -> None:
    role = Flaky(0)
    beat = RoleThread(role)
    assert beat.stop(PATIENCE)
    beat.start()
    assert beat.stop(PATIENCE)
    assert role.steps == 0


def every_role(store: MemoryStore) -> list[WorkerRole]:
    pool = Pool({}, Options(), routing, lambda verdicts: None)
    return [
        Settler(store, pause=lambda most: Event().wait(0.01)),
        Renewer(store, pool, Options()),
        Reaper(store, routing),
        Promoter(store),
        Ticker(store),
        Announcer(store, pool, Options(), "ada", ["k"] * 2_000),
        Claimer(store, pool, Options(), "ada", lambda verdicts: None),
        pool,
    ]


def test_every_role_starts_and_stops_again_and_again_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    store = MemoryStore()
    for number in range(15):
        beats = [RoleThread(role) for role in every_role(store)]
        for beat in beats:
            beat.start()
        for beat in beats:
            beat.stop(0)
        store.enqueue([Draft("nobody", number)])
        for beat in beats:
            assert beat.stop(PATIENCE)
    assert set(threading.enumerate()) <= before, "threads of other tests may end meanwhile, none may be added"


# Worker


def at_work(fb: Forebay, **options: object) -> Worker:
    worker = Worker(fb, Options(**{"lease_for": seconds(30), "concurrency": 4, **options}))  # type: ignore[arg-type]
    worker.start()
    return worker


def test_a_worker_does_its_work_and_drains() -> None:
    fb = Forebay("memory://")
    done: list[int] = []

    @fb.job
    async def quick(number: int) -> None:
        done.append(number)

    @fb.job
    def plain(number: int) -> None:
        done.append(number)

    before = threading.active_count()
    worker = at_work(fb)
    for number in range(50):
        quick.enqueue(number)
        plain.enqueue(number)
    eventually(lambda: worker.settler.applied == 100)
    assert worker.healthy
    assert worker.progress_age() < PATIENCE
    worker.drain(5)
    assert sorted(done) == sorted([*range(50), *range(50)])
    assert fb.store.backlog(["default"])[0].depth == 0
    eventually(lambda: threading.active_count() <= before)


def test_an_idle_worker_is_known_to_its_store_until_it_drains() -> None:
    fb = Forebay("memory://")

    @fb.job
    def send() -> None: ...

    worker = at_work(fb, queues=("mail", "default"))
    eventually(lambda: len(fb.store.workers("", 10)) == 1)
    (known,) = fb.store.workers("", 10)
    assert (known.owner, known.pid, known.queues) == (worker.owner, os.getpid(), ("mail", "default"))
    assert (known.kinds, known.concurrency, known.running) == (tuple(fb.registry), 4, 0)
    worker.drain(5)
    assert fb.store.workers("", 10) == []


def test_what_another_worker_handles_comes_by_again_soon() -> None:
    fb = Forebay("memory://")
    verdicts: list[Settlement] = []
    pool = Pool(fb.registry, Options(), lambda _: Routing(), verdicts.extend, draw=lambda: 0.0)
    announcer = Announcer(fb.store, pool, Options(), "me", fb.registry)
    fb.store.enqueue([Draft("fresh")] * 2)
    first, second = fb.store.claim([Want("default", 2)], "me", seconds(30))
    pool.submit([replace(first, job=replace(first.job, delivery=50))])
    announcer.step()
    assert pool.handled_elsewhere == frozenset()
    assert unhandled_kinds(fb.store.workers("", 10)) == [("default", "fresh")]
    fb.store.announce(Presence("you", "host", 1, ("default",), ("fresh",)), seconds(30))
    announcer.step()
    pool.submit([replace(second, job=replace(second.job, delivery=50))])
    assert [verdict for _, verdict in verdicts] == [Release(60_000_000), Release(5_000_000)]


def test_a_drain_does_not_wait_for_a_store_that_is_away_to_withdraw() -> None:
    fb = Forebay("memory://")
    store = FaultyStore(fb.store, lambda verb: Fault.REFUSED if verb == "announce" else Fault.NONE)
    fb._store = store
    worker = at_work(fb)
    eventually(lambda: worker.failed()["announcer"] > 0)
    worker.drain(5)
    assert "withdraw" not in [verb for verb, _ in store.history]


def test_a_drain_waits_for_what_runs_and_hands_back_what_does_not_end() -> None:
    fb = Forebay("memory://")
    hold, begun = Event(), Barrier(3)

    @fb.job
    def ends() -> None:
        begun.wait(PATIENCE)
        Event().wait(0.2)

    @fb.job
    def stays() -> None:
        begun.wait(PATIENCE)
        hold.wait(PATIENCE)

    worker = at_work(fb)
    ids = [ends.enqueue().id, stays.enqueue().id]
    begun.wait(PATIENCE)
    worker.drain(1.0)
    assert fb.get(ids[0]) is None
    back = fb.get(ids[1])
    assert back is not None
    assert (back.state, back.attempt, back.delivery, back.errors) == (State.READY, 0, 1, ())
    hold.set()


def test_a_second_signal_hurries_a_drain() -> None:
    fb = Forebay("memory://")
    hold, begun = Event(), Event()

    @fb.job
    def stays() -> None:
        begun.set()
        hold.wait(PATIENCE)

    worker = at_work(fb)
    job_id = stays.enqueue().id
    assert begun.wait(PATIENCE)
    began = time.monotonic()
    worker.drain(600, hurry=lambda: True)
    assert time.monotonic() - began < 30
    back = fb.get(job_id)
    assert back is not None
    assert (back.state, back.attempt) == (State.READY, 0)
    hold.set()


def test_a_claim_under_way_when_the_drain_begins_is_handed_back() -> None:
    fb = Forebay("memory://")
    started = Event()

    @fb.job
    def job() -> None:
        started.set()

    inner = MemoryStore()
    gate = Gate(inner, "claim")
    fb._store = gate  # type: ignore[assignment]
    inner.enqueue([Draft("job")] * 3)
    worker = at_work(fb)
    assert gate.entered.wait(PATIENCE)
    draining = Thread(target=worker.drain, args=(5,), daemon=True)
    draining.start()
    eventually(worker.claimer._closing.is_set)
    draining.join(0.2)
    assert draining.is_alive(), "a drain waits for the claim"
    gate.go.set()
    draining.join(PATIENCE)
    assert not draining.is_alive()
    assert not started.is_set()
    backlog = inner.backlog(["default"])[0]
    assert (backlog.ready, backlog.running) == (3, 0)
    assert {found.attempt for found in inner.get([1, 2, 3]) if found} == {0}


def test_a_drain_does_not_wait_for_an_idle_claimer() -> None:
    """It waits in the store for up to a second, and begins no claim after that."""
    fb = Forebay("memory://")
    gate = Gate(MemoryStore(), "wait")
    fb._store = gate  # type: ignore[assignment]
    worker = at_work(fb)
    assert gate.entered.wait(PATIENCE)
    draining = Thread(target=worker.drain, args=(5,), daemon=True)
    draining.start()
    draining.join(PATIENCE / 6)
    ended, claims = not draining.is_alive(), worker.claimer.claims
    gate.go.set()
    assert ended
    eventually(lambda: not worker._claiming.alive)
    assert worker.claimer.claims == claims


class SilentStore(MemoryStore):
    """A store whose claims hang (`answers` is cleared) or fail (`refuses`)."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Event()
        self.answers.set()
        self.hanging = Event()
        self.refused = Event()
        self.refuses = False

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        if not self.answers.is_set():
            self.hanging.set()
        assert self.answers.wait(PATIENCE)
        if self.refuses:
            self.refused.set()
            raise StoreFailed("the store", "it is away")
        return super().claim(wants, owner, lease_for)


@pytest.mark.parametrize("supervised", [False, True])
def test_a_worker_without_a_claim_round_for_too_long_is_not_healthy(
    supervised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its calls fail or hang. It recovers by itself; a supervisor replaces it after much longer."""
    ahead = 0.0
    for module in ("role", "worker"):
        monkeypatch.setattr(f"forebay.work.{module}.monotonic", lambda: time.monotonic() + ahead)
    fb = Forebay("memory://")
    fb._store = store = SilentStore()
    worker = Worker(fb, Options(), supervised=supervised)
    worker.start()
    eventually(lambda: worker.claimer.claims > 1)
    assert worker.healthy
    store.refuses = True
    assert store.refused.wait(PATIENCE)
    ahead += STALLED_SECONDS
    eventually(lambda: not worker.healthy)
    assert not worker.broken
    store.refuses = False
    eventually(lambda: worker.healthy)
    store.answers.clear()
    assert store.hanging.wait(PATIENCE)
    ahead += 60.0
    eventually(lambda: not worker.healthy)
    assert worker.broken is supervised
    store.answers.set()
    worker.drain(5)


def test_a_worker_goes_on_after_any_outage_of_its_store() -> None:
    inner = MemoryStore()
    down = Event()
    fb = Forebay("memory://")
    faulty = FaultyStore(inner, lambda verb: Fault.REFUSED if down.is_set() else Fault.NONE)
    fb._store = faulty
    hold = Event()

    @fb.job
    def job() -> None:
        hold.wait(PATIENCE)

    inner.enqueue([Draft("job")] * 4)
    worker = at_work(fb)
    eventually(lambda: worker.pool.free == 0)
    down.set()
    hold.set()
    eventually(lambda: worker.pool.idle)
    refused = len(faulty.faults)
    eventually(lambda: len(faulty.faults) > refused + 10)
    assert worker.healthy
    down.clear()
    eventually(lambda: worker.settler.applied == 4)
    inner.enqueue([Draft("job")])
    eventually(lambda: worker.settler.applied == 5)
    assert worker.settler.stale == 0
    worker.drain(5)


def test_marks_last_until_the_store_has_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path))
    inner = MemoryStore()
    fb = Forebay(f"memory:///{tmp_path}/journal")
    gate = Gate(inner, "settle")
    fb._store = gate  # type: ignore[assignment]

    @fb.job
    def job() -> None: ...

    worker = Worker(fb, Options(concurrency=2))
    worker.start()
    (path,) = tmp_path.glob("*/*:*")
    inner.enqueue([Draft("job")])
    assert gate.entered.wait(PATIENCE)
    assert worker.pool.idle
    assert begun(path) == {(1, 1)}, "ended, but not settled yet: a death here is charged"
    gate.go.set()
    eventually(lambda: not begun(path))
    worker.drain(1)
    assert not path.exists(), "a clean exit leaves nothing"


def begun(path: Path) -> set[Fence]:
    marks = read_marks(path)
    assert marks is not None
    assert marks.begun is not None
    return set(marks.begun)


@pytest.mark.parametrize(
    "options",
    [
        {"queues": ()},
        {"queues": ("not a name!",)},
        {"concurrency": 0},
        {"concurrency": 10_001},
        {"claim_batch": 0},
        {"claim_batch": 1_001},
        {"lease_for": timedelta(milliseconds=9)},
        {"lease_for": timedelta(days=8)},
        {"drain_timeout": timedelta(seconds=-1)},
        {"max_wedged": -1},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        Options(**options)  # type: ignore[arg-type]
