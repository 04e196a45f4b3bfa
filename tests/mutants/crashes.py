"""Guards of crashes: who is charged, what is taken back, what never begins."""

from tests.mutants.guards import Mutant

POOL = "src/forebay/work/pool.py"
MARKS = "src/forebay/work/start_marks.py"

CRASH_MUTANTS = [
    Mutant(
        "a handler begins after its lease has ended",
        POOL,
        "if lease_clock() >= run.lease_ends:",
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
        "src/forebay/work/recovery.py",
        "if owner == self._owner or marks is None or marks.alive:",
        "if owner == self._owner or marks is None:",
        ("tests/unit/test_marks.py", "-k", "takes_back"),
    ),
    Mutant(
        "what a dead process had begun is not charged",
        "src/forebay/work/recovery.py",
        "return Abandoned() if begun is None or (job.id, job.delivery) in begun else Interrupted()",
        "return Interrupted()",
        ("tests/unit/test_marks.py", "-k", "takes_back"),
    ),
    Mutant(
        "what a dead process had only held is charged",
        "src/forebay/work/recovery.py",
        "return Abandoned() if begun is None or (job.id, job.delivery) in begun else Interrupted()",
        "return Abandoned()",
        ("tests/unit/test_marks.py", "-k", "takes_back"),
    ),
]
