"""The operators' log: every act of an operator, over HTTP, on a page and at a terminal, with its actor (S17)."""

from pathlib import Path

import pytest

from forebay.cli import main
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.serve.actor import Role
from forebay.serve.security.operator_log import OPERATOR_LOG, read_actions, record_action
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from tests.serve.site import Site


def test_acts_come_newest_first_page_by_page(store: Store) -> None:
    assert read_actions(store) == ([], None)
    for number in range(25):
        record_action(store, "cli:ada", "pause", f"q{number}", password="hush", number=number)
    first, after = read_actions(store, limit=10)
    assert [act.target for act in first] == [f"q{number}" for number in range(24, 14, -1)]
    assert first[0].details == {"password": "***", "number": 24}
    assert (first[0].actor, first[0].source, first[0].result) == ("cli:ada", "terminal", "ok")
    assert abs(first[0].at - store.now()) < 60_000_000
    second, after = read_actions(store, after, 10)
    third, end = read_actions(store, after, 10)
    assert [act.target for act in (*second, *third)] == [f"q{number}" for number in range(14, -1, -1)]
    assert end is None
    assert read_actions(store, 0) == ([], None)


def test_facts_without_end_are_left_out(store: Store) -> None:
    record_action(store, "cli:ada", "pause", "q" * 1_000, ids=list(range(100_000)))
    ((act,), _) = read_actions(store)
    assert "left out" in act.details["details"]
    assert len(act.target) <= 256


def dead_letter(store: Store, queue: str) -> int:
    number = store.enqueue([Draft("k", queue=queue)])[0].id
    (lease,) = store.claim([Want(queue, 1)], "test", seconds(60))
    store.settle([(lease, DeadLetter(Failure("E", "broken")))])
    return number


def test_every_act_over_http_is_written_with_its_actor_and_its_address(site: Site) -> None:
    client, store = site.client(Role.ADMIN), site.store
    waiting = store.enqueue([Draft("k", queue="mail", delay=10**12)])[0].id
    acts = [
        ("PUT", "/queues/mail", {"retention": {"type": "remove-on-ack"}}, "mail"),
        ("POST", "/queues/mail/pause", None, "mail"),
        ("POST", "/queues/mail/resume", None, "mail"),
        ("POST", f"/jobs/{waiting}/cancel", None, str(waiting)),
        ("POST", f"/dlq/{dead_letter(store, 'mail')}/requeue", None, ""),
        ("POST", "/dlq/redrive", {"queue": dead_queue(store)}, ""),
        ("PUT", "/cron/nightly", {"rule": "@daily", "kind": "k"}, "nightly"),
        ("POST", "/cron/nightly/pause", None, "nightly"),
        ("POST", "/cron/nightly/resume", None, "nightly"),
        ("DELETE", "/cron/nightly", None, "nightly"),
    ]
    for number, (method, path, body, about) in enumerate(acts, 1):
        answer = client.request(method, path, json=body)
        assert answer.status_code < 300, (path, answer.text)
        written, _ = read_actions(store)
        assert len(written) == number, path
        assert written[0].actor.startswith("key:")
        assert written[0].source == "127.0.0.1"
        assert about in f"{written[0].target} {written[0].details}"


def dead_queue(store: Store) -> str:
    dead_letter(store, "media")
    return "media"


def test_what_was_refused_is_not_said_to_be_done(site: Site) -> None:
    client = site.client(Role.VIEWER)
    for path in ("/queues/mail/pause", "/cron/x/pause", "/jobs/1/cancel"):
        assert client.post(path).status_code in (403, 404)
    assert read_actions(site.store)[0] == []


def test_the_log_is_not_read_or_written_over_http(site: Site) -> None:
    client = site.client(Role.ADMIN)
    client.post("/queues/mail/pause")
    for method, path, body in (
        ("GET", f"/logs/{OPERATOR_LOG}/0", None),
        ("POST", f"/logs/{OPERATOR_LOG}", {"entries": [{"body": {}}]}),
        ("POST", f"/logs/{OPERATOR_LOG}/0/commit", {"group": "g", "offset": 0}),
        ("GET", f"/queues/{OPERATOR_LOG}", None),
        ("PUT", f"/queues/{OPERATOR_LOG}", {}),
        ("POST", f"/queues/{OPERATOR_LOG}/pause", None),
        ("POST", "/jobs", {"kind": "k", "queue": OPERATOR_LOG}),
        ("POST", "/claim", {"wants": [{"queue": OPERATOR_LOG}]}),
        ("PUT", "/cron/x", {"rule": "@daily", "kind": "k", "queue": OPERATOR_LOG}),
    ):
        assert client.request(method, path, json=body).status_code == 404, path
    shown = client.get("/logs").text + client.get("/queues").text + client.get("/metrics").text
    assert OPERATOR_LOG not in shown
    assert "forebay.keys" not in shown


def test_acts_at_the_terminal_are_written_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    store = open_store(url)
    dead = dead_letter(store, "mail")
    waiting = store.enqueue([Draft("k", queue="mail", delay=10**12)])[0].id
    (tmp_path / "spec.json").write_text('{"name": "media"}')
    commands = {
        "pause": ["pause", "mail"],
        "resume": ["resume", "mail"],
        "drain": ["drain", "mail"],
        "cancel": ["cancel", str(waiting)],
        "dlq redrive": ["dlq", "redrive", str(dead)],
        "dlq purge": ["dlq", "purge", "--older-than", "1d", "--yes"],
        "cron put": ["cron", "put", "nightly", "@daily", "k"],
        "cron pause": ["cron", "pause", "nightly"],
        "cron resume": ["cron", "resume", "nightly"],
        "cron rm": ["cron", "rm", "nightly"],
        "queues put": ["queues", "put", str(tmp_path / "spec.json")],
        "keys create": ["keys", "create", "--role", "admin"],
    }
    for act, words in commands.items():
        assert main([*words, "--store", url]) == 0, (act, capsys.readouterr())
        written, _ = read_actions(store)
        assert written[0].action == act
        assert written[0].actor.startswith("cli:")
    assert len(read_actions(store)[0]) == len(commands)
    store.close()
    capsys.readouterr()
