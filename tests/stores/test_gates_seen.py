"""A look at the gates that are in use: `Gated`, which every store here has."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay.core.outcome import Ack
from forebay.core.policy import AtMost, InOrder, Until
from forebay.core.spec import QueueSpec
from forebay.store.open import open_store
from forebay.store.protocol import Gated, GateUse, Store, Want

LONG = timedelta(minutes=1)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    store = open_store(urls.get(request.param) or request.getfixturevalue("cleared_url"))
    yield store
    store.close()


def seen(store: Store, limit: int = 100, prefix: str = "") -> dict[str, tuple[int, int, int]]:
    """By name: slots, held, parked; put together from pages."""
    assert isinstance(store, Gated)
    found: list[GateUse] = []
    while page := store.gates(found[-1].name if found else "", limit, prefix):
        assert len(page) <= limit
        found += page
    assert [each.name for each in found] == sorted({each.name for each in found})
    return {each.name: (each.slots, each.held, each.parked) for each in found}


def test_gates_are_seen_while_somebody_is_at_them(store: Store) -> None:
    store.put_spec(QueueSpec(name="capped", eligibility=AtMost(2)))
    store.put_spec(QueueSpec(name="lined", eligibility=InOrder(per="subject")))
    store.put_spec(QueueSpec(name="shut", eligibility=Until("go")))
    assert seen(store) == {}
    store.enqueue([Draft("k", n, "capped") for n in range(5)])
    store.enqueue([Draft("k", n, "lined", subject=f"s{n % 2}") for n in range(4)])
    store.enqueue([Draft("k", None, "shut")])
    leases = store.claim([Want("capped", 1)], "w", LONG)
    whole = {
        "cap/capped": (2, 2, 3),
        "order/lined/subject/s0": (1, 1, 1),
        "order/lined/subject/s1": (1, 1, 1),
        "until/go": (0, 0, 1),
    }
    assert seen(store) == whole
    assert seen(store, limit=1) == whole
    for prefix in ("cap/capped", "cap/", "order/lined/subject/s0", "order/lined", "until/none", "o"):
        begun = {name: use for name, use in whole.items() if name.startswith(prefix)}
        assert seen(store, 1, prefix) == seen(store, 9, prefix) == begun
    store.settle([(lease, Ack()) for lease in leases])
    assert seen(store)["cap/capped"] == (2, 2, 2)


def test_an_operators_number_shows_and_a_line_stays_a_line(store: Store) -> None:
    store.put_spec(QueueSpec(name="capped", eligibility=AtMost(2)))
    store.put_spec(QueueSpec(name="lined", eligibility=InOrder(per="subject")))
    store.enqueue([Draft("k", n, "capped") for n in range(5)])
    store.enqueue([Draft("k", n, "lined", subject="s") for n in range(3)])
    store.set_gate("cap/capped", 4)
    store.set_gate("order/lined/subject/s", 7)
    assert seen(store) == {"cap/capped": (4, 4, 1), "order/lined/subject/s": (1, 1, 2)}
    assert isinstance(store, Gated)
    assert [each.given for each in store.gates("", 9)] == [4, 7]
    store.set_gate("cap/capped", None)
    assert [each.given for each in store.gates("", 9)] == [None, 7]
    store.set_gate("cap/capped", 4)
    store.set_gate("order/lined/subject/s", 0)
    assert seen(store)["order/lined/subject/s"] == (0, 1, 2)
    while leases := store.claim([Want("capped", 10)], "w", LONG):
        store.settle([(lease, Ack()) for lease in leases])
    assert "cap/capped" not in seen(store)


@pytest.mark.parametrize(("after", "limit"), [("", 0), ("", 1_001), (None, 1), ("a\0", 1)])
def test_what_is_no_page_is_refused(store: Store, after: str, limit: int) -> None:
    assert isinstance(store, Gated)
    with pytest.raises(Invalid):
        store.gates(after, limit)
    with pytest.raises(Invalid):
        store.gates("", 1, "a\0")


def test_names_are_in_the_order_of_their_code_points(store: Store) -> None:
    subjects = ["a", "B", "a-b", "a b", "é", "z", "_", "\U0001f600", "~"]
    store.put_spec(QueueSpec(name="lined", eligibility=InOrder(per="subject")))
    store.enqueue([Draft("k", None, "lined", subject=subject) for subject in subjects])
    assert len(seen(store, limit=2)) == len(subjects)
