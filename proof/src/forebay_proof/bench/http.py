"""The HTTP side on a durable Postgres: one server process, and the load in a process of its own (`bench.http_load`).

make bench-http                         all of it, about five minutes
make bench-http ARGS="--quick"          a first look
make bench-http ARGS="--json --only post"

A response counts if it is a 202 for a durable job (fsync and synchronous_commit are on). `CPU` is that of the server
process per request. The p50 and p99 are at 80 % of the rate that was reached just before, with requests due by the
clock: the wait of a late one counts. `p99 at 1,200` is at 80 % of the goal. Server, load and Postgres share the
machine; `others` is the share of all other processes: with more than a few percent it distorts the figures.

What bounds the p99, in the same run: `refused` is the same rate of jobs without a kind, which never reach the store;
`commit` is one durable row at a time.

`idle/claimers` is the server's CPU while `CLAIMERS` long polls wait for jobs that do not come, each repeated every 60
seconds, evenly spread; their arrival is not counted. `idle/none` is the same server without them.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg

from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.bench.pg.server import SETTINGS
from forebay_proof.processes import cpu_seconds, machine_seconds
from forebay_proof.servers.postgres import PostgresServer

ROOT = Path(__file__).parents[4]
CONNECTIONS = 64
CLAIMERS = 10_000
SHARE = 0.8
GOAL = 1_500
SETTLE = 3.0
"""Seconds of rest once all long polls have arrived."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "proof" / "src")])}


class Machine:
    """The CPU share of all processes but this one and its children, since this was made."""

    def __init__(self) -> None:
        self._began = self._now()

    def others(self) -> float:
        """Percent."""
        busy, whole, own = (now - began for now, began in zip(self._now(), self._began, strict=True))
        return max(0.0, busy - own) / whole * 100

    def _now(self) -> tuple[float, float, float]:
        busy, idle = machine_seconds()
        return busy, busy + idle, cpu_seconds([os.getpid()])


class Served:
    """One server, on one database."""

    def __init__(self, url: str) -> None:
        self._store = url
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
        self.cpu = 0.0
        self.late: dict[str, Any] = {}

    def load(self, what: str, *words: object) -> dict[str, Any]:
        finished = subprocess.run(
            [sys.executable, "-m", "forebay_proof.bench.http_load", what, self._url, self._key, *map(str, words)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        result: dict[str, Any] = json.loads(finished.stdout)
        assert set(result.get("statuses", {"202": 1})) == {"422" if what == "refused" else "202"}, result
        assert not result.get("problems"), result
        return result

    def post(self, seconds: float) -> float:
        before = cpu_seconds([self.process.pid])
        self.rate = self.load("post", CONNECTIONS, seconds)["rate"]
        self.cpu = (cpu_seconds([self.process.pid]) - before) / (self.rate * seconds) * 1e6
        return self.rate

    def post_cpu(self, seconds: float) -> float:
        """CPU of the server, in microseconds per request of the last `post`."""
        if not self.cpu:
            self.post(seconds)
        cpu, self.cpu = self.cpu, 0.0
        return cpu

    def p50(self, seconds: float) -> float:
        self.late = self.load("post", CONNECTIONS, seconds, (self.rate or self.post(seconds)) * SHARE)
        return float(self.late["p50"])

    def goal_p99(self, seconds: float) -> float:
        return float(self.load("post", CONNECTIONS, seconds, GOAL * SHARE)["p99"])

    def refused_p99(self, seconds: float) -> float:
        return float(self.load("refused", CONNECTIONS, seconds, (self.rate or self.post(seconds)) * SHARE)["p99"])

    def commit_p99(self, seconds: float) -> float:
        """Of one row at a time, by one session, in milliseconds."""
        took = []
        with psycopg.connect(self._store, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bare (body text)")
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                connection.execute("INSERT INTO bare VALUES ('a row of about so many bytes')")
                took.append(time.perf_counter() - began)
        return sorted(took)[int(len(took) * 0.99)] * 1000

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
            [sys.executable, "-m", "forebay_proof.bench.http_load", "idle", self._url, self._key, str(CLAIMERS)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert load.stdin is not None
        assert load.stdout is not None
        assert json.loads(load.stdout.readline())["connections"] == CLAIMERS
        while self._in_flight() < CLAIMERS:
            self._rest(0.2)
        self._rest(SETTLE)
        spent = self.alone(seconds)
        load.stdin.close()
        result = json.loads(load.stdout.readline())
        load.wait()
        assert result["lost"] == 0, result
        return spent

    def alone(self, seconds: float) -> float:
        """Percent of a core that the server uses without requests."""
        before, began = cpu_seconds([self.process.pid]), time.monotonic()
        self._rest(seconds)
        return (cpu_seconds([self.process.pid]) - before) / (time.monotonic() - began) * 100

    def _in_flight(self) -> int:
        """Requests in flight on the server, without this one."""
        requested = Request(f"{self._url}/metrics", headers={"Authorization": f"Bearer {self._key}"})
        with urlopen(requested) as answer:
            found = re.search(rb"^forebay_http_requests_in_flight (\S+)", answer.read(), re.MULTILINE)
        assert found is not None
        return int(float(found[1])) - 1

    def _rest(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@contextmanager
def serving() -> Iterator[tuple[Served, Machine]]:
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        served = Served(server.create_database())
        try:
            yield served, Machine()
        finally:
            served.end()


def main() -> None:
    args = arguments(__doc__)
    seconds, jobs, rest, rounds = (3.0, 50_000, 20.0, 2) if args.quick else (10.0, 200_000, 65.0, 3)
    with serving() as (served, machine):
        figures = [
            Figure("post/postgres", "jobs/s", lambda: served.post(seconds), goal="≥ 1,500"),
            Figure("post/postgres CPU", "µs", lambda: served.post_cpu(seconds)),
            Figure("post/postgres p50 at 80 %", "ms", lambda: served.p50(seconds)),
            Figure("post/postgres p99 at 80 %", "ms", lambda: served.p99(seconds), goal="< 25"),
            Figure("post/postgres p99 at 1,200", "ms", lambda: served.goal_p99(seconds), goal="< 25"),
            Figure("post/refused p99 at 80 %", "ms", lambda: served.refused_p99(seconds)),
            Figure("post/commit p99", "ms", lambda: served.commit_p99(seconds)),
            Figure("batch/postgres", "jobs/s", lambda: served.batch(jobs), goal="≥ 25,000"),
        ]
        run(figures, rounds=rounds, only=args.only, as_json=args.json)
        once = [
            Figure("idle/none", "% core", lambda: served.alone(rest)),
            Figure("idle/claimers", "% core", lambda: served.idle(rest), goal="< 10"),
        ]
        run(once, rounds=1, only=args.only, as_json=args.json)
        run([Figure("others", "% machine", machine.others)], rounds=1, only="", as_json=args.json)


if __name__ == "__main__":
    main()
