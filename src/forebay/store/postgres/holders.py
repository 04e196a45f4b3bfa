"""A process as the server knows it: one row under one of its names, whose heartbeat carries all that it has claimed."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from time import monotonic

from forebay.core.lease import Fence
from forebay.store.postgres.runs import Held, Ref


class Holder:
    """This process under one of its names. `jobs` are those in its hands; `changes` as a heartbeat last saw them.

    `asked`: jobs whose end was requested, as of the changes in `looked_at`.
    """

    def __init__(self, holder_id: int) -> None:
        self.id = holder_id
        self.since = monotonic()
        self.changes = 0
        self.looked_at = 0
        self.asked: list[Fence] = []
        self._claims = 0
        self.jobs: dict[Fence, Ref] = {}
        self.guard = Lock()

    def hold(self, leases: Sequence[Held]) -> None:
        with self.guard:
            self.jobs.update([((lease.job.id, lease.job.delivery), lease.ref) for lease in leases])

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """While a claim is under way, what it takes is not yet known."""
        with self.guard:
            self._claims += 1
        try:
            yield
        finally:
            with self.guard:
                self._claims -= 1

    @property
    def idle(self) -> bool:
        """Whether everything that it has taken is known."""
        return not self._claims

    def runs(self) -> list[tuple[bool, int]]:
        """Where the jobs in its hands are."""
        with self.guard:
            return sorted({ref.key for ref in self.jobs.values()})

    def let_go(self, fences: Iterable[Fence]) -> None:
        with self.guard:
            for fence in fences:
                self.jobs.pop(fence, None)

    def book(self) -> dict[Fence, Ref]:
        """What is in its hands, and where."""
        with self.guard:
            return dict(self.jobs)

    def has_just(self, fences: Collection[Fence]) -> bool:
        """Whether these are all that it holds, each as its claim left it."""
        with self.guard:
            if len(fences) != len(self.jobs):
                return False
            refs = [self.jobs.get(fence) for fence in fences]
        return all(ref is not None and ref.beat for ref in refs)
