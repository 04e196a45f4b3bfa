"""The guards of the pipeline: source, sink, lake, audit and report, and how each is broken."""

from tests.mutants.guards import Mutant

SPARK = "src/forebay/spark"
SINK = ("tests/spark/test_sink.py", "-k", "tries or order or missing or stopped")
STREAM = ("tests/spark/test_stream.py", "-k", "available_now_ends or under_way or bound_counts")
PLANTED = ("tests/spark/test_audit_planted.py", "-k", "every_anomaly")
LANDING = ("tests/spark/test_landing.py", "-k", "not say_what")

SPARK_MUTANTS = [
    Mutant(
        "spark: the sink has no fence",
        f"{SPARK}/sink.py",
        "self._store.feed(self._share.source, self._known, after, drafts)",
        "self._store.feed(self._share.source, self._store.fed(self._share.source), after, drafts)",
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
        f"{SPARK}/tries.py",
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
        "spark: the lake takes what it has",
        f"{SPARK}/landing.py",
        "max(part.start, lake.contents().end)",
        "part.start",
        LANDING,
    ),
    Mutant(
        "spark: files of a task that failed count too",
        f"{SPARK}/lake.py",
        "        for file in files:\n            target = draft",
        "        for file in (str(each.relative_to(self.landing)) for each in self.landing.rglob('*.parquet')):\n"
        "            target = draft",
        LANDING,
    ),
    Mutant(
        "spark: a job that gave way may run",
        f"{SPARK}/audit/life.py",
        "ENDED: Final = (Change.ACKED, Change.DIED, Change.DISMISSED, Change.CANCELLED, Change.EXPIRED, Change.SHED)",
        "ENDED: Final = (Change.ACKED, Change.DIED, Change.DISMISSED, Change.CANCELLED, Change.EXPIRED)",
        PLANTED,
    ),
    Mutant(
        "spark: copies of a broker are duplicates",
        f"{SPARK}/audit/told.py",
        'placed.groupBy("seq", "queue").agg(',
        'placed.groupBy("seq").agg(',
        PLANTED,
    ),
    Mutant(
        "spark: an id that was given again hides who had it",
        f"{SPARK}/audit/told.py",
        "return absent.unionAll(replaced)",
        "return absent",
        PLANTED,
    ),
    Mutant(
        "spark: a receipts file that is missing is a fault of the store",
        f"{SPARK}/audit/told.py",
        'return unnamed.join(born, "job_id", "left_semi")',
        'return unnamed.limit(0).join(born, "job_id", "left_semi")',
        PLANTED,
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
        'if chunk.start and file.read(1) != b"\\n":',
        "if False:",
        ("tests/spark/test_evidence.py", "-k", "every_line"),
    ),
    Mutant(
        "spark: a torn record is let in",
        f"{SPARK}/landing.py",
        "    if len(torn):\n",
        "    if len(torn) > len(offsets):\n",
        LANDING,
    ),
    Mutant(
        "spark: published before it is durable in its place",
        f"{SPARK}/lake.py",
        "        draft.rename(place)\n        _sync(place.parent)\n        return place\n",
        "        return place\n",
        ("tests/spark/test_pipeline_lake.py",),
    ),
    Mutant(
        "spark: a report believes what it shows",
        f"{SPARK}/document.py",
        '{escape(shown)}</td>" if figure else f"<td>{escape(shown)}</td>"',
        '{shown}</td>" if figure else f"<td>{shown}</td>"',
        ("tests/spark/test_report.py", "-k", "hostile"),
    ),
]
