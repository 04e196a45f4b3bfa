"""The upkeep of what audits were given and have proven: joined and dropped, and the next audit relies on the proof."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay.spark import evidence as module
from forebay.spark.audit import AuditOptions, AuditVerdict
from forebay.spark.evidence import EVIDENCE, Evidence, read_effects, read_receipts
from forebay.spark.lake import PROOF, Lake
from forebay.spark.lake_reader import read_rows
from forebay.spark.maintenance import Maintenance, maintain
from forebay.spark.proof import LakeEvidence, audit_lake
from forebay.store.clock import SystemClock
from tests.spark.lakes import brought
from tests.spark.sample_stores import opened, worked

DAY = 86_400_000_000


def never() -> SparkSession:
    raise AssertionError("Spark was started")


class Audited:
    """A store, its lake, and audits of them that have to do without Spark."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = f"sqlite:///{place}/jobs.db"
        self.lake = Lake.of(place / "lake", self.url)
        self.jobs = 0

    def work(self, jobs: int) -> None:
        worked(self.url, self.place, jobs, first=self.jobs)
        self.jobs += jobs
        with opened(self.url) as store:
            brought(self.lake, self.url, store.ledger_extent()[1])

    def evidence(self) -> dict[str, Evidence]:
        readers = {"receipts": read_receipts, "effects": read_effects}
        return {name: read(never, [str(self.place / f"{name}.ndjson")], self.lake) for name, read in readers.items()}

    def audit(self, *, whole: bool = False, drained: bool = True) -> AuditVerdict:
        found = self.evidence()
        given = LakeEvidence(found["receipts"], found["effects"], {})
        return audit_lake(never, self.lake, given, AuditOptions(drained=drained), whole=whole)

    def rows(self) -> dict[str, list[str]]:
        found = self.evidence()
        return {
            name: sorted(map(str, read_rows(self.lake, name, each.files, each.schema).to_pylist()))
            for name, each in found.items()
        }


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    return Audited(tmp_path)


def test_files_of_evidence_are_joined_and_an_audit_relies_on_its_proof_still(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 200)
    audited.work(20)
    assert audited.audit().answer == "PASS"
    before, files = audited.rows(), {name: len(audited.lake.table(name).files) for name in EVIDENCE}
    assert min(files.values()) > 3
    assert maintain(audited.lake, Maintenance(grace=timedelta(0))).joined >= sum(files.values())
    assert {name: len(audited.lake.table(name).files) for name in EVIDENCE} == dict.fromkeys(EVIDENCE, 1)
    assert audited.rows() == before
    audited.work(5)
    verdict = audited.audit()
    assert (verdict.answer, verdict.facts["jobs"], verdict.facts["effects"]) == ("PASS", 25, 25)
    assert verdict.earlier is not None
    assert (verdict.earlier.end, verdict.earlier.new_events) == (3, 15)
    assert audited.audit(whole=True).facts == verdict.facts


def test_an_audit_relies_on_what_was_proven_of_days_that_were_dropped(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proofs of questions that nothing has asked since are dropped, too."""

    def scopes() -> int:
        return len({file.partition["scope"] for file in audited.lake.table(PROOF).files})

    audited.work(20)
    assert [audited.audit(drained=each).answer for each in (True, False)] == ["PASS", "PASS"]
    maintenance = Maintenance(keep=timedelta(days=2), grace=timedelta(0))
    now = SystemClock().now()
    with monkeypatch.context() as later:
        later.setattr(SystemClock, "now", lambda _: now + 2 * DAY)
        assert (maintain(audited.lake, maintenance).rows_dropped, scopes()) == (0, 2)
        later.setattr(SystemClock, "now", lambda _: now + 4 * DAY)
        assert audited.audit().answer == "PASS"
        maintain(audited.lake, maintenance)
    assert (audited.lake.table("events").rows, audited.lake.table("events").dropped, scopes()) == (0, 60, 1)
    assert audited.rows() == {"receipts": [], "effects": []}, "what was dropped is not read again"
    audited.work(5)
    verdict = audited.audit()
    assert (verdict.answer, verdict.facts["jobs"], verdict.facts["effects"]) == ("PASS", 25, 25), verdict.text()
    assert verdict.earlier is not None
    assert (verdict.earlier.end, verdict.earlier.new_events) == (3, 15)
    with pytest.raises(AssertionError, match="Spark was started"):
        audited.audit(whole=True)
