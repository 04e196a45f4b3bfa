"""The guards of retained logs, and how each is broken."""

from tests.mutants.guards import MEMORY, SCHEMA, Mutant

_MEMORY = ("tests/stores/test_conformance.py", "-k", "memory-logs_")
_SQLITE = ("tests/stores/test_conformance.py", "-k", "sqlite-logs_")
_POSTGRES = ("tests/stores/test_conformance.py", "-k", "postgres-logs_")
_READERS = ("tests/stores/test_readers.py",)
_SQL = "src/forebay/store/sql_logs.py"
_RULES = "src/forebay/engine/logs.py"

LOG_MUTANTS = [
    Mutant(
        "a partition is taken before its owner's lease is over",
        _RULES,
        "(holding.member != member and holding.until <= now)",
        "holding.member != member",
        _MEMORY,
    ),
    Mutant(
        "an epoch stays when a partition changes hands",
        _RULES,
        "holding.epoch if holding.member == member else holding.epoch + 1",
        "holding.epoch or 1",
        _MEMORY,
    ),
    Mutant(
        "no member gives up more than its share",
        _RULES,
        "if holding.member == member][:share]",
        "if holding.member == member]",
        _MEMORY,
    ),
    Mutant(
        "a commit in an old epoch",
        _RULES,
        "if epoch is not None and (member is None or current != epoch):",
        "if epoch is not None and member is None:",
        _MEMORY,
    ),
    Mutant(
        "a commit in an old epoch, in Postgres",
        f"{SCHEMA}/0011_logs.pre.sql",
        "IF in_epoch IS NOT NULL AND (owner IS NULL OR current <> in_epoch) THEN",
        "IF in_epoch IS NOT NULL AND owner IS NULL THEN",
        _POSTGRES,
    ),
    Mutant(
        "entries go a moment before their window has passed",
        _SQL,
        "self._drop(log, now - window + 1,",
        "self._drop(log, now - window + 2_500_000,",
        _SQLITE,
    ),
    Mutant(
        "a lagging group does not block",
        _SQL,
        "self._floors(log, now - window) if blocks else {}",
        "{}",
        _SQLITE,
    ),
    Mutant(
        "a group that is no longer seen blocks",
        _SQL,
        "            if one.seen_at >= since:\n",
        "            if one.seen_at >= 0:\n",
        _SQLITE,
    ),
    Mutant(
        "what a group lost is not counted",
        f"{MEMORY}/facts.py",
        "            if missed > 0:\n",
        "            if missed > 1_000:\n",
        _MEMORY,
    ),
    Mutant(
        "committed before it was handled, though it should be after",
        "src/forebay/work/log_readers.py",
        'self._first = commit == "before"',
        "self._first = True",
        _READERS,
    ),
    Mutant(
        "a bridge does not read its position",
        "src/forebay/work/log_readers.py",
        "if known is None or entry.offset > known.batch]",
        "]",
        _READERS,
    ),
]
