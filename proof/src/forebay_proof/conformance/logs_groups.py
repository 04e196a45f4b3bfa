"""Groups of readers: partitions that members own by lease, epochs as the fence, the progress of a group, replay by
time."""

from datetime import timedelta

from forebay.core.errors import Invalid, PartitionLost, WrongQueueKind
from forebay.core.policy import Retained
from forebay.store.log import Owned, Standing
from forebay_proof.conformance.case import Need, case, case_if, refused
from forebay_proof.conformance.harness import LONG, Harness
from forebay_proof.conformance.racing import RacingCall, answers, race


def _log(h: Harness, partitions: int = 4, entries: int = 0) -> None:
    h.spec("log", retention=Retained(partitions))
    h.store.append("log", [b"%d" % number for number in range(entries)])


def _own(h: Harness, member: str, lease_for: timedelta = LONG, group: str = "g") -> list[Owned]:
    return h.store.own("log", group, member, lease_for)


def _numbers(owned: list[Owned]) -> list[int]:
    return [one.partition for one in owned]


def _until_settled(h: Harness, *members: str) -> dict[str, list[int]]:
    """All members call until nothing changes."""
    before: dict[str, list[int]] = {}
    for _ in range(10):
        after = {member: _numbers(_own(h, member)) for member in members}
        if after == before:
            return after
        before = after
    raise AssertionError(f"the group does not come to rest: {before}")


def _standings(h: Harness, group: str = "g") -> list[Standing]:
    return [one for one in h.store.groups("log", "", 100) if one.group == group]


@case
def a_single_member_owns_every_partition(h: Harness) -> None:
    _log(h, partitions=3, entries=6)
    h.store.commit("log", "g", 1, 1)
    now = h.now()
    owned = _own(h, "a")
    assert [(one.partition, one.epoch, one.position) for one in owned] == [(0, 1, -1), (1, 1, 1), (2, 1, -1)]
    duration = int(LONG.total_seconds() * 1_000_000)
    assert all(now + duration <= one.until <= h.now() + duration for one in owned)


@case
def a_member_that_renews_keeps_its_partitions_and_epochs(h: Harness) -> None:
    _log(h)
    first = _own(h, "a")
    h.advance(1)
    again = _own(h, "a")
    assert [(one.partition, one.epoch) for one in again] == [(one.partition, one.epoch) for one in first]
    assert again[0].until > first[0].until


@case
def a_member_that_joins_gets_what_the_others_free(h: Harness) -> None:
    _log(h, partitions=4)
    assert _numbers(_own(h, "a")) == [0, 1, 2, 3]
    assert _own(h, "b") == []
    assert len(_own(h, "a")) == 2
    taken = _own(h, "b")
    assert len(taken) == 2
    assert {one.epoch for one in taken} == {2}
    assert sorted(_numbers(_own(h, "a")) + _numbers(taken)) == [0, 1, 2, 3]


@case
def a_group_settles_with_every_member_at_its_share(h: Harness) -> None:
    _log(h, partitions=7)
    settled = _until_settled(h, "a", "b", "c")
    assert sorted(number for numbers in settled.values() for number in numbers) == list(range(7))
    assert max(map(len, settled.values())) <= 3
    settled = _until_settled(h, *"abcdefghi")
    assert sorted(map(len, settled.values())) == [0, 0, 1, 1, 1, 1, 1, 1, 1]


@case
def the_partitions_of_a_dead_member_go_to_the_others_after_its_lease(h: Harness) -> None:
    _log(h, partitions=4)
    _own(h, "dead", h.short_delta)
    assert _own(h, "b") == []
    h.advance(h.short + 1)
    taken = _own(h, "b")
    assert [(one.partition, one.epoch) for one in taken] == [(number, 2) for number in range(4)]


@case
def a_member_that_lost_its_partition_cannot_commit(h: Harness) -> None:
    _log(h, partitions=1, entries=4)
    (old,) = _own(h, "slow", h.short_delta)
    h.store.commit("log", "g", 0, 0, epoch=old.epoch)
    h.advance(h.short + 1)
    (new,) = _own(h, "next")
    assert new.position == 0
    for rewind in (False, True):
        error = refused(
            PartitionLost,
            lambda rewind=rewind: h.store.commit("log", "g", 0, 3, rewind=rewind, epoch=old.epoch),  # type: ignore[misc]
        )
        assert (error.log, error.group, error.partition, error.epoch) == ("log", "g", 0, old.epoch)
    assert h.store.position("log", "g", 0) == 0
    assert h.store.commit("log", "g", 0, 2, epoch=new.epoch) == 2


@case
def a_lease_that_ran_out_is_valid_while_no_other_member_took_over(h: Harness) -> None:
    _log(h, partitions=1, entries=4)
    (owned,) = _own(h, "slow", h.short_delta)
    h.advance(h.short + 1)
    assert h.store.commit("log", "g", 0, 3, epoch=owned.epoch) == 3
    (again,) = _own(h, "slow")
    assert again.epoch == owned.epoch


@case
def an_epoch_that_never_was_is_refused(h: Harness) -> None:
    _log(h, partitions=1, entries=2)
    refused(PartitionLost, lambda: h.store.commit("log", "g", 0, 1, epoch=1))
    _own(h, "a")
    refused(PartitionLost, lambda: h.store.commit("log", "g", 0, 1, epoch=2))
    refused(PartitionLost, lambda: h.store.commit("log", "other", 0, 1, epoch=1))
    assert h.store.position("log", "g", 0) == -1


@case
def a_member_that_leaves_frees_its_partitions_at_once(h: Harness) -> None:
    _log(h, partitions=3, entries=3)
    (first, *_) = _own(h, "a")
    assert h.store.disown("log", "g", "a") == 3
    assert h.store.disown("log", "g", "a") == 0
    refused(PartitionLost, lambda: h.store.commit("log", "g", 0, 0, epoch=first.epoch))
    assert [one.epoch for one in _own(h, "b")] == [2, 2, 2]


@case
def a_member_that_left_counts_no_more(h: Harness) -> None:
    _log(h, partitions=4)
    _until_settled(h, "a", "b")
    h.store.disown("log", "g", "b")
    assert _numbers(_own(h, "a")) == [0, 1, 2, 3]


@case
def groups_own_the_same_partitions_side_by_side(h: Harness) -> None:
    _log(h, partitions=2)
    assert _numbers(_own(h, "a", group="g")) == _numbers(_own(h, "a", group="h")) == [0, 1]
    assert h.store.disown("log", "g", "a") == 2
    assert _numbers(_own(h, "a", group="h")) == [0, 1]


@case
def a_new_partition_finds_an_owner(h: Harness) -> None:
    _log(h, partitions=1)
    _own(h, "a")
    _log(h, partitions=3)
    assert [(one.partition, one.epoch) for one in _own(h, "a")] == [(0, 1), (1, 1), (2, 1)]


@case
def a_partition_has_one_owner_however_many_race_for_it(h: Harness) -> None:
    _log(h, partitions=8, entries=8)
    owned = answers(race(16, lambda number: _own(h, f"m{number}")))
    assert sum(len(each) for each in owned) >= 8
    holders = {standing.partition: standing.member for standing in _standings(h)}
    assert None not in holders.values()
    refusals = 0
    for number, each in enumerate(owned):
        for one in each:
            if holders[one.partition] == f"m{number}":
                h.store.commit("log", "g", one.partition, 0, epoch=one.epoch)
            else:
                refused(
                    PartitionLost,
                    lambda one=one: h.store.commit("log", "g", one.partition, 0, epoch=one.epoch),  # type: ignore[misc]
                )
                refusals += 1
    assert sum(map(len, owned)) - refusals == 8


@case
def a_group_is_listed_with_its_committed_positions(h: Harness) -> None:
    _log(h, partitions=2, entries=10)
    assert h.store.groups("log", "", 10) == []
    h.store.commit("log", "g", 0, 1)
    h.advance(h.short)
    seen = h.now()
    h.store.commit("log", "g", 0, 1)
    first, second = _standings(h)
    assert (first.partition, first.position, first.lag, first.lost) == (0, 1, 3, 0)
    assert (second.partition, second.position, second.lag, second.lost) == (1, -1, 5, 0)
    assert (first.member, first.epoch, first.until, first.loses_at) == (None, 0, None, None)
    assert seen <= first.seen_at == second.seen_at <= h.now()


@case
def a_group_exists_once_it_owned(h: Harness) -> None:
    _log(h, partitions=2)
    owned = _own(h, "a")
    standings = _standings(h)
    assert [(one.member, one.epoch, one.until) for one in standings] == [("a", one.epoch, one.until) for one in owned]
    h.store.disown("log", "g", "a")
    assert [(one.member, one.epoch, one.until) for one in _standings(h)] == [(None, 0, None)] * 2


@case
def groups_are_listed_by_name_page_by_page(h: Harness) -> None:
    _log(h, partitions=2)
    for group in ("c", "a", "b"):
        _own(h, "m", group=group)
    pages = [h.store.groups("log", "", 2), h.store.groups("log", "b", 2), h.store.groups("log", "c", 2)]
    assert [[(one.group, one.partition) for one in page] for page in pages] == [
        [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
        [("c", 0), ("c", 1)],
        [],
    ]


@case
def what_was_trimmed_before_a_group_had_it_is_counted_as_lost(h: Harness) -> None:
    _log(h, partitions=1, entries=5)
    h.store.commit("log", "ahead", 0, 4)
    h.store.commit("log", "behind", 0, 1)
    h.advance(1)
    assert h.store.trim("log", h.now(), 4) == 4
    h.store.commit("log", "late", 0, -1)
    standings = {one.group: (one.position, one.lag, one.lost) for one in h.store.groups("log", "", 10)}
    assert standings == {"ahead": (4, 0, 0), "behind": (1, 1, 2), "late": (-1, 1, 0)}


@case
def ownership_of_a_name_that_is_not_a_log_is_refused(h: Harness) -> None:
    h.one()
    for name in ("q", "unknown"):
        for verb in (
            lambda name=name: h.store.own(name, "g", "m", LONG),
            lambda name=name: h.store.disown(name, "g", "m"),
            lambda name=name: h.store.groups(name, "", 1),
        ):
            assert not refused(WrongQueueKind, verb).is_log


@case
def a_bad_member_lease_or_epoch_is_refused(h: Harness) -> None:
    _log(h, entries=4)
    with h.unchanged():
        refused(Invalid, lambda: _own(h, ""))
        refused(Invalid, lambda: _own(h, "m", timedelta(0)))
        refused(Invalid, lambda: h.store.own("log", "no group", "m", LONG))
        refused(Invalid, lambda: h.store.commit("log", "g", 0, 0, epoch=0))
        refused(Invalid, lambda: h.store.groups("log", "", 0))
    assert h.store.groups("log", "", 10) == []


@case_if(Need.DURABLE)
def owners_and_groups_outlive_a_reopening(h: Harness) -> None:
    _log(h, partitions=2, entries=6)
    owned = _own(h, "a")
    h.store.commit("log", "g", 0, 1, epoch=owned[0].epoch)
    h.advance(1)
    h.store.trim("log", h.now(), 4)
    standings = h.store.groups("log", "", 10)
    h.reopen()
    assert h.store.groups("log", "", 10) == standings
    assert [(one.partition, one.epoch) for one in _own(h, "a")] == [(one.partition, one.epoch) for one in owned]
    assert _own(h, "b") == []


@case
def a_waiting_reader_is_woken_when_the_log_grows(h: Harness) -> None:
    _log(h, partitions=2)
    task = RacingCall(lambda: h.store.wait(["log"], timedelta(minutes=5)))
    h.until_asleep(1)
    assert task.running
    h.store.append("log", [b"1"])
    assert task.result() is True


@case
def a_log_is_replayed_from_an_instant(h: Harness) -> None:
    _log(h, partitions=1)
    marks = []
    for number in range(9):
        marks.append(h.now())
        h.store.append("log", [b"%d" % number] * 2)
        h.advance(h.short // 8)
    for number, mark in enumerate(marks):
        after = h.store.offset_at("log", 0, mark)
        assert after == 2 * number - 1
        assert h.store.read("log", 0, after, 1)[0].body == b"%d" % number


@case
def an_instant_outside_of_the_log_gives_one_of_its_ends(h: Harness) -> None:
    _log(h, partitions=2)
    assert h.store.offset_at("log", 0, h.now()) == -1
    start = h.now()
    h.store.append("log", [b"1"] * 6, ["k"] * 6)
    (number,) = [place for place, extent in enumerate(h.store.extent("log")) if extent[1]]
    h.advance(1)
    assert h.store.offset_at("log", number, h.now() + 1) == 5
    h.store.trim("log", h.now(), 2)
    assert h.store.offset_at("log", number, start - 1) == h.store.offset_at("log", number, 0) == 1
    assert len(h.store.read("log", number, h.store.offset_at("log", number, start), 10)) == 4
    h.store.trim("log", h.now(), 10)
    assert h.store.offset_at("log", number, start) == 5
    refused(Invalid, lambda: h.store.offset_at("log", 2, start))
    refused(Invalid, lambda: h.store.offset_at("log", 0, -1))
    refused(WrongQueueKind, lambda: h.store.offset_at("q", 0, start))
