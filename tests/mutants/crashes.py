"""Guards of crashes: who is charged, what is taken back, what never begins."""

from tests.mutants.guards import Mutant

POOL = "src/forebay/work/pool.py"
RECOVERY = "src/forebay/work/recovery.py"
MARKS = "src/forebay/work/start_marks.py"

CRASH_MUTANTS = [
    Mutant(
        "a handler begins after its lease has ended",
        POOL,
        "if run.started_at >= run.lease_ends:",
        "if False:",
        ("tests/unit/test_pool.py", "-k", "lease_that_has_ended"),
    ),
    Mutant(
        "the deadline of a lease counts from the answer",
        "src/forebay/work/claimer.py",
        "self._slots.take(leases[:count], self._lease_ends)",
        "self._slots.take(leases[:count], self._clock() + self._options.lease_for.total_seconds())",
        ("tests/unit/test_roles.py", "-k", "deadline_of_a_claim"),
    ),
    Mutant(
        "marks are dropped where the file is full",
        MARKS,
        "if self._free or self._grow():",
        "if self._free:",
        ("tests/unit/test_marks.py", "-k", "full_file"),
    ),
    Mutant(
        "a file that lost marks is believed",
        MARKS,
        "self._maps[0][_INCOMPLETE_AT] = 1",
        "pass",
        ("tests/unit/test_marks.py", "-k", "incomplete"),
    ),
    Mutant(
        "the jobs of a living process are taken back",
        RECOVERY,
        "if owner == self._owner or marks is None or marks.alive:",
        "if owner == self._owner or marks is None:",
        ("tests/unit/test_marks.py", "-k", "takes_back"),
    ),
    Mutant(
        "what a dead process had begun is not charged",
        RECOVERY,
        "return Abandoned(cause) if fence in begun else Interrupted()",
        "return Interrupted()",
        ("tests/unit/test_marks.py", "-k", "takes_back"),
    ),
    Mutant(
        "what a dead process had only held is charged",
        RECOVERY,
        "return Abandoned(cause) if fence in begun else Interrupted()",
        "return Abandoned(cause)",
        ("tests/unit/test_marks.py", "-k", "takes_back"),
    ),
    Mutant(
        "what a reaper knows not to have begun is charged",
        RECOVERY,
        "return Abandoned(_DIED) if fence in marks.begun else Interrupted(expired=True)",
        "return Abandoned(_DIED)",
        ("tests/unit/test_roles.py", "-k", "reads_the_marks"),
    ),
    Mutant(
        "what may not have begun is charged at once",
        "src/forebay/core/decide.py",
        "case Unaccounted(cause) if not job.needs_quarantine and job.max_attempts > 1:",
        "case Unaccounted(cause) if False:",
        ("tests/unit/test_decide.py", "-k", "only_after_a_run_in_quarantine"),
    ),
    Mutant(
        "a killer that nobody sees is never charged",
        "src/forebay/core/decide.py",
        "case Unaccounted(cause) if not job.needs_quarantine and job.max_attempts > 1:",
        "case Unaccounted(cause) if job.max_attempts > 1:",
        ("tests/stores/test_conformance.py", "-k", "memory-leases-a_killer"),
    ),
    Mutant(
        "a job with one attempt is started again",
        "src/forebay/core/decide.py",
        "case Unaccounted(cause) if not job.needs_quarantine and job.max_attempts > 1:",
        "case Unaccounted(cause) if not job.needs_quarantine:",
        ("tests/unit/test_decide.py", "-k", "never_started_twice"),
    ),
    Mutant(
        "a release for a lost holder takes the job from one that renewed",
        "src/forebay/core/lease.py",
        "return verdict.expired",
        "return False",
        ("tests/stores/test_conformance.py", "-k", "memory-leases-a_reaper_that_looked"),
    ),
]
