"""A slice of the fault matrix, and at night all of it: `forebay chaos`, as users run it.

The verdict is the plan's own: PASS means that enough faults bit, that enough was accepted, and that every promise held.
"""

from pathlib import Path

import msgspec
import pytest

from forebay_proof.lab.chaos.plan import ChaosPlan, ChaosScale, Kept, Scaled, adjust, find, names, parse
from forebay_proof.lab.chaos.run import ChaosResult, Runner

TINY = """
title = "a worker and a handler that die"
stores = ["sqlite"]
[load]
rate = 40
mix = "s1@0.1"
[[fault]]
kind = "kill_worker"
at = 0.1
[[fault]]
kind = "kill_before_ack"
at = 0.2
[proof]
acks = 20
"""


def carried_out(plan: ChaosPlan, kept: Kept, directory: Path, scale: ChaosScale = "quick") -> ChaosResult:
    outcome = Runner(plan, kept, kept, directory, scale=scale).run()
    assert outcome.reasons == []
    assert outcome.answer == "PASS"
    return outcome


def test_workers_that_die_in_their_jobs_lose_nothing(tmp_path: Path) -> None:
    outcome = carried_out(parse(TINY, "tiny"), "sqlite", tmp_path)
    assert (outcome.made, outcome.bit) == (2, 2)
    assert outcome.redelivered >= 1
    assert outcome.recovery_p99 is not None


def test_the_late_word_of_a_stopped_worker_does_not_count(tmp_path: Path) -> None:
    """As f03, once: jobs that take two seconds, so that another worker runs them when the stopped one continues."""
    plan = find("f03")
    (fault,) = plan.faults
    once = msgspec.structs.replace(fault, times=Scaled(1, 1, 1))
    proof = msgspec.structs.replace(plan.proof, acks=20, share=0.01, recovery=30.0)
    carried_out(msgspec.structs.replace(plan, faults=(once,), proof=proof), "sqlite", tmp_path)


def test_jobs_that_a_kill_interrupted_start_again_at_once(tmp_path: Path) -> None:
    """None is handed out again and again, and none waits for a lease; half a second is for quiet machines."""
    plan = adjust(find("kills"), rate=60, every=1.0)
    patient = msgspec.structs.replace(plan, proof=msgspec.structs.replace(plan.proof, restart_p50=4.0, share=0.3))
    assert carried_out(patient, "sqlite", tmp_path).interrupted > 0


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kept", find("kills").stores)
def test_a_worker_is_killed_every_few_seconds(kept: Kept, tmp_path: Path) -> None:
    rate = 150 if kept == "sqlite" else 1_000
    assert carried_out(adjust(find("kills"), rate=rate), kept, tmp_path, "nightly").interrupted > 0


@pytest.mark.parametrize("name", ["f14", "f23"])
def test_a_journal_without_room_or_with_two_owners(name: str, tmp_path: Path) -> None:
    assert carried_out(find(name), "memory", tmp_path).bit == 3


def test_too_few_faults_or_jobs_prove_nothing(tmp_path: Path) -> None:
    """The plan's lock is for SQLite; a journal has none, so the fault cannot be made."""
    text = TINY.replace("rate = 40", "rate = 0").replace('["sqlite"]', '["memory"]')
    plan = parse(text.replace("kill_worker", "hold_lock").replace("kill_before_ack", "hold_lock"), "lock")
    outcome = Runner(plan, "memory", "memory", tmp_path).run()
    assert (outcome.answer, outcome.exit_code, outcome.made) == ("INVALID", 2, 0)
    few = msgspec.structs.replace(find("f23"), proof=msgspec.structs.replace(plan.proof, acks=10_000))
    outcome = Runner(few, "memory", "memory", tmp_path / "few").run()
    assert (outcome.answer, outcome.exit_code) == ("INVALID", 2)
    assert "10000" in "".join(outcome.reasons)


def test_a_held_transaction_is_measured(tmp_path: Path) -> None:
    """No machine does twice as much beside it: that is found, and nothing else. Times are for quiet machines."""
    plan = find("held")
    (fault,) = plan.faults
    durations = msgspec.to_builtins({"lasts": Scaled(2, 0, 0), "before": Scaled(1, 0, 0)})
    hasty = msgspec.structs.replace(fault, args={**durations, "completed": 2.0, "slower": 1_000.0, "normal": 0.0})
    proof = msgspec.structs.replace(plan.proof, acks=100)
    outcome = Runner(
        msgspec.structs.replace(plan, faults=(hasty,), proof=proof), "postgres", "postgres", tmp_path
    ).run()
    (reason, *_) = outcome.reasons
    assert (outcome.answer, outcome.bit) == ("FAIL", 1)
    assert "jobs/s beside it" in reason


MATRIX = [
    (name, kept) for name in names() if name[1:].isdigit() or name in ("storm", "held") for kept in find(name).stores
]


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("name", "kept"), MATRIX)
def test_the_whole_matrix(name: str, kept: Kept, tmp_path: Path) -> None:
    carried_out(find(name), kept, tmp_path, "nightly")
