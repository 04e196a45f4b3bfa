"""The lab beside Spark: the same seed makes the same jobs, and both proofs come to one verdict."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay import Draft, Want, decide, open_store
from forebay.core.instant import seconds
from forebay.core.outcome import Ack, Failed, Failure, Release
from forebay.core.payload import decode_payload
from forebay.core.policy import Routing
from forebay_proof.lab.audit import audit_command, audit_quickly, read_spark_result
from forebay_proof.load.mix import S1
from tests.command_result import Run

COUNT = 40
DEAD, LOST, TWICE, UNSURE, AGAIN = 3, 11, 17, 23, 29


@pytest.mark.parametrize("seed", [7, -1, 2**31 - 1, 2**40])
def test_the_jobs_of_a_seed_are_those_that_gen_makes(spark: SparkSession, seed: int) -> None:
    from forebay.spark.generate import jobs

    start = 2**33 if seed == 7 else 0
    made = jobs(spark, 400, seed, start=start, queue="lab").collect()
    for row in made:
        draft = S1.draft(seed, row["seq"], "lab")
        assert (draft.kind, draft.queue) == (row["kind"], row["queue"])
        assert draft.payload == decode_payload(row["payload"].encode())


def evidence(folder: Path, url: str, *, planted: bool) -> tuple[Path, Path]:
    """A worked-off queue: one is dead, one was delivered twice; if `planted`, one effect is missing and one double."""
    store = open_store(url)
    ids = [receipt.id for receipt in store.enqueue([Draft("fast", {"seq": seq}) for seq in range(COUNT)])]
    effects = []
    while leases := store.claim([Want("default", COUNT)], "w", seconds(60)):
        for lease in leases:
            seq, (job, delivery) = lease.job.payload["seq"], lease.fence
            if seq == DEAD:
                failed = decide(lease.job, Failed(Failure("ValueError", "no")), Routing(1), 0.0)
                store.settle([(lease, failed)])
                continue
            store.settle([(lease, Release() if (seq, delivery) == (AGAIN, 1) else Ack())])
            times = 0 if planted and seq == LOST else 2 if planted and seq == TWICE else 1
            for second in range(times):
                at = f"2030-01-31T10:30:0{second}Z"
                effects.append(f'{{"seq":{seq},"job_id":{job},"delivery":{delivery},"effect_at":"{at}"}}\n')
    store.close()
    answers = {seq: (f"{ids[seq]}", "accepted") for seq in range(COUNT)} | {UNSURE: ("null", "unknown")}
    lines = [f'{{"seq":{seq},"job_id":{job},"answer":"{answer}"}}\n' for seq, (job, answer) in answers.items()]
    (folder / "effects").mkdir()
    (folder / "receipts.ndjson").write_text("".join(lines))
    (folder / "effects" / "1.ndjson").write_text("".join(effects) + '{"seq":5,"job')
    return folder / "receipts.ndjson", folder / "effects"


@pytest.mark.parametrize("planted", [False, True], ids=["good", "planted"])
def test_both_proofs_come_to_one_verdict(run: Run, tmp_path: Path, planted: bool) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    receipts, effects = evidence(tmp_path, url, planted=planted)
    words = audit_command(receipts, effects, url, tmp_path / "lake", drained=True, min_jobs=10)
    slowly = read_spark_result(run(*words).out, receipts, url)
    store = open_store(url)
    quickly = audit_quickly(receipts, effects, store, min_jobs=10)
    store.close()
    for count in ("answer", "accepted", "effects", "dead", "lost", "unfinished", "doubled", "redelivered", "unknown"):
        assert getattr(slowly, count) == getattr(quickly, count), count
    assert quickly.answer == ("FAIL" if planted else "PASS")
    assert (quickly.lost, quickly.doubled) == ((1, 1) if planted else (0, 0))
    assert (quickly.dead, quickly.unknown, quickly.torn, quickly.redelivered) == (1, 1, 1, 1)
    if planted:
        assert quickly.offenders == {"lost": [LOST], "doubled": [TWICE]}
        assert slowly.offenders == {"undone": [LOST], "repeated_effect": [TWICE]}
