"""Events read from the ledger of every durable store: complete, in order, resumable at every event."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest

from forebay import Forebay
from forebay.core.errors import Invalid, OffsetGone, StoreFailed, Unsupported
from forebay.core.instant import seconds, to_datetime
from forebay.core.job import Draft
from forebay.core.ledger import LedgerEntry, LedgerRule
from forebay.core.outcome import Ack
from forebay.events import Event, EventFilter, EventReader
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want


@pytest.fixture(params=["sqlite", "journal"])
def fb(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Forebay]:
    app = Forebay(f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else f"memory:///{tmp_path}/journal")
    yield app
    app.close()


def finish_jobs(store: Store, count: int) -> None:
    """So many jobs of two kinds, from their acceptance to their end."""
    store.enqueue([Draft("ab"[n % 2], n, "mail") for n in range(count)])
    store.settle([(lease, Ack()) for lease in store.claim([Want("mail", count)], "w", seconds(60))])


def every(fb: Forebay) -> list[Event]:
    return list(fb.events(since="start", follow=False))


def test_each_job_of_each_record_is_one_event(fb: Forebay) -> None:
    finish_jobs(fb.store, 50)
    seen = every(fb)
    for change in ("accepted", "claimed", "acked"):
        assert [(each.job_id, each.kind) for each in seen if each.change == change] == [
            (job_id, "ab"[(job_id - 1) % 2]) for job_id in range(1, 51)
        ]
    assert len(seen) == 150


def test_a_reader_continues_behind_any_event(fb: Forebay) -> None:
    finish_jobs(fb.store, 20)
    seen = every(fb)
    for place, event in enumerate(seen):
        assert list(fb.events(since=event.id, follow=False)) == seen[place + 1 :]
    assert list(fb.events(since=0, follow=False)) == [each for each in seen if not each.id.startswith("0-")]
    assert list(fb.events(since=to_datetime(seen[0].at), follow=False)) == seen
    assert list(fb.events(since=to_datetime(seen[-1].at) + timedelta(seconds=1), follow=False)) == []


def test_a_filter_skips_and_still_moves_on(fb: Forebay) -> None:
    for _ in range(30):
        finish_jobs(fb.store, 10)
    seen = every(fb)
    acked = list(fb.events(changes="acked", kinds="b", since="start", follow=False))
    assert acked == [each for each in seen if each.change == "acked" and each.kind == "b"]
    reader = EventReader(fb.store, EventFilter.of(["none"], None, ()), "start")
    assert reader.read() == []
    assert reader.caught_up
    assert reader.offsets == {"": fb.store.ledger_extent()[1]}


def test_pieces_of_any_size_are_the_whole(fb: Forebay) -> None:
    finish_jobs(fb.store, 37)
    seen = every(fb)
    for size in (1, 2, 7, 1_000):
        reader, found = EventReader(fb.store, EventFilter(), "start"), []
        while part := reader.read(size):
            found += part
        assert found == seen


def test_new_events_reach_a_thread_and_a_coroutine_that_wait(fb: Forebay) -> None:
    stream, found = fb.events(queue="mail"), []

    def follow() -> None:
        for event in stream:
            found.append(event)
            if len(found) == 3:
                return

    async def follow_async() -> list[str]:
        changes = []
        async for event in fb.events(queue="mail", since="start"):
            changes.append(event.change)
            if len(changes) == 3:
                break
        return changes

    thread = Thread(target=follow)
    thread.start()
    finish_jobs(fb.store, 1)
    thread.join(30)
    assert [each.change for each in found] == ["accepted", "claimed", "acked"]
    assert asyncio.run(follow_async()) == ["accepted", "claimed", "acked"]


def test_a_stream_is_closed_from_another_thread(fb: Forebay) -> None:
    stream = fb.events()
    thread = Thread(target=lambda: list(stream))
    thread.start()
    stream.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_trimmed_position_is_an_error_that_names_the_first_record(fb: Forebay) -> None:
    finish_jobs(fb.store, 3)
    fb.store.put_ledger_rule(LedgerRule(keep=0))
    finish_jobs(fb.store, 3)
    while fb.store.trim_ledger(1_000):
        pass
    with pytest.raises(OffsetGone) as gone:
        list(fb.events(since=-1, follow=False))
    assert gone.value.first == fb.store.ledger_extent()[0]


@pytest.mark.parametrize("since", ["1", "a-b", "1-2-3", "-1", "9" * 30, "1-" + "9" * 30, 10**30, 2.5, "77-0", 77])
def test_what_is_no_position_is_refused(fb: Forebay, since: object) -> None:
    with pytest.raises(Invalid, match="since"):
        fb.events(since=since)  # type: ignore[arg-type]


def test_unknown_changes_and_too_many_names_are_refused(fb: Forebay) -> None:
    with pytest.raises(Invalid, match=r"changes: 'ackd' is not a change; use accepted"):
        fb.events(changes="ackd")
    with pytest.raises(Invalid, match="101 names, the limit is 100"):
        fb.events(queue=[f"q{n}" for n in range(101)])


def test_a_store_without_a_ledger_has_no_events() -> None:
    with pytest.raises(Unsupported, match="forebay ledger on"):
        Forebay("memory://").events()


class Flaky:
    """A store whose second read of the ledger fails."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def ledger(self, after: int, limit: int) -> list[LedgerEntry]:
        self.calls += 1
        if self.calls == 2:
            raise StoreFailed("ledger", "cut off")
        return self._store.ledger(after, limit)


def test_a_failed_read_loses_nothing_that_was_read_before(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    for _ in range(60):
        finish_jobs(store, 1)
    flaky = Flaky(store)
    reader = EventReader(flaky, EventFilter(), "start")  # type: ignore[arg-type]
    found = reader.read()
    assert len(found) == 100
    while part := reader.read():
        found += part
    assert [each.id for each in found] == [f"{offset}-0" for offset in range(180)]
    store.close()
