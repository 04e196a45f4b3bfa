"""S8: fifty secrets go in by payloads, names, meta, errors, requests and URLs; none comes out where people look.

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
from forebay.core.policy import Routing
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.store.protocol import Want
from forebay.work.options import Options
from forebay.work.pool import Pool
from forebay.work.redacting import SecretFilter, rules
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
    ]


class Lines(logging.Handler):
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
def logs() -> Iterator[Lines]:
    lines, root = Lines(), logging.getLogger()
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
        raise RuntimeError(shapes(CANARIES[number])[number % 10][1])

    yield app
    app.close()


def run_all(app: Forebay, count: int) -> None:
    store = app.store

    def settled(pairs: Sequence[Settlement]) -> None:
        store.settle(pairs)

    pool = Pool(app.registry, Options(concurrency=1), lambda _: Routing(max_attempts=1), settled)
    pool.take(store.claim([Want("default", count)], "ada", seconds(60)))
    assert pool.wait_until_idle(60)
    pool.close()


def fed(site: Site) -> list[int]:
    """The jobs, sent as producers send them."""
    producer = site.client(Role.PRODUCER)
    ids = []
    for number, canary in enumerate(CANARIES):
        payload, _ = shapes(canary)[number % 10]
        sent = {"kind": "leak", "payload": {"payload": payload, "number": number}, "meta": {"auth.token": canary}}
        ids.append(producer.post("/jobs", json=sent).json()["job_id"])
    return ids


def shown_over_http(site: Site, ids: list[int]) -> Iterator[tuple[str, str]]:
    """Every way in which viewers and operators look at it."""
    for role in (Role.VIEWER, Role.OPERATOR):
        client = site.client(role)
        for path in ("/jobs", "/dlq", "/queues", "/stats", "/metrics", "/health", "/ready", "/logs", "/cron"):
            yield f"{role} {path}", client.get(path).text
        for job_id in ids if role is Role.VIEWER else ids[:2]:
            for path in (f"/jobs/{job_id}", f"/dlq/{job_id}"):
                yield f"{role} {path}", client.get(path).text
    visitor = site.with_key(None, {"Origin": site.url})
    visitor.post("/ui/login", data={"key": site.key(Role.ADMIN)})
    for path in ("/ui/", "/ui/jobs", "/ui/dead", "/ui/queues/default", "/ui/workers", "/ui/acts", "/ui/keys"):
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
        said = capsys.readouterr()
        yield " ".join(words), said.out + said.err
    main(["ls", "--store", f"postgresql://ada:{CANARIES[0]}@127.0.0.1:1/jobs"])
    said = capsys.readouterr()
    yield "an unreachable store", said.out + said.err


def test_no_canary_comes_out(
    app: Forebay, serve_on: Serving, logs: Lines, capsys: pytest.CaptureFixture[str], tmp_path: Path
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
