"""Every store of the project keeps the contract, case by case; and the suite notices stores that do not."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from secrets import token_hex
from threading import Barrier
from typing import cast

import pytest
from msgspec.structs import replace

from forebay.core.clock import Clock
from forebay.core.instant import Instant
from forebay.core.job import Draft
from forebay.core.lease import Lease, Settled, Settlement
from forebay.core.outcome import Release, Verdict
from forebay.core.policy import Unbounded
from forebay.core.spec import QueueSpec
from forebay.store.memory.store import MemoryStore
from forebay.store.postgres.store import PostgresStore
from forebay.store.protocol import Capabilities, GateUse, Promotion, Receipt, Store, Want
from forebay_proof.conformance import Case, Harness, Need, Opener, Status, cases, run
from forebay_proof.servers.pgbouncer import PgBouncer
from forebay_proof.servers.redis import RedisServer
from forebay_proof.servers.redis_cluster import RedisClusterServer
from tests.stores import openers
from tests.stores.tables import Tables

Make = Callable[[pytest.FixtureRequest], Opener]
"""An opener for one test, from the fixtures that its store needs."""


def memory(_: pytest.FixtureRequest) -> Opener:
    return lambda clock: MemoryStore(clock=clock)


def journaled(request: pytest.FixtureRequest) -> Opener:
    return openers.journaled(request.getfixturevalue("tmp_path"))


def sqlite(request: pytest.FixtureRequest) -> Opener:
    return openers.sqlite(request.getfixturevalue("tmp_path"))


def postgres(request: pytest.FixtureRequest) -> Opener:
    return openers.postgres(request.getfixturevalue("cleared_url"))


def pooled(request: pytest.FixtureRequest) -> Opener:
    """Through a pooler, where every statement may meet another session."""
    pooler: PgBouncer = request.getfixturevalue("pgbouncer")
    return openers.postgres(pooler.url(request.getfixturevalue("cleared_url")))


def redis(request: pytest.FixtureRequest) -> Opener:
    return openers.redis(request.getfixturevalue("redis_url"))


def streams(request: pytest.FixtureRequest) -> Opener:
    """Redis, where it delivers by streams."""
    server: RedisServer = request.getfixturevalue("redis")
    server.clear()
    return openers.streams(server)


def clustered(request: pytest.FixtureRequest) -> Opener:
    """A store in a Redis Cluster, where a write is answered when a replica has it."""
    cluster: RedisClusterServer = request.getfixturevalue("redis_cluster")
    return openers.redis(cluster.url(prefix=token_hex(8)))


def two_cells(request: pytest.FixtureRequest) -> Opener:
    return openers.cells(2, request.getfixturevalue("tmp_path"))


def five_cells(request: pytest.FixtureRequest) -> Opener:
    return openers.cells(5, request.getfixturevalue("tmp_path"))


def one_cell(request: pytest.FixtureRequest) -> Opener:
    return openers.one_cell(request.getfixturevalue("tmp_path"))


STORES: dict[str, tuple[Make, set[Need]]] = {
    "memory": (memory, {Need.NOTHING, Need.EXACT_ORDER}),
    "journaled": (journaled, {*Need}),
    "sqlite": (sqlite, {*Need}),
    "postgres": (postgres, {*Need}),
    "pooled": (pooled, {*Need}),
    "redis": (redis, {*Need}),
    "streams": (streams, {*Need}),
    "clustered": (clustered, {*Need}),
    "two_cells": (two_cells, {*Need}),
    "five_cells": (five_cells, {*Need}),
    "one_cell": (one_cell, {*Need}),
}
THEMES = {
    "streams": frozenset("order settling leases timing shedding merging threads".split()),
    "clustered": frozenset("settling threads watching".split()),
    "pooled": frozenset("acceptance settling leases timing keys threads watching schedules ledger ingest".split()),
    "two_cells": frozenset(case.theme for case in cases())
    - frozenset("lane_races lanes shares turns lines rates costs".split()),
    "five_cells": frozenset(
        "acceptance order settling leases watching observing browsing queue_pages presence".split()
    ),
    "one_cell": frozenset("settling ledger routing dead_letter_queues releasing turns shedding".split()),
}
"""Themes that differ with streams, through a pooler, in a cluster and over cells; the others run at night.
What one queue does by itself, its cell does: lanes, lines and shares are those of the SQLite file."""

ONE_TRANSACTION = frozenset(
    """routing dead_letter_queues ledger ledger_keeping
    a_batch_that_meets_a_full_queue_enqueues_nothing_anywhere
    a_batch_with_a_log_in_it_enqueues_nothing
    a_refused_batch_creates_no_queue
    ids_grow_from_batch_to_batch
    a_cancelled_or_expired_job_is_held_no_longer
    a_line_is_blocked_by_a_dead_head_that_is_kept_elsewhere
    browsing_shows_what_matches_every_field
    a_dead_letter_kept_elsewhere_is_replaced_in_its_own_queue
    a_queue_that_stops_sharing_a_cap_gives_its_slots_back
    queues_that_share_a_cap_apply_their_own_numbers_to_what_all_use
    the_slots_of_a_shared_gate_go_to_the_next_claim
    wait_is_woken_by_all_that_makes_room
    both_calls_are_on_record_the_settle_first
    the_ledger_does_not_record_presence
    a_cap_that_queues_share_holds_them_together
    a_rate_that_queues_share_goes_to_the_next_claim
    a_shared_rate_opens_for_a_costly_job_beside_a_queue_that_it_admits_already
    a_shared_rate_per_tenant_opens_for_a_costly_job_beside_one_that_it_admits
    jobs_of_several_queues_are_parked_at_a_gate_that_they_share
    jobs_of_several_queues_wait_for_one_condition
    a_slot_that_is_taken_is_reported_before_its_draft_is_checked
    firing_into_a_log_keeps_the_slot_free
    putting_a_schedule_again_unchanged_writes_no_record
    a_batch_that_is_refused_elsewhere_sheds_no_job
    the_ledger_records_shed_jobs
    a_promotion_drops_no_more_than_its_limit
    a_cap_that_queues_share_is_shared_by_the_classes_of_each
    a_rate_that_closes_takes_no_slot_of_a_cap_that_queues_share""".split()
)
"""Themes and cases in which queues of different cells would have to share a transaction, a gate or a ledger. Cells
refuse that by name (`tests/stores/test_cells.py`); within one cell all of it holds, as `one_cell` shows."""

NOT_CLAIMED = {"two_cells": ONE_TRANSACTION, "five_cells": ONE_TRANSACTION, "one_cell": frozenset(["ledger_keeping"])}
"""A cell has written its map into its ledger before the first call; the theme counts records from an empty one."""

CONTRACT = [
    pytest.param(
        make,
        case,
        id=f"{name}-{case.theme}-{case.name}",
        marks=[] if case.theme in THEMES.get(name, {case.theme}) else [pytest.mark.nightly],
    )
    for name, (make, claims) in STORES.items()
    for case in cases()
    if case.need in claims and not (name in NOT_CLAIMED and NOT_CLAIMED[name] & {case.theme, case.name})
]

BY_THE_SERVER = [
    "timing/a_delayed_job_is_not_handed_out_early",
    "timing/a_job_with_a_run_time_is_not_handed_out_early",
    "timing/jobs_fall_due_one_by_one",
    "timing/a_job_that_will_be_first_is_not_handed_out_early_either",
    "timing/a_retry_waits_for_its_time",
    "timing/a_release_for_later_waits_for_its_time",
    "timing/promote_returns_how_many_became_ready_and_when_the_next_is_due",
    "timing/an_expired_job_is_not_handed_out_a_moment_later",
    "timing/a_job_that_expires_while_it_waits_dies_without_a_claim",
    "timing/a_draft_that_comes_too_late_is_never_handed_out",
    "timing/wait_is_woken_when_a_job_falls_due",
    "timing/wait_is_woken_when_a_lease_runs_out",
    "leases/a_lease_lasts_at_least_as_long_as_asked_and_hardly_longer",
    "leases/a_lease_is_overdue_after_its_time_and_not_before",
    "leases/an_extended_lease_is_not_overdue_at_its_old_time",
    "keys/after_its_window_a_key_makes_a_new_job",
    "keys/a_duplicate_does_not_prolong_the_window",
    "schedules/ticks_that_were_missed_can_be_fired_one_by_one",
    "schedules/an_edited_schedule_never_fires_a_past_tick_again",
]
"""Cases about time, for a store that is given no clock: delays, leases, expiries, windows, ticks."""


@pytest.mark.parametrize(("make", "case"), CONTRACT)
def test_contract(make: Make, case: Case, request: pytest.FixtureRequest) -> None:
    with Harness(make(request)) as harness:
        case.check(harness)


@pytest.mark.parametrize("name", STORES)
def test_what_is_run_is_what_the_store_claims(name: str, request: pytest.FixtureRequest) -> None:
    make, claims = STORES[name]
    with Harness(make(request)) as harness:
        capabilities = harness.store.capabilities
    assert {need for need in Need if need.claimed(capabilities)} == claims


def test_the_suite_is_large_and_its_names_are_its_own() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) >= 200
    assert all(name.islower() and len(name.split("_")) >= 3 for name in names)
    assert frozenset().union(*THEMES.values()) <= {case.theme for case in cases()}


@pytest.mark.nightly
def test_the_contract_holds_in_real_time() -> None:
    results = run(lambda clock: MemoryStore(clock=clock), virtual_time=False)
    assert [result.case.name for result in results if result.status is Status.FAILED] == []


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_the_contract_holds_by_the_clock_of_the_server(tables: Tables) -> None:
    results = run(lambda _: PostgresStore(tables.url), reset=tables.clear, virtual_time=False)
    assert [result.case.name for result in results if result.status is Status.FAILED] == []


@pytest.mark.parametrize("name", BY_THE_SERVER)
def test_the_clock_of_the_server_decides(name: str, cleared_url: str) -> None:
    (case,) = cases(name)
    with Harness(lambda _: PostgresStore(cleared_url), virtual_time=False) as harness:
        case.check(harness)


class NoFence(MemoryStore):
    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        jobs = self.get([lease.job.id for lease, _ in settlements])
        return super().settle(
            [
                (replace(lease, job=job or lease.job), verdict)
                for (lease, verdict), job in zip(settlements, jobs, strict=True)
            ]
        )


class AlwaysApplied(MemoryStore):
    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        super().settle(settlements)
        return [Settled.APPLIED] * len(settlements)


class NoMemory(MemoryStore):
    """Forgets how jobs were settled."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        answers = super().settle(settlements)
        self.backend.session.facts.removed.clear()
        for row in self.backend.session.facts.rows.values():
            row.mark = (0, "")
        return answers


class HalfBatch(MemoryStore):
    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return [receipt for draft in drafts for receipt in super(HalfBatch, self).enqueue([draft])]


class NoKeys(MemoryStore):
    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return super().enqueue([replace(draft, key=None) for draft in drafts])


class CheckThenInsert(MemoryStore):
    """Reads the key first and inserts later, in two steps; all calls read before any inserts."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__(clock=clock)
        self._seen: dict[str | None, int] = {}
        self._everyone = Barrier(64)

    def enqueue(self, drafts: Sequence[Draft]) -> list[Receipt]:
        (draft,) = drafts
        first = self._seen.get(draft.key)
        self._everyone.wait(30)
        if first is not None:
            return [Receipt(first, durable=False, duplicate=True)]
        receipts = super().enqueue([replace(draft, key=None)])
        self._seen[draft.key] = receipts[0].id
        return receipts


class ShortLease(MemoryStore):
    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        return super().claim(wants, owner, lease_for * 0.9)


class LastFirst(MemoryStore):
    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        return super().claim(wants, owner, lease_for)[::-1]


class SelfReaping(MemoryStore):
    """Returns a job again as soon as its lease has expired, without a verdict."""

    def claim(self, wants: Sequence[Want], owner: str, lease_for: timedelta) -> list[Lease]:
        self.settle([(lease, Release()) for lease in self.overdue(100)])
        return super().claim(wants, owner, lease_for)


class UnboundedStore(MemoryStore):
    def put_spec(self, spec: QueueSpec) -> None:
        super().put_spec(replace(spec, capacity=Unbounded()))


class Busy(MemoryStore):
    def wait(self, queues: Sequence[str], timeout: timedelta) -> bool:
        return True


class DoubleFire(MemoryStore):
    def fire(self, name: str, tick: Instant, next_at: Instant, draft: Draft | None) -> bool:
        if not super().fire(name, tick, next_at, draft) and draft is not None:
            self.enqueue([draft])
        return True


class OverclaimingStore(MemoryStore):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, durable=True)


class LazyPromoter(MemoryStore):
    def promote(self, limit: int) -> Promotion:
        return Promotion(0, None)


class NoPrefix(MemoryStore):
    def gates(self, after: str, limit: int) -> list[GateUse]:  # type: ignore[override]
        return super().gates(after, limit)


class OtherDefault(MemoryStore):
    def pause(self, queue: str, until: Instant | None = 0) -> None:
        super().pause(queue, until)


class HalfTransacting(MemoryStore):
    def transaction(self, lease: Lease, verdict: Callable[[], Verdict]) -> object:
        raise NotImplementedError


class Extra(MemoryStore):
    def vacuum(self) -> None:
        pass


BROKEN: list[tuple[Callable[[Clock | None], Store], str]] = [
    (lambda clock: cast(Store, NoPrefix(clock=clock)), "every_verb_takes_what_the_contract_says"),
    (lambda clock: OtherDefault(clock=clock), "every_verb_takes_what_the_contract_says"),
    (lambda clock: HalfTransacting(clock=clock), "an_optional_interface_is_complete_or_absent"),
    (lambda clock: Extra(clock=clock), "a_store_has_no_verb_besides_the_contract"),
    (lambda clock: NoFence(clock=clock), "a_stale_lease_cannot_ack"),
    (lambda clock: NoFence(clock=clock), "an_attempt_is_not_a_fence"),
    (lambda clock: AlwaysApplied(clock=clock), "a_stale_lease_cannot_dead_letter_release_or_cancel"),
    (lambda clock: NoMemory(clock=clock), "a_repeated_ack_is_applied_again"),
    (lambda clock: HalfBatch(clock=clock), "a_batch_enters_whole_or_not_at_all"),
    (lambda clock: HalfBatch(clock=clock), "a_batch_with_a_conflicting_key_enqueues_nothing"),
    (lambda clock: NoKeys(clock=clock), "the_same_key_is_the_same_job"),
    (CheckThenInsert, "sixty_four_producers_of_one_key_make_one_job"),
    (lambda clock: ShortLease(clock=clock), "a_lease_lasts_at_least_as_long_as_asked_and_hardly_longer"),
    (lambda clock: LastFirst(clock=clock), "one_large_claim_follows_the_same_order_as_many_small_ones"),
    (lambda clock: SelfReaping(clock=clock), "an_overdue_job_is_not_handed_out_before_it_is_settled"),
    (lambda clock: UnboundedStore(clock=clock), "sixty_four_racing_producers_fill_a_queue_exactly"),
    (lambda clock: Busy(clock=clock), "wait_does_not_spin_at_a_closed_gate"),
    (lambda clock: DoubleFire(clock=clock), "racing_firers_take_a_slot_once"),
    (lambda clock: OverclaimingStore(clock=clock), "accepted_jobs_outlive_a_reopening"),
    (lambda clock: LazyPromoter(clock=clock), "promote_returns_how_many_became_ready_and_when_the_next_is_due"),
]


@pytest.mark.parametrize(("opener", "promise"), BROKEN, ids=[promise for _, promise in BROKEN])
def test_the_suite_notices(opener: Opener, promise: str) -> None:
    (result,) = run(opener, only=f"*/{promise}")
    assert result.status is Status.FAILED
    assert result.detail


def test_a_store_on_another_clock_is_reported() -> None:
    (result,) = run(lambda _: MemoryStore(), only="closing_twice_is_harmless")
    assert "does not follow the clock" in result.detail


def test_a_store_that_is_not_fresh_is_reported() -> None:
    store = MemoryStore()
    store.enqueue([Draft("left", queue="q")])
    (result,) = run(lambda _: store, only="closing_twice_is_harmless", virtual_time=False)
    assert "is not empty" in result.detail


def test_a_case_says_what_it_demanded_and_what_it_had() -> None:
    (result,) = run(lambda clock: NoKeys(clock=clock), only="the_same_key_is_the_same_job")
    assert "keys.py:" in result.detail
    assert "assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)" in result.detail
    assert "first = Receipt(id=1" in result.detail


def test_an_error_of_the_store_is_shown_with_its_place() -> None:
    class Broken(MemoryStore):
        def overdue(self, limit: int) -> list[Lease]:
            raise ZeroDivisionError("boom")

    (result,) = run(lambda clock: Broken(clock=clock), only="a_settled_job_is_not_overdue")
    assert "ZeroDivisionError: boom" in result.detail
    assert "raised by test_conformance.py" in result.detail


def test_what_a_store_does_not_claim_is_reported_not_hidden() -> None:
    results = run(lambda clock: MemoryStore(clock=clock), only="outlive")
    unclaimed = [result for result in results if result.status is Status.NOT_CLAIMED]
    assert len(unclaimed) > 10
    assert {result.detail for result in unclaimed} == {"the store does not claim: durable"}


def test_every_case_leaves_its_store_closed() -> None:
    opened: list[MemoryStore] = []

    def opener(clock: Clock | None) -> Store:
        opened.append(MemoryStore(clock=clock))
        return opened[-1]

    run(opener, only="leases/*")
    assert len(opened) > 20
    assert all(store.backend.session.closed for store in opened)
