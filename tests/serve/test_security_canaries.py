"""S8: fifty secrets go in by payloads, names, meta, errors, requests and URLs; none comes out where people read.

A real server, real handlers in a pool, a store in a file. Then everything that is shown is read: logs, metrics, pages,
answers to viewers and operators, dead letters and the ledger at the terminal, the operators' log, lists of processes.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.cli import main
from forebay.client import Forebay
from forebay.core.instant import seconds
from forebay.core.lease import Settlement
from forebay.core.outcome import Retry
from forebay.core.policy import Routing
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.store.protocol import Want
from forebay.work.app import find_app
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.redacting import SecretFilter, install_secret_filter, rules
from tests.serve.site import Serving, Site

CANARIES = [f"canary{number:02d}zq7x" for number in range(50)]


def shapes(canary: str) -> list[tuple[dict[str, Any], str]]:
    """A payload and an error's text, each a way in which one secret gets about."""
    return [
        ({"password": canary}, f"cannot log in with {canary}"),
        ({"user": {"apiKey": canary, "n": 1}}, f"refused: {canary!r}"),
        ({"headers": {"Authorization": f"Bearer {canary}"}}, f"401 for Authorization: Bearer {canary}"),
        ({"dsn": f"postgresql://ada:{canary}@db/jobs"}, f"connection to postgresql://ada:{canary}@db/jobs failed"),
        ({"body": f'{{"client_secret": "{canary}"}}'}, f'body was {{"client_secret": "{canary}"}}'),
        ({"note": f"fb_0123456789ab_{canary}{'x' * 20}"}, f"fb_0123456789ab_{canary}{'x' * 20} is unknown"),
        ({"jwt": f"eyJhbGciOi.{canary}.sig"}, f"bad token eyJhbGciOi.{canary}.sig"),
        ({"items": [{"cookie": f"sid={canary}"}]}, f"Cookie: sid={canary}"),
        ({"a": 1, "secrets": [canary, canary]}, f"KeyError: {canary}"),
        ({f"password={canary}": 1}, f"host=db password={canary} user=ada"),
        ({"session_id": canary}, f"KeyError({canary!r})"),
        ({"argv": ["mysql", f"--password {canary}"]}, f"mysql --password {canary} exited with 1"),
        ({"line": f"passwd {canary}"}, f"sent passwd {canary} to the server"),
        ({"line": f"PASSWORD is '{canary}'"}, f"PASSWORD is '{canary}', which is wrong"),
        ({"user": {"ssn": canary}, "note": f"about {canary}"}, f"no person {canary}"),
        ({"client": {"sid": canary}, canary: 1}, f"{canary} has expired"),
        ({"csrf": f"a'b\"{canary}"}, repr({"got": f"a'b\"{canary}"})),
        ({"one_time": {"otp_code": canary}}, f"https://id.example/check?code={canary}"),
        ({"private_key": f"line one\n{canary}"}, f"cannot read 'line one\\n{canary}'"),
        ({"auth": {"kind": "basic", "user_pin": canary}}, f"{'x' * 7_995}{canary}{'y' * 3_999}"),
    ]


SHAPES = len(shapes(""))
BY_VALUE = (0, 1, 8, 10, 14, 15, 17, 19)
"""Shapes whose secret is the whole value of a sensitive name."""


class LogLines(logging.Handler):
    """All that is logged, as a server's or a worker's log has it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.addFilter(SecretFilter(rules()))

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("http"):
            return  # the test's own client
        self.lines.append(self.format(record))


@pytest.fixture
def logs() -> Iterator[LogLines]:
    lines, root = LogLines(), logging.getLogger()
    before = root.level
    root.addHandler(lines)
    root.setLevel(logging.DEBUG)
    yield lines
    root.removeHandler(lines)
    root.setLevel(before)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Forebay]:
    app = Forebay(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.queue(QueueSpec(name="default", routing=Routing(max_attempts=1)))

    @app.job
    def leak(payload: Any, number: int) -> None:
        logging.getLogger("shop").error("failing: %s", payload)
        if number % SHAPES in BY_VALUE:
            logging.getLogger("shop").info("about to use %s", CANARIES[number])
        raise RuntimeError(shapes(CANARIES[number])[number % SHAPES][1])

    yield app
    app.close()


def run_all(app: Forebay, count: int) -> None:
    store = app.store

    def settled(pairs: Sequence[Settlement]) -> None:
        store.settle(pairs)

    pool = Pool(app.registry, Options(concurrency=1), lambda _: Routing(max_attempts=1), settled)
    pool.submit(store.claim([Want("default", count)], "ada", seconds(60)))
    assert pool.wait_until_idle(60)
    pool.close()


def fed(site: Site) -> list[int]:
    """The jobs, sent as producers send them."""
    producer = site.client(Role.PRODUCER)
    ids = []
    for number, canary in enumerate(CANARIES):
        payload, _ = shapes(canary)[number % SHAPES]
        sent = {"kind": "leak", "payload": {"payload": payload, "number": number}, "meta": {"auth.token": canary}}
        ids.append(producer.post("/jobs", json=sent).json()["job_id"])
    return ids


def shown_over_http(site: Site, ids: list[int]) -> Iterator[tuple[str, str]]:
    """Every way in which viewers and operators read it."""
    for role in (Role.VIEWER, Role.OPERATOR):
        client = site.client(role)
        for path in ("/jobs", "/dlq", "/queues", "/stats", "/metrics", "/health", "/ready", "/logs", "/cron"):
            yield f"{role} {path}", client.get(path).text
        for job_id in ids if role is Role.VIEWER else ids[:2]:
            for path in (f"/jobs/{job_id}", f"/dlq/{job_id}"):
                yield f"{role} {path}", client.get(path).text
    visitor = site.with_key(None, {"Origin": site.url})
    visitor.post("/ui/login", data={"key": site.key(Role.ADMIN)})
    for path in ("/ui/", "/ui/jobs", "/ui/dead", "/ui/queues/default", "/ui/workers", "/ui/operators", "/ui/keys"):
        yield path, visitor.get(path).text
    for job_id in ids:
        yield f"/ui/jobs/{job_id}", visitor.get(f"/ui/jobs/{job_id}").text


def shown_at_the_terminal(url: str, ids: list[int], capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    for words in (
        ["ls"],
        ["ls", "--json"],
        ["dlq", "ls"],
        ["dlq", "ls", "--json"],
        ["dlq", "ls", "--group"],
        ["stats"],
        ["ledger", "read", "--limit", "1000"],
        ["doctor"],
        *(["show", str(job_id), "--trace"] for job_id in ids[:10:3]),
        *(["dlq", "show", str(job_id), "--json"] for job_id in ids[10:20:3]),
        *(["explain", str(job_id)] for job_id in ids[20:30:5]),
    ):
        main([*words, "--store", url])
        output = capsys.readouterr()
        yield " ".join(words), output.out + output.err
    main(["ls", "--store", f"postgresql://ada:{CANARIES[0]}@127.0.0.1:1/jobs"])
    output = capsys.readouterr()
    yield "an unreachable store", output.out + output.err


def test_no_canary_comes_out(
    app: Forebay, serve_on: Serving, logs: LogLines, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    site = serve_on(app.store)
    ids = fed(site)
    run_all(app, len(ids))
    assert app.backlog("default")[0].dead == len(CANARIES)
    operator = site.client(Role.OPERATOR)
    operator.post(f"/dlq/{ids[0]}/requeue")
    operator.get("/jobs/1", headers={"Authorization": f"Bearer {CANARIES[1]}", "X-Token": CANARIES[2]})
    httpx.get(f"{site.url}/queues?access_token={CANARIES[3]}", trust_env=False)
    found = []
    for place, text in (
        *shown_over_http(site, ids),
        *shown_at_the_terminal(app.url, ids, capsys),
        ("the log", "\n".join(logs.lines)),
        ("processes", Path("/proc/self/cmdline").read_text() if Path("/proc/self/cmdline").exists() else ""),
    ):
        assert text or place == "processes", place
        found += [
            (place, canary, text[max(0, text.index(canary) - 60) :][:120]) for canary in CANARIES if canary in text
        ]
    assert not found[:5]
    assert "failing" in "\n".join(logs.lines)
    assert "about to use ***" in logs.lines


@pytest.mark.parametrize("kind", ["thread", "coroutine", "isolated"])
def test_a_handler_cannot_log_the_secrets_of_its_payload(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    target = "tests.serve.leaking_app:app"
    app = find_app(target)
    app.enqueue(kind, {"session_id": "swordfish", "note": "herring"})
    settled: list[Settlement] = []
    pool = Pool(app.registry, Options(concurrency=1), lambda _: Routing(max_attempts=1), settled.extend, target=target)
    pool.start()
    install_secret_filter()
    pool.submit(app.store.claim([Want("default", 1)], "ada", seconds(60)))
    assert pool.wait_until_idle(60)
    pool.close()
    output = capfd.readouterr().err
    assert "using *** for herring" in output
    assert "swordfish" not in output
    ((_, verdict),) = settled
    assert isinstance(verdict, Retry)
    assert verdict.error.message == "'***'"
    assert verdict.error.trace.endswith("KeyError: '***'\n")


def test_no_other_field_of_a_job_shows_a_secret_of_its_payload(site: Site) -> None:
    sent = {"kind": "k", "payload": {"session_id": "swordfish", "note": "of swordfish"}, "subject": "about swordfish",
            "key": "once swordfish", "meta": {"origin": "swordfish"}}  # fmt: skip
    job_id = site.client(Role.PRODUCER).post("/jobs", json=sent).json()["job_id"]
    shown = site.client(Role.VIEWER).get(f"/jobs/{job_id}")
    assert shown.json()["payload"] == {"session_id": "***", "note": "of ***"}
    visitor = site.with_key(None, {"Origin": site.url})
    visitor.post("/ui/login", data={"key": site.key(Role.ADMIN)})
    for text in (shown.text, *(visitor.get(path).text for path in ("/ui/jobs", f"/ui/jobs/{job_id}"))):
        assert "about ***" in text
        assert "swordfish" not in text


def test_an_error_of_a_worker_over_http_is_kept_without_the_secrets_of_its_job(site: Site) -> None:
    sent = {"kind": "k", "payload": {"session_id": "swordfish"}}
    job_id = site.client(Role.PRODUCER).post("/jobs", json=sent).json()["job_id"]
    worker = site.client(Role.WORKER)
    lease = worker.post("/claim", json={"wants": [{"queue": "default"}]}).json()["leases"][0]["lease"]
    error = {"kind": "KeyError", "message": "no swordfish", "trace": "line 1: swordfish"}
    worker.post("/settle", json={"settlements": [{"lease": lease, "outcome": "drop", "error": error}]})
    (kept,) = site.store.get([job_id])[0].errors  # type: ignore[union-attr]
    assert (kept.message, kept.trace) == ("no ***", "line 1: ***")


def test_producers_and_workers_still_get_what_they_need(site: Site) -> None:
    sent = {"kind": "k", "payload": {"password": "swordfish"}}
    producer = site.client(Role.PRODUCER)
    job_id = producer.post("/jobs", json=sent).json()["job_id"]
    assert producer.get(f"/jobs/{job_id}").json()["payload"] == {"password": "swordfish"}
    assert site.client(Role.VIEWER).get(f"/jobs/{job_id}").json()["payload"] == {"password": "***"}
    claimed = site.client(Role.WORKER).post("/claim", json={"wants": [{"queue": "default"}]}).json()
    assert claimed["leases"][0]["job"]["payload"] == {"password": "swordfish"}


def test_the_terminal_shows_secrets_only_when_asked(app: Forebay, capsys: pytest.CaptureFixture[str]) -> None:
    number = app.enqueue("other", {"password": "swordfish"}).id
    assert main(["show", str(number), "--store", app.url]) == 0
    assert "swordfish" not in capsys.readouterr().out
    assert main(["show", str(number), "--raw", "--store", app.url]) == 0
    assert "swordfish" in capsys.readouterr().out
