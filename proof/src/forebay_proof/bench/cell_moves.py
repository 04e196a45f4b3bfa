"""A queue with a backlog leaves its cell while jobs flow into it.

A move copies nothing: the jobs that the source has finish there. So what is measured is how fast workers empty it, two
processes that claim and settle `BATCH` jobs a call, while a producer offers `FLOW` jobs a second, all of which the
target accepts. Every accepted job is settled once, or the round fails.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from forebay import Draft, Store, Want, open_store
from forebay.core.lease import Settled
from forebay.core.outcome import Ack
from forebay.store.cells.ids import cell_of
from forebay.store.cells.moving import Mover
from forebay.store.cells.store import CellsStore
from forebay_proof.bench.measure import Figure
from forebay_proof.bench.memory import LEASE, PAYLOAD
from forebay_proof.servers.postgres import PostgresServer

FLOW = 2_000
BATCH = 1_000
PROCESSES = 2
_QUEUE = "q0"
_FLOW_BATCH = 100
_POLL = 0.05
_WAIT = 0.02


class Flow(threading.Thread):
    """Offers `FLOW` jobs a second until it is stopped; a batch that is late is not left out."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="flow")
        self._store = store
        self._over = threading.Event()
        self.accepted = 0
        self.cells: set[int] = set()

    def run(self) -> None:
        began = time.perf_counter()
        while not self._over.wait(max(0.0, began + self.accepted / FLOW - time.perf_counter())):
            receipts = self._store.enqueue(_drafts(_FLOW_BATCH))
            self.accepted += len(receipts)
            self.cells.update(cell_of(receipt.id) for receipt in receipts)

    def stop(self) -> None:
        self._over.set()
        self.join()


class Leaving:
    """Rounds of a move. `rate`: jobs a second that leave the source; `flow`: those accepted by the target meanwhile."""

    def __init__(self, server: PostgresServer, backlog: int) -> None:
        self._server = server
        self._backlog = backlog
        self._flow = 0.0

    def rate(self) -> float:
        from forebay_proof.bench.cells import cells_of

        with ExitStack() as stack:
            urls = [self._server.create_database() for _ in range(2)]
            for each in urls:
                stack.callback(self._server.drop_database, each)
            url, _ = stack.enter_context(cells_of(urls))
            store = open_store(url)
            stack.callback(store.close)
            assert isinstance(store, CellsStore)
            for _ in range(self._backlog // BATCH):
                store.enqueue(_drafts(BATCH))
            with _drains(url) as drains:
                return self._move(store, drains)

    def flow(self) -> float:
        """Of the round that `rate` has measured just before, if it has."""
        if not self._flow:
            self.rate()
        return self._flow

    def _move(self, store: CellsStore, drains: list[subprocess.Popen[bytes]]) -> float:
        mover, flow = Mover(store.backend.group), Flow(store)
        mover.start([_QUEUE], "c0", "c1")
        mover.advance()
        began = time.perf_counter()
        flow.start()
        for drain in drains:
            _say(drain)
        while any(state.unfinished for state in mover.advance()):
            time.sleep(_POLL)
        took = time.perf_counter() - began
        self._flow = flow.accepted / took
        flow.stop()
        while store.backlog([_QUEUE])[0].depth:
            time.sleep(_POLL)
        settled = sum(int(drain.communicate(b"\n")[0].split()[-1]) for drain in drains)
        assert flow.cells == {1}, f"the flow went to the cells {flow.cells}"
        assert settled == self._backlog + flow.accepted, f"{settled} of {self._backlog + flow.accepted} were settled"
        return self._backlog / took


@contextmanager
def _drains(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ready to claim."""
    command = [sys.executable, "-m", "forebay_proof.bench.cell_moves", url]
    with ExitStack() as stack:
        drains = []
        for _ in range(PROCESSES):
            drains.append(stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)))
            stack.callback(drains[-1].kill)
        for drain in drains:
            assert drain.stdout is not None
            drain.stdout.readline()
        yield drains


def _say(drain: subprocess.Popen[bytes]) -> None:
    assert drain.stdin is not None
    drain.stdin.write(b"\n")
    drain.stdin.flush()


def _drafts(count: int) -> list[Draft]:
    return [Draft("email", PAYLOAD, queue=_QUEUE) for _ in range(count)]


def drain(url: str) -> None:
    """One of the processes: it settles until a line arrives, and says how many jobs that were."""
    store = open_store(url)
    over = threading.Event()
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=_wait_for_line, args=(over,), daemon=True).start()
    settled = 0
    while not over.is_set():
        leases = store.claim([Want(_QUEUE, BATCH)], "bench", LEASE)
        settled += sum(answer is Settled.APPLIED for answer in store.settle([(lease, Ack()) for lease in leases]))
        if not leases:
            over.wait(_WAIT)
    print(settled, flush=True)
    store.close()


def _wait_for_line(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


def figures(server: PostgresServer, backlog: int) -> list[Figure]:
    leaving = Leaving(server, backlog)
    return [
        Figure("cells/move-rate", "jobs/s", leaving.rate, goal="at least 20,000"),
        Figure("cells/move-flow", "jobs/s", leaving.flow, goal=f"{FLOW:,}"),
    ]


if __name__ == "__main__":
    drain(sys.argv[1])
