"""A store whose server fails over to an asynchronous replica, what producers and handlers saw of it, and the audit."""

from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq

from forebay import Draft, QueueSpec, Store
from forebay.core.instant import hours
from forebay.core.lease import Lease, Settled
from forebay.core.outcome import Ack
from forebay.core.policy import KeepFor
from forebay.store.protocol import Query, Want
from tests.command_result import Run
from tests.spark.story import Story


class FailOver:
    """`story` has the receipts of producers and the effects of handlers. `store` is that of the server in charge."""

    durable = True
    """What receipts say."""

    def __init__(self, store: Store) -> None:
        self.story = Story()
        self.store = store
        self.store.put_spec(QueueSpec(name="default", retention=KeepFor(hours(1))))

    def put(self, count: int) -> dict[int, int]:
        """By seq, the jobs that a producer has a receipt for."""
        seqs = [self.story.seq() for _ in range(count)]
        receipts = self.store.enqueue([Draft("k", seq) for seq in seqs])
        for seq, receipt in zip(seqs, receipts, strict=True):
            assert receipt.durable is self.durable
            self.story.receipt(seq, receipt.id, at=self.store.now())
        return {seq: receipt.id for seq, receipt in zip(seqs, receipts, strict=True)}

    def work(self, count: int) -> list[int]:
        """The seqs that were done."""
        leases = self.store.claim([Want("default", count)], "w", timedelta(minutes=1))
        for lease in leases:
            self.story.effect(seq_of(lease), *lease.fence, self.store.now())
        assert set(self.store.settle([(lease, Ack()) for lease in leases])) <= {Settled.APPLIED}
        return [seq_of(lease) for lease in leases]

    def lost(self) -> set[int]:
        """The seqs with a receipt and without a job."""
        kept = {job.payload for job in self.store.browse(Query(), 0, 1_000).jobs}
        return {seq for seq, *_ in self.story.receipts} - kept

    def audit(self, run: Run, url: str) -> dict[str, set[int]]:
        """By failed check, the seqs that it names."""
        receipts, effects = self.story.evidence()
        pq.write_table(receipts, "receipts.parquet")
        pq.write_table(effects, "effects.parquet")
        files = ("--receipts", "receipts.parquet", "--effects", "effects.parquet")
        answer = run("audit", "--store", url, "--lake", "lake", *files, "--drained", "--json")
        (verdict,) = answer.json
        assert (answer.code, verdict["answer"]) == (1, "FAIL"), answer.out
        results: list[dict[str, Any]] = verdict["results"]
        return {
            each["check"]: {offender["seq"] for offender in each["offenders"]}
            for each in results
            if each["outcome"] == "failed"
        }


def seq_of(lease: Lease) -> int:
    seq = lease.job.payload
    assert isinstance(seq, int)
    return seq
