"""The bill of each class of a mix: its arithmetic, and a small measurement of it."""

from pathlib import Path

import pytest

from forebay import Invalid
from forebay_proof.lab.class_bill import PARTS, ClassBill, ClassCost, measure_class_bill
from forebay_proof.lab.trial import Trial
from forebay_proof.load.mix import parse_mix


def cost(name: str, share: float, fleet: float, server: float) -> ClassCost:
    return ClassCost(name=name, share=share, cpu={"fleet": fleet, "producers": 10.0, "server": server})


def test_a_mix_costs_what_its_classes_do_by_their_shares() -> None:
    classes = [cost("fast", 0.9, 60, 30), cost("poison", 0.1, 300, 490)]
    bill = ClassBill(classes=classes, measured=cost("mix", 1.0, 200, 190), cores=2)
    assert bill.mix.cpu == pytest.approx({"fleet": 84, "producers": 10, "server": 76})
    assert bill.rate() == pytest.approx(2e6 / 170)
    assert bill.measured_rate == 5_000
    assert bill.lost() == pytest.approx(2e6 / 170 - 2e6 / 171)
    assert bill.lost(0.1) == pytest.approx(2e6 / 170 - 2e6 / 170.1)


def test_each_class_is_measured_by_itself_and_the_mix_beside_them(tmp_path: Path) -> None:
    trial = Trial(store="sqlite", rate=50, seconds=4, mix=parse_mix("fast=80,poison=20"), batch=10, processes=1)
    said: list[str] = []
    bill = measure_class_bill(trial, cores=2, rounds=1, directory=tmp_path, say=said.append)
    assert [(each.name, each.share) for each in bill.classes] == [("fast", 0.8), ("poison", 0.2)]
    assert bill.measured.name == "fast-80-poison-20"
    fast, poison = bill.classes
    assert set(fast.cpu) == set(PARTS)
    assert poison.cpu["fleet"] > fast.cpu["fleet"] > 0
    assert [each.partition(":")[0] for each in said] == ["fast", "poison", "fast-80-poison-20"]


def test_a_rate_that_is_not_held_has_no_bill(tmp_path: Path) -> None:
    trial = Trial(store="sqlite", rate=50, seconds=2, mix=parse_mix("slow"), batch=10, processes=1, patience=0.1)
    with pytest.raises(Invalid, match="not held"):
        measure_class_bill(trial, cores=2, rounds=1, directory=tmp_path, say=lambda _: None)
