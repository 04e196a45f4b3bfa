"""How long a server takes to answer, and how much it sends, when a store has very many queue names.

    forebay bench run queue-names                     100,000 names, on SQLite and on Postgres
    forebay bench run queue-names --quick --only sqlite    1,000 names

Each name holds one ready job. The server is the real one, in a process of its own; every figure is the first and the
slowest of five requests. Memory is the growth of the server's resident set from its start to the end of the requests.
"""

import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import httpx

from forebay.core.job import Draft
from forebay.serve.actor import Role
from forebay.serve.security.keys import Created, mint, write_entries
from forebay.store.open import open_store
from forebay_proof.bench.clients.cell import Measurement, Values
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.processes import rss_bytes
from forebay_proof.servers.postgres import PostgresServer

ROUTES = ("/queues", "/stats", "/metrics", "/ui/")
REQUESTS = 5
UNITS = {"first": "s", "slowest": "s", "size": "bytes"}


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


def answers(url: str, names: int) -> Values:
    """Seconds and bytes of each route, and by how many MiB the server grew."""
    key = fill(url, names)
    found: dict[str, float] = {}
    with served(url) as (address, pid):
        time.sleep(5)
        before = rss_bytes([pid])
        with httpx.Client(base_url=address, timeout=300, trust_env=False) as client:
            client.post("/ui/login", data={"key": key}, headers={"Origin": address})
            for route in ROUTES:
                headers = {} if route.startswith("/ui") else {"Authorization": f"Bearer {key}"}
                times = []
                for _ in range(REQUESTS):
                    began = time.perf_counter()
                    answer = client.get(route, headers=headers)
                    times.append(time.perf_counter() - began)
                    assert answer.status_code == 200, (route, answer.status_code)
                    found[f"{route}/size"] = len(answer.content)
                found[f"{route}/first"], found[f"{route}/slowest"] = times[0], max(times)
        found["/memory"] = (rss_bytes([pid]) - before) / 2**20
    return found


def figures(stack: ExitStack, names: int) -> list[Figure]:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-"))
    server = stack.enter_context(PostgresServer())
    files = itertools.count()
    stores = {"sqlite": lambda: f"sqlite:///{folder}/jobs-{next(files)}.db", "postgres": server.create_database}
    units = {f"{route}/{key}": unit for route in ROUTES for key, unit in UNITS.items()} | {"/memory": "MiB"}
    found = []
    for store, url in stores.items():
        cell = Measurement(store, lambda url=url: answers(url(), names))  # type: ignore[misc]
        for key, unit in units.items():
            name = f"{store}{key}"
            baseline = None if store == "sqlite" else f"sqlite{key}"
            found.append(Figure(name, unit, partial(cell.read, key, name), baseline))
    return found


def main() -> None:
    args = arguments(__doc__)
    with ExitStack() as stack:
        run(figures(stack, 1_000 if args.quick else 100_000), rounds=1, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
