"""`forebay serve` as a process of its own: how it starts, drains and ends, and what outlives a kill -9."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from forebay.cli import main
from forebay.core.job import Draft
from forebay.serve.actor import Role
from forebay.serve.run import tune_collector
from forebay.serve.security.keys import Created, mint, write_entries
from forebay.store.open import open_store
from forebay.store.protocol import Query

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "FOREBAY_LOG": "ERROR"}


def made_key(place: Path) -> str:
    """A key of everything, in the store of this place."""
    store = open_store(f"sqlite:///{place}/forebay.db")
    key, text = mint("test", [Role.ADMIN], store.now())
    write_entries(store, [Created(key, "test")])
    store.close()
    return text


class Served:
    """A server process, and a client with a key of everything."""

    def __init__(self, place: Path, *words: str) -> None:
        self.key = made_key(place)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "serve", "--port", "0", "--json", *words],
            cwd=place,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.output = json.loads(self.process.stdout.readline() or "{}")
        assert self.output, self.process.communicate()[1]
        self.url: str = self.output["url"]

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False, verify=False)

    def connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=20)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode


@contextmanager
def serving(place: Path, *words: str) -> Iterator[Served]:
    served = Served(place, *words)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait(30)
        for stream in (served.process.stdout, served.process.stderr):
            if stream is not None:
                stream.close()


def head(key: str, more: str) -> bytes:
    return f"POST /jobs/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{more}\r\n\r\n".encode()


def read_until(wire: socket.socket, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        piece = wire.recv(65_536)
        assert piece, got
        got += piece
    return got


def refused(served: Served) -> bool:
    try:
        served.connect().close()
    except OSError:
        return True
    return False


def test_sigterm_drains_what_is_under_way_and_ends_with_0(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-timeout", "20") as served, served.client() as client:
        stream, poll = served.connect(), served.connect()
        stream.sendall(head(served.key, "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"))
        stream.sendall(b'e\r\n{"kind": "a"}\n\r\n')
        got = read_until(stream, b'"line":1')
        claim = b'{"wants": [{"queue": "empty"}], "wait": 50}'
        request = (
            f"Authorization: Bearer {served.key}\r\nContent-Type: application/json\r\nContent-Length: {len(claim)}"
        )
        poll.sendall(f"POST /claim HTTP/1.1\r\nHost: x\r\n{request}\r\n\r\n".encode() + claim)
        for _ in range(5):
            assert client.get("/health").json() == {"status": "alive"}
        served.process.send_signal(signal.SIGTERM)
        assert b'{"leases":[]}' in read_until(poll, b"]}")
        while not refused(served):
            pass
        # The stream that was under way goes on, and its jobs are taken.
        stream.sendall(b'e\r\n{"kind": "b"}\n\r\n0\r\n\r\n')
        got += read_until(stream, b'"lines"')
        assert b'{"lines":2,"accepted":2,"duplicates":0,"problems":0}' in got
        stream.close()
        poll.close()
        served.process.communicate(timeout=30)
        assert served.process.returncode == 0
    store = open_store(f"sqlite:///{tmp_path}/forebay.db")
    assert [job.kind for job in store.browse(Query(), 0, 10).jobs] == ["a", "b"]
    store.close()


def test_a_request_that_does_not_end_is_cut_off_by_the_drain(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-timeout", "1") as served:
        wire = served.connect()
        wire.sendall(head(served.key, "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"))
        wire.sendall(b'e\r\n{"kind": "a"}\n\r\n')
        wire.recv(65_536)
        assert served.end(signal.SIGTERM) == 0
        wire.close()


def test_every_answer_outlives_a_kill(tmp_path: Path) -> None:
    """Many callers at once, a kill -9 in the middle: what was answered is there, once."""
    answered: list[int] = []
    with serving(tmp_path) as served, served.client() as client, ThreadPoolExecutor(8) as threads:

        def produce(caller: int) -> None:
            for number in range(10_000):
                try:
                    answer = client.post("/jobs", json={"kind": "a", "key": f"{caller}-{number}"})
                except httpx.HTTPError:
                    return
                answered.append(answer.json()["job_id"])

        callers = [threads.submit(produce, caller) for caller in range(8)]
        while len(answered) < 200:
            assert not any(caller.done() for caller in callers)
        served.process.kill()
        for caller in callers:
            caller.result(30)
    store = open_store(f"sqlite:///{tmp_path}/forebay.db")
    kept: set[int] = set()
    after: int | None = 0
    while after is not None:
        page = store.browse(Query(), after, 1_000)
        kept |= {job.id for job in page.jobs}
        after = page.next
    store.close()
    assert len(answered) == len(set(answered)) >= 200
    assert set(answered) <= kept
    assert len(kept) <= len(answered) + 8


def test_a_caller_that_does_not_read_holds_up_no_other(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.client() as client:
        body = ('{"kind": "a", "payload": "' + "x" * 20_000 + '"}\n') * 200
        client.post("/jobs/batch", content=body.encode(), headers={"Content-Type": "application/x-ndjson"})
        slow = []
        for _ in range(5):
            wire = served.connect()
            request = f"GET /jobs?limit=1000 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n\r\n"
            wire.sendall(request.encode() * 3)
            slow.append(wire)
        for number in range(20):
            assert client.post("/jobs", json={"kind": "b", "payload": number}).status_code == 202
        for wire in slow:
            wire.close()
        assert served.end(signal.SIGTERM) == 0


def test_the_collector_looks_past_what_the_process_is_made_of() -> None:
    before = gc.get_threshold()
    try:
        tune_collector()
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_what_keeps_it_from_serving_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made_key(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, reason in (
            (("--port", str(taken.getsockname()[1])), "cannot listen on 127.0.0.1"),
            (("--port", "0", "--host", "0.0.0.0"), "plain text"),
            (("--port", "0", "--tls-cert", "x.pem"), "a certificate and its key are needed together"),
            (("--port", "70000"), "0 … 65535"),
            (("--app", "nothing:fb"), "nothing"),
            (("--jwt", "none.json"), "none.json"),
        ):
            assert main(["serve", *words]) in (1, 2)
            output = capsys.readouterr().err
            assert reason in output
            assert "Traceback" not in output


def test_kinds_of_an_app_find_their_queue(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from forebay import Forebay\nfb = Forebay()\n\n"
        "@fb.job(queue='mail', max_attempts=3)\ndef send(to: str) -> None: ...\n"
    )
    with serving(tmp_path, "--app", "shop:fb") as served, served.client() as client:
        job = client.post("/jobs", json={"kind": "send", "payload": {"to": "ada"}}).json()["job_id"]
        response = client.get(f"/jobs/{job}").json()
        assert (response["queue"], response["max_attempts"]) == ("mail", 3)
        other = client.post("/jobs", json={"kind": "send", "queue": "bulk"}).json()["job_id"]
        assert client.get(f"/jobs/{other}").json()["queue"] == "bulk"


def test_dev_serves_a_dashboard_beside_the_worker(tmp_path: Path) -> None:
    job = "@fb.job\ndef send(to: str) -> None: print('sent to', to, flush=True)\n"
    (tmp_path / "shop.py").write_text(f"from forebay import Forebay\nfb = Forebay()\n\n{job}")
    dev = subprocess.Popen(
        [sys.executable, "-m", "forebay", "dev", "shop:fb", "--port", "0"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert dev.stdout is not None
        link = ""
        while not link:
            line = dev.stdout.readline()
            assert line, dev.communicate()[1]
            link = line.partition("dashboard")[2].strip()
        with httpx.Client(trust_env=False, verify=False) as browser:
            assert browser.get(link).status_code in (200, 302, 303)
            base = f"{urlsplit(link).scheme}://{urlsplit(link).netloc}"
            assert browser.get(f"{base}/jobs").status_code == 401
        store = open_store(f"sqlite:///{tmp_path}/forebay.db")
        store.enqueue([Draft("send", {"to": "ada"})])
        store.close()
        while "sent to ada" not in (line := dev.stdout.readline()):
            assert line, "the worker ended"
    finally:
        dev.send_signal(signal.SIGTERM)
        dev.communicate(timeout=30)
    assert dev.returncode == 0
