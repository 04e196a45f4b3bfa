"""Thousands of connections with bad keys at a real server that may open few files: good callers keep being served."""

import resource
import socket
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serve.test_api_process import serving

FILES = 400
BAD = f"fb_0123456789ab_{'x' * 32}"
FLOOD = 2_000


@pytest.fixture(autouse=True)
def _many_files() -> None:
    """This process is the flood, and has more connections open than the server can have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * FLOOD), hard))


def few_files(pid: int) -> None:
    """The server may open no more, whatever it asks for."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (FILES, FILES))


def flood(stack: ExitStack, url: str, text: bytes) -> int:
    """Connections that stay open on this side; how many could be made."""
    place, made = urlsplit(url), 0
    for _ in range(FLOOD):
        with suppress(OSError):
            one = stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=10))
            one.sendall(text)
            made += 1
    return made


class KeptConnection:
    """One connection that is never opened again: httpx would replace one that the server dropped."""

    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
        self._connection.connect()
        self._connection.auto_open = 0
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def status(self, method: str, path: str, body: bytes) -> int:
        self._connection.request(method, path, body, self._headers)
        response = self._connection.getresponse()
        response.read()
        return response.status

    def close(self) -> None:
        self._connection.close()


HEAD = f"GET /queues HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {BAD}\r\n"


@pytest.mark.parametrize("text", [f"{HEAD}\r\n", HEAD, ""], ids=["bad keys", "half a head", "not a byte"])
def test_good_callers_are_served_in_a_flood_of_strangers(text: str, tmp_path: Path) -> None:
    with serving(tmp_path, "--max-connections", "200") as served, ExitStack() as stack:
        few_files(served.process.pid)
        kept = stack.enter_context(closing(KeptConnection(served.url, served.key)))
        assert kept.status("POST", "/jobs", b'{"kind": "k"}') == 202
        assert flood(stack, served.url, text.encode()) > FILES
        for _ in range(30):
            assert kept.status("POST", "/jobs", b'{"kind": "k"}') == 202
            with served.client() as fresh:
                assert fresh.post("/jobs", json={"kind": "k"}).status_code == 202
        with served.client() as fresh:
            figures = fresh.get("/metrics").text
        assert len(list(Path(f"/proc/{served.process.pid}/fd").iterdir())) < FILES
    refused = [line for line in figures.splitlines() if 'limit="connections"' in line or 'limit="bad-key"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in refused) > FLOOD - FILES


def test_a_bad_key_is_refused_before_its_request_is_parsed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        bad = {"Authorization": f"Bearer {BAD}"}
        refused = httpx.get(f"{served.url}/queues", headers=bad, trust_env=False)
        assert (refused.status_code, refused.headers["connection"]) == (401, "close")
        none = httpx.get(f"{served.url}/queues", trust_env=False)
        assert refused.json() == none.json()
        own = {"connection", "date"}
        assert {name for name in none.headers if name not in own} == {
            name for name in refused.headers if name not in own
        }
        assert httpx.get(f"{served.url}/health", headers=bad, trust_env=False).status_code == 200
        with served.client() as good:
            assert good.get("/queues").status_code == 200
            assert 'limit="bad-key"} 1.0' in good.get("/metrics").text
