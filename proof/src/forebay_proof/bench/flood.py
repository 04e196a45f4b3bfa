"""The latency of valid callers during a flood of connections with invalid keys, on a real server on loopback.

    python -m forebay_proof.bench.flood                     10,000 connections, 15 seconds, with and without the flood
    python -m forebay_proof.bench.flood --quick --json      1,000 connections, 3 seconds
    python -m forebay_proof.bench.flood --connections 5000

The flood is a process of its own: every connection sends a request with an invalid key, reads the response, and
reconnects when it is closed. Valid callers are 8 that keep their connection alive and 2 that open a new one for every
request; each enqueues one job at a time. A request that did not get a 202 counts as failed.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

from forebay.serve.actor import Role
from forebay.serve.security.keys import Created, mint, write_entries
from forebay.store.open import open_store
from forebay_proof.bench.measure import Figure, bench_parser, run, taken
from forebay_proof.bench.queue_names import served
from forebay_proof.histogram import percentile
from forebay_proof.processes import rss_bytes

BAD = "fb_0123456789ab_" + "x" * 32
PATIENCE = 30.0


def request(address: str, key: str, *, close: bool = False) -> bytes:
    body = b'{"kind": "k"}'
    head = (
        f"POST /jobs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{'Connection: close' if close else 'Connection: keep-alive'}\r\n\r\n"
    )
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> int:
    """The status; the body is read too."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head[9:12])


async def flood(host: str, port: int, connections: int, seconds: float) -> None:
    """Ends after so many seconds; a line says what the connections met."""
    until, met = time.monotonic() + seconds, Counter[str]()
    text = request(f"{host}:{port}", BAD)

    async def one() -> None:
        while time.monotonic() < until:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                met[type(error).__name__] += 1
                await asyncio.sleep(0.2)
                continue
            met["connected"] += 1
            try:
                writer.write(text)
                met[str(await answer(reader))] += 1
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await reader.read(1)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                met["cut off"] += 1
            finally:
                writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(one())
    print(json.dumps(met), flush=True)


async def good(host: str, port: int, key: str, seconds: float, *, anew: bool) -> tuple[list[float], Counter[str]]:
    """Milliseconds of each request, and what was answered."""
    until, times, met = time.monotonic() + seconds, list[float](), Counter[str]()
    text = request(f"{host}:{port}", key, close=anew)
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                if reader is None or writer is None:
                    reader, writer = await asyncio.open_connection(host, port)
                writer.write(text)
                met[str(await answer(reader))] += 1
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            met[type(error).__name__] += 1
            anew_now = True
        else:
            anew_now = anew
        times.append((time.monotonic() - began) * 1_000)
        if anew_now and writer is not None:
            writer.close()
            reader = writer = None
        await asyncio.sleep(0.01)
    return times, met


async def callers(host: str, port: int, key: str, seconds: float) -> list[tuple[list[float], Counter[str]]]:
    kept = [good(host, port, key, seconds, anew=False) for _ in range(8)]
    fresh = [good(host, port, key, seconds, anew=True) for _ in range(2)]
    found = await asyncio.gather(*kept, *fresh)
    return [_merged(found[:8]), _merged(found[8:])]


def _merged(found: list[tuple[list[float], Counter[str]]]) -> tuple[list[float], Counter[str]]:
    met = Counter[str]()
    for _, each in found:
        met.update(each)
    return [took for times, _ in found for took in times], met


def figures_of(load: str, caller: str, times: list[float], met: Counter[str]) -> Iterator[Figure]:
    """The figures of one kind of caller; those during the flood are compared with those without it."""

    def figure(name: str, unit: str, value: float) -> Figure:
        return taken(f"{load}/{caller}/{name}", unit, value, None if load == "calm" else f"calm/{caller}/{name}")

    for percent in (50, 99, 100):
        yield figure(f"p{percent}", "ms", percentile(times, percent))
    yield figure("requests", "", len(times))
    yield figure("failed", "", sum(count for status, count in met.items() if status != "202"))


def measure(connections: int, seconds: float) -> list[Figure]:
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        with closing(open_store(url)) as store:
            key, text = mint("bench", (Role.PRODUCER,), store.now())
            write_entries(store, [Created(key, "bench")])
        with served(url) as (address, pid):
            host, port = urlsplit(address).hostname or "", urlsplit(address).port or 0
            time.sleep(2)
            for flooded in (False, True):
                command = [
                    sys.executable,
                    "-m",
                    "forebay_proof.bench.flood",
                    "--at",
                    address,
                    "--connections",
                    str(connections),
                ]
                command += ["--seconds", str(seconds + 5)]
                flooder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if flooded else None
                time.sleep(3 if flooded else 0)
                kept, fresh = asyncio.run(callers(host, port, text, seconds))
                load = "flood" if flooded else "calm"
                found += figures_of(load, "kept-alive", *kept)
                found += figures_of(load, "reconnecting", *fresh)
                if flooder is not None:
                    met = json.loads(flooder.communicate()[0])
                    found += [taken(f"flood/outcome/{name}", "", count) for name, count in sorted(met.items())]
            found.append(taken("server/rss", "MiB", rss_bytes([pid]) / 2**20))
    return found


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--connections", type=int, help="of the flood (default: 10000, with --quick 1000)")
    parser.add_argument("--seconds", type=float, help="of each measurement (default: 15, with --quick 3)")
    parser.add_argument("--at", help=SUPPRESS)
    options = parser.parse_args()
    connections = options.connections or (1_000 if options.quick else 10_000)
    seconds = options.seconds or (3.0 if options.quick else 15.0)
    if options.at is None:
        run(measure(connections, seconds), rounds=1, only=options.only, as_json=options.json)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    target = urlsplit(options.at)
    asyncio.run(flood(target.hostname or "", target.port or 0, connections, seconds))


if __name__ == "__main__":
    main()
