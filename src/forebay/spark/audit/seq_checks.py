"""The exact checks of one seq, the producer's own number: the jobs that receipts and effects name for it.

Plain functions, as in `job_checks`, which adds the facts of each job in the ledger.
"""

from collections.abc import Iterator, Sequence

from forebay.spark.audit.job_checks import Finding, Mention, Rules


def check_seq(seq: int, mentions: Sequence[Mention], rules: Rules) -> Iterator[Finding]:
    answers = {each.answer for each in mentions} - {None}
    effects = {each.job_id: each for each in mentions if each.answer is None and each.job_id is not None}
    if rules.receipts:
        yield from _duplicated(seq, mentions)
    if "unknown" in answers and answers <= {"refused", "unknown"} and effects:
        yield Finding("recovered", seq, min(effects), note="the reply was lost, the job was done")
    named = {each.job_id for each in mentions if each.answer is not None}
    for job_id, each in sorted(effects.items()):
        reasons = ["the ledger has no such job"] if rules.whole and not each.accepted else []
        if not rules.receipts:
            pass
        elif answers <= {"refused"}:
            # It matches the ledger, and no receipt has its seq or its job: evidence is missing.
            if not answers and not each.named and each.accepted:
                note = "the ledger accepted the job, and there is no receipt of it"
                yield Finding("unreceipted", seq, job_id, note=note)
            else:
                reasons.insert(0, "it was not sent")
        elif each.named and job_id not in named and "unknown" not in answers:
            # Where the seq's reply was lost, it may have been a duplicate of theirs.
            yield Finding("foreign_effect", seq, job_id, note="the receipts name the job for other seqs")
        if reasons:
            yield Finding("unexpected", seq, job_id, note="; ".join(reasons))


def _duplicated(seq: int, mentions: Sequence[Mention]) -> Iterator[Finding]:
    """A broker makes a copy in each queue; of a job that the ledger does not have the queue is not known."""
    jobs: dict[str | None, set[int]] = {}
    for each in mentions:
        if each.job_id is not None and each.known and each.answer in ("accepted", "duplicate", None):
            jobs.setdefault(each.queue, set()).add(each.job_id)
    for own in jobs.values():
        if len(own) > 1:
            listed = ", ".join(map(str, sorted(own)))
            yield Finding("duplicated", seq, max(own), note=f"jobs {listed}")
