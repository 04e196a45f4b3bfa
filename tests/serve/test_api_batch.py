"""`POST /jobs/batch`: lines in, answers out, each line by itself, in bounded memory."""

import json
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from forebay.core.policy import Bounded
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store
from tests.serve.site import Serving, Site
from tests.serve.test_api_jobs import problem

NDJSON = {"Content-Type": "application/x-ndjson"}


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def sent(client: httpx.Client, *texts: str | bytes, **params: str) -> list[dict[str, Any]]:
    body = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    return lines(client.post("/jobs/batch", content=body, headers=NDJSON, params=params))


def test_every_line_has_its_answer_and_a_bad_one_stops_no_other(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="small", capacity=Bounded(2)))
    client = site.client(Role.PRODUCER, queues=("default", "small"))
    response = sent(
        client,
        '{"kind": "a", "key": "k", "payload": 1}',
        '{"kind": "a", "key": "k", "payload": 1}',
        '{"kind": "a", "key": "k", "payload": 2}',
        "{",
        "",
        '{"kind": "a", "priority": "x"}',
        '{"kind": "a", "queue": "small"}',
        '{"kind": "a", "queue": "small"}',
        '{"kind": "a", "queue": "small"}',
        '{"kind": "a", "queue": "foreign"}',
        b"\xff\xfe",
        '{"kind": "last"}',
    )
    answers, summary = response[:-1], response[-1]
    assert [each["line"] for each in answers] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]
    slugs = [each.get("problem", {}).get("type", "in").removeprefix("urn:forebay:") for each in answers]
    assert slugs == "in in key-conflict not-json invalid in in queue-full not-found not-json in".split()
    assert answers[1] == {"line": 2, "job_id": answers[0]["job_id"], "duplicate": True, "merged": False}
    assert answers[4]["problem"]["field"] == "priority"
    assert answers[7]["problem"]["retry_after"] >= 1
    assert summary == {"lines": 12, "accepted": 4, "duplicates": 1, "problems": 6}
    ids = {each["job_id"] for each in answers if "job_id" in each}
    assert {job.id for job in store.browse(Query(), 0, 100).jobs} == ids


def test_only_problems_are_shown_if_that_is_asked_for(site: Site) -> None:
    response = sent(site.client(Role.PRODUCER), '{"kind": "a"}', "nonsense", '{"kind": "b"}', answers="problems")
    assert [each["line"] for each in response if "problem" in each] == [2]
    assert response[-1] == {"lines": 3, "accepted": 2, "duplicates": 0, "problems": 1}
    assert not any("job_id" in each for each in response)


def test_nothing_in_nothing_out(site: Site) -> None:
    client = site.client(Role.PRODUCER)
    nothing = {"lines": 0, "accepted": 0, "duplicates": 0, "problems": 0}
    assert sent(client) == sent(client, "", "  ", "") == [nothing]
    problem(client.post("/jobs/batch", json=[]), 415, "media-type")
    problem(site.client(Role.VIEWER).post("/jobs/batch", content=b"", headers=NDJSON), 403, "forbidden")


def test_a_line_is_bounded_and_the_next_one_is_sound(store: Store, serve_on: Serving) -> None:
    client = serve_on(store, ServeSettings(port=0, max_line=2_000, drain=1)).client(Role.PRODUCER)
    long = '{"kind": "a", "payload": "' + "x" * 200_000 + '"}'
    response = sent(client, '{"kind": "a"}', long, '{"kind": "b"}', long[:3_000])
    assert [each.get("problem", {}).get("status", 0) for each in response[:-1]] == [0, 413, 0, 413]
    assert response[-1]["accepted"] == 2


def test_a_stream_of_any_length_takes_bounded_memory(site: Site, store: Store) -> None:
    client = site.client(Role.PRODUCER)
    store.put_spec(QueueSpec(name="one", capacity=Bounded(1)))
    line = f'{{"kind": "a", "queue": "one", "payload": "{"x" * 100_000}"}}\n'.encode()

    def pieces() -> Iterator[bytes]:
        for _ in range(400):
            yield line

    tracemalloc.start()
    try:
        response = lines(client.post("/jobs/batch?answers=problems", content=pieces(), headers=NDJSON))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response[-1] == {"lines": 400, "accepted": 1, "duplicates": 0, "problems": 399}
    assert most < 20_000_000 < 400 * len(line)


class Wire:
    """A connection by hand: chunks out, lines in, when one likes."""

    def __init__(self, site: Site) -> None:
        parts = urlsplit(site.url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=10)
        self._file = self.socket.makefile("rb")
        head = f"POST /jobs/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.key(Role.PRODUCER)}\r\n"
        self.socket.sendall(f"{head}Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def send(self, text: str) -> None:
        self.socket.sendall(f"{len(text):x}\r\n{text}\r\n".encode())

    def head(self) -> bytes:
        return b"".join(iter(self._file.readline, b"\r\n"))

    def piece(self) -> list[dict[str, Any]]:
        size = int(self._file.readline(), 16)
        text = self._file.read(size + 2)
        return [json.loads(line) for line in text.splitlines() if line]

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def test_answers_come_while_lines_are_still_sent(site: Site, store: Store) -> None:
    wire = Wire(site)
    wire.send('{"kind": "a"}\n{"kind": "b"}\n{"ki')
    assert b"200 OK" in wire.head()
    assert [each["line"] for each in wire.piece()] == [1, 2]
    assert [job.kind for job in store.browse(Query(), 0, 10).jobs] == ["a", "b"]
    wire.send('nd": "c"}\n')
    assert [each["line"] for each in wire.piece()] == [3]
    wire.send("")
    assert wire.piece() == [{"lines": 3, "accepted": 3, "duplicates": 0, "problems": 0}]
    wire.close()


def test_a_caller_that_is_cut_off_has_every_answered_line(tmp_path: Path, serve_on: Serving) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url)
    site = serve_on(store)
    wire = Wire(site)
    answered: list[int] = []
    for number in range(20):
        wire.send(f'{{"kind": "a", "payload": {number}}}\n' * 10)
        if number == 0:
            wire.head()
        answered += [each["job_id"] for each in wire.piece()]
    wire.send('{"kind": "half a li')
    wire.close()
    second = open_store(url)
    kept = {job.id for job in second.browse(Query(), 0, 1_000).jobs}
    second.close()
    assert len(answered) == len(set(answered)) >= 20
    assert set(answered) <= kept


def test_a_store_that_is_away_refuses_lines_and_not_the_stream(site: Site) -> None:
    client = site.client(Role.PRODUCER)
    site.store.close()
    response = sent(client, '{"kind": "a"}', '{"kind": "b"}')
    assert [each["problem"]["type"] for each in response[:-1]] == ["urn:forebay:store-unavailable"] * 2
    assert problem(client.post("/jobs", json={"kind": "a"}), 503, "store-unavailable")["retry_after"] == 2
