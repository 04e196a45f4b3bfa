"""The guards of the pipeline: source, sink, lake, audit and report, and how each is broken."""

from tests.mutants.guards import Mutant

SPARK = "src/forebay/spark"
SINK = ("tests/spark/test_sink.py", "-k", "tries or order or missing or stopped")
STREAM = ("tests/spark/test_stream.py", "-k", "available_now_ends or under_way or bound_counts")
PLANTED = ("tests/spark/test_audit_planted.py", "-k", "every_anomaly")
TASKS = ("tests/spark/test_audit_planted.py", "-k", "too_many_for_the_driver")
INCREMENTAL = ("tests/spark/test_audit_incremental.py", "-k", "wherever_they_are_cut")
LANDING = ("tests/spark/test_landing.py", "-k", "not say_what")
LAKE = ("tests/spark/test_pipeline_lake.py",)

SPARK_MUTANTS = [
    Mutant(
        "spark: the sink has no fence",
        f"{SPARK}/sink.py",
        "self._store.ingest(self._share.source, self._known, after, drafts)",
        "self._store.ingest(self._share.source, self._store.ingested(self._share.source), after, drafts)",
        SINK,
    ),
    Mutant(
        "spark: rows of the try before are not compared",
        f"{SPARK}/sink.py",
        "if known is None or digest != known.digest[:DIGEST_BYTES]:",
        "if known is None:",
        SINK,
    ),
    Mutant(
        "spark: a partition that vanished is not missed",
        f"{SPARK}/retries.py",
        "    if head.digest == share.trial:\n",
        "    if head is not None:\n",
        SINK,
    ),
    Mutant(
        "spark: available now follows the head",
        f"{SPARK}/streaming.py",
        "end = following if self._target is None else min(following, max(begin, self._target[number]))",
        "end = following",
        STREAM,
    ),
    Mutant(
        "spark: what is trimmed under way is not counted",
        f"{SPARK}/streaming.py",
        "        return max(0, sum(gone) - known)\n",
        "        return 0\n",
        STREAM,
    ),
    Mutant(
        "spark: a commit does not say how far the table is",
        f"{SPARK}/lake.py",
        "commit_properties=CommitProperties(app_transactions=transactions),",
        "commit_properties=CommitProperties(app_transactions=[]),",
        LAKE,
    ),
    Mutant(
        "spark: a refresh passes over files that hold touched jobs",
        f"{SPARK}/frames.py",
        "        return first < len(self.buckets) and self.buckets[first] <= most\n",
        "        return False\n",
        ("tests/spark/test_pipeline_run.py", "-k", "writes_what_changed"),
    ),
    Mutant(
        "spark: old days are dropped by day, and offsets have holes",
        f"{SPARK}/maintenance.py",
        "if file.day < first_day]",
        "if file.day < first_day][:0]",
        LAKE,
    ),
    Mutant(
        "spark: a job that gave way may run",
        f"{SPARK}/audit/job_checks.py",
        "ENDED: Final = (Change.ACKED, Change.DIED, Change.DISMISSED, Change.CANCELLED, Change.EXPIRED, Change.SHED)",
        "ENDED: Final = (Change.ACKED, Change.DIED, Change.DISMISSED, Change.CANCELLED, Change.EXPIRED)",
        PLANTED,
    ),
    Mutant(
        "spark: copies of a broker are duplicates",
        f"{SPARK}/audit/seq_checks.py",
        "jobs.setdefault(each.queue, set())",
        "jobs.setdefault(None, set())",
        PLANTED,
    ),
    Mutant(
        "spark: an id that was given again hides who had it",
        f"{SPARK}/audit/job_checks.py",
        "for seq in sent if seq != last)",
        "for seq in sent if seq is None)",
        PLANTED,
    ),
    Mutant(
        "spark: a receipts file that is missing is a fault of the store",
        f"{SPARK}/audit/seq_checks.py",
        "if not answers and not each.named and each.accepted:",
        "if False:",
        PLANTED,
    ),
    Mutant(
        "spark: an effect by the job of another seq is let pass",
        f"{SPARK}/audit/seq_checks.py",
        'elif each.named and job_id not in told and "unknown" not in answers:',
        "elif False:",
        PLANTED,
    ),
    Mutant(
        "spark: a delivery may be handed out again",
        f"{SPARK}/audit/job_checks.py",
        "if (now.delivery or 0) != delivery + 1:",
        "if (now.delivery or 0) > delivery + 1:",
        PLANTED,
    ),
    Mutant(
        "spark: a claim without an attempt is not counted",
        f"{SPARK}/audit/job_checks.py",
        "(now.attempt or 0) != expected:",
        "now.attempt is not None and now.attempt != expected:",
        PLANTED,
    ),
    Mutant(
        "spark: any redrive opens a job, also one before its end",
        f"{SPARK}/audit/job_checks.py",
        "ended > redriven",
        "ended < redriven",
        PLANTED,
    ),
    Mutant(
        "spark: tasks judge a seq without all that is said of it",
        f"{SPARK}/audit/examine.py",
        'by_seq = by_seq.repartition("seq").sortWithinPartitions("seq")',
        "by_seq = by_seq.repartition(3)",
        TASKS,
    ),
    Mutant(
        "spark: suspects that are too many for the driver are cut off there",
        f"{SPARK}/audit/examine.py",
        "    if sum(map(len, tables)) > MAX_DRIVER_ROWS:\n",
        "    if sum(map(len, tables)) < 0:\n",
        TASKS,
    ),
    Mutant(
        "spark: a lake without its last file is whole",
        "src/forebay/cli/audit.py",
        "for each in holes(lake.contents())]",
        "for each in holes(lake.contents())[:0]]",
        ("tests/spark/test_audit_files.py",),
    ),
    Mutant(
        "spark: executors are not asked what they have",
        f"{SPARK}/session.py",
        "                check_executors(session)\n",
        "                pass\n",
        ("tests/spark/test_cluster.py", "-k", "lack"),
    ),
    Mutant(
        "spark: the app of the working directory stays at home",
        f"{SPARK}/executors.py",
        "    spark.sparkContext.addPyFile(str(file))\n",
        "",
        ("tests/spark/test_cluster.py", "-k", "burst"),
    ),
    Mutant(
        "spark: an audit is quick unless it is told otherwise",
        f"{SPARK}/audit/checks.py",
        "    quick: bool = False\n",
        "    quick: bool = True\n",
        PLANTED,
    ),
    Mutant(
        "spark: a job whose events changed places is no suspect",
        f"{SPARK}/audit/profile.py",
        "(life == (_CLAIMED | _ACKED)) & (last == _ACK) & as_due",
        "(life == (_CLAIMED | _ACKED)) & as_due",
        ("tests/spark/test_audit_profile.py", "-k", "planted_kind"),
    ),
    Mutant(
        "spark: a line at the edge of a chunk is read twice",
        f"{SPARK}/evidence.py",
        'if chunk.start > segment.start and file.read(1) != b"\\n":',
        "if False:",
        ("tests/spark/test_evidence.py", "-k", "every_line"),
    ),
    Mutant(
        "spark: a file of evidence that has grown is decoded from its beginning",
        f"{SPARK}/evidence.py",
        "if each[1] in parents), default=",
        "if each[1] in parents and each[0] == whole), default=",
        ("tests/spark/test_evidence.py", "-k", "grown"),
    ),
    Mutant(
        "spark: earlier events of jobs that return are not read",
        f"{SPARK}/proof.py",
        'file.least["offset"] < end and numbers.meets(file)]',
        'file.least["offset"] < 0]',
        INCREMENTAL,
    ),
    Mutant(
        "spark: earlier evidence of jobs that return is not read",
        f"{SPARK}/proof.py",
        "if by_job.meets(file) or by_seq.meets(file)]",
        "if file.rows < 0]",
        INCREMENTAL,
    ),
    Mutant(
        "spark: a proof outlives the events that it was about",
        f"{SPARK}/proof.py",
        "        if below != proven.rows:\n",
        "        if below < 0:\n",
        ("tests/spark/test_audit_incremental.py", "-k", "command"),
    ),
    Mutant(
        "spark: those who follow are told of jobs that the lake does not have yet",
        f"{SPARK}/proof.py",
        "        if self._until is not None:\n            rows = {",
        "        if self._until == -1:\n            rows = {",
        ("tests/spark/test_audit_incremental.py", "-k", "under_way"),
    ),
    Mutant(
        "spark: a torn record is let in",
        f"{SPARK}/landing.py",
        "    if len(torn):\n",
        "    if len(torn) > len(offsets):\n",
        LANDING,
    ),
    Mutant(
        "spark: a report believes what it shows",
        f"{SPARK}/document.py",
        '{escape(shown)}</td>" if figure else f"<td>{escape(shown)}</td>"',
        '{shown}</td>" if figure else f"<td>{shown}</td>"',
        ("tests/spark/test_report.py", "-k", "hostile"),
    ),
]
