"""What the pages show, worked out from real stores by a clock that is moved: rates, histories, causes, gates,
shares."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from forebay.core.instant import days
from forebay.core.job import Draft, Job, State
from forebay.core.ledger import Change, JobRange, LedgerEntry, LedgerRule, Record
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import AtMost, Bounded, Fair, InOrder, KeepFor, Retained, Routing
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.ledger_reader import offset_at, read_range
from forebay.serve.actor import Actor, Role
from forebay.serve.dashboard.charts import life, spark, star
from forebay.serve.dashboard.pages.logs import log_view, logs_view
from forebay.serve.dashboard.pages.schedules import schedules_view
from forebay.serve.dashboard.pages.workers import workers_view
from forebay.serve.dashboard.views import search, timeline
from forebay.serve.dashboard.views.causes import CauseScan
from forebay.serve.dashboard.views.queue import axes_of, queue_view
from forebay.serve.dashboard.views.rates import MAX_READ, STEP, STEPS, RateTracker
from forebay.serve.dashboard.views.search import Filter, NewestId, find, find_newest
from forebay.serve.dashboard.views.timeline import NO_LEDGER, timeline_of, timeline_of_gone, was_given
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay.store.sqlite.store import SqliteStore
from forebay.testing.clock import ManualClock
from forebay.work.cron import Cron, Timetable

SECOND = 1_000_000
MINUTE = timedelta(minutes=1)
ANONYMOUS = Actor("any", frozenset({Role.ADMIN}))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not cut a life short."""
    monkeypatch.setattr("forebay.serve.dashboard.views.timeline.READ_SECONDS", 60.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "jobs.db"), clock=clock)
    yield opened
    opened.close()


def enqueued(store: Store, *drafts: Draft) -> list[int]:
    return [receipt.id for receipt in store.enqueue(drafts)]


def run(store: Store, queue: str = "default", count: int = 1, failing: str | None = None) -> None:
    leases = store.claim([Want(queue, count)], "w1", MINUTE)
    verdict = Ack() if failing is None else DeadLetter(Failure("ValueError", failing))
    store.settle([(lease, verdict) for lease in leases])


# -- the ledger by time


def test_a_place_is_found_by_its_time(store: SqliteStore, clock: ManualClock) -> None:
    times = []
    for _ in range(40):
        clock.advance(SECOND)
        times.append(store.now())
        enqueued(store, Draft("k"))
    for number, at in enumerate(times):
        offset = offset_at(store, at)
        assert store.ledger(offset - 1, 1)[0].record.at == at
        assert len(list(read_range(store, offset, 1_000))) == 40 - number
    assert offset_at(store, times[-1] + 1) == store.ledger_extent()[1]


def test_a_trimmed_ledger_is_read_from_where_it_begins(store: SqliteStore, clock: ManualClock) -> None:
    for _ in range(20):
        clock.advance(SECOND)
        enqueued(store, Draft("k"))
    store.put_ledger_rule(LedgerRule(keep=5 * SECOND))
    while store.trim_ledger(1_000):
        pass
    first, end = store.ledger_extent()
    assert 0 < first < end
    assert offset_at(store, 0) == first
    assert [entry.offset for entry in read_range(store, 0, 1_000)] == list(range(first, end))
    assert list(read_range(store, 0, first)) == []


# -- rates


def test_rates_are_those_of_the_ledger(store: SqliteStore, clock: ManualClock) -> None:
    clock.advance(-store.now() % (5 * SECOND))
    tracker = RateTracker(store)
    tracker.refresh()
    for _ in range(60):
        clock.advance(SECOND)
        enqueued(store, *[Draft("k")] * 3, Draft("k", None, "other"))
        run(store, count=2)
        run(store, "other", failing="no")
    clock.advance(SECOND - 1)
    tracker = RateTracker(store)
    tracker.refresh()
    mine, other, both = tracker.rates(["default"]), tracker.rates(["other"]), tracker.rates()
    assert [mine.accepted, mine.done, mine.dead] == pytest.approx([3, 2, 0], abs=0.1)
    assert [other.accepted, other.dead] == pytest.approx([1, 1], abs=0.1)
    assert both.accepted == pytest.approx(mine.accepted + other.accepted)
    assert len(mine.coming) == STEPS
    assert mine.coming[-2:] == (15, 15)
    assert mine.coming[0] == 0
    assert other.failing[-1] == 5
    assert tracker.busy() == {"default": 300, "other": 60}
    assert tracker.claims()["w1"] == (store.now() - SECOND + 1, 180)


def test_a_pulse_that_cannot_keep_up_has_a_gap_and_not_a_zero(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.views.rates.MAX_READ", 30)
    for _ in range(100):
        clock.advance(SECOND)
        enqueued(store, Draft("k"))
    tracker = RateTracker(store)
    tracker.refresh()
    coming = tracker.rates().coming
    assert None in coming
    assert coming[0] is None
    assert coming[-1] == 5
    assert MAX_READ >= 1_000


def test_a_pulse_follows_from_where_it_was(store: SqliteStore, clock: ManualClock) -> None:
    enqueued(store, Draft("k"))
    tracker = RateTracker(store)
    tracker.refresh()
    clock.advance(10 * SECOND)
    enqueued(store, Draft("k"), Draft("k"))
    clock.advance(10 * SECOND)
    tracker._read_at = float("-inf")
    tracker.refresh()
    assert sum(count or 0 for count in tracker.rates().coming) == 3
    clock.advance(STEPS * 5 * SECOND * 2)
    tracker._read_at = float("-inf")
    tracker.refresh()
    assert set(tracker.rates().coming) == {0}


def test_a_pulse_that_is_short_of_time_goes_on_with_the_next_look(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.views.rates.READ_SECONDS", 0.0)
    for _ in range(10):
        enqueued(store, Draft("k"))
        clock.advance(STEP)
    tracker = RateTracker(store)
    counts = []
    for _ in range(12):
        tracker._read_at = float("-inf")
        tracker.refresh()
        counts.append(sum(count or 0 for count in tracker.rates().coming))
    assert counts == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 10]


def test_no_ledger_no_pulse() -> None:
    store = open_store("memory://")
    tracker = RateTracker(store)
    tracker.refresh()
    assert not tracker.known
    store.close()


# -- the life of a job


def a_life(store: SqliteStore, clock: ManualClock) -> int:
    store.put_spec(QueueSpec(name="default", retention=KeepFor(days(1)), routing=Routing(3)))
    (job_id,) = enqueued(store, Draft("mail", {"n": 1}, tenant="acme", subject="s"))
    clock.advance(SECOND)
    (lease,) = store.claim([Want("default", 1)], "worker-7", MINUTE)
    clock.advance(2 * SECOND)
    store.extend([lease], MINUTE)
    clock.advance(SECOND)
    store.settle([(lease, Retry(5 * SECOND, Failure("ValueError", "bad luck")))])
    clock.advance(5 * SECOND)
    (lease,) = store.claim([Want("default", 1)], "worker-8", MINUTE)
    clock.advance(SECOND)
    store.settle([(lease, DeadLetter(Failure("KeyError", "worse")))])
    return job_id


def test_a_history_is_written_in_full(store: SqliteStore, clock: ManualClock) -> None:
    enqueued(store, Draft("other", None, "elsewhere"))
    job_id = a_life(store, clock)
    enqueued(store, Draft("other", None, "elsewhere"))
    job = store.get([job_id])[0]
    assert job is not None
    response = timeline_of(store, job)
    assert [moment.change for moment in response.moments] == "accepted claimed extended retried claimed died".split()
    assert response.cut == ""
    assert (response.moments[1].owner, response.moments[1].note) == ("worker-7", "1.0s after it was due")
    assert (response.moments[3].error_kind, response.moments[3].error) == ("ValueError", "bad luck")
    assert response.moments[5].note == "after 1.0s of work, 10.0s in all"
    stretches = life(response.moments, store.now(), running=False)
    assert [each.sort for each in stretches] == ["waited", "failed", "waited", "failed"]
    assert [round(each.width) for each in stretches] == [100, 300, 500, 100]


def test_birth_and_death_in_one_record_are_both_written() -> None:
    """A draft by SQL that no queue can take."""
    ranges = [JobRange(change, 7, 1, "mail", "k") for change in (Change.ACCEPTED, Change.DIED)]
    moments = timeline._of_job([LedgerEntry(3, Record(5, "enqueue", ranges))], 7)
    assert [moment.change for moment in moments] == ["accepted", "died"]


def test_a_long_life_is_looked_up_at_its_moments_and_says_so(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_READ", 50)
    monkeypatch.setattr(timeline, "MAX_NEAR", 2)
    job_id = a_life(store, clock)
    job = store.get([job_id])[0]
    assert job is not None
    for _ in range(200):
        clock.advance(SECOND)
        enqueued(store, Draft("noise"))
    assert [moment.change for moment in timeline_of(store, job).moments][-1] == "died"
    alive = replace(job, finished_at=None, claimed_at=job.errors[-1].at - SECOND)
    response = timeline_of(store, alive)
    assert {"accepted", "claimed", "retried", "died"} <= {moment.change for moment in response.moments}
    assert "The ledger holds" in response.cut


def test_a_job_that_is_gone_is_found_in_the_ledger_by_its_id(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_AROUND", 20)
    for number in range(300):
        clock.advance(SECOND // 100)
        enqueued(store, Draft("k", tenant="acme" if number == 122 else None))
        run(store)
    for job_id in (1, 2, 123, 299, 300):
        response = timeline_of_gone(store, job_id)
        assert response is not None
        assert [moment.change for moment in response.moments] == ["accepted", "claimed", "acked"]
        assert response.cut == ""
        assert response.tenant == ("acme" if job_id == 123 else None)
    assert timeline_of_gone(store, 301) is None


def test_jobs_that_came_after_a_drained_backlog_are_found_in_the_ledger(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of records in a row accept nothing: they must not be taken for the end of what was accepted."""
    monkeypatch.setattr(timeline, "FIND_SECONDS", 60.0)
    for count in (300, 20, 300, 1):
        enqueued(store, *[Draft("k")] * count)
        for _ in range(count):
            run(store)
    for job_id in (1, 150, 300, 301, 310, 320, 321, 500, 620, 621):
        response = timeline_of_gone(store, job_id)
        assert response is not None, job_id
        assert [moment.change for moment in response.moments] == ["accepted", "claimed", "acked"]
        assert was_given(store, job_id)
    assert timeline_of_gone(store, 622) is None
    assert not was_given(store, 622)


def test_jobs_that_ran_in_another_order_than_they_came_are_found_in_the_ledger(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "FIND_SECONDS", 60.0)
    enqueued(store, *[Draft("late", delay=SECOND)] * 200)
    for _ in range(150):
        enqueued(store, *[Draft("k")] * 2)
    for _ in range(300):
        run(store)
    clock.advance(2 * SECOND)
    for _ in range(200):
        run(store)
    for job_id in (1, 200, 201, 350, 500):
        response = timeline_of_gone(store, job_id)
        assert response is not None, job_id
        assert response.kind == ("late" if job_id <= 200 else "k")


def test_newest_first_finds_the_same_jobs_as_oldest_first(any_store: Store) -> None:
    draw = Random(7)
    for count in (400, 3_000, 60, 900):
        drafts = [Draft(draw.choice("ab"), None, draw.choice(("mail", "other"))) for _ in range(min(count, 1_000))]
        ids = [job_id for _ in range(max(1, count // 1_000)) for job_id in enqueued(any_store, *drafts)]
        gone = ids[10:] if count == 3_000 else draw.sample(ids, count // 2)
        for start in range(0, len(gone), 1_000):
            any_store.cancel(gone[start : start + 1_000])
    newest = NewestId(any_store)
    for wanted in (Filter(), Filter(kind="a"), Filter(queue="other"), Filter(state=State.DEAD), Filter(text="none")):
        oldest_first = [job.id for job in _all_of(any_store, wanted)]
        found: list[int] = []
        before: int | None = newest.find() + 1
        while before is not None:
            page = find_newest(any_store, ANONYMOUS, wanted, before, limit=50, seconds=60)
            assert len(page.jobs) <= 50
            found += [job.id for job in page.jobs]
            before = page.next
        assert found == oldest_first[::-1]
    assert newest.find() >= max(job.id for job in _all_of(any_store, Filter()))


def _all_of(store: Store, wanted: Filter) -> list[Job]:
    jobs: list[Job] = []
    after: int | None = 0
    while after is not None:
        page = find(store, ANONYMOUS, wanted, after, limit=900, seconds=60)
        jobs += page.jobs
        after = page.next
    return jobs


def test_a_window_of_ids_that_holds_too_much_is_made_smaller(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_BATCH", 60)
    dense = enqueued(store, *[Draft("k")] * 900)
    gap = enqueued(store, *[Draft("k")] * 900)
    store.cancel(gap[:-3])
    page = find_newest(store, ANONYMOUS, Filter(), gap[-1] + 1, limit=50, seconds=60)
    assert [job.id for job in page.jobs] == [*gap[:-4:-1], *dense[:-48:-1]]


def test_newest_first_stops_in_time_and_goes_on_where_it_stopped(store: SqliteStore) -> None:
    enqueued(store, *[Draft("k", n) for n in range(900)])
    ticks = iter(range(10_000))
    before: int | None = 901
    pages = 0
    while before is not None:
        page = find_newest(store, ANONYMOUS, Filter(text="none"), before, seconds=0, clock=lambda: next(ticks))
        assert page.jobs == []
        assert page.early == (page.next is not None)
        before, pages = page.next, pages + 1
    assert pages > 1


def test_without_a_ledger_that_is_said(clock: ManualClock) -> None:
    store = open_store("memory://", clock=clock)
    (job_id,) = enqueued(store, Draft("k"))
    job = store.get([job_id])[0]
    assert job is not None
    assert timeline_of(store, job).cut == NO_LEDGER
    assert timeline_of_gone(store, 99) is None
    store.close()


def test_a_job_in_hand_runs_to_this_moment(store: SqliteStore, clock: ManualClock) -> None:
    enqueued(store, Draft("k"))
    clock.advance(SECOND)
    (lease,) = store.claim([Want("default", 1)], "w", MINUTE)
    clock.advance(3 * SECOND)
    stretches = life(timeline_of(store, lease.job).moments, store.now(), running=True)
    assert [(each.sort, each.width) for each in stretches] == [("waited", 250.0), ("ran", 750.0)]
    store.settle([(lease, Release(0))])
    assert [each.sort for each in life(timeline_of(store, lease.job).moments, store.now(), False)][:2] == [
        "waited",
        "ran",
    ]


# -- dead letters


def test_dead_letters_are_grouped_by_what_they_have_in_common(store: SqliteStore, clock: ManualClock) -> None:
    enqueued(store, *[Draft("mail")] * 9)
    for number in range(6):
        clock.advance(SECOND)
        run(store, failing=f"user {number} at 10.0.0.{number} not found")
    run(store, failing="another thing")
    survey = CauseScan(store)
    assert survey.due()
    survey.step(1.0)
    census = survey.summary()
    assert census.whole
    assert [(cause.count, cause.message) for cause in census.causes] == [
        (6, "user <n> at <address> not found"),
        (1, "another thing"),
    ]
    assert census.causes[0].last_message == "user 5 at 10.0.0.5 not found"
    assert census.since() == {"default": store.now() - 5 * SECOND}
    assert not survey.due()
    found = find(store, ANONYMOUS, Filter(state=State.DEAD, cause=census.causes[0].name))
    assert [job.id for job in found.jobs] == [1, 2, 3, 4, 5, 6]
    store.redrive([1])
    survey.invalidate()
    assert survey.due()
    survey.step(1.0)
    assert survey.summary().dead == 6


def test_a_census_in_steps_shows_what_it_has(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.views.causes.PAGE", 10)
    enqueued(store, *[Draft("k")] * 35)
    run(store, count=35, failing="x")
    survey = CauseScan(store)
    seen = []
    while survey.due():
        survey.step(0.0)
        seen.append((survey.summary().dead, survey.summary().whole))
    assert seen == [(10, False), (20, False), (30, False), (35, True)]


def test_causes_beyond_the_bound_share_one(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.views.causes.MAX_GROUPS", 2)
    enqueued(store, *[Draft("k")] * 4)
    for word in ("a", "b", "c", "d"):
        run(store, failing=word)
    survey = CauseScan(store)
    survey.step(1.0)
    assert sorted((cause.kind, cause.count) for cause in survey.summary().causes) == [("k", 1), ("k", 1), ("other", 2)]


# -- search


def test_finding_pages_filters_and_stops_in_time(store: SqliteStore) -> None:
    enqueued(store, *[Draft("k", tenant="a" if n % 2 else "b", subject=f"s{n}", key=f"k{n}") for n in range(120)])
    first = find(store, ANONYMOUS, Filter(), limit=50)
    second = find(store, ANONYMOUS, Filter(), first.next or 0, limit=50)
    third = find(store, ANONYMOUS, Filter(), second.next or 0, limit=50)
    assert [len(page.jobs) for page in (first, second, third)] == [50, 50, 20]
    assert third.next is None
    assert len(find(store, ANONYMOUS, Filter(tenant="a"), limit=500, seconds=60).jobs) == 60
    for text in ("s7", "k7"):
        assert [job.subject for job in find(store, ANONYMOUS, Filter(text=text)).jobs] == ["s7"]
    ticks = iter(range(100))
    early = find(store, ANONYMOUS, Filter(text="s119"), limit=1, seconds=0.5, clock=lambda: next(ticks))
    assert not early.early
    assert [job.subject for job in early.jobs] == ["s119"]


def test_a_look_that_is_ended_says_where_to_go_on(store: SqliteStore) -> None:
    enqueued(store, *[Draft("k")] * 1_000)
    for _ in range(6):
        enqueued(store, *[Draft("k")] * 1_000)
    ticks = iter(range(100))
    found = find(store, ANONYMOUS, Filter(text="nobody"), seconds=0.5, clock=lambda: next(ticks))
    assert (found.jobs, found.early) == ([], True)
    assert found.next
    assert 0 < found.next < 7_000
    assert find(store, ANONYMOUS, Filter(text="nobody"), found.next, seconds=60).next is None


def test_no_tenant_finds_what_is_not_its_own(store: SqliteStore) -> None:
    enqueued(
        store, Draft("k", None, "mail", tenant="a"), Draft("k", None, "mail", tenant="b"), Draft("k", None, "media")
    )
    mine = Actor("t", frozenset({Role.VIEWER}), ("mail",), "a")
    assert [job.id for job in find(store, mine, Filter()).jobs] == [1]
    assert find(store, mine, Filter(tenant="b")).jobs == []
    assert [job.id for job in find(store, replace(mine, tenant=None), Filter()).jobs] == [1, 2]


# -- queues


def test_gates_are_those_in_use_full_ones_first(store: SqliteStore, clock: ManualClock) -> None:
    gates = AtMost(2, "tenant") & AtMost(9) & InOrder("subject")
    spec = QueueSpec(name="q", eligibility=gates, share=Fair("tenant", {"a": 3}))
    store.put_spec(spec)
    enqueued(store, *[Draft("k", None, "q", tenant="a", subject="x") for _ in range(4)])
    enqueued(store, *[Draft("k", None, "q", tenant="b", subject=f"y{n}") for n in range(5)])
    clock.advance(61 * SECOND)
    store.claim([Want("q", 9, "a")], "w", MINUTE)
    store.claim([Want("q", 9, "b")], "w", MINUTE)
    view = queue_view(store, spec, True, store.backlog(["q"])[0])
    shown = [(gate.name, gate.used) for gate in view.gates]
    assert shown == [("cap/q/tenant/b", 2), ("cap/q", 3), ("cap/q/tenant/a", 1)]
    hidden = queue_view(store, spec, True, store.backlog(["q"])[0], lambda name: not name.endswith("/b"))
    assert [(gate.name, gate.used) for gate in hidden.gates] == shown[1:]
    classes = {each.name: each for each in view.classes}
    assert (classes["a"].share, classes["a"].running, classes["a"].starved) == (0.75, 1, False)
    assert (classes["b"].ready, classes["b"].running, classes["b"].waiting) == (3, 2, 0)
    assert not view.early


@pytest.mark.parametrize(
    ("spec", "places"),
    [
        (QueueSpec(name="q"), [0, 0, 0, 2, 0]),
        (QueueSpec(name="q", retention=Retained(4, days(7))), [2, 0, 0, 2, 0]),
        (QueueSpec(name="q", capacity=Bounded(5)), [0, 0, 0, 2, 1]),
    ],
)
def test_a_vector_has_a_place_on_every_axis(spec: QueueSpec, places: list[int]) -> None:
    axes = axes_of(spec)
    assert [axis.place for axis in axes] == places
    assert [axis.answer for axis in axes] == list(spec.axes().values())
    assert len(star(axes).spokes) == 5


def test_workers_are_known_by_what_they_hold_and_claim(store: SqliteStore, clock: ManualClock) -> None:
    enqueued(store, *[Draft("k")] * 5)
    store.claim([Want("default", 2)], "w1", MINUTE)
    clock.advance(10 * SECOND)
    store.claim([Want("default", 1)], "w2", timedelta(seconds=5))
    clock.advance(10 * SECOND)
    view = workers_view(store, ANONYMOUS, 3, {"w1": (store.now(), 2), "idle": (store.now(), 9)})
    rows = {row.owner: row for row in view.rows}
    assert (rows["w1"].held, rows["w1"].left, rows["w1"].since) == (2, 40 * SECOND, store.now() - 20 * SECOND)
    assert rows["w2"].left == -5 * SECOND
    assert (rows["idle"].held, rows["idle"].claimed) == (0, 9)
    assert workers_view(store, Actor("x", frozenset({Role.VIEWER}), ("other",)), 3, {}).rows == []


def test_schedules_are_in_words_and_in_their_zone(store: SqliteStore) -> None:
    rule = Timetable(Cron("30 1 * * *", "Europe/Berlin")).rule
    store.put_schedule(Schedule("night", rule, store.now(), Draft("k"), "Europe/Berlin"))
    store.put_schedule(Schedule("odd", "<b>nonsense</b>", store.now(), Draft("k")))
    rows = {row.schedule.name: row for row in schedules_view(store, ANONYMOUS).rows}
    assert rows["night"].words == "at 01:30 every day (Europe/Berlin)"
    assert len(rows["night"].fires) == 3
    assert all(fire.endswith("01:30:00") for fire in rows["night"].fires)
    assert rows["odd"].trouble
    assert [row.schedule.name for row in schedules_view(store, ANONYMOUS, "igh").rows] == ["night"]


def test_lag_is_what_a_group_has_still_to_read(store: SqliteStore) -> None:
    spec = QueueSpec(name="log", retention=Retained(1))
    store.put_spec(spec)
    store.append("log", [b"%d" % n for n in range(30)])
    store.commit("log", "g", 0, 9)
    view = log_view(store, spec, "g", 0)
    assert (view.lag, view.rows[0].position) == (20, 9)
    assert [entry.body for entry in view.entries][:2] == [b"29", b"28"]
    assert log_view(store, spec, "new", 0).lag == 30
    assert [(row.name, row.lag, row.lost, row.members) for row in view.groups] == [("g", 20, 0, 0)]
    assert [(each.held, each.written) for each in logs_view(store, [spec])] == [(30, 30)]


# -- pictures


def test_a_spark_has_gaps_where_nothing_is_known() -> None:
    drawn = spark([None, 1, 2, None, 4, 4], width=100, height=20)
    assert len(drawn.lines) == 2
    assert drawn.lines[1] == "80.0,2.0 100.0,2.0"
    assert drawn.peak == 4
    assert spark([]).lines == []
    assert spark([0, 0, 3]).ticks == [(120.0, 2.0)]


def test_every_word_of_the_ledger_has_a_line(store: SqliteStore, clock: ManualClock) -> None:
    """Also those that no other test brings about."""
    (job_id,) = enqueued(store, Draft("k"))
    store.cancel([job_id])
    response = timeline_of_gone(store, job_id)
    assert response is not None
    assert [moment.change for moment in response.moments] == [Change.ACCEPTED, Change.CANCELLED]
