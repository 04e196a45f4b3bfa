"""A claim costs what it takes: of jobs with lanes of their own, however many lanes there are, and of a single job.

The server counts: of every statement inside `forebay.take` and `forebay.refresh`, `auto_explain` gives the rows that
each node of its plan returned or dropped. Work inside an expression, over an array, is not seen by it.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.outcome import Ack, Failure, Retry
from forebay.core.policy import AtMost, Fair
from forebay.core.spec import QueueSpec
from forebay.store.postgres.settling import SETTLE, Settling, grouped
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Want
from forebay_proof.servers.postgres import PostgresServer

LANES = 4_500
FAR = 2**52
CLAIM = (
    "SELECT c.n FROM forebay.claim(NULL, false, 0, 1000000, '{}', '{7}', '{f}', '{plain}', '{0}', '{NULL}', '{1}', "
    "'{1}', '{NULL}', '{NULL}') AS c"
)
QUEUES = 20
CLAIM_OF_MANY = (
    "SELECT count(*) FROM (SELECT array_agg('q' || i) AS names, array_agg(0) AS zeros, array_agg(1) AS ones, "
    "array_agg(NULL::text) AS none, array_agg(false) AS no FROM generate_series(1, %s) AS i) AS q, LATERAL "
    "forebay.claim(NULL, false, 0, 1000000, '{}', '{7}', q.no, q.names, q.zeros, q.none, q.ones, q.ones, "
    "q.none::bigint[], q.none::bigint[])"
)
INSERT = (
    "SELECT forebay.insert_run(NULL, gen_random_uuid(), 0, 1, 'plain', 1, 'k', 0, NULL, 0, 2::smallint, 25, NULL, "
    "NULL, '[1]')"
)
TAKE = "SELECT cardinality(members) FROM forebay.take(%s, %s, NULL, %s)"
REFRESH = "SELECT forebay.refresh(%s, %s, %s)"
SPECS = {
    "caps": QueueSpec(name="caps", eligibility=AtMost(1, per="subject")),
    "shut": QueueSpec(name="shut", eligibility=AtMost(1, per="subject")),
    "turns": QueueSpec(name="turns", share=Fair()),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A database with so many lanes in each queue; the gates of those in `shut` are closed."""
    with PostgresServer() as server:
        name = server.create_database()
        with closing(PostgresStore(name)) as store:
            for queue, spec in SPECS.items():
                store.put_spec(spec)
                for start in range(0, LANES, 500):
                    names = [f"s{number}" for number in range(start, start + 500)]
                    store.enqueue([Draft("k", queue=queue, subject=each, tenant=each) for each in names])
            store.enqueue([Draft("k", queue="plain")])
        with psycopg.connect(name) as connection:
            connection.execute(
                "INSERT INTO forebay.queue (name) SELECT 'known' || i FROM generate_series(1, 1000) AS i"
            )
            connection.execute(
                "INSERT INTO forebay.gate SELECT r.gates[1], 1, 1 FROM forebay.run AS r WHERE r.queue = 'shut'"
            )
        yield name


def steps_of(node: dict[str, Any]) -> float:
    """Rows that the nodes of a plan returned, and those that they dropped."""
    own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
    return float(own * node["Actual Loops"]) + sum(map(steps_of, node.get("Plans", ())))


def counted(url: str, statement: str, *values: object) -> tuple[Any, float]:
    """The answer of a statement that is rolled back, and the steps of all that the server did for it."""
    answer, plans = explained(url, statement, *values)
    return answer, sum(map(steps_of, plans))


def explained(url: str, statement: str, *values: object) -> tuple[Any, list[dict[str, Any]]]:
    """The answer of a statement that is rolled back, and the plans of all that the server ran for it."""
    plans: list[dict[str, Any]] = []

    def on_notice(notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        plans.append(json.loads(text[text.index("{") :])["Plan"])

    with psycopg.connect(url) as connection:
        connection.execute("LOAD 'auto_explain'")
        connection.execute(
            "SELECT set_config('auto_explain.' || n.name, n.value, true) FROM (VALUES ('log_analyze', 'on'), "
            "('log_timing', 'off'), ('log_nested_statements', 'on'), ('log_format', 'json'), ('log_level', 'notice'), "
            "('log_min_duration', '0')) AS n (name, value)"
        )
        connection.add_notice_handler(on_notice)
        found = connection.execute(statement.encode(), values).fetchall()
        connection.rollback()
    return found[0][0], plans


@pytest.mark.parametrize("queue", ["caps", "turns"])
def test_a_claim_costs_what_it_takes(url: str, queue: str) -> None:
    taken, small = counted(url, TAKE, FAR, queue, 100)
    assert taken == 100
    taken, large = counted(url, TAKE, FAR, queue, 1_000)
    assert taken == 1_000
    assert small < 100 * 100
    assert large < 12 * small


def test_lanes_that_meet_closed_gates_cost_a_claim_no_more_than_they_are(url: str) -> None:
    taken, steps = counted(url, TAKE, FAR, "shut", 100)
    assert taken is None
    assert steps < LANES * 150


@pytest.mark.parametrize("queue", ["caps", "turns"])
def test_lanes_are_refreshed_one_by_one(url: str, queue: str) -> None:
    """Lanes as they are, and lanes that have lost their jobs."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT lane FROM forebay.lane WHERE queue = %s ORDER BY id LIMIT 1000", [queue])
        lanes = [lane for (lane,) in found]
    for stranger in ("", "!"):
        names = [lane + stranger for lane in lanes]
        _, small = counted(url, REFRESH, FAR, queue, names[:100])
        _, large = counted(url, REFRESH, FAR, queue, names)
        assert small < 100 * 40
        assert large < 12 * small


def test_a_claim_of_one_plain_job_is_one_statement(url: str) -> None:
    """Besides the call itself."""
    answer, plans = explained(url, CLAIM)
    assert answer == 1
    assert len(plans) == 2


def test_an_enqueue_of_one_plain_job_is_one_statement(url: str) -> None:
    """Besides the call itself."""
    answer, plans = explained(url, INSERT)
    assert answer > 0
    assert len(plans) == 2


def test_a_settle_of_one_plain_job_is_three_statements(url: str) -> None:
    """Besides the call itself: the versions of the specs, its pack with what is remembered, and its record."""
    with closing(PostgresStore(url)) as store:
        store.enqueue([Draft("k", queue="settled")])
        (lease,) = store.claim([Want("settled", 1)], "ada", minutes(1))
        groups, _ = grouped([(lease, Ack())])
        call = Settling(store.backend.session, store.backend.claims).call_of(groups)
        answer, plans = explained(url, SETTLE, *call)
    assert answer == [1]
    assert len(plans) == 1 + 3
    assert sum(map(steps_of, plans)) < 30


def test_a_claim_reads_all_of_its_queues_in_one_statement_and_no_others(url: str) -> None:
    """Besides the call itself, one for maintenance, and one for each queue that may have jobs."""
    answer, plans = explained(url, CLAIM_OF_MANY, QUEUES)
    assert answer == 0
    assert len(plans) == 3 + QUEUES
    assert sum(map(steps_of, plans)) < 20 * QUEUES


def test_failures_of_alike_jobs_read_each_payload_once(url: str) -> None:
    """A member is a list of payloads, and each of its jobs needs one of them."""
    jobs = 500
    with closing(PostgresStore(url)) as store:
        store.enqueue([Draft("k", number, queue="failing") for number in range(jobs)])
        leases = store.claim([Want("failing", jobs)], "ada", minutes(1))
        groups, _ = grouped([(lease, Retry(0, Failure("ValueError"))) for lease in leases])
        call = Settling(store.backend.session, store.backend.claims).call_of(groups)
        answer, steps = counted(url, SETTLE, *call)
    assert answer == [1]
    assert steps < 40 * jobs


def test_what_runs_is_counted_gate_by_gate(url: str) -> None:
    """For a new spec; each job has a gate of its own, none of which is compared with the others."""
    jobs = 1_000
    with closing(PostgresStore(url)) as store:
        store.put_spec(QueueSpec(name="running", eligibility=AtMost(1, per="subject")))
        store.enqueue([Draft("k", queue="running", subject=f"s{number}") for number in range(jobs)])
        assert len(store.claim([Want("running", jobs)], "ada", minutes(1))) == jobs
    _, steps = counted(url, "SELECT forebay.count_used(%s)", ["cap/running/subject"])
    assert steps < jobs * 40


def test_a_few_failures_do_not_make_a_settle_list_every_job(url: str) -> None:
    """Jobs that just go are read once, as when none fails; the text grows with the number of failures."""
    jobs, failures = 60, 6
    with closing(PostgresStore(url)) as store:
        for number in range(jobs):
            store.enqueue([Draft("k", number, queue="mixed")])
        leases = store.claim([Want("mixed", jobs)], "ada", minutes(1))
        settling = Settling(store.backend.session, store.backend.claims)
        found = []
        for fails in (0, failures):
            verdicts = [Retry(0, Failure("ValueError")) if at < fails else Ack() for at in range(jobs)]
            call = settling.call_of(grouped(list(zip(leases, verdicts, strict=True)))[0])
            found.append((*counted(url, SETTLE, *call), len(call[-1])))
    (plain, steps, _), (answer, mixed, sent) = found
    assert plain == answer == [1]
    assert mixed < steps + 60 * failures
    assert sent < 200 * failures
