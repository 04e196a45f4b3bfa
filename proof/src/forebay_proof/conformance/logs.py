"""Retained logs: dense offsets, one partition a key, groups with their own places, replay and trimming."""

from contextlib import suppress

from forebay.core.entries import LogEntry
from forebay.core.errors import Invalid, OffsetGone, WrongQueueKind
from forebay.core.policy import Bounded, Retained
from forebay.core.spec import QueueSpec
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import Harness
from forebay_proof.conformance.racing import answers, race


def _log(h: Harness, partitions: int = 1) -> None:
    h.spec("log", retention=Retained(partitions))


def _append(h: Harness, *numbers: int, key: str | None = None) -> list[LogEntry]:
    return h.store.append("log", [b"%d" % number for number in numbers], [key] * len(numbers))


def _bodies(h: Harness, after: int = -1, limit: int = 100, partition: int = 0) -> list[bytes]:
    return [entry.body for entry in h.store.read("log", partition, after, limit)]


@case
def offsets_are_dense_from_zero(h: Harness) -> None:
    _log(h)
    written = _append(h, 1, 2) + _append(h, 3)
    assert [entry.offset for entry in written] == [0, 1, 2]
    assert h.store.read("log", 0, -1, 10) == written
    assert h.store.extent("log") == [(0, 3)]


@case
def an_entry_reads_back_as_it_was_written(h: Harness) -> None:
    _log(h)
    start = h.now()
    (entry,) = h.store.append("log", ['{"a":"ä"}'.encode()], ["k"])
    assert (entry.partition, entry.offset, entry.body, entry.key) == (0, 0, '{"a":"ä"}'.encode(), "k")
    assert start <= entry.at <= h.now()
    assert h.store.read("log", 0, -1, 1) == [entry]


@case
def entries_of_one_key_go_to_one_partition_in_order(h: Harness) -> None:
    _log(h, partitions=4)
    written = [_append(h, number, key=f"k{number % 7}")[0] for number in range(70)]
    for key in {entry.key for entry in written}:
        entries = [entry for entry in written if entry.key == key]
        assert len({entry.partition for entry in entries}) == 1
        offsets = [entry.offset for entry in entries]
        assert offsets == sorted(set(offsets))
    assert len({entry.partition for entry in written}) > 1


@case
def entries_without_a_key_go_round(h: Harness) -> None:
    _log(h, partitions=4)
    _append(h, *range(20))
    assert h.store.extent("log") == [(0, 5)] * 4


@case
def every_partition_is_dense(h: Harness) -> None:
    _log(h, partitions=3)
    for number in range(30):
        _append(h, number, key=f"k{number % 11}" if number % 3 else None)
    extents = h.store.extent("log")
    assert sum(following for _, following in extents) == 30
    for partition, (_, following) in enumerate(extents):
        assert [entry.offset for entry in h.store.read("log", partition, -1, 100)] == list(range(following))


@case
def reading_goes_on_after_an_offset(h: Harness) -> None:
    _log(h)
    _append(h, *range(5))
    assert _bodies(h, after=-1, limit=2) == [b"0", b"1"]
    assert _bodies(h, after=1, limit=2) == [b"2", b"3"]
    assert _bodies(h, after=3, limit=2) == [b"4"]
    assert _bodies(h, after=4) == []


@case
def reading_beyond_the_end_finds_nothing_yet(h: Harness) -> None:
    _log(h)
    assert _bodies(h) == []
    assert _bodies(h, after=10) == []


@case
def groups_keep_their_own_positions(h: Harness) -> None:
    _log(h, partitions=2)
    _append(h, *range(8))
    assert h.store.position("log", "a", 0) == -1
    assert h.store.commit("log", "a", 0, 2) == 2
    assert h.store.commit("log", "b", 0, 1) == 1
    places = [h.store.position("log", group, partition) for group in ("a", "b") for partition in (0, 1)]
    assert places == [2, -1, 1, -1]


@case
def a_position_only_moves_forward(h: Harness) -> None:
    _log(h)
    _append(h, *range(5))
    h.store.commit("log", "g", 0, 3)
    assert h.store.commit("log", "g", 0, 1) == 3
    assert h.store.commit("log", "g", 0, 3) == 3
    assert h.store.position("log", "g", 0) == 3


@case
def a_position_can_be_rewound_to_replay_the_log(h: Harness) -> None:
    _log(h)
    written = _append(h, *range(5))
    h.store.commit("log", "g", 0, 4)
    assert h.store.commit("log", "g", 0, -1, rewind=True) == -1
    assert h.store.read("log", 0, h.store.position("log", "g", 0), 10) == written
    assert h.store.commit("log", "g", 0, 2, rewind=True) == 2


@case
def what_was_not_written_cannot_be_committed(h: Harness) -> None:
    _log(h)
    _append(h, 0, 1)
    for offset in (2, 100, -2):
        refused(Invalid, lambda offset=offset: h.store.commit("log", "g", 0, offset))  # type: ignore[misc]
    assert h.store.position("log", "g", 0) == -1


@case
def trimming_drops_what_was_appended_before(h: Harness) -> None:
    _log(h)
    _append(h, 0, 1, 2)
    h.advance(h.short)
    before = h.now()
    _append(h, 3, 4)
    assert h.store.trim("log", before, 10) == 3
    assert h.store.extent("log") == [(3, 5)]
    assert _bodies(h, after=2) == [b"3", b"4"]
    assert h.store.trim("log", before, 10) == 0


@case
def trimming_is_bounded_and_from_the_front(h: Harness) -> None:
    _log(h)
    _append(h, *range(5))
    h.advance(1)
    assert h.store.trim("log", h.now(), 2) == 2
    assert h.store.extent("log") == [(2, 5)]
    assert [h.store.trim("log", h.now(), 2) for _ in range(3)] == [2, 1, 0]


@case
def trimming_reaches_every_partition(h: Harness) -> None:
    _log(h, partitions=3)
    _append(h, *range(9))
    h.advance(1)
    assert sum(h.store.trim("log", h.now(), 4) for _ in range(4)) == 9
    assert h.store.extent("log") == [(3, 3)] * 3


@case
def a_trimmed_offset_is_refused_and_the_first_one_named(h: Harness) -> None:
    _log(h)
    _append(h, *range(5))
    h.advance(1)
    h.store.trim("log", h.now(), 3)
    error = refused(OffsetGone, lambda: _bodies(h, after=0))
    assert (error.log, error.partition, error.requested, error.first) == ("log", 0, 1, 3)
    refused(OffsetGone, lambda: _bodies(h, after=-1))
    assert _bodies(h, after=error.first - 1) == [b"3", b"4"]


@case
def offsets_go_on_after_everything_was_trimmed(h: Harness) -> None:
    _log(h)
    _append(h, *range(3))
    h.store.commit("log", "g", 0, 1)
    h.advance(1)
    assert h.store.trim("log", h.now(), 10) == 3
    (entry,) = _append(h, 3)
    assert entry.offset == 3
    assert h.store.extent("log") == [(3, 4)]
    assert h.store.position("log", "g", 0) == 1
    refused(OffsetGone, lambda: _bodies(h, after=h.store.position("log", "g", 0)))


@case
def partitions_can_be_added_and_never_taken_away(h: Harness) -> None:
    _log(h, partitions=2)
    _append(h, *range(4))
    _log(h, partitions=3)
    assert h.store.extent("log") == [(0, 2), (0, 2), (0, 0)]
    with h.unchanged():
        refused(Invalid, lambda: _log(h, partitions=2))
    assert h.store.extent("log")[2] == (0, 0)


@case
def a_partition_that_does_not_exist_is_refused(h: Harness) -> None:
    _log(h, partitions=2)
    for partition in (2, -1):
        refused(Invalid, lambda partition=partition: _bodies(h, partition=partition))  # type: ignore[misc]
        refused(Invalid, lambda partition=partition: h.store.position("log", "g", partition))  # type: ignore[misc]
        refused(Invalid, lambda partition=partition: h.store.commit("log", "g", partition, -1))  # type: ignore[misc]


@case
def appending_nothing_changes_nothing(h: Harness) -> None:
    _log(h)
    with h.unchanged():
        assert h.store.append("log", []) == []


@case
def a_batch_with_a_bad_body_is_refused_whole(h: Harness) -> None:
    _log(h)
    with h.unchanged():
        for bad in (b"", b"{", b"NaN", b'"\\u0000"', b"\xff"):
            refused(Invalid, lambda bad=bad: h.store.append("log", [b"1", bad]))  # type: ignore[misc]
        refused(Invalid, lambda: h.store.append("log", [b"1", b"2"], ["only one"]))


@case
def a_log_is_not_a_queue(h: Harness) -> None:
    _log(h)
    error = refused(WrongQueueKind, lambda: h.one(queue="log"))
    assert (error.name, error.is_log) == ("log", True)
    refused(WrongQueueKind, lambda: h.spec("log"))


@case
def a_log_hands_out_no_jobs(h: Harness) -> None:
    """Whether a claim from a log is answered with nothing or refused is the store's affair."""
    _log(h)
    _append(h, 1)
    with suppress(WrongQueueKind):
        assert h.claim(1, "log") == []
    assert h.backlog("log").depth == 0


@case
def a_queue_is_not_a_log(h: Harness) -> None:
    h.spec("queue", capacity=Bounded(10))
    h.one(queue="used")
    for name in ("queue", "used", "unknown"):
        for verb in (
            lambda name=name: h.store.append(name, [b"1"]),
            lambda name=name: h.store.read(name, 0, -1, 1),
            lambda name=name: h.store.commit(name, "g", 0, -1),
            lambda name=name: h.store.extent(name),
            lambda name=name: h.store.trim(name, 0, 1),
        ):
            assert not refused(WrongQueueKind, verb).is_log


@case
def a_queue_cannot_become_a_log(h: Harness) -> None:
    h.spec("configured")
    h.one(queue="used")
    for name in ("configured", "used"):
        with h.unchanged():
            refused(WrongQueueKind, lambda name=name: h.spec(name, retention=Retained()))  # type: ignore[misc]


@case
def logs_do_not_share_anything(h: Harness) -> None:
    _log(h)
    h.spec("other", retention=Retained())
    _append(h, 1, 2)
    h.store.commit("log", "g", 0, 1)
    assert h.store.extent("other") == [(0, 0)]
    assert h.store.position("other", "g", 0) == -1


@case
def racing_appends_leave_no_gap_and_no_double(h: Harness) -> None:
    _log(h, partitions=2)
    written = answers(race(16, lambda number: _append(h, *range(5), key=f"k{number}")))
    entries = [entry for batch in written for entry in batch]
    assert len({(entry.partition, entry.offset) for entry in entries}) == 80
    assert sum(following for _, following in h.store.extent("log")) == 80
    for batch in written:
        offsets = [entry.offset for entry in batch]
        assert offsets == sorted(set(offsets))


@case
def a_log_is_listed_with_its_configuration(h: Harness) -> None:
    _log(h, partitions=2)
    assert h.store.specs() == [QueueSpec(name="log", retention=Retained(2))]


@case_if(Need.DURABLE)
def a_log_outlives_a_reopening(h: Harness) -> None:
    _log(h, partitions=2)
    _append(h, *range(8), key=None)
    h.store.commit("log", "g", 1, 2)
    h.advance(1)
    h.store.trim("log", h.now(), 1)
    extents = h.store.extent("log")
    entries = h.store.read("log", 0, 0, 10)
    h.reopen()
    assert h.store.extent("log") == extents
    assert h.store.read("log", 0, 0, 10) == entries
    assert h.store.position("log", "g", 1) == 2
    assert [entry.offset for entry in _append(h, 8, 9)] == [4, 4]
