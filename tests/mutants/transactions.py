"""Guards of transactions and of bulk on Postgres, and how each is broken; real servers notice."""

from tests.mutants.guards import Mutant

STORE = "src/forebay/store/postgres"
HANDLERS = "tests/stores/test_postgres_handlers.py"
ENQUEUE = "tests/stores/test_postgres_transactions.py"
BULK = "tests/stores/test_postgres_bulk.py"

ON_SQLITE = "tests/stores/test_sqlite_transactions.py"
CALLER = "src/forebay/store/sqlite/caller_transaction.py"

TRANSACTION_MUTANTS = [
    Mutant(
        "transaction: a failed enqueue leaves its jobs in the caller's SQLite transaction",
        CALLER,
        """"ROLLBACK" if begins else "ROLLBACK TO forebay\"""",
        """"ROLLBACK" if begins else "RELEASE forebay\"""",
        (ON_SQLITE, "-k", "as_it_was"),
    ),
    Mutant(
        "transaction: the head of a SQLite store is not written",
        CALLER,
        "        if astuple(head) != found:\n",
        "        if False:\n",
        (ON_SQLITE, "-k", "beside_a_store"),
    ),
    Mutant(
        "transaction: a job goes into another SQLite file than the store's",
        "src/forebay/transactions.py",
        "        if not is_file_of(url, os.fsdecode(name)):\n",
        "        if False:\n",
        (ON_SQLITE, "-k", "something_else"),
    ),
    Mutant(
        "transaction: committed though the lease is lost",
        f"{STORE}/transaction.py",
        "        raise LeaseLost(*lease.fence)\n",
        "        return UnitOfWork(hand, 0, self._session.specs)  # type: ignore[arg-type]\n",
        (HANDLERS, "-k", "lost_lease"),
    ),
    Mutant(
        "transaction: the job is not settled in it",
        f"{STORE}/transaction.py",
        "        applied = unit.fetch(SETTLE, self._settling.call_of(groups))[0][0]\n",
        "        applied = bool(self._settling.call_of(groups))\n",
        (HANDLERS, "-k", "no_use_after"),
    ),
    Mutant(
        "transaction: a connection outlives its block",
        f"{STORE}/transaction.py",
        "        session, connection.pgconn = connection.pgconn, _CLOSED\n",
        "        session = connection.pgconn\n",
        (HANDLERS, "-k", "no_use_after"),
    ),
    Mutant(
        "transaction: the next handler gets a session as the last one left it",
        f"{STORE}/transaction.py",
        '"SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; DISCARD TEMP; "',
        '"CLOSE ALL; "',
        (HANDLERS, "-k", "no_use_after"),
    ),
    Mutant(
        "transaction: the pool settles again what its handler has settled",
        "src/forebay/work/pool.py",
        "            elif run.settled:\n                self._settled_by_handler(run, outcome)\n",
        "            elif False:\n",
        (HANDLERS, "-k", "after_its_block"),
    ),
    Mutant(
        "transaction: a job that is done goes on being renewed",
        "src/forebay/work/pool.py",
        " if not run.settled]",
        "]",
        (HANDLERS, "-k", "renewed_no_more"),
    ),
    Mutant(
        "transaction: a key in a transaction has another digest",
        "src/forebay/transactions.py",
        "digest(draft.kind, draft.body).hex()",
        "digest(draft.kind, b'0').hex()",
        (ENQUEUE, "-k", "in_a_transaction_and_outside and psycopg_connection"),
    ),
    Mutant(
        "bulk: a part has another token when it is tried again",
        f"{STORE}/bulk.py",
        "self._copy_on(connection, drafts, queues, token)",
        "self._copy_on(connection, drafts, queues, uuid4())",
        (BULK, "-k", "by_its_token"),
    ),
    Mutant(
        "bulk: a spec that has changed is not noticed",
        f"{STORE}/bulk.py",
        "            raise Restart(queues)\n",
        "            pass\n",
        (BULK, "-k", "changes_on_the_way"),
    ),
    Mutant(
        "bulk: progress is reported before it is durable",
        f"{STORE}/bulk.py",
        "                wait([future])\n                if part.taken.taken:\n"
        "                    tally = tally.plus(part.taken)\n",
        "                if part.drafts:\n                    tally = tally.plus(Tally(len(part.drafts)))\n",
        (BULK, "-k", "stays_away or says_how_many"),
    ),
]
