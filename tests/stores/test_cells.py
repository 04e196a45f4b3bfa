"""Several stores as one: where jobs live, what is refused, and what a cell that is down costs the others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from forebay.core.errors import Invalid, PartlyDone, QueueFull, StoreFailed, Unsupported
from forebay.core.instant import minutes, seconds
from forebay.core.job import Draft, State
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack, DeadLetter, Failure
from forebay.core.policy import (
    AtMost,
    Bounded,
    DeadLetters,
    Deadline,
    Fair,
    FanOut,
    InOrder,
    LatestWins,
    Priority,
    Rate,
    Retained,
    Route,
    Routing,
    Until,
    While,
)
from forebay.core.schedule import Schedule
from forebay.core.spec import QueueSpec
from forebay.store.backend import Backend
from forebay.store.cells.cell_map import MAP_LOG, read_cells
from forebay.store.cells.guard import CellDown
from forebay.store.cells.ids import CellIds, cell_of
from forebay.store.cells.store import CellsStore, open_cells
from forebay.store.memory.store import MemoryBackend
from forebay.store.open import open_ledger, open_store
from forebay.store.protocol import Query, Want
from forebay.work.settler import Settler
from tests.waiting import eventually

LEASE = minutes(10)
SPREAD = 'orders = { partitions = 8, by = "tenant", cells = ["a", "b"] }'
TENANTS = [f"t{number}" for number in range(12)]


def file(queues: str = SPREAD, version: int = 1, cells: str = "ab", others: str = "a", more: str = "") -> str:
    lines = [f"version = {version}"]
    for number, name in enumerate(cells):
        lines += [f"[cells.{name}]", f"number = {number}", f'url = "memory://{name}"', more]
    return "\n".join([*lines, "[queues]", f'"*" = "{others}"', queues])


class Homes:
    """Memory stores by URL, which outlive their openers; each can fail, or hang until it is let go."""

    def __init__(self) -> None:
        self.backends: dict[str, MemoryBackend] = {}
        self.failing: set[str] = set()
        self.hanging: dict[str, Event] = {}

    def open(self, url: str) -> Backend:
        self.backends.setdefault(url, MemoryBackend())
        return cast(Backend, Proxy(self, url))


class Proxy:
    def __init__(self, homes: Homes, url: str) -> None:
        self._homes, self._url = homes, url

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._homes.backends[self._url], verb)
        return self._guarded(found) if callable(found) else found

    def close(self) -> None:
        """The store outlives its opener."""

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if self._url in self._homes.failing:
                raise StoreFailed("the server", "connection refused")
            if (held := self._homes.hanging.get(self._url)) is not None:
                held.wait(10)
            return call(*args)

        return guarded


@pytest.fixture
def homes() -> Homes:
    return Homes()


@contextmanager
def opened(homes: Homes, text: str) -> Iterator[CellsStore]:
    store = open_cells(*read_cells(text, "cells.toml"), homes.open)
    try:
        yield store
    finally:
        store.close()


def claim(store: CellsStore, count: int = 100, queue: str = "orders") -> list[Lease]:
    return store.claim([Want(queue, count)], "w", LEASE)


def drafts(**fields: Any) -> list[Draft]:
    return [Draft("work", queue="orders", tenant=tenant, **fields) for tenant in TENANTS]


def test_an_id_carries_its_cell_and_stays_below_2_to_53() -> None:
    assert CellIds(0).outside(7) == 7
    last = CellIds(1023).outside(2**43 - 1)
    assert last == 2**53 - 1
    assert cell_of(last) == 1023
    assert CellIds(1023).local(last) == 2**43 - 1
    assert CellIds(1).local(last) == 0
    with pytest.raises(StoreFailed, match="exceeds"):
        CellIds(1).outside(2**43)


def test_a_tenant_lives_in_one_cell_and_every_verb_finds_its_jobs(homes: Homes) -> None:
    with opened(homes, file()) as store:
        store.put_spec(QueueSpec(name="orders", eligibility=InOrder(per="tenant")))
        for _ in range(3):
            store.enqueue(drafts())
        by_tenant: dict[str | None, set[int]] = {}
        for job in store.browse(Query(queue="orders"), 0, 1_000).jobs:
            by_tenant.setdefault(job.tenant, set()).add(cell_of(job.id))
        assert all(len(cells) == 1 for cells in by_tenant.values())
        assert set().union(*by_tenant.values()) == {0, 1}
        order: dict[str | None, list[int]] = {}
        while leases := claim(store):
            assert len({lease.job.tenant for lease in leases}) == len(leases)
            for lease in leases:
                order.setdefault(lease.job.tenant, []).append(lease.job.id)
            assert set(store.settle([(lease, Ack()) for lease in leases])) == {Settled.APPLIED}
        assert {tenant: len(ids) for tenant, ids in order.items()} == dict.fromkeys(TENANTS, 3)
        assert all(ids == sorted(ids) for ids in order.values())


def test_what_is_seen_of_a_queue_in_several_cells_is_the_whole_of_it(homes: Homes) -> None:
    with opened(homes, file()) as store:
        store.put_spec(QueueSpec(name="orders"))
        store.enqueue(drafts())
        store.enqueue([Draft("work", queue="mail")] * 5)
        assert store.queues("", 10) == ["mail", "orders"]
        assert [(each.queue, each.depth) for each in store.backlog()] == [("mail", 5), ("orders", 12)]
        totals = store.totals(1)
        assert (totals.queues, totals.ready, [each.depth for each in totals.deepest]) == (2, 17, [12])
        pages, after = [], 0
        while True:
            page = store.browse(Query(), after, 3)
            pages.append([job.id for job in page.jobs])
            if page.next is None:
                break
            after = page.next
        ids = [job_id for page_ids in pages for job_id in page_ids]
        assert len(ids) == 17
        assert ids == sorted(set(ids))
        assert store.browse(Query(), 2**62, 3).jobs == []
        store.pause("orders")
        assert claim(store) == []
        store.resume("orders")
        assert len(claim(store, 12)) == 12
        assert MAP_LOG not in [spec.name for spec in store.specs()]


def test_claims_take_turns_among_cells(homes: Homes) -> None:
    with opened(homes, file()) as store:
        store.enqueue(drafts() * 10)
        assert {cell_of(lease.job.id) for _ in range(4) for lease in claim(store, 1)} == {0, 1}


BY = {
    by: f'orders = {{ partitions = 8, by = "{by}", cells = ["a", "b"] }}' for by in ("tenant", "subject", "key", "id")
}


@pytest.mark.parametrize(
    ("by", "axes", "complaint"),
    [
        ("tenant", {"eligibility": AtMost(5)}, "AtMost counts the whole queue"),
        ("tenant", {"eligibility": AtMost(5, per="subject")}, 'AtMost counts each subject.*use per="tenant"'),
        ("tenant", {"eligibility": Rate(5)}, "Rate counts the whole queue"),
        ("tenant", {"eligibility": InOrder(per="subject")}, "InOrder orders each subject"),
        ("tenant", {"eligibility": Until("stock")}, "holds the whole queue"),
        ("tenant", {"share": Fair()}, "shares by tenant count the whole queue"),
        ("tenant", {"capacity": Bounded(5)}, "its bound counts the whole queue"),
        ("tenant", {"selection": Priority()}, "Priority orders the whole queue"),
        ("tenant", {"selection": Deadline()}, "Deadline orders the whole queue"),
        ("tenant", {"merge": LatestWins()}, 'merges by subject.*by = "subject"'),
        ("tenant", {"unique": While()}, "a key is unique in the whole queue"),
        ("tenant", {"routing": Routing(dead=DeadLetters(limit=5))}, "a number of dead letters"),
        ("id", {"eligibility": InOrder(per="tenant")}, "InOrder orders each tenant"),
        ("tenant", {"retention": Retained(2)}, "a log has partitions of its own"),
        ("tenant", {"routing": Routing(dead=DeadLetters(queue="graves"))}, "is not in a, b"),
    ],
)
def test_a_promise_that_partitions_cannot_keep_is_refused(
    by: str, axes: dict[str, Any], complaint: str, homes: Homes
) -> None:
    with opened(homes, file(BY[by])) as store:
        with pytest.raises(Invalid, match=complaint):
            store.put_spec(QueueSpec(name="orders", **axes))
        assert store.specs() == []
        store.put_spec(QueueSpec(name="elsewhere", **axes))


@pytest.mark.parametrize(
    ("by", "axes"),
    [
        ("tenant", {"eligibility": AtMost(5, per="tenant") & InOrder(per="tenant")}),
        ("tenant", {"eligibility": Rate(5, per="tenant")}),
        ("subject", {"merge": LatestWins()}),
        ("key", {"unique": While()}),
        ("id", {}),
    ],
)
def test_a_promise_by_the_field_of_the_partition_is_kept(by: str, axes: dict[str, Any], homes: Homes) -> None:
    with opened(homes, file(BY[by])) as store:
        store.put_spec(QueueSpec(name="orders", **axes))
        assert [spec.name for cell in store.cells().values() for spec in cell.specs()] == ["orders", "orders"]


def test_queues_that_decide_together_live_together(homes: Homes) -> None:
    with opened(homes, file('mail = "b"')) as store:
        store.put_spec(QueueSpec(name="mail", eligibility=AtMost(1, shared="gpu")))
        with pytest.raises(Invalid, match="shares the cap gpu with 'mail'"):
            store.put_spec(QueueSpec(name="other", eligibility=AtMost(1, shared="gpu")))
        with pytest.raises(Invalid, match="a broker with a route to 'mail'"):
            store.put_spec(QueueSpec(name="broker", fan_out=FanOut((Route("**", "mail"),))))


def test_a_key_is_unique_in_the_whole_queue_or_refused(homes: Homes) -> None:
    with opened(homes, file()) as store, pytest.raises(Invalid, match="partitioned by tenant"):
        store.enqueue(drafts(key="once"))
    with opened(homes, file(SPREAD.replace("cells", 'keys = "cell", cells'), version=2)) as store:
        named = [Draft("work", queue="orders", tenant=tenant, key=f"{tenant}:once") for tenant in TENANTS]
        assert len({receipt.id for receipt in store.enqueue(named * 2)}) == len(TENANTS)
    with opened(Homes(), file(BY["key"])) as store:
        assert len({receipt.id for receipt in store.enqueue(drafts(key="once"))}) == 1


def test_by_id_a_call_is_all_or_nothing(homes: Homes) -> None:
    with opened(homes, file(BY["id"])) as store:
        calls = [{cell_of(each.id) for each in store.enqueue([Draft("work", queue="orders")] * 9)} for _ in range(8)]
        assert all(len(cells) == 1 for cells in calls)
        assert set().union(*calls) == {0, 1}


def test_a_call_over_several_cells_says_what_is_done(homes: Homes) -> None:
    with opened(homes, file('small = "b"')) as store:
        store.put_spec(QueueSpec(name="small", capacity=Bounded(1)))
        mixed = [Draft("work", queue="large"), Draft("work", queue="small"), Draft("work", queue="small")]
        with pytest.raises(PartlyDone, match="1 of 3 items are done") as caught:
            store.enqueue(mixed)
        first, *others = caught.value.answers
        assert (getattr(first, "id", None), others) == (1, [None, None])
        assert isinstance(caught.value.cause, QueueFull)
        with pytest.raises(QueueFull):
            store.enqueue(mixed[1:] + mixed[:1])
        assert store.backlog(["large"])[0].depth == 1


def test_a_limit_of_promotions_is_that_of_all_cells(homes: Homes) -> None:
    with opened(homes, file('mail = "a"\nnews = "b"')) as store:
        store.enqueue([Draft("work", queue=queue, delay=1) for queue in ("mail", "news") for _ in range(2)])
        assert [store.promote(limit).ready for limit in (1, 2, 2)] == [1, 2, 1]


def test_a_cell_in_which_much_is_due_does_not_keep_promotions_from_the_others(homes: Homes) -> None:
    with opened(homes, file('mail = "a"\nnews = "b"')) as store:
        store.enqueue([Draft("work", queue=queue, delay=1) for queue in ("mail", "mail", "mail", "mail", "news")])
        assert [store.promote(1).ready for _ in range(2)] == [1, 1]
        assert [cell.promote(10).ready for cell in store.cells().values()] == [3, 0]


@pytest.mark.parametrize("verb", ["redrive", "replace"])
def test_a_redrive_and_a_replacement_over_several_cells_say_what_is_done(verb: str, homes: Homes) -> None:
    with opened(homes, file('mail = "a"\nnews = "b"')) as store:
        store.enqueue([Draft("work", queue=queue) for queue in ("mail", "news")])
        leases = store.claim([Want(queue, 1) for queue in ("mail", "news")], "w", LEASE)
        store.settle([(lease, DeadLetter(Failure("Boom", "it broke"))) for lease in leases])
        pairs = [(lease.job.id, Draft("work", queue=lease.job.queue)) for lease in leases]
        store.put_spec(QueueSpec(name="news", capacity=Bounded(1)))
        store.enqueue([Draft("work", queue="news")])

        def call(some: list[tuple[int, Draft]]) -> object:
            return store.redrive([job_id for job_id, _ in some]) if verb == "redrive" else store.replace_dead(some)

        with pytest.raises(QueueFull):
            call(pairs[::-1])
        with pytest.raises(PartlyDone) as caught:
            call(pairs)
        assert [each is None for each in caught.value.answers] == [False, True]
        assert isinstance(caught.value.cause, QueueFull)


def test_a_dead_letter_of_a_queue_by_key_is_replaced_in_its_cell(homes: Homes) -> None:
    with opened(homes, file('unique = { partitions = 8, by = "key", cells = ["a", "b"] }')) as store:
        store.enqueue([Draft("work", queue="unique", key=f"k{number}") for number in range(8)])
        leases = store.claim([Want("unique", 8)], "w", LEASE)
        assert {cell_of(lease.job.id) for lease in leases} == {0, 1}
        store.settle([(lease, DeadLetter(Failure("Boom", "it broke"))) for lease in leases])
        receipts = store.replace_dead([(lease.job.id, Draft("work", queue="unique")) for lease in leases])
        cells = [cell_of(lease.job.id) for lease in leases]
        assert [each and cell_of(each.id) for each in receipts] == cells


def test_a_schedule_fires_once_and_moves_with_its_queue(homes: Homes) -> None:
    with opened(homes, file('mail = "b"')) as store:
        at = store.now()
        draft = Draft("work", queue="other")
        for each in (Draft("work", queue="mail"), draft):
            store.put_schedule(Schedule("nightly", "@daily", at, each))
            assert [schedule.draft for schedule in store.schedules()] == [each]
        with pytest.raises(Invalid, match="kept in cell 'a', where queue 'mail' does not live"):
            store.fire("nightly", at, at + 1, Draft("work", queue="mail"))
        assert [store.fire("nightly", at, at + 1, draft) for _ in range(2)] == [True, False]
        assert store.backlog(["other"])[0].ready == 1
        assert store.drop_schedule("nightly")
        assert not store.drop_schedule("nightly")


def test_each_cell_has_its_own_ledger_with_the_ids_of_all(tmp_path: Path) -> None:
    path = tmp_path / "cells.toml"
    path.write_text(file().replace("memory://", f"sqlite:///{tmp_path}/"))
    store = open_store(f"cells:{path}")
    assert isinstance(store, CellsStore)
    ids = {receipt.id for receipt in store.enqueue(drafts())}
    ranges = [
        job_range
        for cell in store.cells().values()
        for entry in cell.ledger(-1, 100)
        for job_range in entry.record.ranges
    ]
    assert {job_range.first + place for job_range in ranges for place in range(job_range.n)} == ids
    assert (store.ledger_rule().on, store.ledger_extent(), store.ledger(-1, 1)) == (False, (0, 0), [])
    store.close()
    with pytest.raises(Unsupported, match="give the URL of one cell"):
        open_ledger(f"cells:{path}")


# -- one map for all


def test_a_file_that_differs_is_refused_by_name(homes: Homes) -> None:
    with opened(homes, file()):
        pass
    with pytest.raises(Invalid, match=r"cell a: it has agreed on version 1, which differs in queues.orders"):
        open_cells(*read_cells(file(SPREAD.replace("8", "16")), "other.toml"), homes.open)


def test_a_twin_is_refused(homes: Homes) -> None:
    text = file().replace("memory://b", "memory://A")

    def same(url: str) -> Backend:
        return homes.open(url.lower())

    with pytest.raises(Invalid, match="cell b: its store is that of cell 'a'"):
        open_cells(*read_cells(text, "cells.toml"), same)


@pytest.mark.parametrize("cell", "ab")
def test_another_store_in_place_of_a_cell_is_refused_until_the_file_has_its_next_version(
    cell: str, homes: Homes
) -> None:
    with opened(homes, file()) as store:
        store.enqueue(drafts())
    for other in ("memory://empty", "memory://elsewhere"):
        elsewhere = file().replace("memory://", "memory://other-").replace(f"memory://other-{cell}", other)
        if other == "memory://elsewhere":
            open_cells(*read_cells(elsewhere, "cells.toml"), homes.open).close()
        wrong = file().replace(f"memory://{cell}", other)
        with pytest.raises(
            Invalid, match=r"cell \w: cell \w has agreed with another store as \w, and its jobs are there"
        ):
            open_cells(*read_cells(wrong, "cells.toml"), homes.open)
    assert homes.backends["memory://empty"].specs() == [], "nothing is agreed with it"
    with opened(homes, file().replace("memory://b", "memory://new").replace("version = 1", "version = 2")) as store:
        assert store.totals(1).ready < len(TENANTS)
    with opened(homes, file(version=2).replace("memory://b", "memory://new")) as store:
        assert len(store.enqueue(drafts())) == len(TENANTS)
    with pytest.raises(Invalid, match="cell b: cell a has agreed with another store as b"):
        open_cells(*read_cells(file(), "cells.toml"), homes.open)


def test_of_two_that_agree_at_once_with_different_stores_the_second_is_refused(homes: Homes) -> None:
    first: list[CellsStore] = []

    class Slow(Proxy):
        def append(self, *args: Any) -> Any:
            if not first:
                first.append(open_cells(*read_cells(file(), "cells.toml"), homes.open))
            return homes.backends["memory://x"].append(*args)

    def open_slowly(url: str) -> Backend:
        backend = homes.open(url)
        return cast(Backend, Slow(homes, url)) if url == "memory://x" else backend

    with pytest.raises(Invalid, match="has agreed with another store as b"):
        open_cells(*read_cells(file().replace("memory://b", "memory://x"), "cells.toml"), open_slowly)
    first[0].close()


def test_a_cell_that_does_not_answer_at_the_start_is_refused_and_nothing_is_agreed(homes: Homes) -> None:
    homes.failing.add("memory://b")
    with pytest.raises(StoreFailed, match="cell b failed: connection refused; every cell has to answer"):
        open_cells(*read_cells(file(), "cells.toml"), homes.open)
    assert homes.backends["memory://a"].specs() == []


def test_jobs_that_would_be_lost_from_sight_refuse_a_new_version(homes: Homes) -> None:
    with opened(homes, file()) as store:
        store.enqueue(drafts())
    for changed in (file(SPREAD.replace("8", "16"), version=2), file("", version=2), file(SPREAD, 2, cells="a")):
        with pytest.raises(Invalid, match=r"without a move; partitions and by stay|there is no cell 'b'"):
            open_cells(*read_cells(changed, "cells.toml"), homes.open)
    with opened(homes, file(SPREAD + '\nmail = "c"', version=2, cells="abc")) as store:
        assert store.get([store.enqueue([Draft("work", queue="mail")])[0].id])[0] is not None
        assert len(claim(store, 12)) == 12


def test_a_store_that_holds_jobs_becomes_a_cell_where_these_live(homes: Homes) -> None:
    homes.open("memory://b").enqueue([Draft("work", queue="mail")])
    with pytest.raises(Invalid, match="cell b: queue 'mail' holds jobs, and cell b became cell a without a move"):
        open_cells(*read_cells(file(), "cells.toml"), homes.open)
    with opened(homes, file('mail = "b"')) as store:
        assert [cell_of(lease.job.id) for lease in claim(store, queue="mail")] == [1]


def test_a_process_with_an_older_map_follows_or_stops_routing(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.store.cells.guard._CHECK_SECONDS", 0.01)
    with opened(homes, file()) as old:
        old.enqueue([Draft("work")])
        with opened(homes, file(SPREAD + '\nmail = "b"', version=2)):
            eventually(lambda: old.backend.group.map.version == 2, "the newer map is followed")
        assert cell_of(old.enqueue([Draft("work", queue="mail")])[0].id) == 1
        with opened(homes, file(SPREAD + '\nmail = "b"\nnews = "c"', version=3, cells="abc")):
            eventually(lambda: all(cell.guard.down for cell in old.backend.group.cells), "a cell without an address")
        with pytest.raises(CellDown, match=r"cell c: the agreed map, version 3.*the file has no such cell"):
            old.enqueue([Draft("work")])


# -- a cell that is down


def test_a_cell_that_fails_holds_up_no_other(homes: Homes) -> None:
    with opened(homes, file()) as store:
        store.enqueue(drafts())
        leases = claim(store, 12)
        there = {lease.fence for lease in leases if cell_of(lease.job.id) == 1}
        homes.failing.add("memory://b")
        with pytest.raises(PartlyDone) as caught:
            store.settle([(lease, Ack()) for lease in leases])
        unanswered = {lease.fence for lease, each in zip(leases, caught.value.answers, strict=True) if each is None}
        assert unanswered == there
        assert {lease.fence for lease in store.extend(leases, LEASE)} == there
        assert store.capabilities.unsafe == ("b: connection refused",)
        assert [each.queue for each in store.backlog(["orders"])] == ["orders"]
        assert claim(store) == []
        with pytest.raises(CellDown, match="cell b failed"):
            store.get([next(iter(there))[0]])
        with pytest.raises(CellDown, match="cell b failed"):
            store.browse(Query(), 0, 100)
        homes.failing.clear()
        eventually(lambda: not store.capabilities.unsafe, "cell b is back")
        left = [lease for lease in leases if lease.fence in there]
        assert set(store.settle([(lease, Ack()) for lease in left])) == {Settled.APPLIED}


def test_drafts_of_living_cells_are_accepted_beside_those_of_a_dead_one(homes: Homes) -> None:
    with opened(homes, file('mail = "a"\nnews = "b"\nbills = "c"', cells="abc")) as store:
        store.put_spec(QueueSpec(name="bills", capacity=Bounded(1)))
        homes.failing.add("memory://b")
        mixed = [Draft("work", queue=queue) for queue in ("news", "mail", "bills", "bills")]
        with pytest.raises(PartlyDone, match="1 of 4 items are done") as caught:
            store.enqueue(mixed)
        assert [each is None for each in caught.value.answers] == [True, False, True, True]
        assert [type(cause) for cause in caught.value.causes] == [CellDown, type(None), QueueFull, QueueFull]
        with pytest.raises(PartlyDone, match="2 of 3 items are done"):
            store.enqueue(mixed[:3])
        with pytest.raises(CellDown):
            store.enqueue([mixed[0], mixed[0]])
        with pytest.raises(PartlyDone, match="0 of 3 items are done") as caught:
            store.enqueue([mixed[0], mixed[2], mixed[3]])
        assert [type(cause) for cause in caught.value.causes] == [CellDown, QueueFull, QueueFull]


def test_where_all_cells_fail_the_claim_fails(homes: Homes) -> None:
    with opened(homes, file()) as store:
        homes.failing.update(["memory://a", "memory://b"])
        with pytest.raises(StoreFailed):
            claim(store)


def test_a_slow_cell_costs_its_deadline_once_and_its_late_claims_are_undone(homes: Homes) -> None:
    with opened(homes, file(more="deadline = 0.05")) as store:
        store.enqueue(drafts())
        held = homes.hanging["memory://b"] = Event()
        found = [lease for _ in range(3) for lease in claim(store)]
        assert {cell_of(lease.job.id) for lease in found} == {0}
        assert store.capabilities.unsafe == ("b: it did not answer within 0.05 s",)
        del homes.hanging["memory://b"]
        held.set()
        eventually(lambda: not store.capabilities.unsafe, "cell b is back")
        eventually(lambda: len(found) + store.backlog(["orders"])[0].ready == 12, "the late claim is handed back")
        again = claim(store)
        assert len(found) + len(again) == 12
        assert all(lease.job.attempt == 1 for lease in again)


def test_leases_that_ended_in_an_outage_are_not_reaped_at_once(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(homes, file('mail = "b"')) as store:
        store.enqueue([Draft("work", queue="mail")])
        store.claim([Want("mail", 1)], "w", timedelta(milliseconds=1))
        homes.failing.add("memory://b")
        store.promote(1)
        homes.failing.clear()
        eventually(lambda: not store.capabilities.unsafe, "cell b is back")
        assert store.overdue(10) == []
        monkeypatch.setattr("forebay.store.cells.guard._RENEWED_WITHIN", -1_000.0)
        assert len(store.overdue(10)) == 1


def test_a_settler_writes_on_while_a_cell_is_down(homes: Homes) -> None:
    with opened(homes, file()) as store:
        store.enqueue(drafts())
        settler = Settler(store, pause=lambda _: None)
        leases = claim(store, 12)
        homes.failing.add("memory://b")
        settler.put([(lease, Ack()) for lease in leases if cell_of(lease.job.id) == 1])
        settler.step()
        settler.put([(lease, Ack()) for lease in leases if cell_of(lease.job.id) == 0])
        settler.step()
        down = sum(cell_of(lease.job.id) == 1 for lease in leases)
        assert (settler.applied, settler.pending) == (12 - down, down)
        homes.failing.clear()
        eventually(lambda: not store.capabilities.unsafe, "cell b is back")
        settler.step()
        assert (settler.applied, settler.pending) == (12, 0)


def test_a_wait_in_several_cells_is_woken_by_any_of_them(homes: Homes) -> None:
    with opened(homes, file()) as store:
        assert not store.wait(["orders"], timedelta(milliseconds=1))
        for tenant in TENANTS:
            job = store.enqueue([Draft("work", queue="orders", tenant=tenant)])[0].id
            assert store.wait(["orders"], minutes(1))
            (lease,) = claim(store)
            store.cancel([job])
            assert store.wait_cancel_requests("w", minutes(1)) == [lease.fence]
            store.settle([(lease, DeadLetter(Failure("E", "no")))])
            assert store.wait_ended([job, lease.job.id], seconds(60)) == [job, job]
        assert store.totals(1).dead + store.totals(1).cancelled == len(TENANTS)
        dead = [job.id for job in store.browse(Query(state=State.DEAD), 0, 100).jobs]
        assert store.redrive([*dead, 2**52]) == dead


# -- files


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("version = ", "Invalid value"),
        (file(version=0), "0 is not an integer in 1"),
        ("version = 1\n[queues]\n'*' = 'a'", r"no \[cells.NAME\]"),
        (file(cells="a"), "there is no cell 'b'"),
        (file().replace("number = 1", "number = 0"), "two of them have the same number"),
        (file().replace("number = 1", "number = 1024"), "number = 1024 is not an integer in 0 … 1023"),
        (file().replace("memory://b", "memory://a"), "two of them have the same url"),
        (file().replace("memory://b", "cells:more.toml"), "no url of a store"),
        (file(more="deadline = 0"), "deadline = 0 is not a number of seconds"),
        (file(more="color = 1"), "color is not known here"),
        (file(SPREAD.replace("tenant", "size")), "by = 'size'"),
        (file(SPREAD.replace("8", "1")), "partitions = 1 is not an integer in 2"),
        (file(SPREAD.replace("8", "9999")), "partitions = 9999 is not an integer in 2 … 1024"),
        (file("orders = { partitions = 8 }"), "it names no cells"),
        (file('orders = { partitions = 2, cells = ["a", "b"] }'), "by = None"),
    ],
)
def test_a_bad_file_is_refused_by_its_place(text: str, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        read_cells(text, "cells.toml")


@pytest.mark.parametrize("url", ["cells:", "cells://host/cells.toml", "cells:missing.toml"])
def test_a_url_names_a_file(url: str) -> None:
    with pytest.raises(Invalid, match="store URL"):
        open_store(url)
