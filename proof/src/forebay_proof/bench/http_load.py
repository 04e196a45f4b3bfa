"""The load for `bench.http`, in a process of its own: raw sockets and prepared bytes, so that it is not the bound.

python -m forebay_proof.bench.http_load post URL KEY CONNECTIONS SECONDS [RATE]  as fast as answers come, or at a rate
python -m forebay_proof.bench.http_load refused URL KEY CONNECTIONS SECONDS [RATE]  jobs that never reach the store
python -m forebay_proof.bench.http_load batch URL KEY JOBS  one stream of lines, read while it is written
python -m forebay_proof.bench.http_load idle URL KEY CONNECTIONS  long polls, held until stdin closes

With a rate, requests are due by the clock and latency counts from when one was due: a server that stalls is not
spared the requests that it kept waiting.
"""

import asyncio
import json
import resource
import sys
import time
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import uvloop

from forebay_proof.histogram import percentile

PAYLOAD = {
    "kind": "send_email",
    "payload": {"to": "ada@example.com", "subject": "Hello", "number": 42},
    "queue": "mail",
}
TICK = 0.002
"""Seconds between two readings of the clock; half of it is in every latency. More would take CPU from the server."""

JOB = json.dumps(PAYLOAD).encode()


def request(method: str, path: str, key: str, body: bytes, media: str = "application/json") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: {media}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Caller(asyncio.Protocol):
    """One connection, one request under way at a time."""

    def __init__(self, load: "HttpLoad") -> None:
        self._load = load
        self._got = b""
        self._since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, since: float) -> None:
        self._since = since
        self.transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= size:
            self._got = b""
            self._load.answered(self, head[9:12], time.perf_counter() - self._since)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost += 1


class HttpLoad:
    def __init__(self, prepared: bytes, seconds: float, rate: float | None) -> None:
        self.request = prepared
        self.lost = 0
        self._until = time.perf_counter() + seconds
        self._rate = rate
        self._took: list[float] = []
        self._statuses: dict[str, int] = {}
        self._idle: deque[Caller] = deque()
        self._due: deque[float] = deque()

    async def run(self, host: str, port: int, connections: int, seconds: float) -> dict[str, object]:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, caller = await loop.create_connection(lambda: Caller(self), host, port)
            self._idle.append(caller)
        began = time.perf_counter()
        self._until = began + seconds
        if self._rate is None:
            while self._idle:
                self._idle.popleft().send(time.perf_counter())
            await asyncio.sleep(seconds)
        else:
            await self._by_the_clock(began)
        spent = time.perf_counter() - began
        took = self._took
        return {
            "rate": len(took) / spent,
            "p50": percentile(took, 50) * 1000,
            "p99": percentile(took, 99) * 1000,
            "worst": percentile(took, 100) * 1000,
            "statuses": self._statuses,
            "lost": self.lost,
        }

    async def _by_the_clock(self, began: float) -> None:
        assert self._rate is not None
        sent = 0
        while (now := time.perf_counter()) < self._until:
            while sent < (now - began) * self._rate:
                self._due.append(began + sent / self._rate)
                sent += 1
            while self._due and self._idle:
                self._idle.popleft().send(self._due.popleft())
            await asyncio.sleep(TICK)

    def answered(self, caller: Caller, status: bytes, took: float) -> None:
        self._took.append(took)
        code = status.decode()
        self._statuses[code] = self._statuses.get(code, 0) + 1
        now = time.perf_counter()
        if now >= self._until:
            return
        if self._rate is None:
            caller.send(now)
        elif self._due:
            caller.send(self._due.popleft())
        else:
            self._idle.append(caller)


async def batch(host: str, port: int, key: str, jobs: int) -> dict[str, object]:
    """The rate from the first byte out to the summary in."""
    reader, writer = await asyncio.open_connection(host, port, limit=2**20)
    head = f"POST /jobs/batch HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
    head += "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = (JOB + b"\n") * 500
    chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"

    async def write() -> None:
        writer.write(head.encode())
        for _ in range(jobs // 500):
            writer.write(chunk)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    began = time.perf_counter()
    writing = asyncio.create_task(write())
    received = bytearray()
    while not received.endswith(b"\r\n0\r\n\r\n"):
        received += await reader.read(2**18)
        assert not reader.at_eof()
        if len(received) > 2**20:
            del received[: -(2**16)]
    spent = time.perf_counter() - began
    await writing
    writer.close()
    summary = json.loads(bytes(received).rpartition(b'{"lines"')[2].partition(b"}")[0].join((b'{"lines"', b"}")))
    return {"rate": summary["accepted"] / spent, **summary}


async def idle(host: str, port: int, key: str, connections: int) -> dict[str, object]:
    """Long polls of 60 s, repeated whenever one ends, until stdin closes. The first ones end evenly spread."""

    def claim(wait: float) -> bytes:
        return request("POST", "/claim", key, json.dumps({"wants": [{"queue": "empty"}], "wait": wait}).encode())

    load = HttpLoad(claim(60), 10_000, None)
    loop = asyncio.get_running_loop()
    for number in range(connections):
        _, caller = await loop.create_connection(lambda: Caller(load), host, port)
        caller.transport.write(claim(5 + 55 * number / connections))
        if number % 50 == 0:
            await asyncio.sleep(0.01)
    print(json.dumps({"connections": connections}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    return {"answers": load._statuses, "lost": load.lost}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    what, url, key, *rest = sys.argv[1:]
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    if what in ("post", "refused"):
        connections, seconds, rate = int(rest[0]), float(rest[1]), float(rest[2]) if rest[2:] else None
        load = HttpLoad(request("POST", "/jobs", key, JOB if what == "post" else b"{}"), seconds, rate)
        result = uvloop.run(load.run(host, port, connections, seconds))
    elif what == "batch":
        result = uvloop.run(batch(host, port, key, int(rest[0])))
    else:
        result = uvloop.run(idle(host, port, key, int(rest[0])))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
