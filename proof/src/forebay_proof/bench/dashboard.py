"""How long the dashboard's pages take on a large store: the 95th percentile of each, over real HTTP.

forebay bench run dashboard            a million jobs, 200,000 of them dead, on SQLite and Postgres
forebay bench run dashboard --quick    a tenth of that: for a first look
forebay bench run dashboard --only sqlite      (or postgres, or runs)

postgres  every job has a row of its own;  runs: Postgres again, where a thousand alike neighbours share one
first     the overview as the first page of a server that has just started, logging in aside; the slowest of a round

The dead come last by their ids, so a search for them has the longest way. A server and its reader share one process
here, and so one core: a browser on another machine waits for less.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from threading import Thread

import httpx
import uvicorn

from forebay.core.instant import days
from forebay.core.job import Draft
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.core.policy import KeepFor
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.security.keys import mint
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Store, Want
from forebay.store.streams import enqueue_stream
from forebay_proof.bench.measure import Figure, arguments, run
from forebay_proof.histogram import percentile
from forebay_proof.servers.postgres import PostgresServer

JOBS, DEAD = 1_000_000, 200_000
REQUESTS = 20
STARTS = 3
ROUNDS = 2
GOAL = "< 300 ms"
GROUNDS = ("sqlite", "postgres", "runs")
QUEUES = ("mail", "media", "sync", "reports")
PAGES = {
    "overview": "/ui/",
    "queue": "/ui/queues/mail",
    "jobs": "/ui/jobs",
    "jobs-state": "/ui/jobs?state=dead",
    "jobs-text": "/ui/jobs?text=subject-77",
    "jobs-far": f"/ui/jobs?after={JOBS // 2}",
    "job": "/ui/jobs/5",
    "job-dead": "/ui/jobs/{dead}",
    "dead": "/ui/dead",
    "workers": "/ui/workers",
    "schedules": "/ui/schedules",
    "logs": "/ui/logs",
    "acts": "/ui/acts",
    "keys": "/ui/keys",
}


def drafts(jobs: int, dead: int, alike: int) -> Iterator[Draft]:
    """`alike`: so many neighbours are of one queue."""
    for number in range(jobs - dead):
        queue, tenant = QUEUES[number // alike % 4], f"tenant-{number % 50}"
        yield Draft("send", {"n": number}, queue, tenant=tenant, subject=f"subject-{number % 100_000}")
    for number in range(dead):
        yield Draft("call", {"n": number}, "calls", tenant=f"tenant-{number % 50}")


def fill(store: Store, jobs: int, dead: int, alike: int) -> int:
    """The jobs, the dead among them last; the id of a dead one."""
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(days(1))))
    enqueue_stream(store, drafts(jobs, dead, alike), None)
    last = 0
    left = dead
    while left > 0 and (leases := store.claim([Want("calls", 1_000)], "bench", timedelta(minutes=5))):
        errors = [Failure(f"Error{lease.job.id % 40}", f"host 10.0.0.{lease.job.id % 250} said no") for lease in leases]
        store.settle([(lease, DeadLetter(error)) for lease, error in zip(leases, errors, strict=True)])
        last, left = leases[-1].job.id, left - len(leases)
    for number in range(20):
        leases = store.claim([Want(queue, 25) for queue in QUEUES], f"worker-{number % 5}", timedelta(hours=1))
        store.settle([(lease, Ack()) for lease in leases[10:]])
    return last


@contextmanager
def served(store: Store) -> Iterator[httpx.Client]:
    """A browser that is logged in as an admin."""
    app = create_app(store, ServeSettings(port=0, maintain=False))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    key, text = mint("bench", [Role.ADMIN], store.now())
    app.state.context.authenticator.follower.create(key, "bench")
    try:
        with httpx.Client(base_url=url, headers={"Origin": url}, timeout=60, trust_env=False) as client:
            assert client.post("/ui/login", data={"key": text}).status_code == 303
            yield client
    finally:
        server.should_exit = True
        thread.join(30)


def p95(client: httpx.Client, path: str, requested: int) -> float:
    """Milliseconds."""
    times = []
    for _ in range(requested):
        began = time.perf_counter()
        answer = client.get(path)
        times.append((time.perf_counter() - began) * 1_000)
        assert answer.status_code == 200, (path, answer.status_code)
        assert re.search(r"<main", answer.text)
    return percentile(times, 95)


def first(store: Store) -> float:
    """Milliseconds until the overview of a new server is there, at worst."""
    times = []
    for _ in range(STARTS):
        with served(store) as client:
            times.append(p95(client, PAGES["overview"], 1))
    return max(times)


@contextmanager
def urls(only: str) -> Iterator[dict[str, str]]:
    """Empty stores, by name; all of them, or the one."""
    wanted = (only,) if only in GROUNDS else GROUNDS
    with ExitStack() as stack:
        found = {}
        if "sqlite" in wanted:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-"))
            found["sqlite"] = f"sqlite:///{folder}/jobs.db"
        on_postgres = [name for name in wanted if name != "sqlite"]
        if on_postgres:
            server = stack.enter_context(PostgresServer())
            found |= {name: server.create_database() for name in on_postgres}
        yield found


def main() -> None:
    args = arguments(__doc__)
    scale = 10 if args.quick else 1
    with urls(args.only) as places, ExitStack() as stack:
        figures = []
        for name, url in places.items():
            store = open_store(url)
            stack.callback(store.close)
            dead = fill(store, JOBS // scale, DEAD // scale, 1_000 if name == "runs" else 1)
            figures.append(Figure(f"first/{name}", "ms", partial(first, store), goal=GOAL))
            client = stack.enter_context(served(store))
            for page, path in PAGES.items():
                measure = partial(p95, client, path.format(dead=dead), REQUESTS)
                figures.append(Figure(f"{page}/{name}", "ms p95", measure, goal=GOAL))
        run(figures, rounds=1 if args.quick else ROUNDS, only=args.only, as_json=args.json)


if __name__ == "__main__":
    main()
