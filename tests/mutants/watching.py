"""Guards of results, of waiting for jobs, and of requests to end them."""

from tests.mutants.guards import Mutant

RESULTS = ("tests/unit/test_results.py",)
MEMORY = ("tests/stores/test_conformance.py", "-k", "memory-results or memory-watching")
SQLITE = ("tests/stores/test_conformance.py", "-k", "sqlite-results or sqlite-watching")

WATCHING_MUTANTS = [
    Mutant(
        "the queue alone says how long a finished job is kept",
        "src/forebay/core/stamp.py",
        "keep_for = max(self._keep_for, keep_for)",
        "keep_for = self._keep_for",
        MEMORY,
    ),
    Mutant(
        "a job with a result that is kept goes the quick way of those that are not",
        "src/forebay/store/sqlite/leases.py",
        "if type(verdict) is Ack and not verdict.keep_for]",
        "if type(verdict) is Ack]",
        SQLITE,
    ),
    Mutant(
        "a result is kept that comes back as something else",
        "src/forebay/work/results.py",
        "        if path is not None:\n",
        "        if path is not None and False:\n",
        RESULTS,
    ),
    Mutant(
        "types without a form in JSON are found out at run time",
        "src/forebay/work/results.py",
        "            if found is not None:\n",
        "            if found is not None and False:\n",
        RESULTS,
    ),
    Mutant(
        "no waiter is woken by the end of a job",
        "src/forebay/store/memory/session.py",
        "        if self.watchers:\n            self._notify(topics(self.facts, change))\n",
        "",
        MEMORY,
    ),
    Mutant(
        "requests to end a job come with the heartbeat",
        "src/forebay/work/worker.py",
        "*self._maintaining, self._listening, self._claiming):",
        "*self._maintaining, self._claiming):",
        ("tests/process/test_watching.py", "-k", "cancelled and sqlite-waits"),
    ),
    Mutant(
        "a job that was to end begins again after its holder died",
        "src/forebay/work/pool.py",
        "            elif lease.job.cancel_requested:\n",
        "            elif lease.job.cancel_requested and False:\n",
        ("tests/unit/test_pool.py", "-k", "was_to_end"),
    ),
    Mutant(
        "progress of another delivery is shown",
        "src/forebay/core/job.py",
        "job.state is not State.RUNNING or job.delivery != delivery",
        "False",
        ("tests/stores/test_conformance.py", "-k", "memory-progress"),
    ),
    Mutant(
        "a holder that lost its job still reports",
        "src/forebay/store/sqlite/jobs.sql",
        "FROM job WHERE id = ?1 AND delivery = ?2 AND state = 2\nRETURNING id;",
        "FROM job WHERE id = ?1\nRETURNING id;",
        ("tests/stores/test_conformance.py", "-k", "sqlite-progress"),
    ),
    Mutant(
        "every word of progress is written every second",
        "src/forebay/work/heartbeat.py",
        "if self._written.get(report[0]) is not report[1]]",
        "]",
        ("tests/unit/test_roles.py", "-k", "progress"),
    ),
    Mutant(
        "requests that are known are reported again",
        "src/forebay/store/memory/observing.py",
        "and (job_id, row.delivery) not in known",
        "",
        MEMORY,
    ),
]
