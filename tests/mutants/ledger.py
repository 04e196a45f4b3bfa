"""The guards of the ledger, on SQLite and in the journal, and how each is broken."""

from tests.mutants.guards import MEMORY, Mutant

SQLITE = "src/forebay/store/sqlite"
ON_SQLITE = ("tests/stores/test_conformance.py", "-k", "sqlite-ledger")
ON_JOURNAL = ("tests/stores/test_conformance.py", "-k", "journaled-ledger")
BESIDE_OTHERS = ("tests/stores/test_ledger_sqlite.py",)
FILES = ("tests/stores/test_ledger_journal.py",)

LEDGER_MUTANTS = [
    Mutant(
        "a ledger that is off has records, in SQLite",
        "src/forebay/store/sqlite/unit_of_work.py",
        "self.builder.record() if self.recording else None",
        "self.builder.record()",
        ("tests/stores/test_conformance.py", "-k", "sqlite-ledger_keeping"),
    ),
    Mutant(
        "acks are not recorded",
        f"{SQLITE}/leases.py",
        "            unit.builder.leased(Change.ACKED, rows, 0)\n",
        "",
        ON_SQLITE,
    ),
    Mutant(
        "recorded before the fence is checked",
        "src/forebay/engine/settle.py",
        "            held = row.is_running and row.delivery == lease.job.delivery\n",
        "            held = row.is_running\n",
        ON_SQLITE,
    ),
    Mutant(
        "a call that is rolled back keeps its offset",
        f"{SQLITE}/unit_of_work.py",
        "                head = before\n",
        "                before.ledger_next = head.ledger_next + 1\n                head = before\n",
        BESIDE_OTHERS,
    ),
    Mutant(
        "the ledger skips trimmed records silently",
        f"{SQLITE}/logs.py",
        "            if after + 1 < first:\n",
        "            if False:\n",
        ON_SQLITE,
    ),
    Mutant(
        "a ledger that is off goes on",
        f"{MEMORY}/ledger.py",
        "record_of(self._facts, change) if ledger.rule.on or change.ledger is not None else None",
        "record_of(self._facts, change)",
        ON_JOURNAL,
    ),
    Mutant(
        "a reader reads behind what is durable",
        f"{MEMORY}/ledger_files.py",
        "                if file.segment and found > upto:\n                    return\n",
        "",
        FILES,
    ),
    Mutant(
        "compaction drops the ledger",
        f"{MEMORY}/journaled.py",
        "        writer.finish()\n",
        "        writer.give_up()\n",
        FILES,
    ),
    Mutant(
        "files with kept records are deleted",
        f"{MEMORY}/ledger_files.py",
        "        if end <= first:\n",
        "        if end <= following:\n",
        FILES,
    ),
]
