"""Guards of crashes: who is charged, what is taken back, what never begins."""

from tests.mutants.guards import Mutant

POOL = "src/forebay/work/pool.py"
SIMULATION = ("tests/sim/test_simulation.py", "-k", "test_seeds_hold")
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
        "return _of_dead(marks.begun, fence, _DIED) if fence in marks.begun else Interrupted(expired=True)",
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
        "and verdict.expired",
        "and False",
        ("tests/stores/test_conformance.py", "-k", "memory-leases-a_reaper_that_looked"),
    ),
    Mutant(
        "a suspect begins before the verdict of the last one is durable",
        "src/forebay/work/quarantine.py",
        "        if written:\n",
        "        if True:\n",
        ("tests/process/test_quarantine.py", "-k", "is_durable"),
    ),
    Mutant(
        "the simulation sees a suspect that begins before the verdict of the last one is durable",
        "src/forebay/testing/sim/pool.py",
        "        self._quarantined.pop(fence, None)\n",
        "        self._quarantined.pop(fence, None)\n        self._begin_in_quarantine(self._board.settled(fence))\n",
        SIMULATION,
    ),
    Mutant(
        "two suspects in one process",
        "src/forebay/work/suspects.py",
        "self._waiting.popleft(), self._free.pop()",
        "self._waiting.popleft(), self._free[-1]",
        ("tests/unit/test_suspects.py",),
    ),
    Mutant(
        "the simulation sees two suspects in one process",
        "src/forebay/work/suspects.py",
        "while self._free and self._waiting:",
        "while self._waiting:\n            self._free = self._free or [0]",
        SIMULATION,
    ),
    Mutant(
        "the simulation sees that what had only been held is charged",
        RECOVERY,
        "return Abandoned(cause) if fence in begun else Interrupted()",
        "return Abandoned(cause)",
        SIMULATION,
    ),
    Mutant(
        "the simulation sees that what may not have begun is charged at once",
        "src/forebay/core/decide.py",
        "case Unaccounted(cause) if not job.needs_quarantine and job.max_attempts > 1:",
        "case Unaccounted(cause) if False:",
        SIMULATION,
    ),
    Mutant(
        "a suspect pays for the end of its worker",
        RECOVERY,
        "if begun.get(fence) == IN_QUARANTINE:",
        "if False:",
        ("tests/process/test_quarantine.py", "-k", "not_to_blame"),
    ),
    Mutant(
        "a killer in quarantine reaches its worker",
        "src/forebay/work/isolate.py",
        "    if child := os.fork():\n",
        "    if child := 0:\n",
        ("tests/process/test_quarantine.py", "-k", "ends_in_quarantine"),
    ),
    Mutant(
        "suspects run in the pool",
        "src/forebay/work/pool.py",
        "suspect = bool(lease.job.errors) and lease.job.needs_quarantine",
        "suspect = False",
        ("tests/process/test_quarantine.py", "-k", "ends_in_quarantine"),
    ),
]
