"""What a guarantee costs: the same jobs through a plain queue and through one that promises more, in the same run.

    for price in prices(store, [GUARANTEES["order"]], Rounds(jobs=2_000)):
        print(price.guarantee, price.ratio)

Rounds alternate, so that other load on the machine affects both alike; the result is the median of the ratios, with
their spread. Only ratios of one run mean anything: jobs a second are those of this machine at this moment. All limits
are wide enough to hold nothing: what is measured is the bookkeeping, not the waiting. Beside the time, where `pids` are
given, the CPU time of these processes: of a store's server, which other load on the machine affects less.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from secrets import token_hex
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple

from msgspec import Struct

from forebay.core.instant import hours, minutes, seconds
from forebay.core.job import Draft
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, Bounded, Fair, InOrder, Priority, Rate, Until
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Store, Want
from forebay_proof.histogram import percentile
from forebay_proof.processes import running_seconds

_LEASE: Final = minutes(10)
_TENANTS: Final = 10
_SUBJECTS: Final = 200
_ROOM: Final = 1_000_000


class Guarantee(Struct, frozen=True):
    """`axes` of the queue's spec, and the fields of its nth draft."""

    name: str
    promise: str
    axes: dict[str, Any]
    fields: Callable[[int], dict[str, Any]]

    def spec(self, queue: str) -> QueueSpec:
        return QueueSpec(name=queue, **self.axes)


PLAIN: Final = Guarantee("plain", "fifo, at least once", {}, lambda _: {})
UNLIKE: Final = Guarantee("unlike", "none, and no two neighbours alike", {}, lambda n: {"max_attempts": 24 + n % 2})
"""A store may keep neighbours that are alike in one row; real jobs seldom are."""

GUARANTEES: Final[dict[str, Guarantee]] = {
    each.name: each
    for each in (
        UNLIKE,
        Guarantee("fair", "tenants take turns", {"share": Fair()}, lambda n: {"tenant": f"t{n % _TENANTS}"}),
        Guarantee("fair_500", "500 tenants take turns", {"share": Fair()}, lambda n: {"tenant": f"t{n % 500}"}),
        Guarantee(
            "rate",
            "at most so many starts in a time",
            {"eligibility": Rate(10_000, seconds(1), burst=_ROOM)},
            lambda _: {},
        ),
        Guarantee(
            "order",
            "one at a time per subject, in order",
            {"eligibility": InOrder()},
            lambda n: {"subject": f"s{n % _SUBJECTS}"},
        ),
        Guarantee("cap", "at most so many at once", {"eligibility": AtMost(_ROOM)}, lambda _: {}),
        Guarantee(
            "cap_200",
            "at most so many at once for each of 200 subjects",
            {"eligibility": AtMost(_ROOM, per="subject")},
            lambda n: {"subject": f"s{n % _SUBJECTS}"},
        ),
        Guarantee(
            "cap_5000",
            "the same for 5,000 subjects",
            {"eligibility": AtMost(_ROOM, per="subject")},
            lambda n: {"subject": f"s{n % 5_000}"},
        ),
        Guarantee("key", "the same key is the same job", {"key_window": hours(1)}, lambda n: {"key": f"k{n}"}),
        Guarantee("bounded", "never more than so many", {"capacity": Bounded(_ROOM)}, lambda _: {}),
        Guarantee("priority", "the highest goes first", {"selection": Priority()}, lambda n: {"priority": n % 10}),
    )
}


class Rounds(Struct, frozen=True):
    """`jobs` in each round, `pairs` of a round without and a round with the guarantee, `batch` jobs in a call.

    `pids`: processes whose CPU time is measured beside the time.
    """

    jobs: int = 2_000
    pairs: int = 5
    batch: int = 100
    pids: tuple[int, ...] = ()


class Cost(NamedTuple):
    """Of one round: seconds by the clock, and seconds of CPU time."""

    took: float
    cpu: float


class Price(Struct, frozen=True):
    """How much longer the same jobs take with the guarantee than without: the median of the pairs, minimum and maximum.

    `base`: over which jobs, `plain` ones that are all alike or `unlike` ones. `cpu`: microseconds of CPU time a job
    without and with the guarantee; None where it was not measured.
    """

    store: str
    guarantee: str
    base: str
    ratio: float
    minimum: float
    maximum: float
    plain_rate: float
    rate: float
    cpu: tuple[float, float] | None = None

    @property
    def cpu_ratio(self) -> float | None:
        return None if self.cpu is None else self.cpu[1] / self.cpu[0]

    @property
    def name(self) -> str:
        name = f"{self.store}/{self.guarantee.rpartition(' ')[2]}"
        return name if self.base == PLAIN.name else f"{name}/{self.base}"

    def figure(self) -> dict[str, Any]:
        """As every benchmark prints its figures."""
        baseline = f"{self.store}/{self.base}"
        spread = [self.minimum, self.maximum]
        return {
            "name": self.name,
            "value": self.ratio,
            "unit": "×",
            "spread": spread,
            "baseline": baseline,
            "ratio": self.ratio,
            "cpu": self.cpu,
            "cpu_ratio": self.cpu_ratio,
        }


def prices(store: Store, guarantees: Iterable[Guarantee], rounds: Rounds, base: Guarantee = PLAIN) -> Iterator[Price]:
    """One after the other. The store's own queues are left alone; those of the bench are empty afterwards."""
    for guarantee in guarantees:
        yield _price(store, guarantee, rounds, base)


def _price(store: Store, guarantee: Guarantee, rounds: Rounds, base: Guarantee) -> Price:
    name, run = store.capabilities.name, token_hex(4)
    plain, other = f"bench.{run}.{base.name}", f"bench.{run}.{guarantee.name}.on"
    store.put_spec(guarantee.spec(other))
    pairs = []
    # The first pair warms up: caches, statements, connections.
    for number in range(rounds.pairs + 1):
        first = number * rounds.jobs
        pair = (
            _round(store, plain, [base], rounds, first),
            _round(store, other, [base, guarantee], rounds, first),
        )
        pairs += [pair] if number else []
    return _price_of(name, guarantee.name, base.name, pairs, rounds)


def lanes_latency(store: Store, lanes: int, rounds: Rounds) -> tuple[float, float]:
    """Median and p99 of a claim, in milliseconds, while so many subjects have a cap and jobs of their own."""
    queue = f"bench.{token_hex(4)}.lanes"
    store.put_spec(QueueSpec(name=queue, eligibility=AtMost(1, per="subject")))
    for start in range(0, lanes, MAX_BATCH):
        subjects = range(start, min(start + MAX_BATCH, lanes))
        store.enqueue([Draft("bench", queue=queue, subject=f"s{subject}") for subject in subjects])
    ranges: list[float] = []
    for _ in range(rounds.pairs * 40):
        began = perf_counter()
        leases = store.claim([Want(queue, rounds.batch)], "bench", _LEASE)
        ranges.append((perf_counter() - began) * 1_000)
        store.settle([(lease, Ack()) for lease in leases])
    return percentile(ranges, 50), percentile(ranges, 99)


def parked_price(store: Store, parked: int, rounds: Rounds) -> Price:
    """What so many jobs behind a closed gate of another queue cost those that are claimed beside them."""
    name, run = store.capabilities.name, token_hex(4)
    plain, closed = f"bench.{run}.plain", f"bench.{run}.parked"
    store.put_spec(QueueSpec(name=closed, eligibility=Until(f"bench.{run}")))
    alone = [_round(store, plain, [PLAIN], rounds, 0) for _ in range(rounds.pairs + 1)][1:]
    ids: list[int] = []
    for start in range(0, parked, MAX_BATCH):
        count = min(MAX_BATCH, parked - start)
        ids += [receipt.id for receipt in store.enqueue([Draft("bench", queue=closed)] * count)]
    beside = [_round(store, plain, [PLAIN], rounds, 0) for _ in range(rounds.pairs + 1)][1:]
    for start in range(0, len(ids), MAX_BATCH):
        store.cancel(ids[start : start + MAX_BATCH])
    return _price_of(name, f"{parked} parked", PLAIN.name, list(zip(alone, beside, strict=True)), rounds)


def _price_of(store: str, guarantee: str, base: str, pairs: Sequence[tuple[Cost, Cost]], rounds: Rounds) -> Price:
    ratios = [with_it.took / without.took for without, with_it in pairs]
    each = list(zip(*pairs, strict=True))
    plain_rate, rate = (rounds.jobs / median(cost.took for cost in costs) for costs in each)
    without, with_it = (median(cost.cpu for cost in costs) * 1e6 / rounds.jobs for costs in each)
    cpu = (without, with_it) if rounds.pids else None
    return Price(store, guarantee, base, median(ratios), min(ratios), max(ratios), plain_rate, rate, cpu)


def _round(store: Store, queue: str, guarantees: Sequence[Guarantee], rounds: Rounds, first: int) -> Cost:
    """From the first enqueue to the last settle, of jobs with the fields that all of these need."""
    drafts = []
    for number in range(first, first + rounds.jobs):
        fields = {field: value for each in guarantees for field, value in each.fields(number).items()}
        drafts.append(Draft("bench", queue=queue, **fields))
    began, spent = perf_counter(), running_seconds(rounds.pids)
    for start in range(0, len(drafts), rounds.batch):
        store.enqueue(drafts[start : start + rounds.batch])
    left = len(drafts)
    while left:
        leases = store.claim([Want(queue, rounds.batch)], "bench", _LEASE)
        store.settle([(lease, Ack()) for lease in leases])
        left -= len(leases)
        if not leases:
            store.promote(MAX_BATCH)
    return Cost(perf_counter() - began, running_seconds(rounds.pids) - spent)
