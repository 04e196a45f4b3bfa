"""The HTTP side on a durable Postgres: one server process, and the load in a process of its own (`bench.http_load`).

make bench-http                         all of it, about five minutes
make bench-http ARGS="--quick"          a first look
make bench-http ARGS="--json --only post"

Every answer that counts is a 202 for a job that is durable (fsync and synchronous_commit are on). The p50 and p99 are
at 80 % of the rate that was reached just before, with requests due by the clock: one that waits for its turn counts.
Server, load and Postgres share the machine. `idle/claimers` is the server's CPU while so many long polls wait for work
that does not come, each asked for anew every 60 seconds, evenly spread; that they came in is not counted.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.measure import Figure, arguments, run
from bench.pg.processes import cpu_seconds
from bench.pg.server import SETTINGS
from forebay.testing.servers.postgres import PostgresServer

ROOT = Path(__file__).parents[1]
CONNECTIONS = 64
CLAIMERS = 10_000
SHARE = 0.8
SETTLE = 5.0
"""Seconds after which all who came have been let in."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


class Served:
    """One server, on one database."""

    def __init__(self, url: str) -> None:
        forebay = [sys.executable, "-m", "forebay"]
        made = subprocess.run(
            [*forebay, "keys", "create", "--role", "admin", "--json", "--store", url],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
        )
        self._key: str = json.loads(made.stdout)["key"]
        self.process = subprocess.Popen(
            ["sh", "-c", 'ulimit -n "$(ulimit -Hn)"; exec "$@"', "sh", *forebay, "serve", "--port", "0", "--json"],
            env={**ENVIRONMENT, "FOREBAY_URL": url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self._url: str = json.loads(self.process.stdout.readline())["url"]
        self.rate = 0.0
        self.late: dict[str, Any] = {}

    def load(self, what: str, *words: object) -> dict[str, Any]:
        told = subprocess.run(
            [sys.executable, "-m", "bench.http_load", what, self._url, self._key, *map(str, words)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        said: dict[str, Any] = json.loads(told.stdout)
        assert set(said.get("statuses", {"202": 1})) == {"202"}, said
        assert not said.get("problems"), said
        return said

    def post(self, seconds: float) -> float:
        self.rate = self.load("post", CONNECTIONS, seconds)["rate"]
        return self.rate

    def p50(self, seconds: float) -> float:
        self.late = self.load("post", CONNECTIONS, seconds, (self.rate or self.post(seconds)) * SHARE)
        return float(self.late["p50"])

    def p99(self, seconds: float) -> float:
        if not self.late:
            self.p50(seconds)
        p99, self.late = float(self.late["p99"]), {}
        return p99

    def batch(self, jobs: int) -> float:
        return float(self.load("batch", jobs)["rate"])

    def idle(self, seconds: float) -> float:
        """Percent of a core."""
        load = subprocess.Popen(
            [sys.executable, "-m", "bench.http_load", "idle", self._url, self._key, str(CLAIMERS)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert load.stdin is not None
        assert load.stdout is not None
        assert json.loads(load.stdout.readline())["connections"] == CLAIMERS
        self._rest(SETTLE)
        before, began = cpu_seconds([self.process.pid]), time.monotonic()
        self._rest(seconds)
        spent = (cpu_seconds([self.process.pid]) - before) / (time.monotonic() - began)
        load.stdin.close()
        said = json.loads(load.stdout.readline())
        load.wait()
        assert said["lost"] == 0, said
        return spent * 100

    def _rest(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@contextmanager
def serving() -> Iterator[Served]:
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        served = Served(server.create_database())
        try:
            yield served
        finally:
            served.end()


def main() -> None:
    args = arguments(__doc__)
    seconds, jobs, rest, rounds = (3.0, 50_000, 20.0, 2) if args.quick else (10.0, 200_000, 65.0, 3)
    with serving() as served:
        figures = [
            Figure("post/postgres", "jobs/s", lambda: served.post(seconds), goal="≥ 1,500"),
            Figure("post/postgres p50 at 80 %", "ms", lambda: served.p50(seconds)),
            Figure("post/postgres p99 at 80 %", "ms", lambda: served.p99(seconds), goal="< 25"),
            Figure("batch/postgres", "jobs/s", lambda: served.batch(jobs), goal="≥ 25,000"),
        ]
        run(figures, rounds=rounds, only=args.only, as_json=args.json)
        run(
            [Figure("idle/claimers", "% core", lambda: served.idle(rest), goal="< 10")],
            rounds=1,
            only=args.only,
            as_json=args.json,
        )


if __name__ == "__main__":
    main()
