"""Guards of intake (brokers, merges, quiet periods, keys by state, shedding), and how each is broken."""

from tests.mutants.guards import MEMORY, SCHEMA, Mutant

_MEMORY = ("tests/stores/test_conformance.py", "-k", "memory and (routing or quiet or unique or shedding)")
_SQLITE = ("tests/stores/test_conformance.py", "-k", "sqlite and (quiet or unique or shedding)")
_POSTGRES = ("tests/stores/test_conformance.py", "-k", "postgres and (quiet or unique or shedding)")
_STAMP = "src/forebay/core/stamp.py"
_SHEDDING = "src/forebay/engine/intake.py"
_SQLITE_STORE = "src/forebay/store/sqlite"
_POSTGRES_STORE = "src/forebay/store/postgres"

_SEARCH = "tests/stores/test_search_indexes.py"

INTAKE_MUTANTS = [
    Mutant(
        "a search by an index ignores the rest of the query",
        f"{_SQLITE_STORE}/observing.py",
        "[job for job in found if query.admits(job)]",
        "found",
        (_SEARCH, "-k", "sqlite"),
    ),
    Mutant(
        "a search by an index that leaves jobs out",
        f"{_SQLITE_STORE}/search.py",
        'sql.endswith(f"({expression})")',
        'f"({expression})" in sql',
        (_SEARCH, "-k", "sqlite"),
    ),
    Mutant(
        "a search for null by an index",
        f"{_POSTGRES_STORE}/observing.py",
        ' and text != "null"',
        "",
        (_SEARCH, "-k", "postgres"),
    ),
    Mutant(
        "a broker serves its first queue alone",
        "src/forebay/core/fanout.py",
        "for queue in queues]",
        "for queue in list(queues)[:1]]",
        _MEMORY,
    ),
    Mutant(
        "one new copy makes a duplicate",
        "src/forebay/store/brokers.py",
        "bool(ids) and all(receipt.duplicate for receipt in receipts)",
        "bool(ids) and any(receipt.duplicate for receipt in receipts)",
        _MEMORY,
    ),
    Mutant(
        "a merge leaves the rank",
        f"{MEMORY}/facts.py",
        "            self.rank += newer.rank_base - base\n",
        "            pass\n",
        _MEMORY,
    ),
    Mutant(
        "a merge leaves the rank, in SQLite",
        f"{_SQLITE_STORE}/jobs.sql",
        "rank = coalesce(?10, rank + ?6 - rank_base)",
        "rank = coalesce(?10, rank)",
        _SQLITE,
    ),
    Mutant(
        "a merge leaves the rank, in Postgres",
        f"{_POSTGRES_STORE}/jobs.sql",
        "rank = coalesce(%s::bigint, r.rank + %s - r.rank_base)",
        "rank = coalesce(%s::bigint, r.rank + 0 * %s)",
        _POSTGRES,
    ),
    Mutant(
        "a merge leaves the expiry",
        f"{MEMORY}/facts.py",
        "            expires_at=newer.expires_at,\n",
        "",
        _MEMORY,
    ),
    Mutant(
        "newer work into a job that it lets expire",
        "src/forebay/engine/intake.py",
        "= target if alive else None",
        "= target",
        _MEMORY,
    ),
    Mutant(
        "newer work puts nothing off",
        _STAMP,
        "moved = max(due_at, quiet_until(self._debounce, enqueued_at, now))",
        "moved = due_at",
        _MEMORY,
    ),
    Mutant(
        "newer work puts it off for ever",
        _STAMP,
        "return quiet if merge.at_most is None else min(quiet, first_at + micros(merge.at_most))",
        "return quiet",
        _MEMORY,
    ),
    Mutant(
        "a key outlives the states of its job",
        _STAMP,
        "(self.spec.unique or _WHILE_UNFINISHED).holds(state)",
        "True",
        _MEMORY,
    ),
    Mutant(
        "a key outlives the states of its job, in Postgres",
        f"{SCHEMA}/0003_enqueue.pre.sql",
        "RETURN coalesce((v_states >> v_state) & 1 = 1, false);",
        "RETURN v_state IS NOT NULL;",
        _POSTGRES,
    ),
    Mutant(
        "keys stay when their jobs are gone",
        f"{MEMORY}/facts.py",
        "            if self.keys[name].job_id in self.rows:\n",
        "            if True:\n",
        ("tests/unit/test_queue.py", "-k", "forgotten_with_their_jobs"),
    ),
    Mutant(
        "a running job gives way",
        f"{MEMORY}/index.py",
        "                    shed_order.drop(row)\n",
        "                    pass\n",
        _MEMORY,
    ),
    Mutant(
        "a newcomer that is the lowest comes in",
        _SHEDDING,
        'if shed.victim == "lowest" and arriving and max(arriving) > offered[-1]:',
        "if False:",
        _MEMORY,
    ),
    Mutant(
        "fewer give way than are needed",
        _SHEDDING,
        "if len(offered) < excess:",
        "if not offered:",
        _MEMORY,
    ),
    Mutant(
        "a job that takes over newer work gives way to it",
        "src/forebay/engine/intake.py",
        "place for place in offered if place[1] not in spared",
        "place for place in offered",
        _MEMORY,
    ),
    Mutant(
        "a job older than the rule stays, in SQLite",
        f"{_SQLITE_STORE}/control.py",
        "        unit.connection.execute(SQL.mark_all_sheds, (spec.name,))\n",
        "        pass\n",
        _SQLITE,
    ),
    Mutant(
        "the newest of a run gives way, in Postgres",
        f"{_POSTGRES_STORE}/intake.py",
        'ids[::-1] if shed.victim == "lowest" else ids\n',
        "ids[::-1]\n",
        _POSTGRES,
    ),
    Mutant(
        "a draft with the key of a dead job replaces it",
        "src/forebay/store/shell.py",
        "if any(draft.key is not None for _, draft in pairs):",
        "if any(draft.key == 0 for _, draft in pairs):",
        ("tests/stores/test_conformance.py", "-k", "memory-ingest-a_draft_with_a_key"),
    ),
    Mutant(
        "the last of two drafts replaces a dead job",
        "src/forebay/store/shell.py",
        "drafts.setdefault(job_id, draft)",
        "drafts[job_id] = draft",
        ("tests/stores/test_conformance.py", "-k", "memory-ingest-only_dead_jobs"),
    ),
    Mutant(
        "dead jobs are replaced in the order of their ids",
        "src/forebay/store/sqlite/intake.py",
        "ids = [job_id for job_id in drafts if job_id in {row.id for row in dead}]",
        "ids = [row.id for row in dead]",
        ("tests/stores/test_conformance.py", "-k", "sqlite-ingest-new_jobs_come"),
    ),
]
