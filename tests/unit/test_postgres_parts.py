"""The parts of the Postgres store that need no server: runs, names without passwords, and what the doctor says."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from forebay.cli import postgres as words
from forebay.cli.diagnosis import Diagnosis
from forebay.cli.resolve_store import error_text
from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.policy import Fair, KeepFor, Priority
from forebay.core.spec import QueueSpec
from forebay.store.connection_pool import masked
from forebay.store.postgres.claims import ClaimCursor, LeaseCursor
from forebay.store.postgres.connect import without_password
from forebay.store.postgres.health import Health, IdleSlot, Open, Standby, TableHealth
from forebay.store.postgres.runs import DraftRun, facts_json, group
from forebay.store.postgres.session import KnownSpec
from tests.unit.values import NOW

WELL = Health(
    version=180_001,
    version_name="18.1",
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    autovacuum=True,
    in_recovery=False,
    read_only=False,
    standby_names="",
    hosts=1,
    standbys=[],
    connections=10,
    max_connections=97,
    sees_others=True,
    held=[],
    slots=[],
    tables=[TableHealth("run", 10, 10, 30.0, True)],
)


def grouped(*drafts: Draft, spec: QueueSpec | None = None) -> list[DraftRun]:
    text = None if spec is None else spec.to_json().decode()
    known = {name: KnownSpec(name, 1, text) for name in {draft.queue for draft in drafts}}
    return group(drafts, lambda draft: known[draft.queue].stamp(draft))


def shape(*drafts: Draft, spec: QueueSpec | None = None) -> list[list[Any]]:
    """The payloads, run by run."""
    return [[msgspec.json.decode(draft.body) for draft in run.drafts] for run in grouped(*drafts, spec=spec)]


def test_alike_neighbours_share_a_run() -> None:
    assert shape(*[Draft("k", n) for n in range(5)]) == [[0, 1, 2, 3, 4]]
    assert shape() == []


@pytest.mark.parametrize(
    "other",
    [
        {"queue": "other"},
        {"delay": 1},
        {"run_at": NOW},
        {"max_attempts": 3},
        {"expires_at": NOW},
    ],
)
def test_only_neighbours_share_a_run(other: dict[str, Any]) -> None:
    """Those on both sides of another one do not: ids count on through a run, in the order of acceptance."""
    assert shape(Draft("k", 0), Draft("k", 1, **other), Draft("k", 2)) == [[0], [1], [2]]


@pytest.mark.parametrize(
    "other",
    [{"kind": "l"}, {"tenant": "a"}, {"subject": "s"}, {"priority": 7}, {"deadline": NOW}, {"meta": {"a": "b"}}],
)
def test_what_a_claim_does_not_read_separates_no_jobs(other: dict[str, Any]) -> None:
    (run,) = grouped(Draft("k", 0), Draft(**{"kind": "k", "payload": 1, **other}), Draft("k", 2))
    facts = run.columns()[-2]
    assert msgspec.json.decode(facts) == [None, other, None]


def test_ranks_and_classes_keep_jobs_apart() -> None:
    by_priority = QueueSpec(name="default", selection=Priority())
    drafts = [Draft("k", 0), Draft("k", 1, priority=5), Draft("k", 2, priority=5)]
    assert shape(*drafts, spec=by_priority) == [[0], [1, 2]]
    by_tenant = QueueSpec(name="default", share=Fair(by="tenant"))
    assert shape(Draft("k", 0, tenant="a"), Draft("k", 1, tenant="b"), spec=by_tenant) == [[0], [1]]


def test_a_job_that_may_expire_is_alone() -> None:
    assert shape(*[Draft("k", n, expires_at=NOW) for n in range(3)]) == [[0], [1], [2]]


def test_facts_are_kept_only_where_there_are_any() -> None:
    plain = [Draft("k", 1), Draft("k", 2)]
    assert facts_json(plain, "k") is None
    assert grouped(*plain)[0].columns()[-2] is None
    found = facts_json([Draft("k"), Draft("l", tenant="a")], "k")
    assert found is not None
    assert msgspec.json.decode(found) == [None, {"kind": "l", "tenant": "a"}]


def test_the_columns_of_a_run_are_those_of_its_first_job() -> None:
    kept = QueueSpec(name="q", retention=KeepFor(minutes(1)))
    (run,) = grouped(Draft("k", "a", queue="q", delay=5), Draft("l", "b", queue="q", delay=5), spec=kept)
    columns = run.columns()
    assert columns[:9] == (2, "q", "", "", None, 1, "k", 5, None)
    assert columns[-1] == b'["a","b"]'


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@db.example:5433/app",
        "postgresql://ada:s3cret@db.example/app?sslmode=require",
        "postgresql://db.example/app?user=ada&password=s3cret",
        "postgresql://ada:s3cret@one.example:1,two.example:2/app",
        "postgres://:s3cret@/app",
    ],
)
def test_a_password_is_not_in_a_name(url: str) -> None:
    name = masked(url)
    assert "s3cret" not in name
    assert name.endswith("/app")
    assert ("ada" in name) == ("ada:" in url)


def test_a_password_is_not_in_what_a_driver_says() -> None:
    url = "postgresql://ada:s3%20cret@db.example/app"
    text = 'unexpected spaces found in "s3 cret", use percent-encoded spaces; near s3%20cret'
    for hidden in (without_password(text, url), error_text(RuntimeError(text), url)):
        assert "s3" not in hidden
        assert "***" in hidden


def check(health: Health, name: str) -> Diagnosis:
    findings = [
        words._version(health),
        *words._durable(health),
        *words._role(health),
        *words._standbys(health),
        *words._held(health),
        *words._slots(health),
        *words._vacuum(health),
        words._connections(health),
    ]
    return next(finding for finding in findings if finding.check == name)


def test_a_healthy_server_has_nothing_to_fix() -> None:
    for name in ("server", "durable", "held", "vacuum", "sessions"):
        assert check(WELL, name).status == "ok"
        assert check(WELL, name).remedy == ""


@pytest.mark.parametrize(
    ("changes", "name", "status", "fact"),
    [
        ({"version": 130_012, "version_name": "13.12"}, "server", "fail", "13.12 is older than 14"),
        ({"fsync": False}, "durable", "warn", "fsync is off"),
        ({"full_page_writes": False}, "durable", "warn", "torn pages"),
        ({"synchronous_commit": "off"}, "durable", "warn", "the last accepted jobs"),
        ({"in_recovery": True}, "role", "fail", "standby"),
        ({"read_only": True}, "role", "fail", "read-only"),
        ({"hosts": 2}, "standby", "warn", "synchronous_standby_names is empty: a fail-over can lose"),
        (
            {"hosts": 2, "standby_names": "b", "synchronous_commit": "remote_write"},
            "standby",
            "warn",
            "synchronous_commit is remote_write: a fail-over can lose",
        ),
        ({"hosts": 2, "standby_names": "b"}, "standby", "warn", "2 hosts, and no standby is connected"),
        (
            {"hosts": 2, "standby_names": "b", "standbys": [Standby("b", "sync", 1_024)]},
            "standby",
            "ok",
            "b (sync), 1,024 bytes behind",
        ),
        ({"standbys": [Standby("b", "", None)]}, "standby", "ok", "b (unknown), lag not visible"),
        ({"connections": 90}, "sessions", "warn", "90 of 97"),
        ({"autovacuum": False}, "vacuum", "warn", "autovacuum is off"),
        ({"tables": [TableHealth("run", 10, 10, None, False)]}, "vacuum", "warn", "off for forebay.run"),
        (
            {"tables": [TableHealth("run", 5, 300_000, 900.0, True)]},
            "vacuum",
            "warn",
            "300,000 dead rows beside 5 live",
        ),
        ({"tables": [TableHealth("run", 10**6, 300_000, None, True)]}, "vacuum", "ok", "cleared never yet"),
        ({"sees_others": False}, "held", "ok", "others are not shown"),
        (
            {"held": [Open("42", "report", "ada", "idle in transaction", 75.0, 1_200)]},
            "held",
            "warn",
            "pid 42 (report, user ada, idle in transaction) holds a transaction open for 1m 15s",
        ),
        ({"held": [Open("", "x-1", "ada", "prepared", 75.0, 1)]}, "held", "warn", "prepared 'x-1'"),
        (
            {"slots": [IdleSlot("old", 5_000_000, True)]},
            "slot",
            "warn",
            "nothing reads the replication slot old: the server keeps 5,000,000 bytes of the log and dead rows for it",
        ),
    ],
)
def test_what_is_wrong_with_a_server_is_said(changes: dict[str, Any], name: str, status: str, fact: str) -> None:
    finding = check(replace(WELL, **changes), name)
    assert finding.status == status
    assert fact in finding.fact
    assert bool(finding.remedy) == (status != "ok")


def test_without_a_schema_there_is_nothing_to_clear() -> None:
    assert list(words._vacuum(replace(WELL, tables=[]))) == []


def test_a_queue_with_a_backlog_is_scanned_from_a_second_before_the_last_claim() -> None:
    cursor = ClaimCursor()
    assert cursor.begin() == (None, None)
    cursor.advance(10.0, 2, 2, None, 5_000_000)
    assert cursor.begin() == (None, 4_000_000)
    cursor.advance(0.0, 2, 2, -9_000_000, 7_000_000)
    assert cursor.begin() == (-10_000_000, 6_000_000)


def test_a_queue_with_fewer_jobs_than_wanted_is_scanned_from_the_start() -> None:
    cursor = ClaimCursor()
    cursor.begin()
    cursor.advance(0.001, 3, 2, None, 5_000_000)
    assert cursor.begin() == (None, None)


def test_unless_a_scan_from_the_start_was_slow() -> None:
    """An old snapshot keeps dead entries: then an empty queue, too, is scanned from the cursor."""
    cursor = ClaimCursor()
    cursor.begin()
    cursor.advance(0.1, 3, 2, None, 5_000_000)
    assert list(cursor.begin()) == list(cursor.floors) == [None, 4_000_000]
    cursor.advance(0.001, 3, 0, None, None)
    assert list(cursor.begin()) == [None, 4_000_000]
    cursor._rescan_at = 0.0
    assert list(cursor.floors) == [None, None], "and now and then from the start all the same"
    assert cursor.begin() == (None, None)
    cursor.advance(0.001, 3, 0, None, None)
    assert cursor.begin() == (None, None), "which is quick again"


def test_a_scan_from_the_start_is_repeated_soon_when_it_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("forebay.store.postgres.claims.monotonic", lambda: now)
    cursor = ClaimCursor()
    cursor.begin()
    cursor.advance(0.0, 1, 1, None, 5_000_000)
    assert cursor.begin() == (None, 4_000_000)
    now += 0.06
    assert cursor.begin() == (None, None)


def test_leases_are_scanned_from_the_start_while_that_is_quick() -> None:
    cursor = LeaseCursor()
    assert cursor.floors() == ([], [], -(2**63))
    assert not cursor.is_worthwhile(0.0)
    assert cursor.is_worthwhile(0.1)


def test_a_slow_scan_that_found_nothing_is_not_repeated() -> None:
    """Of holders without a heartbeat; one with a heartbeat then may have older leases that end later."""
    cursor = LeaseCursor()
    cursor.advance(5_000_000, [1, 2])
    assert cursor.floors() == ([1, 2], [4_000_000, 4_000_000], 4_000_000)
    assert cursor.is_worthwhile(0.0), "a valid cursor advances"
    cursor.advance(9_000_000, [2])
    assert cursor.floors() == ([1, 2], [4_000_000, 8_000_000], 8_000_000)


def test_now_and_then_leases_are_scanned_from_the_start() -> None:
    cursor = LeaseCursor()
    cursor.advance(5_000_000, [1])
    cursor._until = 0.0
    assert cursor.floors() == ([], [], -(2**63))
    cursor.advance(6_000_000, [2])
    assert cursor.floors() == ([2], [5_000_000], 5_000_000), "and earlier floors are dropped"
