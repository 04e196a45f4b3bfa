"""The bill of a job: its figures are those that the plan calculates with, and a run gives all of them."""

import json

import pytest

from forebay.cli import main
from forebay.cli.job_bill import JobBill
from forebay_proof.lab.job_bill import UNITS, mean_payload
from forebay_proof.load.mix import FAST, parse_mix


def test_every_figure_of_a_bill_is_measured() -> None:
    assert set(UNITS) == set(JobBill.__struct_fields__) - {"store", "mix"}


def test_the_payload_of_a_mix_is_the_mean_of_its_jobs() -> None:
    sizes = [len(json.dumps(FAST.draft(7, seq, "q").payload, separators=(",", ":"))) for seq in range(1_000)]
    assert mean_payload(FAST, 7) == pytest.approx(sum(sizes) / 1_000)
    assert mean_payload(parse_mix("email"), 7) > 5 * mean_payload(FAST, 7) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_a_run_gives_a_whole_bill(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--mix", "fast", "--rate", "300", "--batch", "30", "--for", "5s", "--rounds", "1"]
    code = main(["lab", "bill", "--on", store, *load])
    bill = json.loads(capsys.readouterr().out)
    assert (code, bill["store"], bill["mix"]) == (0, store, "fast")
    assert all(bill[name]["value"] > 0 and bill[name]["unit"] == unit for name, unit in UNITS.items())
    # Random text does not compress: a byte of payload is a byte or more, stored and logged.
    assert bill["waiting_factor"]["value"] > 0.9
    assert bill["log_factor"]["value"] > 0.9
    assert 150 < bill["cell_rate"]["value"] < 600
