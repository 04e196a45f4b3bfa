"""The scene: all that a fault may touch, and the record of what it did.

`Scene.strikes` is the record: one `Strike` each, also written to chaos.ndjson as it happens. `report_failure` is for
a promise that a fault saw broken: the verdict is FAIL then, whatever else is found. Jobs that a fault sends by itself
have receipts like those of the load, so the proof covers them.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from forebay import Draft, ForebayError, Job, Store
from forebay_proof.lab.chaos.plan import ChaosPlan, ChaosScale, Kept
from forebay_proof.lab.lab_server import LabServer
from forebay_proof.load.app import QUEUE
from forebay_proof.load.fleet import Fleet
from forebay_proof.load.generator import Load
from forebay_proof.load.mix import parse_mix
from forebay_proof.servers.proxy import Proxy
from forebay_proof.tally import FOLDER

T = TypeVar("T")

LOAD_FIRST: Final = 1_000_000
"""The first seq of the load; those below are for the jobs that faults send."""

_UNSTEADY: Final = ("flapping", "poison", "dependent")
_LOOK_EVERY: Final = 0.02


class Impossible(Exception):
    """This fault cannot be made here; the text says why, and what it would take."""


class Bite(Struct, frozen=True):
    """What one strike did. `bit`: it met what it was meant for.

    pids  whose jobs were stopped by it: it bit if they held any, and recovery is when those started again
    acks  what the fault's own producers received, where it brings its own
    at    when the blow fell, if that was not at once
    took  seconds until what it broke answered again, where only the fault itself can see that
    """

    bit: bool
    what: str
    pids: tuple[int, ...] = ()
    acks: int = 0
    at: int | None = None
    took: float | None = None


class Strike(Struct):
    """One line of chaos.ndjson; instants are microseconds since 1970, `over_at` is when the fault was taken away."""

    number: int
    kind: str
    at: int
    over_at: int
    bit: bool
    what: str
    pids: tuple[int, ...] = ()
    held: int = 0
    recovery: float | None = None


class Scene:
    def __init__(
        self,
        plan: ChaosPlan,
        kept: Kept,
        scale: ChaosScale,
        directory: Path,
        say: Callable[[str], None],
        parts: ExitStack,
    ) -> None:
        self.plan = plan
        self.kept = kept
        self.scale = scale
        self.directory = directory
        self.effects = directory / "effects"
        self.starts = directory / "starts"
        self.receipts = directory / "receipts"
        self.tallies = directory / "tallies"
        self.dependency = directory / "dependency-is-down"
        self.say = say
        self.parts = parts
        self.memo: dict[str, Any] = {}
        self.way = ""
        """The URL by which fleet and load reach the store."""

        self.strikes: list[Strike] = []
        self.failures: list[str] = []
        self.acks = 0
        self.skewed: set[int] = set()
        self.proxy: Proxy | None = None
        self._lab_server: LabServer | None = None
        self._fleet: Fleet | None = None
        self._load: Load | None = None
        self._store: Store | None = None
        self._lock = Lock()
        self._next = 1
        self._mix = parse_mix(plan.load.mix)

    # The parts that every plan with a load has; asking for one that is not there is a mistake in the plan.

    @property
    def lab_server(self) -> LabServer:
        return _there(self._lab_server, "a store")

    @property
    def fleet(self) -> Fleet:
        return _there(self._fleet, "a fleet")

    @property
    def load(self) -> Load:
        return _there(self._load, "a load")

    @property
    def store(self) -> Store:
        """Opened beside the fleet, on the direct way."""
        return _there(self._store, "a store")

    def stage(self, lab_server: LabServer, fleet: Fleet, load: Load, store: Store) -> None:
        self._lab_server, self._fleet, self._load, self._store = lab_server, fleet, load, store

    def report_failure(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"broken: {text}")

    def wire(self) -> Proxy:
        if self.proxy is None:
            raise Impossible('the plan has no wire to break: say through = "proxy"')
        return self.proxy

    def send(self, kind: str, count: int = 1, *, max_attempts: int | None = None, **more: object) -> list[int]:
        """Enqueue, each with a key, until there are receipts; the ids."""
        seqs = self.seqs(count)
        drafts = [
            Draft(kind, {"seq": seq, **more}, QUEUE, key=f"chaos-{seq}", max_attempts=max_attempts) for seq in seqs
        ]
        receipts = self.until(lambda: self.store.enqueue(drafts), f"{count} {kind} are accepted")
        self.add_receipts([(seq, receipt.id) for seq, receipt in zip(seqs, receipts, strict=True)])
        return [receipt.id for receipt in receipts]

    def seqs(self, count: int) -> range:
        """So many seqs that no producer uses."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return range(first, first + count)

    def add_receipts(self, pairs: Iterable[tuple[int, int | None]]) -> None:
        """Receipts for the proof: seq and job; without a job the answer was lost."""
        self.receipts.mkdir(exist_ok=True)
        words = [(seq, job, "unknown" if job is None else "accepted") for seq, job in pairs]
        lines = [msgspec.json.encode({"seq": seq, "job_id": job, "answer": word}) + b"\n" for seq, job, word in words]
        with self._lock, (self.receipts / "chaos.ndjson").open("ab") as out:
            out.write(b"".join(lines))

    def ended(self, ids: Sequence[int], patience: float = 40.0) -> list[Job | None]:
        """Wait until these jobs are done or dead; what is gone is done."""

        def poll() -> list[Job | None] | None:
            jobs = self.store.get(ids)
            return jobs if all(job is None or job.state.terminal for job in jobs) else None

        return self.until(poll, f"the end of {len(ids)} jobs", patience)

    def until(self, poll: Callable[[], T | None], what: str, patience: float = 40.0) -> T:
        """What `poll` finds, once it finds something; a store that is away does not answer yet."""
        deadline = time.monotonic() + patience
        while True:
            with suppress(ForebayError):
                if found := poll():
                    return found
            if time.monotonic() > deadline:
                raise Stuck(f"not within {patience:g} s: {what}")
            time.sleep(_LOOK_EVERY)

    def steady(self, seq: int) -> bool:
        """A job of the load that does not fail by itself: it starts again only if a fault stopped it."""
        return seq >= LOAD_FIRST and self._mix.kind(self.plan.seed, seq) not in _UNSTEADY

    def environment(self) -> dict[str, str]:
        """What the processes of the fleet see."""
        return {
            "LAB_EFFECTS": str(self.effects),
            "LAB_STARTS": str(self.starts),
            "LAB_DEPENDENCY": str(self.dependency),
            "LAB_LEASE": f"{self.plan.fleet.lease:g}",
            **({"LAB_TICKS": "1"} if self.plan.fleet.ticks else {}),
            **({FOLDER: str(self.tallies)} if self.plan.fleet.tallies else {}),
        }


class Stuck(Exception):
    """Something that must happen did not: a promise is broken."""


def now() -> int:
    """Microseconds since 1970, by the clock that handlers testify by."""
    return time.time_ns() // 1_000


def pause(seconds: float) -> None:
    time.sleep(seconds)


def _there(part: T | None, what: str) -> T:
    if part is None:
        raise Impossible(f"the plan has no {what.removeprefix('a ')}: set load.rate above 0")
    return part
