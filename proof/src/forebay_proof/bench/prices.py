"""Measuring: rounds of enqueue, claim and settle, one without the guarantee beside each one with it."""

from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from statistics import median
from time import perf_counter
from typing import Final

from msgspec import Struct

from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.limits import MAX_BATCH
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, Until
from forebay.core.spec import QueueSpec
from forebay.store.protocol import Store, Want
from forebay_proof.bench.guarantees import PLAIN, Guarantee
from forebay_proof.histogram import percentile

_LEASE: Final = minutes(10)


class Load(Struct, frozen=True):
    """`jobs` in each of `rounds` pairs of rounds, `batch` of them in a call."""

    jobs: int = 2_000
    rounds: int = 5
    batch: int = 100


class Price(Struct, frozen=True):
    """How much longer the same jobs take with the guarantee than without: the median of the rounds, least and most.

    `base`: over which jobs, `plain` ones that are all alike or `unlike` ones.
    """

    store: str
    guarantee: str
    base: str
    ratio: float
    least: float
    most: float
    plain_rate: float
    rate: float


def prices(store: Store, guarantees: Iterable[Guarantee], load: Load, base: Guarantee = PLAIN) -> Iterator[Price]:
    """One after the other. The store's own queues are left alone; those of the bench are empty afterwards."""
    for guarantee in guarantees:
        yield _price(store, guarantee, load, base)


def _price(store: Store, guarantee: Guarantee, load: Load, base: Guarantee) -> Price:
    name, run = store.capabilities.name, token_hex(4)
    plain, other = f"bench.{run}.{base.name}", f"bench.{run}.{guarantee.name}.on"
    store.put_spec(guarantee.spec(other))
    pairs = []
    # The first pair warms up: caches, statements, connections.
    for number in range(load.rounds + 1):
        first = number * load.jobs
        pair = (
            _round(store, plain, [base], load, first),
            _round(store, other, [base, guarantee], load, first),
        )
        pairs += [pair] if number else []
    return _price_of(name, guarantee.name, base.name, pairs, load)


def lanes_latency(store: Store, lanes: int, load: Load) -> tuple[float, float]:
    """Median and p99 of a claim, in milliseconds, while so many subjects have a cap and jobs of their own."""
    queue = f"bench.{token_hex(4)}.lanes"
    store.put_spec(QueueSpec(name=queue, eligibility=AtMost(1, per="subject")))
    for start in range(0, lanes, MAX_BATCH):
        subjects = range(start, min(start + MAX_BATCH, lanes))
        store.enqueue([Draft("bench", queue=queue, subject=f"s{subject}") for subject in subjects])
    spans: list[float] = []
    for _ in range(load.rounds * 40):
        began = perf_counter()
        leases = store.claim([Want(queue, load.batch)], "bench", _LEASE)
        spans.append((perf_counter() - began) * 1_000)
        store.settle([(lease, Ack()) for lease in leases])
    return percentile(spans, 50), percentile(spans, 99)


def parked_price(store: Store, parked: int, load: Load) -> Price:
    """What so many jobs behind a closed gate of another queue cost those that are claimed beside them."""
    name, run = store.capabilities.name, token_hex(4)
    plain, closed = f"bench.{run}.plain", f"bench.{run}.parked"
    store.put_spec(QueueSpec(name=closed, eligibility=Until(f"bench.{run}")))
    alone = [_round(store, plain, [PLAIN], load, 0) for _ in range(load.rounds + 1)][1:]
    ids: list[int] = []
    for start in range(0, parked, MAX_BATCH):
        count = min(MAX_BATCH, parked - start)
        ids += [receipt.id for receipt in store.enqueue([Draft("bench", queue=closed)] * count)]
    beside = [_round(store, plain, [PLAIN], load, 0) for _ in range(load.rounds + 1)][1:]
    for start in range(0, len(ids), MAX_BATCH):
        store.cancel(ids[start : start + MAX_BATCH])
    return _price_of(name, f"{parked} parked", PLAIN.name, list(zip(alone, beside, strict=True)), load)


def _price_of(store: str, guarantee: str, base: str, pairs: Sequence[tuple[float, float]], load: Load) -> Price:
    ratios = [with_it / without for without, with_it in pairs]
    rates = [load.jobs / median(each) for each in zip(*pairs, strict=True)]
    return Price(store, guarantee, base, median(ratios), min(ratios), max(ratios), *rates)


def _round(store: Store, queue: str, guarantees: Sequence[Guarantee], load: Load, first: int) -> float:
    """Seconds from the first enqueue to the last settle, of jobs with the fields that all of these need."""
    drafts = []
    for number in range(first, first + load.jobs):
        fields = {field: value for each in guarantees for field, value in each.fields(number).items()}
        drafts.append(Draft("bench", queue=queue, **fields))
    began = perf_counter()
    for start in range(0, len(drafts), load.batch):
        store.enqueue(drafts[start : start + load.batch])
    left = len(drafts)
    while left:
        leases = store.claim([Want(queue, load.batch)], "bench", _LEASE)
        store.settle([(lease, Ack()) for lease in leases])
        left -= len(leases)
        if not leases:
            store.promote(MAX_BATCH)
    return perf_counter() - began
