"""Guards of the Postgres store and of the worker against faults, and how each is broken; real servers notice."""

from tests.mutants.guards import SCHEMA, Mutant

STORE = "src/forebay/store/postgres"
CONFORMANCE = "tests/stores/test_conformance.py"
CUTS = "tests/process/test_postgres_cuts.py"
EXCHANGE = "tests/stores/test_postgres_exchange.py"
LEDGER = "tests/stores/test_postgres_ledger.py"
FAULTS = "tests/process/test_postgres_faults.py"
HINTS = "tests/stores/test_postgres_hints.py"
KEYS = "tests/process/test_postgres_keys.py"
OUTAGES = "tests/process/test_postgres_outages.py"
ROLES = ("tests/unit/test_roles.py",)
SILENT = "tests/process/test_silent_peer.py"
SHARES = "tests/stores/test_postgres_shares.py"

POSTGRES_MUTANTS = [
    Mutant(
        "a promotion lets any number expire, in Postgres",
        "src/forebay/store/postgres/claims.py",
        "ready = tend(turn, limit, limit)",
        "ready = tend(turn, limit)",
        ("tests/stores/test_conformance.py", "-k", "postgres-timing-a_promotion"),
    ),
    Mutant(
        "postgres: a job taken back loses its rank",
        f"{SCHEMA}/0002_values.pre.sql",
        "SELECT CASE WHEN keep_rank THEN forebay.rank_back",
        "SELECT CASE WHEN false THEN forebay.rank_back",
        (CONFORMANCE, "-k", "postgres-taking_back"),
    ),
    Mutant(
        "postgres: a settle gives no slot back",
        f"{SCHEMA}/0004_gates.pre.sql",
        "SET held = t.held - c.slots,",
        "SET held = t.held,",
        (EXCHANGE, "-k", "slots_change_hands"),
    ),
    Mutant(
        "postgres: whoever waits at a gate is not let in by a settle",
        f"{SCHEMA}/0004_gates.pre.sql",
        "opened = t.opened OR t.parked > 0",
        "opened = t.opened",
        (EXCHANGE, "-k", "slots_change_hands"),
    ),
    Mutant(
        "postgres: a freed slot goes to a job that has expired",
        f"{SCHEMA}/0004_gates.pre.sql",
        "WHERE r.expires_at IS NULL OR r.expires_at > v_now ORDER BY r.rank, r.last_id LIMIT 1",
        "ORDER BY r.rank, r.last_id LIMIT 1",
        (CONFORMANCE, "-k", "postgres-gates and has_expired"),
    ),
    Mutant(
        "postgres: the head of a line is let in though it has expired",
        f"{SCHEMA}/0004_gates.pre.sql",
        "                AND (r.expires_at IS NULL OR r.expires_at > v_now)\n                AND r.last_id = (",
        "                AND r.last_id = (",
        (CONFORMANCE, "-k", "postgres-gates and has_expired"),
    ),
    Mutant(
        "postgres: a class that gives all that was counted counts as empty",
        f"{SCHEMA}/0006_claim.pre.sql",
        "ORDER BY r.rank, r.last_id LIMIT mosts[i] + 1",
        "ORDER BY r.rank, r.last_id LIMIT mosts[i]",
        (CONFORMANCE, "-k", "postgres-shares and one_by_one"),
    ),
    Mutant(
        "postgres: processes that deal begin with the same class",
        f"{STORE}/specs.py",
        "Share(fair.weights, fair.default, start_of(number))",
        "Share(fair.weights, fair.default, start_of(0))",
        (CONFORMANCE, "-k", "postgres-shares and (eight or hundred)"),
    ),
    Mutant(
        "postgres: what classes do not have is not dealt again",
        f"{STORE}/claims.py",
        "_DEALS_MOST: Final = 3",
        "_DEALS_MOST: Final = 1",
        (SHARES, "-k", "gets_the_next_one or from_the_others"),
    ),
    Mutant(
        "postgres: classes are dealt before verdicts free their slots",
        f"{STORE}/settling.py",
        "freeing = any(ref.gated for ref, _ in groups) and self._turns.are_taken(wants)",
        "freeing = False",
        (SHARES, "-k", "a_slot_that_a_verdict_frees"),
    ),
    Mutant(
        "postgres: a reader of the ledger does not wait for open transactions",
        f"{SCHEMA}/0010_ledger.pre.sql",
        "v_upto := pg_snapshot_xmin(pg_current_snapshot());",
        "v_upto := pg_snapshot_xmax(pg_current_snapshot());",
        (LEDGER, "-k", "commits_late"),
    ),
    Mutant(
        "postgres: the ledger is in the order of transactions, not of changes",
        f"{SCHEMA}/0010_ledger.pre.sql",
        "row_number() OVER (ORDER BY l.seq) - 1 AS place FROM forebay.ledger AS l\n            WHERE l.seq >=",
        "row_number() OVER (ORDER BY l.xid DESC) - 1 AS place FROM forebay.ledger AS l\n            WHERE l.seq >=",
        (LEDGER, "-k", "comes_after_what_it_claimed"),
    ),
    Mutant(
        "postgres: a settle leaves no record",
        f"{SCHEMA}/0007_settle.pre.sql",
        "FROM forebay.ledger_rule AS l WHERE l.recording AND cardinality(v_whole) > 0;",
        "FROM forebay.ledger_rule AS l WHERE false;",
        (LEDGER, "-k", "lies_ahead"),
    ),
    Mutant(
        "postgres: verdicts of a step that failed are not brought back",
        "src/forebay/work/courier.py",
        "            self._settler.give_back(verdicts)\n",
        "",
        ("tests/stores/test_postgres_exchange.py",),
    ),
    Mutant(
        "postgres: a step that fails to settle a run says that it did",
        "src/forebay/store/postgres/settling.py",
        "            if place not in applied:\n",
        "            if not place:\n",
        ("tests/stores/test_postgres_exchange.py",),
    ),
    Mutant(
        "postgres: no fence for a whole run",
        f"{SCHEMA}/0007_settle.pre.sql",
        "u.bits IS NULL AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery",
        "u.bits IS NULL AND r.single = u.single AND r.last_id = u.last_id",
        (CUTS, "-k", "late_settle"),
    ),
    Mutant(
        "postgres: no fence for a part of a run",
        f"{SCHEMA}/0007_settle.pre.sql",
        "u.bits IS NOT NULL AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery",
        "u.bits IS NOT NULL AND r.single = u.single AND r.last_id = u.last_id",
        (CUTS, "-k", "late_settle"),
    ),
    Mutant(
        "postgres: a call has another token when it is repeated",
        f"{SCHEMA}/0003_enqueue.pre.sql",
        "VALUES (put.token, v_first, v_now)",
        "VALUES (gen_random_uuid(), v_first, v_now)",
        (CUTS, "-k", "stands_for_one_job"),
    ),
    Mutant(
        "postgres: the first answer counts only for an unchanged queue",
        f"{SCHEMA}/0003_enqueue.pre.sql",
        "        RETURN QUERY SELECT c.first_id, c.at FROM forebay.call",
        "        RETURN QUERY SELECT CASE WHEN EXISTS (SELECT FROM unnest(names, versions) AS u (name, version)"
        " JOIN forebay.queue AS q ON q.name = u.name WHERE q.version <> u.version) THEN -1 ELSE c.first_id END, c.at"
        " FROM forebay.call",
        (CUTS, "-k", "queue_has_changed"),
    ),
    Mutant(
        "postgres: nothing is repeated on another connection",
        f"{STORE}/connect.py",
        "                if (last if ask is None else ask.over) or not safe or not isinstance(error, _ELSEWHERE):",
        "                if True:",
        (CUTS, "-k", "stands_for_one_job"),
    ),
    Mutant(
        "postgres: a commit is repeated blindly",
        f"{STORE}/connect.py",
        "                if self._has_committed(progress):\n",
        "                if False:\n",
        (CUTS, "-k", "tick"),
    ),
    Mutant(
        "postgres: a commit is known by its transaction's id",
        f"{STORE}/connect.py",
        "                    return bool(self.query(_MARKED, (progress.token,)))\n",
        "                    return True\n",
        (CUTS, "-k", "gave_to_somebody"),
    ),
    Mutant(
        "postgres: a claim without an answer keeps its holder",
        f"{STORE}/claims.py",
        "                self._retire(owner, holder)\n",
        "",
        (CUTS, "-k", "nobody_heard"),
    ),
    Mutant(
        "postgres: errors of the driver come out",
        f"{STORE}/connect.py",
        "            except psycopg.Error as error:\n                if isinstance",
        "            except psycopg.OperationalError as error:\n                if isinstance",
        (OUTAGES, "-k", "read_only"),
    ),
    Mutant(
        "postgres: a silent listener is kept",
        f"{STORE}/waiting.py",
        "and monotonic() - heard_at < _DEAF_AFTER:",
        "and True:",
        (OUTAGES, "-k", "half_open"),
    ),
    Mutant(
        "postgres: who comes second with a key does not look who has it",
        f"{STORE}/intake.py",
        "        if lost := sorted(facts.keys() - won):\n",
        "        self._reserved = facts\n        if lost := sorted(facts.keys() & set()):\n",
        (KEYS, "-k", "many_processes"),
    ),
    Mutant(
        "postgres: leases that only a beating heart keeps are not looked for again",
        f"{STORE}/jobs.sql",
        "SELECT id FROM forebay.holder WHERE until <= %s;",
        "SELECT id FROM forebay.holder WHERE until <= %s OR true;",
        ("tests/stores/test_postgres_past.py",),
    ),
    Mutant(
        "a reaper takes what is overdue right after an outage",
        "src/forebay/work/reaper.py",
        "        if self._failures >= _OUTAGE:\n",
        "        if False:\n",
        ROLES,
    ),
    Mutant(
        "every role has a voice of its own",
        "src/forebay/work/role.py",
        "                self._suppressed += 1\n                return\n",
        "                self._suppressed += 1\n",
        ROLES,
    ),
    Mutant(
        "a worker is replaced in an outage, whatever it runs",
        "src/forebay/work/worker.py",
        "return not self._able or (lost and self.pool.idle and self.settler.empty)",
        "return not self._able or (self._supervised and self._claiming.failures > 5)",
        (FAULTS, "-k", "outage"),
    ),
    Mutant(
        "postgres: what is committed just before the close is not sent",
        f"{STORE}/waiting.py",
        "while self._untold or not self._leaving.is_set():",
        "while not self._leaving.is_set():",
        (HINTS, "-k", "closes or exits"),
    ),
    Mutant(
        "postgres: a process that exits sends nothing more",
        f"{STORE}/waiting.py",
        "        atexit.register(self._send_rest)\n",
        "",
        (HINTS, "-k", "exits"),
    ),
    Mutant(
        "postgres: names that do not fit into a notification are dropped",
        f"{STORE}/waiting.py",
        "range(0, max(1, len(names)), _NAMES_MOST)]",
        "range(1)]",
        (HINTS, "-k", "many_queues"),
    ),
    Mutant(
        "postgres: a hint that could not be sent is forgotten",
        f"{STORE}/waiting.py",
        "                    self._untold.update(names)\n",
        "                    pass\n",
        (HINTS, "-k", "later"),
    ),
    Mutant(
        "postgres: a busy producer sends a hint for every call",
        f"{STORE}/waiting.py",
        "                if allowed < 1:\n",
        "                if False:\n",
        (HINTS, "-k", "busy_producer"),
    ),
    Mutant(
        "a claimer rests before it tests a hint",
        "src/forebay/work/claimer.py",
        "beyond = self._fruitless - _HINTS_TRIED - len(self._options.queues)",
        "beyond = self._fruitless",
        (*ROLES, "-k", "hint"),
    ),
    Mutant(
        "postgres: a statement is waited for for ever",
        f"{STORE}/connect.py",
        "            elif monotonic() >= until:\n",
        "            elif False:\n",
        (SILENT, "-k", "postgres and happens_once"),
    ),
    Mutant(
        "redis: a command is waited for for ever",
        "src/forebay/store/redis/connect.py",
        "            socket_timeout=address.patience,\n",
        "            socket_timeout=None,\n",
        (SILENT, "-k", "redis and happens_once"),
    ),
    Mutant(
        "a worker whose calls hang is well",
        "src/forebay/work/worker.py",
        "return self._able and self.progress_age() <= STALLED_SECONDS",
        "return self._able and (self._claiming.failures == 0 or self.progress_age() <= STALLED_SECONDS)",
        (*ROLES, "-k", "claim_round"),
    ),
]
