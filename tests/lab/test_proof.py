"""The quick proof finds what is planted: a loss, a double, a stranger; and lets pass what at-least-once allows."""

from pathlib import Path

import pytest

from forebay import Draft, Invalid, Store, Want, decide, open_store
from forebay.core.instant import seconds
from forebay.core.outcome import Failed, Failure
from forebay.core.policy import Routing
from forebay_proof.lab.audit import AuditResult, audit_quickly

COUNT = 20
AT = "2030-01-31T10:30:00.000001Z"


class Run:
    """Receipts and effects of a run in which all went well, and a store that agrees."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store("memory://")
        self.receipts = folder / "receipts" / "0.ndjson"
        self.effects = folder / "effects" / "1.ndjson"
        for file in (self.receipts, self.effects):
            file.parent.mkdir()
        self.answers = [self.receipt(seq) for seq in range(COUNT)]
        self.done = [self.effect(seq) for seq in range(COUNT)]

    @staticmethod
    def receipt(seq: int, job: int | None = -1, answer: str = "accepted") -> str:
        named = "null" if job is None else 100 + seq if job == -1 else job
        return f'{{"seq":{seq},"job_id":{named},"answer":"{answer}"}}\n'

    @staticmethod
    def effect(seq: int, job: int | None = None, delivery: int = 1, at: str = AT) -> str:
        return f'{{"seq":{seq},"job_id":{job or 100 + seq},"delivery":{delivery},"effect_at":"{at}"}}\n'

    def die(self, seq: int) -> None:
        """A dead letter of this seq."""
        self.store.enqueue([Draft("poison", {"seq": seq}, max_attempts=1)])
        (lease,) = self.store.claim([Want("default", 1)], "w", seconds(5))
        verdict = decide(lease.job, Failed(Failure("ValueError", "no")), Routing(), 0.0)
        self.store.settle([(lease, verdict)])

    def judged(self, *, drained: bool = True, min_jobs: int = 1, faults: int = 0, min_faults: int = 0) -> AuditResult:
        self.receipts.write_text("".join(self.answers))
        self.effects.write_text("".join(self.done))
        return audit_quickly(
            self.receipts.parent,
            self.effects.parent,
            self.store,
            drained=drained,
            min_jobs=min_jobs,
            faults=faults,
            min_faults=min_faults,
        )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_good_run_passes(run: Run) -> None:
    verdict = run.judged(min_jobs=COUNT)
    assert (verdict.answer, verdict.exit_code) == ("PASS", 0)
    assert (verdict.accepted, verdict.effects, verdict.lost, verdict.doubled, verdict.redelivered) == (20, 20, 0, 0, 0)
    assert verdict.offenders == {}


def test_a_planted_loss_is_found_and_named(run: Run) -> None:
    del run.done[7]
    verdict = run.judged()
    assert (verdict.answer, verdict.exit_code, verdict.lost) == ("FAIL", 1, 1)
    assert verdict.offenders == {"lost": [7]}


def test_one_that_is_dead_is_not_lost(run: Run) -> None:
    del run.done[7]
    run.die(7)
    verdict = run.judged()
    assert (verdict.answer, verdict.lost, verdict.dead) == ("PASS", 0, 1)


def test_one_that_is_open_is_unfinished_where_all_was_to_be_drained(run: Run) -> None:
    del run.done[7]
    run.store.enqueue([Draft("fast", {"seq": 7})])
    assert run.judged().answer == "FAIL"
    assert run.judged().offenders == {"unfinished": [7]}
    verdict = run.judged(drained=False)
    assert (verdict.answer, verdict.lost, verdict.unfinished) == ("PASS", 0, 1)


def test_two_effects_by_one_fence_are_a_double_and_a_line_read_twice_is_not(run: Run) -> None:
    run.done.append(run.effect(3))
    assert run.judged().answer == "PASS"
    run.done.append(run.effect(3, at=AT.replace("1Z", "2Z")))
    verdict = run.judged()
    assert (verdict.answer, verdict.doubled, verdict.redelivered) == ("FAIL", 1, 0)
    assert verdict.offenders == {"doubled": [3]}


def test_effects_by_two_deliveries_are_counted_and_no_failure(run: Run) -> None:
    run.done += [run.effect(3, delivery=2), run.effect(3, delivery=3), run.effect(4, delivery=2)]
    verdict = run.judged()
    assert (verdict.answer, verdict.doubled, verdict.redelivered, verdict.effects) == ("PASS", 0, 2, 23)


@pytest.mark.parametrize("where", ["receipts", "effects"])
def test_two_jobs_for_one_seq_are_a_double(run: Run, where: str) -> None:
    if where == "receipts":
        run.answers.append(run.receipt(3, 900))
        del run.done[3]
        run.die(3)
    else:
        run.done.append(run.effect(3, 900))
    verdict = run.judged()
    assert (verdict.answer, verdict.offenders) == ("FAIL", {"doubled": [3]})


def test_a_stranger_is_found(run: Run) -> None:
    run.done.append(run.effect(COUNT + 50))
    assert run.judged().offenders == {"unexpected": [COUNT + 50]}
    run.answers[5] = run.receipt(5, None, "refused")
    assert run.judged().offenders == {"unexpected": [5, COUNT + 50]}


def test_a_lost_answer_may_have_been_a_job_or_not(run: Run) -> None:
    run.answers[5] = run.receipt(5, None, "unknown")
    run.answers[6] = run.receipt(6, None, "unknown")
    del run.done[6]
    verdict = run.judged()
    assert (verdict.answer, verdict.accepted, verdict.unknown) == ("PASS", 18, 2)
    run.answers.append(run.receipt(6, answer="duplicate"))
    verdict = run.judged()
    assert (verdict.answer, verdict.unknown, verdict.offenders) == ("FAIL", 1, {"lost": [6]})


def test_a_torn_last_line_is_left_out_and_counted(run: Run) -> None:
    run.done[-1] = run.done[-1][:-9]
    verdict = run.judged()
    assert (verdict.torn, verdict.offenders) == (1, {"lost": [COUNT - 1]})
    run.done[-1] = run.effect(COUNT - 1).removesuffix("\n")
    assert (run.judged().torn, run.judged().answer) == (0, "PASS")


def test_a_torn_line_elsewhere_is_refused(run: Run) -> None:
    run.done[4] = run.done[4][:-9] + "\n"
    with pytest.raises(Invalid, match="a line cannot be read"):
        run.judged()


def test_too_little_proves_nothing_and_a_failure_outweighs_it(run: Run) -> None:
    verdict = run.judged(min_jobs=COUNT + 1, faults=2, min_faults=3)
    assert (verdict.answer, verdict.exit_code) == ("INVALID", 2)
    assert len(verdict.reasons) == 2
    del run.done[0]
    assert run.judged(min_jobs=COUNT + 1).answer == "FAIL"


def test_missing_or_absurd_evidence_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no such file"):
        audit_quickly(tmp_path / "nowhere", run.effects, run.store)
    run.answers.append(run.receipt(2**40))
    with pytest.raises(Invalid, match="forebay audit"):
        run.judged()
