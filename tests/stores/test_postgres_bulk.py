"""Bulk enqueue on Postgres: any iterator, in bounded memory, by COPY; what comes out is what `enqueue` would have made.

Also through the client and the command line. Small parts stand for large ones; `bench` has the millions.
"""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event

import psycopg
import pytest

from forebay import Draft, ForebayError, Invalid, Job, QueueSpec, Store, Want, open_store
from forebay.cli import main
from forebay.client import Forebay
from forebay.core.errors import KeyConflict, QueueFull, StoreFailed, WrongQueueKind
from forebay.core.instant import seconds
from forebay.core.policy import Aging, AtMost, Bounded, Fair, LatestWins, Priority, Retained
from forebay.store import connection_pool
from forebay.store.postgres import bulk
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Query, Tally
from forebay.store.streams import enqueue_stream
from forebay.testing.clock import ManualClock
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.proxy import Proxy

NOW = 1_800_000_000_000_000


@pytest.fixture
def store(cleared_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(cleared_url)
    yield store
    store.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_MAX_PART", 2_000)


def jobs(store: Store) -> list[Job]:
    found: list[Job] = []
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(), after, 1_000)
        found += page.jobs
        after = page.next
    return found


def test_a_generator_is_read_as_it_goes_and_thousands_share_a_row(store: PostgresStore, small: None) -> None:
    made, ahead, reported = 0, [], []

    def drafts() -> Iterator[Draft]:
        nonlocal made
        for made in range(1, 9_501):
            yield Draft("k", made)

    def progress(tally: Tally) -> None:
        reported.append(tally.taken)
        ahead.append(made - tally.taken)

    assert store.enqueue_stream(drafts(), progress) == Tally(9_500)
    assert reported == [2_000, 4_000, 6_000, 8_000, 9_500]
    assert max(ahead) <= 2_001, "no more than two parts are in memory"
    with psycopg.connect(store.backend.session.server.url) as connection:
        assert connection.execute("SELECT n, size FROM forebay.run ORDER BY last_id").fetchall() == [
            *[(1_000, 1_000)] * 9,
            (500, 500),
        ]
    assert [job.payload for job in jobs(store)] == list(range(1, 9_501))
    claimed = store.claim([Want("default", 1_000)], "me", seconds(60))
    assert [lease.job.payload for lease in claimed] == list(range(1, 1_001))


def assorted() -> list[Draft]:
    """Every field that a plain draft may have, in neighbours that are alike and in others that are not."""
    drafts = [Draft("k", number) for number in range(5)]
    drafts += [Draft("k", number, tenant=f"t{number % 3}", priority=number % 4) for number in range(12)]
    drafts += [Draft("other", None, queue=queue) for queue in ("a", "b", "a", "a", "ranked", "aged", "fair")]
    drafts += [Draft("k", 'é\t\n\\\\"', queue="fair", tenant=f"t{number % 3}") for number in range(9)]
    drafts += [Draft("k", [1], delay=5_000_000), Draft("k", [2], delay=5_000_000), Draft("k", [3], run_at=NOW + 7)]
    drafts += [Draft("k", {}, run_at=1), Draft("k", {}, expires_at=NOW + 10**9), Draft("k", {}, expires_at=NOW + 10**9)]
    drafts += [Draft("k", deadline=NOW + 5, max_attempts=2, subject="s", meta={"trace": "ü"}) for _ in range(3)]
    drafts += [Draft("k", number, queue="ranked", priority=number % 2) for number in range(6)]
    drafts += [Draft("k", number, queue="aged", priority=number % 2) for number in range(6)]
    return drafts


def test_the_stream_makes_what_enqueue_makes(cleared_url: str, postgres: PostgresServer) -> None:
    pictures, leases, rows = [], [], []
    for way in ("stream", "enqueue"):
        store = PostgresStore(cleared_url, clock=ManualClock(NOW))
        for spec in (
            QueueSpec(name="ranked", selection=Priority()),
            QueueSpec(name="aged", selection=Aging(step=seconds(1))),
            QueueSpec(name="fair", share=Fair(by="tenant")),
        ):
            store.put_spec(spec)
        if way == "stream":
            store.enqueue_stream(iter(assorted()), lambda tally: None)
        else:
            store.enqueue(assorted())
        pictures.append(jobs(store))
        with psycopg.connect(cleared_url) as connection:
            rows.append(connection.execute("SELECT to_jsonb(r) FROM forebay.run AS r ORDER BY last_id").fetchall())
        wants = [Want(queue, 50) for queue in ("default", "a", "b", "ranked", "aged", "fair")]
        claimed = [lease.job for lease in store.claim(wants, "me", seconds(60))]
        # Which class begins is each process's own affair.
        leases.append(sorted(claimed, key=lambda job: (job.queue == "fair", job.id if job.queue == "fair" else 0)))
        store.close()
        with psycopg.connect(cleared_url) as connection:
            connection.execute(
                "DELETE FROM forebay.run; DELETE FROM forebay.pack; SELECT setval('forebay.job_id', 1, false)"
            )
    assert len(pictures[0]) == len(assorted())
    assert pictures[0] == pictures[1]
    assert rows[0] == rows[1]
    assert leases[0] == leases[1]


def test_what_needs_more_goes_in_at_its_place(store: PostgresStore, small: None) -> None:
    store.put_spec(QueueSpec(name="capped", eligibility=AtMost(2)))
    store.put_spec(QueueSpec(name="merging", merge=LatestWins()))

    def drafts() -> Iterator[Draft]:
        for number in range(3_000):
            key = f"k{number // 2}" if number % 1_000 < 10 else None
            yield Draft("k", number // 2, key=key)
        yield from (Draft("k", number, queue="capped") for number in range(5))
        yield from (Draft("k", number, queue="merging", subject="s") for number in range(4))

    tally = enqueue_stream(store, drafts())
    assert tally == Tally(3_009, duplicates=15, merged=3)
    assert [job.payload for job in jobs(store) if job.queue == "default"] == [
        number // 2 for number in range(3_000) if number % 1_000 >= 10 or number % 2 == 0
    ]
    assert len(store.claim([Want("capped", 5)], "me", seconds(60))) == 2
    assert [lease.job.payload for lease in store.claim([Want("merging", 5)], "me", seconds(60))] == [3]


def test_a_spec_that_changes_on_the_way_counts_for_what_comes_after(store: PostgresStore, small: None) -> None:
    other = open_store(store.backend.session.server.url)

    def drafts() -> Iterator[Draft]:
        for number in range(6_000):
            if number == 5_000:
                other.put_spec(QueueSpec(name="default", eligibility=AtMost(1, per="kind")))
            yield Draft("k", number)

    assert enqueue_stream(store, drafts()) == Tally(6_000)
    other.close()
    with psycopg.connect(store.backend.session.server.url) as connection:
        found = connection.execute("SELECT gates IS NOT NULL, sum(n) FROM forebay.run GROUP BY 1").fetchall()
    gated: dict[bool, int] = dict(found)
    assert sum(gated.values()) == 6_000
    assert gated[True] >= 1_000


@pytest.mark.parametrize("wrong", ["iterator", "draft", "type", "full", "key", "log"])
def test_an_error_says_how_many_are_in_and_the_rest_can_follow(store: PostgresStore, small: None, wrong: str) -> None:
    store.put_spec(QueueSpec(name="full", capacity=Bounded(3)))
    store.put_spec(QueueSpec(name="log", retention=Retained()))
    store.enqueue([Draft("k", "another", key="taken")])
    healed = False

    def drafts(start: int = 0) -> Iterator[Draft]:
        for number in range(start, 7_000):
            if number == 5_500 and not healed:
                match wrong:
                    case "iterator":
                        raise LookupError("the source has gone")
                    case "draft":
                        yield Draft("k", {1, 2})
                    case "type":
                        yield "draft"  # type: ignore[misc]
                    case "full":
                        yield from [Draft("k", queue="full")] * 4
                    case "key":
                        yield Draft("k", key="taken")
                    case _:
                        yield Draft("k", queue="log")
            yield Draft("k", number)

    reported: list[int] = []
    kinds = {"iterator": LookupError, "full": QueueFull, "key": KeyConflict, "log": WrongQueueKind}
    with pytest.raises(kinds.get(wrong, Invalid)) as stopped:
        enqueue_stream(store, drafts(), lambda tally: reported.append(tally.taken))
    accepted = reported[-1]
    assert accepted in (4_000, 5_500), "whole parts, in order"
    assert f"{accepted} drafts were accepted" in stopped.value.__notes__[0]
    if isinstance(stopped.value, ForebayError):
        assert stopped.value.accepted == accepted
    healed = True
    enqueue_stream(store, drafts(accepted))
    assert [job.payload for job in jobs(store)][1:] == list(range(7_000))


def test_the_other_stores_take_streams_in_batches() -> None:
    store = open_store("memory://")
    reported: list[Tally] = []
    drafts = [*[Draft("k", number) for number in range(2_500)], Draft("k", 1, key="k"), Draft("k", 1, key="k")]
    assert enqueue_stream(store, iter(drafts), reported.append) == Tally(2_502, duplicates=1)
    assert [tally.taken for tally in reported] == [1_000, 2_000, 2_502]
    store.put_spec(QueueSpec(name="full", capacity=Bounded(1_500)))
    with pytest.raises(QueueFull) as full:
        enqueue_stream(store, (Draft("k", queue="full") for _ in range(2_000)))
    assert full.value.accepted == 1_000


def test_large_drafts_make_small_parts(store: PostgresStore) -> None:
    reported: list[int] = []
    large = Draft("k", "x" * 250_000)
    assert Forebay(store.backend.session.server.url).enqueue_many([large] * 130, reported.append) == 130
    assert all(part <= 67 for part in (reported[0], *(b - a for a, b in pairwise(reported))))


def test_waiters_are_woken(store: PostgresStore) -> None:
    with ThreadPoolExecutor(1) as threads:
        sleeper = threads.submit(store.wait, ["default"], seconds(30))
        enqueue_stream(store, [Draft("k")])
        assert sleeper.result(20)


@pytest.mark.parametrize("where", ["before", "after", "copy"])
def test_a_part_whose_commit_is_cut_off_is_in_exactly_once(
    cleared_url: str, postgres: PostgresServer, small: None, where: str
) -> None:
    with Proxy(postgres.host, postgres.port) as proxy:
        store = PostgresStore(proxy.url(cleared_url))
        match where:
            case "before":
                trap = proxy.cut_before(b"COMMIT")
            case "after":
                trap = proxy.lose_reply(b"COMMIT")
            case _:
                trap = proxy.cut_after(60_000)
        reported: list[int] = []
        drafts = (Draft("k", {"number": number, "text": "x" * 20}) for number in range(7_000))
        assert enqueue_stream(store, drafts, lambda tally: reported.append(tally.taken)) == Tally(7_000)
        assert trap.wait(1)
        assert reported == [2_000, 4_000, 6_000, 7_000]
        assert [job.payload["number"] for job in jobs(store)] == list(range(7_000))
        store.close()


def test_a_commit_that_stays_open_for_long_is_found_out_by_its_token(
    cleared_url: str, postgres: PostgresServer, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has committed and is out of reach, for longer than one call polls its outcome."""
    monkeypatch.setattr(connection_pool, "CERTAIN_SECONDS", 0.0)
    monkeypatch.setattr(bulk, "_PAUSE_FIRST", 0.4)
    with Proxy(postgres.host, postgres.port) as proxy, ThreadPoolExecutor(1) as threads:
        store = PostgresStore(proxy.url(cleared_url))
        store.backlog(["default"])
        proxy.refuse()
        trap = proxy.lose_reply(b"COMMIT")

        def come_back() -> None:
            assert trap.wait(20)
            Event().wait(0.2)
            proxy.admit()

        back = threads.submit(come_back)
        assert enqueue_stream(store, (Draft("k", number) for number in range(3_000))) == Tally(3_000)
        back.result()
        assert [job.payload for job in jobs(store)] == list(range(3_000))
        store.close()


def test_a_server_that_stays_away_ends_it_with_what_is_in(
    cleared_url: str, postgres: PostgresServer, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_MAX_TRIES", 2)
    with Proxy(postgres.host, postgres.port) as proxy:
        store = PostgresStore(proxy.url(cleared_url))

        def progress(tally: Tally) -> None:
            if tally.taken == 4_000:
                proxy.refuse()
                proxy.cut()

        with pytest.raises(StoreFailed) as failed:
            enqueue_stream(store, (Draft("k", number) for number in range(9_000)), progress)
        store.close()
    accepted = failed.value.accepted
    assert accepted in (4_000, 6_000)
    store = PostgresStore(cleared_url)
    assert [job.payload for job in jobs(store)] == list(range(accepted))
    store.close()


def test_a_file_by_the_command_line(
    cleared_url: str, tmp_path: Path, small: None, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    file = tmp_path / "jobs.ndjson"
    lines = [{"kind": "k", "payload": number} for number in range(5_000)] + [{"kind": "k", "key": "a"}] * 2
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert main(["enqueue", "--file", str(file), "--store", cleared_url]) == 0
    assert "5,001 jobs accepted, 1 duplicates" in capsys.readouterr().out
    file.write_text("".join(f'{{"kind": "k", "payload": {number}}}\n' for number in range(5_000)) + "{broken\n")
    assert main(["enqueue", "--file", str(file), "--store", cleared_url]) == 2
    assert "lines up to 4000 are enqueued: continue with --skip 4000" in capsys.readouterr().err
    store = open_store(cleared_url)
    assert store.backlog(["default"])[0].ready == 9_001
    store.close()


def test_records_of_a_stream_are_small_unless_all_is_alike(store: PostgresStore) -> None:
    def records(drafts: list[Draft]) -> list[tuple[int, int]]:
        _, after = store.ledger_extent()
        store.enqueue_stream(iter(drafts), lambda tally: None)
        return [(entry.record.jobs, len(entry.record.ranges)) for entry in store.ledger(after - 1, 100)]

    alike = [Draft("k", number) for number in range(3_000)]
    assert records(alike) == [(3_000, 3)]
    unlike = [Draft("k", number, queue="ab"[number % 2]) for number in range(2_500)]
    assert records(unlike) == [(1_000, 1_000), (1_000, 1_000), (500, 500)]
    named = [Draft("k", number, tenant=f"t{number}") for number in range(2_500)]
    assert records(named) == [(1_000, 1), (1_000, 1), (500, 1)]
