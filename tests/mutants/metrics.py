"""The guards of metrics, health and traces, and how each is broken."""

from tests.mutants.guards import Mutant

METRICS = "src/forebay/serve/metrics"
TALLY = ("tests/serve/test_metrics_tally.py", "-k", "sqlite or kinds or names or gap or before or length or change")
PAGE = ("tests/serve/test_metrics_page.py",)
HEALTH = ("tests/serve/test_health.py", "-k", "not server")
WINDOW = ("tests/serve/test_metrics_worker.py",)
TRACES = ("tests/serve/test_tracing.py",)

METRICS_MUTANTS = [
    Mutant(
        "jobs with a trait are counted as the range's kind",
        f"{METRICS}/tally.py",
        "            kind = job_range.kind if trait is None or trait.kind is None else trait.kind\n",
        "            kind = job_range.kind\n",
        TALLY,
    ),
    Mutant(
        "every failure is a reclaim",
        f"{METRICS}/tally.py",
        "trait is not None and trait.error_kind == ABANDONED and",
        "trait is not None and",
        TALLY,
    ),
    Mutant(
        "a range counts as one job", f"{METRICS}/tally.py", "row.counts[change] += n", "row.counts[change] += 1", TALLY
    ),
    Mutant(
        "lateness counts every claim",
        f"{METRICS}/tally.py",
        "if job_range.delivery == 1 and job_range.due_at > job_range.enqueued_at:",
        "if job_range.due_at > job_range.enqueued_at:",
        TALLY,
    ),
    Mutant(
        "names without a cap",
        f"{METRICS}/tally.py",
        "if len(self._queues) >= self._max_queues:",
        "if False:",
        (*TALLY[:1], *PAGE),
    ),
    Mutant("a gap counts as one record", f"{METRICS}/follower.py", "gone.first - self._after - 1\n", "1\n", TALLY),
    Mutant(
        "a page is counted again",
        f"{METRICS}/follower.py",
        "            self._after = page[-1].offset\n",
        "            self._after = page[-1].offset - 1\n",
        TALLY,
    ),
    Mutant(
        "a scoped key sees the metrics of every queue",
        f"{METRICS}/server_metrics.py",
        'if actor.tenant is None and actor.queues == ("*",):',
        "if actor.tenant is None:",
        PAGE,
    ),
    Mutant(
        "a tenant's key sees whole queues",
        f"{METRICS}/server_metrics.py",
        "in all_families if actor.tenant is None else ():",
        "in all_families:",
        PAGE,
    ),
    Mutant("paths are labels", f"{METRICS}/meters.py", "else UNMATCHED", 'else scope["path"]', PAGE),
    Mutant(
        "label values are not escaped",
        "src/forebay/work/metrics.py",
        """.replace("\\\\", "\\\\\\\\").replace("\\n", "\\\\n").replace('"', '\\\\"')""",
        "",
        PAGE,
    ),
    Mutant(
        "a paused queue is stalled",
        f"{METRICS}/poller.py",
        "if each.ready and each.paused_until is None",
        "if each.ready",
        (*PAGE, *HEALTH[:1], "-k", "stalled or progress"),
    ),
    Mutant("more work is progress", f"{METRICS}/poller.py", "new > old for old, new", "new != old for old, new", PAGE),
    Mutant(
        "a stall is no reason",
        f"{METRICS}/readiness.py",
        'return ["no-progress"] if any(each >= STALLED_SECONDS for each in stalled.values()) else []',
        "return []",
        HEALTH,
    ),
    Mutant(
        "the probe writes nothing",
        f"{METRICS}/readiness.py",
        "0 if here < 0 else -1, rewind=True",
        "here, rewind=True",
        HEALTH,
    ),
    Mutant(
        "a failed probe is well",
        f"{METRICS}/readiness.py",
        'reason: str | None = "store-failed"',
        "reason: str | None = None",
        HEALTH,
    ),
    Mutant(
        "any number of readers at once",
        "src/forebay/work/metrics_server.py",
        "if self._requests.acquire(blocking=False):",
        "if self._requests.acquire(blocking=False) or True:",
        WINDOW,
    ),
    Mutant(
        "a handler's span has no parent",
        "src/forebay/tracing.py",
        "context=None if origin is None else",
        "context=None if True else",
        TRACES,
    ),
    Mutant(
        "a span holds the payload's secrets",
        "src/forebay/work/handler.py",
        "        outcome = handler.outcome_of(error, job.body)\n        return outcome.error if",
        "        outcome = handler.outcome_of(error)\n        return Failure(type(error).__name__, str(error)) if",
        TRACES,
    ),
    Mutant(
        "meta that is full refuses the enqueue",
        "src/forebay/tracing.py",
        "return meta if len(together) > META_ENTRIES or size > META_BYTES else together",
        "return together",
        TRACES,
    ),
    Mutant(
        "any header is a parent",
        "src/forebay/tracing.py",
        "    if _PARENT.fullmatch(parent) is None:\n        return None\n",
        "",
        TRACES,
    ),
    Mutant(
        "a gate is labelled by its value",
        f"{METRICS}/gates.py",
        'return queue, f"{sort}/{per}"',
        "return queue, name",
        PAGE,
    ),
    Mutant(
        "the shed job is not named",
        f"{METRICS}/families.py",
        '    Change.SHED: ("forebay_jobs_shed_total", "Jobs shed by a full queue; they are dead letters."),\n',
        "",
        PAGE,
    ),
    Mutant("a poll of gates without end", f"{METRICS}/gates.py", "while read < MAX_GATES:", "while True:", PAGE),
    Mutant("conditions without a cap", f"{METRICS}/gates.py", "if not queue)[:MAX_CONDITIONS]", "if not queue)", PAGE),
    Mutant(
        "lines of a batch have no trace",
        "src/forebay/serve/api/batch.py",
        "_new_job.decode(text), headers)",
        "_new_job.decode(text), type(headers)())",
        TRACES,
    ),
]
