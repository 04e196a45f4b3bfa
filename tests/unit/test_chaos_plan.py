"""Plans of faults: those that come with Forebay are sound, and what a plan may not say is refused by its key."""

from random import Random

import pytest

from forebay.core.errors import Invalid
from forebay.core.ledger import Change, JobRange, LedgerEntry, Record
from forebay_proof.lab.chaos.faults import KINDS, ChaosFault, fault_of
from forebay_proof.lab.chaos.plan import SCALES, adjust, find, names, parse
from forebay_proof.lab.chaos.recovery import recovered, unfinished, unstarted
from forebay_proof.lab.chaos.scene import Strike
from forebay_proof.load.handler_log import HandlerRecord

SOUND = """
title = "t"
stores = ["sqlite"]
[[fault]]
kind = "kill_worker"
times = {quick = 2, nightly = 20, release = 200}
"""


def faults_of(text: str) -> list[ChaosFault]:
    return [fault_of(timed) for timed in parse(text, "mine").faults]


def test_the_matrix_is_whole() -> None:
    assert [f"f{number:02}" for number in range(1, 25)] == [name for name in names() if name[1:].isdigit()]


@pytest.mark.parametrize("name", names())
def test_a_plan_asks_for_faults_that_there_are_on_stores_that_have_them(name: str) -> None:
    plan = find(name)
    assert plan.title
    for timed in plan.faults:
        assert set(plan.stores) <= set(fault_of(timed).stores), timed.kind
    assert 0 < plan.strikes("quick") <= plan.strikes("nightly") <= plan.strikes("release")
    assert 0 < plan.acks("quick") <= plan.acks("nightly") <= plan.acks("release")


def test_every_kind_of_fault_is_in_a_plan() -> None:
    assert {timed.kind for name in names() for timed in find(name).faults} == set(KINDS)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('kind = "kill_worker"', 'kind = "kill_workers"', "kill_workers"),
        ('kind = "kill_worker"', 'kind = "kill_worker"\nlasts = 3', "lasts"),
        ('kind = "kill_worker"', "at = 1", "kind"),
        ('kind = "kill_worker"', 'kind = "kill_worker"\nevery = -1', "every"),
        ("{quick = 2, nightly = 20, release = 200}", "{quick = 2}", "times"),
        ("{quick = 2, nightly = 20, release = 200}", "1_000_000", "times.quick"),
        ('["sqlite"]', "[]", "stores"),
        ('["sqlite"]', '["mysql"]', "stores"),
        ('["sqlite"]', '["memory"]', "stores"),
        ("[[fault]]", "[load]\nrate = -1\n[[fault]]", "load.rate"),
        ("[[fault]]", '[load]\nmix = "slow=7"\n[[fault]]', "mix"),
        ("[[fault]]", "[load]\nspeed = 1\n[[fault]]", "speed"),
        ("[[fault]]", "[proof]\nshare = 2.0\n[[fault]]", "proof.share"),
        ("[[fault]]", "[fleet]\nlease = 0\n[[fault]]", "fleet.lease"),
        ('title = "t"', "title = 3", "title"),
        ('title = "t"', "title =", "TOML"),
    ],
)
def test_what_a_plan_may_not_say_is_refused_by_its_key(old: str, new: str, key: str) -> None:
    assert old in SOUND
    with pytest.raises(Invalid, match=key):
        faults_of(SOUND.replace(old, new))


def test_an_unknown_plan_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match="f01"):
        find("f99")


def test_the_same_seed_makes_the_same_moments() -> None:
    (timed,) = parse(SOUND, "mine").faults
    for scale in SCALES:
        moments = timed.moments(scale, Random(1))
        assert moments == timed.moments(scale, Random(1)) == sorted(moments)
        assert len(moments) == timed.times.at(scale)
    assert timed.moments("quick", Random(1)) != timed.moments("quick", Random(2))
    lasting = timed.moments("quick", Random(1), limit=30.0)
    assert 15 < len(lasting) < 60
    assert lasting[-1] <= 30.0


def strike(number: int, at: int, over_at: int, *pids: int) -> Strike:
    return Strike(number, "any", at, over_at, True, "", pids)


def test_recovery_is_read_from_what_handlers_wrote() -> None:
    """Jobs 1 and 2 ran when their process was killed at 1 s, job 3 had ended, job 4 fails by itself."""
    starts = [HandlerRecord(seq, seq, 1, 900_000, 77) for seq in (1, 2, 3, 4)]
    starts += [
        HandlerRecord(1, 1, 2, 1_400_000, 78),
        HandlerRecord(2, 2, 2, 3_500_000, 78),
        HandlerRecord(4, 4, 2, 9_000_000, 78),
    ]
    effects = [
        HandlerRecord(3, 3, 1, 950_000, 77),
        HandlerRecord(1, 1, 2, 1_500_000, 78),
        HandlerRecord(2, 2, 2, 3_600_000, 78),
    ]
    killed, missed, away = (
        strike(1, 1_000_000, 1_000_000, 77),
        strike(2, 1_000_000, 1_000_000, 99),
        strike(3, 0, 2_000_000),
    )
    recovered([killed, missed, away], starts, effects, lambda seq: seq != 4)
    assert (killed.bit, killed.held, killed.recovery) == (True, 2, 2.5)
    assert (missed.bit, missed.held, missed.recovery) == (False, 0, None)
    assert (away.bit, away.recovery) == (True, 1.6)


def test_jobs_that_were_interrupted_are_written_one_by_one() -> None:
    killed = Strike(1, "KillWorker", 1_000_000, 1_000_000, True, "", pids=(7,))
    starts = [
        HandlerRecord(1, 11, 1, 900_000, 7),
        HandlerRecord(2, 12, 1, 900_000, 7),
        HandlerRecord(3, 13, 1, 900_000, 8),
    ]
    starts += [HandlerRecord(1, 11, 2, 1_500_000, 8), HandlerRecord(2, 12, 3, 3_000_000, 8)]
    assert recovered([killed], starts, [], lambda seq: True) == [0.5, 2.0]
    assert (killed.held, killed.recovery) == (2, 2.0)


def test_a_hand_out_that_no_handler_began_is_counted() -> None:
    def claimed(offset: int, first: int, n: int, delivery: int) -> LedgerEntry:
        return LedgerEntry(offset, Record(0, "claim", [JobRange(Change.CLAIMED, first, n, "q", "k", delivery)]))

    entries = [claimed(0, 11, 3, 1), claimed(1, 12, 1, 2), claimed(2, 12, 1, 3)]
    starts = [HandlerRecord(1, 11, 1, 0, 7), HandlerRecord(2, 12, 3, 0, 7)]
    assert unstarted(entries, starts) == {12: 2, 13: 1}


def test_an_acknowledged_delivery_whose_handler_did_not_return_is_found() -> None:
    entries = [LedgerEntry(0, Record(0, "settle", [JobRange(Change.ACKED, 11, 3, "q", "k", 2)]))]
    effects = [HandlerRecord(1, 11, 1, 0, 7), HandlerRecord(1, 11, 2, 0, 8), HandlerRecord(2, 12, 1, 0, 7)]
    assert unfinished(entries, effects) == [(12, 2)], "job 13 says nothing of its runs"


def test_a_plan_takes_another_rate_and_period() -> None:
    plan = adjust(find("kills"), seed=4, rate=60, every=1.5)
    assert (plan.seed, plan.load.rate, [fault.every for fault in plan.faults]) == (4, 60, [1.5])
    assert adjust(plan) == plan
    with pytest.raises(Invalid, match=r"load\.rate"):
        adjust(plan, rate=-1)
    with pytest.raises(Invalid, match="every"):
        adjust(plan, every=-1)
    with pytest.raises(Invalid, match="has no load"):
        adjust(find("f23"), rate=5)
