"""The window of a log: entries stay for it and go after it; what a lagging group lost is counted, or trimming waits."""

from forebay.core.instant import micros, minutes
from forebay.core.policy import Retained
from forebay.store.log import Standing
from forebay_proof.conformance.case import case
from forebay_proof.conformance.harness import LONG, Harness


def _log(h: Harness, partitions: int = 1, **how: object) -> None:
    h.spec("log", retention=Retained(partitions, window=4 * h.short_delta, **how))  # type: ignore[arg-type]


def _append(h: Harness, count: int) -> None:
    h.store.append("log", [b"%d" % number for number in range(count)])


def _firsts(h: Harness, limit: int = 1000) -> list[int]:
    h.store.promote(limit)
    return [first for first, _ in h.store.extent("log")]


def _standing(h: Harness, group: str) -> Standing:
    (standing,) = [one for one in h.store.groups("log", "", 100) if one.group == group]
    return standing


@case
def an_entry_stays_for_its_window_and_then_goes(h: Harness) -> None:
    _log(h)
    _append(h, 2)
    h.advance(2 * h.short)
    _append(h, 1)
    assert _firsts(h) == [0]
    h.advance(2 * h.short)
    assert _firsts(h) == [2]
    h.advance(2 * h.short)
    assert _firsts(h) == [3]
    assert h.store.extent("log") == [(3, 3)]


@case
def a_log_without_a_window_keeps_everything(h: Harness) -> None:
    h.spec("log", retention=Retained())
    _append(h, 2)
    h.advance(10 * h.short)
    assert _firsts(h) == [0]


@case
def one_promotion_trims_no_more_than_it_was_allowed(h: Harness) -> None:
    _log(h, partitions=2)
    _append(h, 10)
    h.advance(4 * h.short)
    left = [10]
    while left[-1]:
        h.store.promote(3)
        left.append(sum(following - first for first, following in h.store.extent("log")))
        assert len(left) < 10
    assert left == [10, 7, 4, 1, 0]


@case
def a_window_that_was_changed_holds_for_what_is_there(h: Harness) -> None:
    _log(h)
    _append(h, 2)
    h.spec("log", retention=Retained(window=minutes(60)))
    h.advance(8 * h.short)
    assert _firsts(h) == [0]
    _log(h)
    assert _firsts(h) == [2]


@case
def a_group_shows_when_it_will_lose_entries(h: Harness) -> None:
    _log(h)
    window = micros(4 * h.short_delta)
    (entry,) = h.store.append("log", [b"1"])
    h.store.commit("log", "g", 0, -1)
    assert _standing(h, "g").loses_at == entry.at + window
    h.advance(h.short)
    (later,) = h.store.append("log", [b"2"])
    h.store.commit("log", "g", 0, 0)
    assert _standing(h, "g").loses_at == later.at + window
    h.store.commit("log", "g", 0, 1)
    assert _standing(h, "g").loses_at is None


@case
def what_a_lagging_group_lost_is_counted(h: Harness) -> None:
    _log(h)
    _append(h, 4)
    h.store.commit("log", "g", 0, 0)
    h.advance(4 * h.short)
    _append(h, 1)
    assert _firsts(h) == [4]
    standing = _standing(h, "g")
    assert (standing.position, standing.lag, standing.lost) == (0, 1, 3)
    h.store.commit("log", "g", 0, 4)
    assert (_standing(h, "g").lag, _standing(h, "g").lost) == (0, 3)


@case
def a_group_that_still_reads_holds_the_window_open(h: Harness) -> None:
    _log(h, lagging="block")
    _append(h, 4)
    h.store.commit("log", "g", 0, 0)
    h.advance(3 * h.short)
    h.store.commit("log", "g", 0, 1)
    h.advance(h.short)
    assert _firsts(h) == [2]
    h.store.commit("log", "g", 0, 2)
    assert _firsts(h) == [3]
    assert _standing(h, "g").lost == 0


@case
def the_slowest_active_group_decides_and_an_inactive_one_does_not(h: Harness) -> None:
    _log(h, lagging="block")
    _append(h, 4)
    h.store.commit("log", "gone", 0, -1)
    h.advance(3 * h.short)
    h.store.commit("log", "quick", 0, 3)
    h.store.commit("log", "slow", 0, 1)
    assert _firsts(h) == [0]
    h.advance(h.short + 1)
    assert _firsts(h) == [2]
    assert (_standing(h, "gone").lost, _standing(h, "slow").lost) == (2, 0)
    h.advance(3 * h.short)
    assert _firsts(h) == [4]
    assert _standing(h, "slow").lost == 2


@case
def a_group_that_owns_is_seen_though_it_commits_nothing(h: Harness) -> None:
    _log(h, partitions=2, lagging="block")
    _append(h, 4)
    for _ in range(4):
        h.advance(2 * h.short)
        h.store.own("log", "g", "m", LONG)
        assert _firsts(h) == [0, 0]
    h.store.commit("log", "g", 1, 1)
    assert _firsts(h) == [0, 2]


@case
def trimming_by_hand_waits_for_no_group(h: Harness) -> None:
    _log(h, lagging="block")
    _append(h, 3)
    h.store.commit("log", "g", 0, -1)
    h.advance(1)
    assert h.store.trim("log", h.now(), 2) == 2
    assert _standing(h, "g").lost == 2
