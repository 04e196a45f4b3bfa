"""`GET /events` on a real server: what is sent, to which clients, from where on, and how a stream ends."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.serve.actor import Role
from forebay.serve.api import events
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from tests.serve.site import Site


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield opened
    opened.close()


@pytest.fixture
def site(store: Store) -> Iterator[Site]:
    site = Site(store, ServeSettings(port=0, drain=1, max_event_streams=2, metrics=False)).start()
    yield site
    site.stop()


def received(client: httpx.Client, query: str = "", **headers: str) -> list[dict[str, Any]]:
    """All events of a stream that does not follow, with the reason of its end as the last one."""
    with client.stream("GET", f"/events?since=start&follow=false{query}", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.read()
        return list(parsed(answer))


def parsed(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "data" in fields:
                yield {"event": fields["event"], "sse_id": fields.get("id"), **json.loads(fields["data"])}
            fields = {}


def ran(store: Store, *drafts: Draft) -> list[int]:
    """The jobs, enqueued, claimed, and done or (kind `bad`) dead."""
    ids = [each.id for each in store.enqueue(drafts)]
    for queue in sorted({draft.queue for draft in drafts}):
        for lease in store.claim([Want(queue, 100)], "w", seconds(60)):
            dead = lease.job.kind == "bad"
            store.settle([(lease, DeadLetter(Failure("Oops", "password=hunter2 broke")) if dead else Ack())])
    return ids


def test_a_job_is_seen_from_its_acceptance_to_its_end(site: Site, store: Store) -> None:
    [job_id] = ran(store, Draft("send", {"n": 1}, "mail"))
    *seen, end = received(site.client(Role.VIEWER))
    assert [(each["event"], each["job_id"], each["queue"], each["kind"]) for each in seen] == [
        (change, job_id, "mail", "send") for change in ("accepted", "claimed", "acked")
    ]
    assert all(each["sse_id"] == each["id"] and each["at"].endswith("Z") for each in seen)
    assert (end["event"], end["reason"], end["sse_id"]) == ("end", "caught-up", None)


def test_a_client_continues_behind_the_last_event_that_it_received(site: Site, store: Store) -> None:
    ran(store, *(Draft("k", n, "mail") for n in range(5)))
    client = site.client(Role.VIEWER)
    *every, _ = received(client)
    for place, each in enumerate(every):
        *rest, _ = received(client, **{"Last-Event-ID": each["id"]})
        assert rest == every[place + 1 :]


def test_events_arrive_while_the_client_waits(site: Site, store: Store) -> None:
    with site.client(Role.VIEWER).stream("GET", "/events") as answer:
        stream = parsed(answer)
        for n in range(3):
            [receipt] = store.enqueue([Draft("k", n, "mail")])
            assert next(stream)["job_id"] == receipt.id


def test_filters_choose_queue_kind_and_change(site: Site, store: Store) -> None:
    ran(store, Draft("a", None, "mail"), Draft("bad", None, "mail"), Draft("a", None, "other"))
    client = site.client(Role.VIEWER)
    assert {each["queue"] for each in received(client, "&queue=other")[:-1]} == {"other"}
    assert {each["kind"] for each in received(client, "&kind=bad")[:-1]} == {"bad"}
    assert [each["event"] for each in received(client, "&change=died&change=acked")[:-1]] == ["acked", "died", "acked"]


def test_a_key_sees_events_of_its_queues_and_its_tenant(site: Site, store: Store) -> None:
    first, second = ran(store, Draft("k", None, "mail", tenant="acme"), Draft("k", None, "mail", tenant="umbra"))
    ran(store, Draft("k", None, "secret", tenant="acme"))
    narrow = site.client(Role.VIEWER, queues=("mail",))
    assert {each["queue"] for each in received(narrow)[:-1]} == {"mail"}
    assert narrow.get("/events?queue=secret&follow=false").status_code == 404
    *own, _ = received(site.client(Role.VIEWER, queues=("mail",), tenant="acme"))
    assert [(each["event"], each["job_id"]) for each in own] == [
        ("accepted", first), ("claimed", first), ("acked", first)
    ]  # fmt: skip
    assert not any("owner" in each for each in own)
    assert second not in {each["job_id"] for each in own}


def test_a_viewer_gets_no_secret_of_an_error(site: Site, store: Store) -> None:
    ran(store, Draft("bad", None, "mail"))
    seen = received(site.client(Role.VIEWER), "&change=died")
    assert seen[0]["error_kind"] == "Oops"
    assert "hunter2" not in json.dumps(seen)


@pytest.mark.parametrize("query", ["since=1-2-3", "since=-4", "since=99999999999999999999", "change=no", "kind=a%20b"])
def test_what_is_no_position_and_no_name_is_refused(site: Site, query: str) -> None:
    assert site.client(Role.VIEWER).get(f"/events?follow=false&{query}").status_code == 422


def test_a_position_behind_the_end_is_refused(site: Site) -> None:
    answer = site.client(Role.VIEWER).get("/events?follow=false&since=700-1")
    assert answer.status_code == 422
    assert "another store" in answer.json()["detail"]


def test_streams_are_bounded_and_end_with_their_clients(site: Site) -> None:
    client = site.client(Role.VIEWER)
    with client.stream("GET", "/events") as first, client.stream("GET", "/events") as second:
        assert first.status_code == second.status_code == 200
        refused = client.get("/events?follow=false")
        assert (refused.status_code, refused.json()["title"]) == (503, "Too many event streams")
    while site.context.event_streams.streams:
        pass
    assert client.get("/events?follow=false").status_code == 200


def test_a_slow_client_is_cut_with_a_last_event(site: Site, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLOW_SECONDS", -1)
    ran(store, Draft("k"))
    with site.client(Role.VIEWER).stream("GET", "/events?since=start") as answer:
        *_, last = parsed(answer)
    assert (last["event"], last["reason"]) == ("end", "slow")


def test_a_client_that_never_reads_is_disconnected(site: Site, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STALLED_SECONDS", 0.2)
    host, port = site.url.removeprefix("http://").split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect((host, int(port)))
        key = site.key(Role.VIEWER)
        raw.sendall(f"GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        while not site.context.event_streams.streams:
            pass
        while site.context.event_streams.streams:
            store.enqueue([Draft("k", None, "mail", subject="s" * 200)] * 500)


def test_a_revoked_key_ends_its_stream(site: Site, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = site.key(Role.VIEWER)
    with site.with_key(key).stream("GET", "/events") as answer:
        follower = site.context.authenticator.follower
        assert follower is not None
        follower.revoke(key.split("_")[1], "test")
        store.enqueue([Draft("k")])
        *_, last = parsed(answer)
    assert last["reason"] == "unauthorized"


def test_a_stopping_server_ends_its_streams(site: Site) -> None:
    with site.client(Role.VIEWER).stream("GET", "/events") as answer:
        site.stop_soon()
        *_, last = parsed(answer)
    assert last["reason"] == "stopping"
