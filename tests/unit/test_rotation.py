"""How a worker divides its room over its queues: evenly, or by weights, and nothing of it stays unused."""

import pytest

from forebay.cli.worker import weighted
from forebay.core.errors import Invalid
from forebay.core.instant import seconds
from forebay.core.job import Draft
from forebay.core.lease import Lease
from forebay.store.memory.store import MemoryStore
from forebay.store.protocol import Want
from forebay.work.capacity import MAX_QUEUES, QueueRotation
from forebay.work.options import Options


def shares(turns: QueueRotation, room: int, times: int) -> dict[str, int]:
    """What is asked of each queue while all of them have work."""
    requested: dict[str, int] = {}
    for _ in range(times):
        for want in turns.wants(room):
            requested[want.queue] = requested.get(want.queue, 0) + want.count
    return requested


def leases(store: MemoryStore, wants: list[Want]) -> list[Lease]:
    return store.claim(wants, "ada", seconds(10))


@pytest.mark.parametrize("room", [1, 2, 3, 7, 100])
def test_room_is_divided_by_weights_whatever_its_size(room: int) -> None:
    requested = shares(QueueRotation(["mail", "media", "rest"], {"mail": 3, "media": 2}), room, 600)
    assert sum(requested.values()) == 600 * room
    for queue, part in {"mail": 3 / 6, "media": 2 / 6, "rest": 1 / 6}.items():
        assert requested[queue] == pytest.approx(part * 600 * room, abs=6)


def test_without_weights_all_have_the_same_and_nothing_is_asked_twice() -> None:
    turns = QueueRotation(["mail", "media"], {})
    assert shares(turns, 5, 10) == {"mail": 25, "media": 25}
    assert turns.more(5, [Want("mail", 3), Want("media", 2)], []) == []


def test_one_queue_has_all_the_room() -> None:
    assert QueueRotation(["mail"], {"mail": 7}).wants(5) == [Want("mail", 5)]


def test_what_an_empty_queue_leaves_goes_to_the_others_at_once() -> None:
    store = MemoryStore()
    store.enqueue([Draft("k", queue="media")] * 20)
    turns = QueueRotation(["mail", "media"], {"mail": 3})
    wants = turns.wants(8)
    assert {want.queue: want.count for want in wants} == {"mail": 6, "media": 2}
    found = leases(store, wants)
    more = turns.more(8, wants, found)
    assert more == [Want("media", 6)]
    assert len(found) + len(leases(store, more)) == 8


def test_a_queue_that_was_not_asked_is_asked_when_the_others_are_empty() -> None:
    turns = QueueRotation(["mail", "media"], {"mail": 3})
    wants = turns.wants(1)
    assert wants == [Want("mail", 1)]
    assert turns.more(1, wants, []) == [Want("media", 1)]


def test_where_all_are_empty_none_is_asked_again() -> None:
    turns = QueueRotation(["mail", "media"], {"mail": 3})
    assert turns.more(8, turns.wants(8), []) == []


def test_an_empty_queue_saves_nothing_up() -> None:
    turns = QueueRotation(["mail", "media"], {"mail": 3, "media": 3})
    for _ in range(50):
        wants = turns.wants(1)
        turns.more(1, wants, [])
    assert shares(turns, 6, 1) == {"mail": 3, "media": 3}


def test_a_claim_covers_few_of_many_queues_and_the_next_ones_cover_the_others() -> None:
    queues = [f"q{number}" for number in range(10 * MAX_QUEUES)]
    rotation = QueueRotation(queues, {})
    claims = [rotation.wants(500) for _ in range(10)]
    assert all(len(wants) == MAX_QUEUES and sum(want.count for want in wants) == 500 for wants in claims)
    assert [want.queue for wants in claims for want in wants] == queues
    assert shares(rotation, 3, len(queues)) == dict.fromkeys(queues, 3)


def test_all_queues_are_empty_only_after_each_was_asked() -> None:
    rotation = QueueRotation([f"q{number}" for number in range(3 * MAX_QUEUES)], {})
    assert [rotation.all_empty(rotation.wants(500), []) for _ in range(6)] == [False, False, True] * 2
    store = MemoryStore()
    store.enqueue([Draft("k", queue="q0")])
    wants = rotation.wants(500)
    assert not rotation.all_empty(wants, leases(store, wants))
    assert [rotation.all_empty(rotation.wants(500), []) for _ in range(3)] == [False, False, True]


def test_weights_on_the_command_line() -> None:
    assert weighted("mail=3, media") == {"mail": 3, "media": None}
    for words in ("mail=x", "mail=", "mail=-1", "mail=1.5"):
        with pytest.raises(Invalid, match="is not a number"):
            weighted(words)


@pytest.mark.parametrize("weights", [{"other": 1}, {"mail": 0}, {"mail": 1_001}])
def test_weights_that_make_no_sense_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        Options(queues=("mail",), weights=weights)
