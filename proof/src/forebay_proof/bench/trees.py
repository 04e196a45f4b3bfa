"""This tree beside an older one, in one run: `python -m forebay_proof.bench.trees --old CHECKOUT`.

Plain and unlike jobs, enqueued in batches and drained in batches, on each store. Both trees run the same few lines on
their own sources, in processes of their own and in turn; only verbs that both contracts have are used. The servers are
shared, each round has a new database. Figures are jobs a second and, less noisy, jobs a second of CPU of the client.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from forebay_proof.bench.measure import Figure, bench_parser, run
from forebay_proof.servers.postgres import PostgresServer
from forebay_proof.servers.redis import RedisServer

STORES: Final = ("memory", "sqlite", "postgres", "redis")
KINDS: Final = ("alike", "unlike")
_HERE: Final = Path(__file__).parents[4]
_JOBS: Final = 20_000

_DRIVER: Final = """
import json, sys
from datetime import timedelta
from time import perf_counter, process_time
from forebay import Draft, Want
from forebay.core.outcome import Ack
from forebay.store.open import open_store

url, kind, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_store(url)
lease = timedelta(seconds=60)


def draft(number):
    if kind == "alike":
        return Draft("k", {"seq": number})
    return Draft(f"k{number % 2}", {"seq": number}, tenant=f"t{number % 7}")


def drain(some):
    left = some
    while left:
        leases = store.claim([Want("default", 100)], "bench", lease)
        store.settle([(each, Ack()) for each in leases])
        left -= len(leases)


store.enqueue([draft(number) for number in range(100)])
drain(100)
found = {}
for name, step in (
    ("enqueue", lambda: [store.enqueue([draft(n) for n in range(at, at + 100)]) for at in range(0, jobs, 100)]),
    ("drain", lambda: drain(jobs)),
):
    wall, cpu = perf_counter(), process_time()
    step()
    found[name] = jobs / (perf_counter() - wall)
    found[f"{name}_cpu"] = jobs / (process_time() - cpu)
store.close()
print(json.dumps(found))
"""


class Trees:
    """Runs of both trees; the figures of one run are taken one by one."""

    def __init__(self, old: Path, jobs: int, stack: ExitStack) -> None:
        self._sources = {"old": old / "src", "new": _HERE / "src"}
        self._jobs = jobs
        self._stack = stack
        self._servers: dict[str, PostgresServer | RedisServer] = {}
        self._found: dict[tuple[str, str, str], dict[str, float]] = {}

    def figure(self, tree: str, store: str, kind: str, name: str) -> float:
        """The named figure of the newest run; a figure that was taken before needs another run."""
        key = (tree, store, kind)
        if name not in self._found.get(key, {}):
            self._found[key] = self._run(tree, store, kind)
        return self._found[key].pop(name)

    def _run(self, tree: str, store: str, kind: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="forebay-trees-") as folder:
            words = [self._url(store, folder), kind, str(self._jobs)]
            environment = {**os.environ, "PYTHONPATH": str(self._sources[tree])}
            output = subprocess.check_output([sys.executable, "-c", _DRIVER, *words], env=environment, cwd=folder)
        found: dict[str, float] = json.loads(output)
        return found

    def _url(self, store: str, folder: str) -> str:
        if store in ("memory", "sqlite"):
            return "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"
        server = self._servers.get(store)
        if server is None:
            server = self._servers[store] = PostgresServer() if store == "postgres" else RedisServer()
            server.start()
            self._stack.callback(server.close)
        if isinstance(server, PostgresServer):
            return server.create_database()
        server.clear()
        return server.url()


def main() -> int:
    parser = bench_parser(__doc__)
    parser.add_argument("--old", type=Path, required=True, metavar="CHECKOUT", help="a checkout of the older commit")
    args = parser.parse_args()
    if not (args.old / "src" / "forebay").is_dir():
        parser.error(f"--old {args.old}: there is no src/forebay in it; name a checkout, such as a git worktree")
    with ExitStack() as stack:
        trees = Trees(args.old, _JOBS // 5 if args.quick else _JOBS, stack)
        figures = [
            Figure(
                f"{store}/{kind}/{name}/{tree}",
                "jobs/CPU-s" if name.endswith("_cpu") else "jobs/s",
                partial(trees.figure, tree, store, kind, name),
                None if tree == "old" else f"{store}/{kind}/{name}/old",
                "" if tree == "old" else "≥ 1",
            )
            for store in STORES
            for kind in KINDS
            for name in ("enqueue", "enqueue_cpu", "drain", "drain_cpu")
            for tree in ("old", "new")
        ]
        run(figures, rounds=2 if args.quick else 5, only=args.only, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
