"""Cells in the simulation: a store process each, and what every other process reaches of them.

Promise: each process has a real `CellsStore` of its own, with its own map, breakers and deadlines, on virtual time. Its
calls go over a link to each cell: a link may be cut, refusing or hanging, and slow; single requests and replies get
lost. A request that hangs arrives when its link is whole again, also if its caller has left. A process opens its cells
while all of them are up; what happens afterwards is chance.

Authority: the store processes about what is durable, `faults` about what happens to a call. All cells have one clock.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from forebay.core.changeset import ChangeSet, decode_entry
from forebay.core.errors import PartlyDone, QueueFull, StoreFailed
from forebay.core.instant import Duration, Instant
from forebay.core.job import Draft, Job, State
from forebay.core.lease import Settlement
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import CellMap, read_cells
from forebay.store.cells.guard import Guard
from forebay.store.cells.ids import CellIds, cell_of
from forebay.store.cells.store import CellsStore, open_cells
from forebay.store.protocol import Capabilities, Query, Store
from forebay_proof.faulty import ReplyLost
from forebay_proof.sim.connection import ProcessStore
from forebay_proof.sim.evidence import RunEvidence, Sent
from forebay_proof.sim.faults import Faults, Kind
from forebay_proof.sim.store_process import RecordCopy, StoreProcess
from forebay_proof.sim.world import SECOND, Process, SteppedRole, World

T = TypeVar("T")

DEADLINE: Final = 0.3
_TIMEOUT: Final = SECOND // 4
_SLOWEST: Final = SECOND // 2
_NESTED: Final = SECOND
"""A call may take longer than its deadline only because others waited meanwhile: one role waits at a time here."""


class CellLink:
    """What one process reaches of one cell. `hangs`: while it is cut, requests wait; otherwise they are refused."""

    def __init__(self) -> None:
        self.cut_until = 0
        self.hangs = False
        self.slow_until = 0
        self.trouble: list[tuple[int, int]] = []
        self.drawn: tuple[Duration, Kind | None] | None = None


class CellStores:
    """The store processes of all cells. `store`: all cells as they are, without any fault in between."""

    def __init__(self, world: World, text: str) -> None:
        self.world = world
        self.map, self.addresses = read_cells(text, "cells.toml")
        self.processes = {name: StoreProcess(world, lambda: 0, alone=False) for name in self.map.cells}
        self.notify: Callable[[], None] = lambda: None
        self._names = {number: name for name, number in self.map.cells.items()}
        self._links: dict[tuple[str, str], CellLink] = {}
        whole = {name: replace(address, deadline=None) for name, address in self.addresses.items()}
        self._whole = open_cells(self.map, whole, lambda url: cast(Backend, _Whole(self.process_at(url))), _QuietGuard)

    @property
    def store(self) -> CellsStore:
        self._whole.backend.group.refresh()
        return self._whole

    @property
    def agreed(self) -> CellMap:
        return self.store.backend.group.map

    @property
    def up(self) -> bool:
        return all(process.reachable for process in self.processes.values())

    @property
    def ledger(self) -> list[RecordCopy]:
        """The records of all cells, in the order in which they were written."""
        return [record for record, _ in self._records()]

    def process_at(self, url: str) -> StoreProcess:
        return self.processes[url.removeprefix("memory://")]

    def link(self, process: str, cell: str) -> CellLink:
        return self._links.setdefault((process, cell), CellLink())

    def links(self) -> Collection[CellLink]:
        return self._links.values()

    def recover_now(self) -> None:
        for process in self.processes.values():
            process.recover_now()
        for link in self._links.values():
            link.cut_until = link.slow_until = 0

    def changes(self) -> list[ChangeSet]:
        return [_outside(decode_entry(record.body).change, ids) for record, ids in self._records()]

    def histories(self) -> list[list[ChangeSet]]:
        return [
            [_outside(change, CellIds(self.map.cells[name])) for change in process.changes()]
            for name, process in self.processes.items()
        ]

    def trouble_of(self, job_id: int, owner: str) -> list[tuple[int, int]]:
        name = self._names[cell_of(job_id)]
        return [*self.processes[name].trouble, *self.link(owner, name).trouble]

    def running(self) -> list[Job]:
        query = Query(state=State.RUNNING)
        cells = self.store.cells()
        return [job for name, process in self.processes.items() if process.up for job in _jobs(cells[name], query)]

    def _records(self) -> list[tuple[RecordCopy, CellIds]]:
        found = [
            (record, CellIds(self.map.cells[name]))
            for name, process in self.processes.items()
            for record in process.ledger
        ]
        return sorted(found, key=lambda each: each[0].place)


def _jobs(store: Store, query: Query) -> list[Job]:
    return store.browse(query, 0, 1_000).jobs


def _outside(change: ChangeSet, ids: CellIds) -> ChangeSet:
    """With the ids that all cells use."""
    jobs = [replace(each, ids=[ids.outside(job_id) for job_id in each.ids]) for each in change.jobs]
    entries = [replace(entry, id=ids.outside(entry.id)) for entry in change.entries]
    merges = [replace(merge, id=ids.outside(merge.id)) for merge in change.merges]
    return replace(change, jobs=jobs, entries=entries, merges=merges)


class _Whole:
    """The backend of a cell, whichever store process has it now."""

    def __init__(self, process: StoreProcess) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process.store.backend, name)


class _QuietGuard(Guard):
    """For a view that meets no fault. A store process that fell shows what it knew."""

    def start(self) -> None:
        pass

    def _open(self, reason: str) -> None:
        pass


class CellBackend:
    """The backend of a cell as one process reaches it. `quiet`: while the process opens its cells."""

    def __init__(
        self, stores: CellStores, name: str, faults: Faults, evidence: RunEvidence, process: Process, link: CellLink
    ) -> None:
        self._world = stores.world
        self._store_process = stores.processes[name]
        self._ids = CellIds(stores.map.cells[name])
        self._faults = faults
        self._evidence = evidence
        self._process = process
        self._link = link
        self.quiet = True

    @property
    def capabilities(self) -> Capabilities:
        return self._store_process.store.capabilities

    def close(self) -> None:
        pass

    def __getattr__(self, verb: str) -> Any:
        return partial(self._call, verb)

    def draw(self) -> tuple[Duration, Kind | None]:
        """How long the next request is on its way, and what happens to it."""
        world, link = self._world, self._link
        if self.quiet:
            return 0, None
        if link.cut_until > world.now and link.hangs:
            return link.cut_until - world.now, None
        fault = self._faults.for_call()
        if link.slow_until > world.now or fault is Kind.DELAY:
            return world.between(1_000, _SLOWEST), fault
        return 0, fault

    def _call(self, verb: str, *args: Any) -> Any:
        world, link = self._world, self._link
        delay, fault = link.drawn or self.draw()
        waits, link.drawn = link.drawn is None and delay, None
        begun = world.now
        try:
            if waits:
                world.linger(self._process, min(delay, _TIMEOUT))
                if delay > _TIMEOUT:
                    raise _lost("it timed out")
            if self._is_cut() or fault is Kind.LOST_REQUEST:
                raise _lost("connection refused")
            answer = self._perform(verb, args)
            if fault is Kind.DUPLICATE:
                answer = self._perform(verb, args)
            if fault is Kind.LOST_REPLY:
                raise _lost("the connection was closed")
            return answer
        finally:
            if delay or fault is not None:
                link.trouble.append((begun - delay, world.now))

    def _is_cut(self) -> bool:
        now = self._world.now
        return not self.quiet and (
            self._process.cut_until > now or (self._link.cut_until > now and not self._link.hangs)
        )

    def _perform(self, verb: str, args: Sequence[Any]) -> Any:
        process = self._store_process
        drafts: Sequence[Draft] = args[0] if verb == "enqueue" else ()
        late = self._late(args[0]) if verb == "settle" else []
        self._sent(drafts, process.reachable)
        try:
            answer = process.perform(lambda: getattr(process.store.backend, verb)(*args))
        except QueueFull:
            self._sent(drafts, -1)
            raise
        except ConnectionError as error:
            raise _lost(str(error)) from None
        for one in late:
            one.applied = True
        return answer

    def _sent(self, drafts: Sequence[Draft], count: int) -> None:
        for draft in drafts:
            self._evidence.sent_drafts[draft.payload["n"]].sent += count

    def _late(self, settlements: Sequence[Settlement]) -> list[Sent]:
        """Jobs that were claimed behind the deadline are handed back by the cell: no role of the process has them."""
        found = []
        for lease, verdict in settlements:
            fence = (self._ids.outside(lease.job.id), lease.fence[1])
            if fence not in self._evidence.sent:
                found.append(Sent(self._process.name, "cell", type(verdict).__name__, 0, False, self._world.now))
                self._evidence.sent[fence] = [found[-1]]
        return found


def _lost(reason: str) -> StoreFailed:
    return StoreFailed("the store", reason, "call it again")


class _Answer(Future[T]):
    """The answer of a request that is on its way until `due_at`."""

    def __init__(self, world: World, process: Process, faults: Faults, due_at: int) -> None:
        super().__init__()
        self._world = world
        self._process = process
        self._faults = faults
        self._due_at = due_at

    def result(self, timeout: float | None = None) -> T:
        world = self._world
        if not self.done():
            most = world.now + int(DEADLINE * SECOND if timeout is None else timeout * SECOND)
            world.linger(self._process, min(most, self._due_at) - world.now)
        if not self.done():
            self._faults.count(Kind.LATE)
        return super().result(0)


class _Requests:
    """The calls of a process to one cell."""

    def __init__(self, world: World, process: Process, faults: Faults, backend: CellBackend, link: CellLink) -> None:
        self._world = world
        self._process = process
        self._faults = faults
        self._backend = backend
        self._link = link

    def submit(self, call: Callable[[], T]) -> Future[T]:
        world = self._world
        drawn = self._backend.draw()
        delay = drawn[0] if world.can_linger else 0
        answer: _Answer[T] = _Answer(world, self._process, self._faults, world.now + delay)
        if delay:
            world.after(delay, partial(self._arrive, answer, call, drawn))
        else:
            self._arrive(answer, call, drawn)
        return answer

    def _arrive(self, answer: "_Answer[T]", call: Callable[[], T], drawn: tuple[Duration, Kind | None]) -> None:
        self._link.drawn = drawn
        try:
            found = call()
        except Exception as error:
            answer.set_exception(error)
        else:
            # A process that is dead gets no answer.
            if self._process.alive:
                answer.set_result(found)


class SimGuard(Guard):
    """A guard whose calls and probes are on virtual time."""

    def __init__(
        self,
        world: World,
        process: Process,
        requests: _Requests,
        name: str,
        deadline: float,
        probe: Callable[[], object],
    ) -> None:
        super().__init__(name, deadline, probe, threads=requests, clock=lambda: world.now / SECOND)
        self._world = world
        self._actor = SteppedRole(world, process, f"watch of {name}", self.check)

    def start(self) -> None:
        self._actor.start(self._world.between(0, 3 * SECOND))

    def _open(self, reason: str) -> None:
        closed = self.down is None
        super()._open(reason)
        if closed:
            self._world.record(f"leaves out {self.name}: {reason}")
            self._actor.nudge(1_000)


def open_view(stores: CellStores, faults: Faults, evidence: RunEvidence, process: Process) -> CellsStore:
    """The cells as one process sees them."""
    world = stores.world
    backends: dict[str, CellBackend] = {}

    def open_cell(url: str) -> Backend:
        name = url.removeprefix("memory://")
        link = stores.link(process.name, name)
        backends[name] = CellBackend(stores, name, faults, evidence, process, link)
        return cast(Backend, backends[name])

    def guard(name: str, deadline: float | None, probe: Callable[[], object]) -> Guard:
        requests = _Requests(world, process, faults, backends[name], stores.link(process.name, name))
        return SimGuard(world, process, requests, name, deadline or DEADLINE, probe)

    store = open_cells(stores.map, stores.addresses, open_cell, guard)
    for backend in backends.values():
        backend.quiet = False
    return store


class CellsConnection(ProcessStore):
    """A process and its cells. An outage of a cell is an outage of the process for the jobs of that cell alone."""

    def __init__(
        self, world: World, stores: CellStores, faults: Faults, evidence: RunEvidence, process: Process
    ) -> None:
        super().__init__(world, open_view(stores, faults, evidence, process), stores, evidence, process)

    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        """The claimer's sleep becomes its rest; a notification ends it."""
        if self._world.acting is not None:
            self._world.acting.rest(timeout.total_seconds())
        return False

    def now(self) -> Instant:
        return self._call("now", self.inner.now)

    def _call(self, verb: str, action: Callable[[], T]) -> T:
        world = self._world
        begun = world.now
        try:
            answer = action()
            self._answered(verb, answer)
            return answer
        except PartlyDone:
            raise
        except StoreFailed as error:
            raise ReplyLost(str(error)) from None
        finally:
            if world.now > begun + _NESTED:
                self._process.trouble.append((begun, world.now))


def cut(stores: CellStores, link: CellLink, duration: Duration, *, hangs: bool) -> None:
    world = stores.world
    link.cut_until, link.hangs = world.now + duration, hangs
    link.trouble.append((world.now, world.now + duration))


def slow(stores: CellStores, name: str, duration: Duration, processes: Collection[str]) -> None:
    """All links of a cell are slow."""
    world = stores.world
    for process in processes:
        link = stores.link(process, name)
        link.slow_until = world.now + duration
        link.trouble.append((world.now, world.now + duration))
