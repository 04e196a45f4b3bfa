"""What a server answers, how long it takes and how large it is when a store has very many queue names.

    python -m bench.queue_names                     100,000 names, on SQLite and on Postgres
    python -m bench.queue_names --names 1000 --stores sqlite

Each name holds one ready job. The server is the real one, in a process of its own; every figure is the first and the
slowest of five requests. Memory is the growth of the server's resident set from its start to the end of the requests.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from forebay.core.job import Draft
from forebay.serve.actor import Role
from forebay.serve.security.keys import Created, mint, write_entries
from forebay.store.open import open_store
from forebay_proof.processes import rss_bytes
from forebay_proof.servers.postgres import PostgresServer

ROUTES = ("/queues", "/stats", "/metrics", "/ui/")


@contextmanager
def served(url: str) -> Iterator[tuple[str, int]]:
    """The address of a server of its own process on the store, and the number of the process."""
    command = [sys.executable, "-m", "forebay", "serve", "--port", "0", "--store", url]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0], process.pid
                    break
        finally:
            process.terminate()


def fill(url: str, names: int) -> str:
    """The queues, and the text of a key for all of it."""
    with closing(open_store(url)) as store:
        for start in range(0, names, 1_000):
            store.enqueue([Draft("k", queue=f"q{number:06}") for number in range(start, min(names, start + 1_000))])
        key, text = mint("bench", (Role.ADMIN,), store.now())
        write_entries(store, [Created(key, "bench")])
    return text


def measure(name: str, url: str, names: int) -> None:
    key = fill(url, names)
    with served(url) as (address, pid):
        time.sleep(5)
        before = rss_bytes([pid]) / 2**20
        with httpx.Client(base_url=address, timeout=300, trust_env=False) as client:
            client.post("/ui/login", data={"key": key}, headers={"Origin": address})
            for route in ROUTES:
                headers = {} if route.startswith("/ui") else {"Authorization": f"Bearer {key}"}
                times, size = [], 0
                for _ in range(5):
                    began = time.perf_counter()
                    answer = client.get(route, headers=headers)
                    times.append(time.perf_counter() - began)
                    assert answer.status_code == 200, (route, answer.status_code)
                    size = len(answer.content)
                print(f"{name:10} {route:10} first {times[0]:8.3f} s  slowest {max(times):8.3f} s  {size:>12,} bytes")
        print(
            f"{name:10} memory     {before:.0f} MiB, grown by {rss_bytes([pid]) / 2**20 - before:.0f} MiB", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=100_000)
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    options = parser.parse_args()
    if "sqlite" in options.stores:
        with tempfile.TemporaryDirectory() as folder:
            measure("sqlite", f"sqlite:///{folder}/jobs.db", options.names)
    if "postgres" in options.stores:
        with PostgresServer() as server:
            measure("postgres", server.create_database(), options.names)


if __name__ == "__main__":
    main()
