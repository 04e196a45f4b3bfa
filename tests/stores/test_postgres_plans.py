"""No verb walks what it does not need: with 100,000 rows of every kind, each reads a few rows, by an index.

The server counts what was read. A process counts when it ends, so every verb is called on a store of its own, and its
sessions have ended before the counters are read. It must hold without statistics, as after a restore, and with
them: `forebay.run` is never analysed by itself.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest

from forebay.core.instant import minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_BLOCKED
from forebay.core.outcome import Ack, Failure, Release, Retry, Verdict
from forebay.core.policy import AtMost, Bounded, Fair, InOrder
from forebay.core.spec import QueueSpec
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Query, Want
from forebay_proof.servers.postgres import PostgresServer
from tests.waiting import eventually

ROWS = 100_000
MAX_READ = 5_000
"""Rows that a call may read: far less than a table, more than any call needs."""

LARGE = ("run", "pack", "ended", "key", "call", "gate", "lane", "class")
NOW = 1_700_000_000_000_000
# By hundred thousands of ids: ready, later, running by heartbeat in packs of a hundred, running alone, behind a gate of
# the whole queue, and later there; 1,000 classes and 100,000 lanes, each of them parked at one gate; one long line.
FILL = f"""
INSERT INTO forebay.holder (owner, until, seen_at) SELECT 'gone-' || i, 0, {NOW} FROM generate_series(1, 50) AS i;

INSERT INTO forebay.run (
    last_id, rank, due_at, enqueued_at, rank_base, n, size, max_attempts, state, single, rank_timed, queue, lane, cls,
    kind, bodies, expires_at
)
SELECT i, {NOW} + i, CASE WHEN k IN (1, 5) THEN {2 * NOW} ELSE {NOW} END + i, {NOW}, 0, 1, 1, 25,
    CASE WHEN k IN (0, 4) THEN 1 ELSE 3 END, true, 2, CASE WHEN k < 4 THEN 'q' ELSE 'gated' END, '', '', 'k', '[null]',
    CASE WHEN k < 2 AND i % 2 = 0 THEN {2 * NOW} + i END
FROM unnest(ARRAY[0, 1, 4, 5]) AS k, generate_series(k * {ROWS} + 1, (k + 1) * {ROWS}) AS i;
INSERT INTO forebay.pack (lease_until, claimed_at, n, holder, by_heartbeat, plain, queue, ids, members)
SELECT {2 * NOW} + min(i), {NOW}, count(*), 1 + min(i) % 50, k = 2, true, 'q', int8range(min(i), max(i), '[]'),
    array_agg(ROW(
        i, {NOW} + i, {NOW} + i, {NOW}, 0, NULL, 1, 1, 1, 1, 1, 25, 0, 2, false, false, '', '', 'k', '', NULL,
        NULL, NULL, NULL, '[null]'
    )::forebay.member ORDER BY i)
FROM generate_series(2, 3) AS k, generate_series(k * {ROWS} + 1, (k + 1) * {ROWS}) AS i
GROUP BY k, CASE WHEN k = 2 THEN i / 100 ELSE i END;

INSERT INTO forebay.run (
    last_id, rank, due_at, enqueued_at, rank_base, n, size, max_attempts, state, single, rank_timed, queue, lane, cls,
    kind, bodies, gates
)
SELECT i, {NOW} + i, {NOW} + i, {NOW}, 0, 1, 1, 25, 1, true, 2, 'turns',
    format('["t%s", "cap/turns/kind/k"]', i % 1000), 't' || i % 1000, 'k', '[null]'::json, ARRAY['cap/turns/kind/k']
FROM generate_series({6 * ROWS} + 1, {7 * ROWS}) AS i
UNION ALL
SELECT i, {NOW} + i, {NOW} + i, {NOW}, 0, 1, 1, 25, 1, true, 2, 'lanes',
    format('["", "cap/lanes/kind/k", "cap/lanes/subject/s%s"]', i), '', 'k', '[null]'::json,
    ARRAY['cap/lanes/kind/k', 'cap/lanes/subject/s' || i]
FROM generate_series({7 * ROWS} + 1, {8 * ROWS}) AS i;
INSERT INTO forebay.lane
SELECT r.queue, r.lane, r.cls, min(r.rank), min(r.last_id), r.gates[1], NULL, r.gates FROM forebay.run AS r
WHERE r.gates IS NOT NULL GROUP BY r.queue, r.lane, r.cls, r.gates;
INSERT INTO forebay.class SELECT 'turns', 't' || i, i, false, false FROM generate_series(0, 999) AS i;
INSERT INTO forebay.gate
VALUES ('cap/gated', 5, 5, 0), ('cap/turns/kind/k', 5, 5, 0), ('cap/lanes/kind/k', 5, 5, 0);
INSERT INTO forebay.gate SELECT 'cap/' || i, 1, 1, 0 FROM generate_series(1, {ROWS}) AS i;

INSERT INTO forebay.run (
    last_id, rank, due_at, enqueued_at, rank_base, n, size, max_attempts, state, single, rank_timed, queue, lane, cls,
    kind, bodies, line
)
SELECT i, {NOW} + i, {NOW} + i, {NOW}, 0, 1, 1, 25, CASE WHEN i > {8 * ROWS} + 1 THEN 0 ELSE 1 END, true, 2, 'long', '',
    '', 'k', '[null]', 'order/long/subject/s'
FROM generate_series({8 * ROWS} + 1, {9 * ROWS}) AS i;

INSERT INTO forebay.ended (
    id, due_at, enqueued_at, finished_at, kept_until, rank_base, delivery, attempt, max_attempts, settled_delivery,
    state, rank_timed, cancel_requested, queue, cls, kind, settled_code, body, line, blocks
)
SELECT {10 * ROWS} + i, {NOW}, {NOW}, {NOW} + i, CASE WHEN i % 2 = 0 THEN {2 * NOW} + i END, 0, 1, 1, 25, 1,
    3 + i % 3, 2, false, 'q', '', 'k', 'a', 'null', CASE WHEN i > 1000 THEN 'order/far/subject/' || i END, i > 1000
FROM generate_series(1, {ROWS}) AS i;

INSERT INTO forebay.key SELECT 'q', 'key-' || i, i, {2 * NOW} + i, '\\x00' FROM generate_series(1, {ROWS}) AS i;
INSERT INTO forebay.call SELECT gen_random_uuid(), i, {2 * NOW} FROM generate_series(1, {ROWS}) AS i;
SELECT setval('forebay.job_id', {100 * ROWS} + 1, false);
"""


BLOCKED = f"SELECT forebay.blocked_lines(%s, {MAX_BLOCKED})"
"""The part of a backlog that is not a count of rows."""


def one(store: PostgresStore, queue: str = "q") -> Any:
    (lease,) = store.claim([Want(queue, 1)], "me", minutes(1))
    return lease


def beat(store: PostgresStore) -> None:
    leases = store.claim([Want("q", 20)], "me", minutes(1))
    assert len(store.extend(leases, minutes(2))) == 20


def extend_some(store: PostgresStore) -> None:
    leases = store.claim([Want("q", 20)], "me", minutes(1))
    assert len(store.extend(leases[:3], minutes(2))) == 3


def settle(store: PostgresStore) -> None:
    leases = store.claim([Want("q", 20)], "me", minutes(1))
    verdicts: list[Verdict] = [Ack(), Retry(0, Failure("E")), Retry(10**9, Failure("E")), Release()]
    assert len(store.settle([(lease, verdicts[number % 4]) for number, lease in enumerate(leases)])) == 20


def stale(store: PostgresStore) -> None:
    lease = one(store)
    for verdict in (Ack(), Ack(), Release()):
        store.settle([(lease, verdict)])


def by_turns(store: PostgresStore) -> None:
    store.enqueue([Draft("k", queue="fair", tenant=f"t{n % 5}") for n in range(20)])
    assert len(store.claim([Want("fair", 10)], "me", minutes(1))) == 10


def turns_at_a_gate(store: PostgresStore) -> None:
    store.set_gate("cap/turns/kind/k", 25)
    leases = store.claim([Want("turns", 10)], "me", minutes(1))
    assert len({lease.job.id % 1_000 for lease in leases}) == 10
    store.settle([(lease, Ack()) for lease in leases])
    store.set_gate("cap/turns/kind/k", 5)
    assert store.hold(7 * ROWS) is not None
    store.enqueue([Draft("k", queue="turns", tenant=f"t{n}") for n in range(9)])


def many_lanes(store: PostgresStore) -> None:
    """One gate holds 100,000 lanes; each of them has another gate of its own."""
    store.set_gate("cap/lanes/kind/k", 15)
    leases = store.claim([Want("lanes", 20)], "me", minutes(1))
    assert [lease.job.id - 7 * ROWS for lease in leases] == sorted(lease.job.id - 7 * ROWS for lease in leases)
    assert len(leases) == 10
    store.settle([(lease, Ack()) for lease in leases])
    store.enqueue([Draft("k", queue="lanes", subject=f"new{n}") for n in range(9)])
    store.cancel([8 * ROWS - 1])
    leases = store.claim([Want("lanes", 20)], "me", minutes(1))
    assert len(leases) == 10
    store.settle([(lease, Ack()) for lease in leases])
    store.set_gate("cap/lanes/kind/k", None)


def long_line(store: PostgresStore) -> None:
    store.settle([(one(store, "long"), Ack())])
    assert store.hold(8 * ROWS + 100) is not None
    store.cancel([9 * ROWS - 5])
    store.enqueue([Draft("k", queue="long", subject="s")])
    store.settle([(one(store, "long"), Retry(0, Failure("E")))])


def pause(store: PostgresStore) -> None:
    store.pause("other")
    store.resume("other")


VERBS: Mapping[str, Callable[[PostgresStore], object]] = {
    "enqueue": lambda store: store.enqueue([Draft("k", queue="q")] * 20),
    "enqueue different": lambda store: store.enqueue([Draft("k", n, queue="q", delay=n) for n in range(20)]),
    "enqueue with keys": lambda store: store.enqueue([Draft("k", queue="q", key=f"new-{n}") for n in range(20)]),
    "enqueue behind gates": lambda store: store.enqueue(
        [Draft("k", queue="ordered", subject=f"s{n}") for n in range(9)]
    ),
    "claim": lambda store: store.claim([Want("q", 20)], "me", minutes(1)),
    "claim one": one,
    "claim by turns": by_turns,
    "turns at a gate": turns_at_a_gate,
    "many lanes": many_lanes,
    "a long line": long_line,
    "claim nothing": lambda store: store.claim([Want("empty", 20)], "me", minutes(1)),
    "settle": settle,
    "settle again, and late": stale,
    "heartbeat": beat,
    "extend some": extend_some,
    "overdue": lambda store: store.overdue(20),
    "promote": lambda store: store.promote(1_000),
    "get": lambda store: store.get([*range(1, 9), 10 * ROWS + 5, 3 * ROWS, 77_777_777]),
    "cancel": lambda store: store.cancel([5, 3 * ROWS, ROWS + 7]),
    "redrive": lambda store: store.redrive([10 * ROWS + n for n in range(1, 9)]),
    "purge": lambda store: store.purge(State.DONE, NOW + ROWS, 20),
    "set_gate": lambda store: store.set_gate("cap/gated", 6),
    "ahead": lambda store: store.ahead(50),
    "pause": pause,
    "wait": lambda store: store.wait(["empty"], seconds(0)),
    "wait for work": lambda store: store.wait(["q"], seconds(1)),
    "browse": lambda store: store.browse(Query(queue="q"), 4 * ROWS, 20),
    "browse all": lambda store: store.browse(Query(), 0, 20),
    "browse what is ready": lambda store: store.browse(Query(queue="gated", state=State.READY), 0, 20),
    "browse the dead": lambda store: store.browse(Query(queue="q", state=State.DEAD), 0, 20),
    "browse a kind": lambda store: store.browse(Query(kind="other"), 0, 20),
    "blocked lines": lambda store: [
        store.backend.session.server.query(BLOCKED, (queue,)) for queue in ("q", "far", "gated")
    ],
    "gates": lambda store: store.gates("", 20),
}

NEEDS_STATISTICS = {"purge", "browse the dead"}
"""Of `forebay.ended`, which the server analyses by itself."""


@pytest.fixture(scope="module")
def full(postgres: PostgresServer) -> Iterator[str]:
    """A database with many rows of every kind that has not been analysed yet."""
    url = postgres.create_database()
    store = PostgresStore(url)
    store.put_spec(QueueSpec(name="fair", share=Fair()))
    store.put_spec(QueueSpec(name="gated", eligibility=AtMost(5)))
    store.put_spec(QueueSpec(name="turns", share=Fair(), eligibility=AtMost(5, per="kind")))
    store.put_spec(QueueSpec(name="lanes", eligibility=AtMost(5, per="kind") & AtMost(1, per="subject")))
    store.put_spec(QueueSpec(name="long", eligibility=InOrder()))
    store.put_spec(QueueSpec(name="ordered", eligibility=InOrder(), capacity=Bounded(10**6)))
    store.close()
    execute(url, FILL)
    yield url
    postgres.drop_database(url)


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


class Counters:
    """What was read so far, by those whose sessions have ended."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def read(self) -> dict[str, tuple[int, int]]:
        """Per table: sequential scans, and rows read in whatever way."""
        self._until_alone()
        rows = self.connection.execute(
            "SELECT t.relname, t.seq_scan, t.seq_tup_read + coalesce(sum(i.idx_tup_read), 0)::bigint "
            "FROM pg_stat_user_tables AS t LEFT JOIN pg_stat_user_indexes AS i ON i.relid = t.relid "
            "WHERE t.schemaname = 'forebay' GROUP BY t.relid, t.relname, t.seq_scan, t.seq_tup_read"
        ).fetchall()
        return {name: (scans, read) for name, scans, read in rows}

    def _until_alone(self) -> None:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        clients = f"{others} AND backend_type = 'client backend'"
        eventually(lambda: self.connection.execute(clients).fetchone() == (0,), "the other sessions end")


@pytest.fixture
def counters(full: str) -> Iterator[Counters]:
    counters = Counters(full)
    yield counters
    counters.connection.close()


def reads(url: str, counters: Counters, verb: Callable[[PostgresStore], object]) -> dict[str, tuple[int, int]]:
    """Scans and rows read by one call, per table. What only the first call of a process does is not counted."""
    before = counters.read()
    store = PostgresStore(url)
    verb(store)
    store.close()
    after = counters.read()
    return {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}


@pytest.mark.parametrize("name", sorted(VERBS.keys() - NEEDS_STATISTICS))
def test_a_verb_reads_few_rows_without_statistics(full: str, counters: Counters, name: str) -> None:
    check(reads(full, counters, VERBS[name]))


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_reads_few_rows_with_statistics(analysed: str, counters: Counters, name: str) -> None:
    check(reads(analysed, counters, VERBS[name]))


@pytest.fixture(scope="module")
def analysed(full: str) -> str:
    execute(full, "VACUUM ANALYZE")
    return full


def check(found: dict[str, tuple[int, int]]) -> None:
    scanned = {name: found[name] for name in LARGE if found[name][0]}
    assert scanned == {}, "scanned from end to end: scans, rows"
    much = {name: found[name][1] for name in LARGE if found[name][1] > MAX_READ}
    assert much == {}, "rows read"


def test_the_counters_see_a_scan(full: str, counters: Counters) -> None:
    def scan(store: PostgresStore) -> None:
        execute(full, "SET enable_indexscan = off", "SELECT count(*) FROM forebay.run")
        execute(full, "SET enable_bitmapscan = off", "SELECT count(subject) FROM forebay.run")

    found = reads(full, counters, scan)
    assert found["run"][0] >= 1
    assert found["run"][1] > ROWS
