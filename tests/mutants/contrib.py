"""Guards of the integrations with web frameworks, and how each is broken."""

from tests.mutants.guards import Mutant

DJANGO = "src/forebay/contrib/django"
BACKEND = "tests/contrib/test_django_backend.py"
PROJECT = "tests/contrib/test_django_project.py"

CONTRIB_MUTANTS = [
    Mutant(
        "django: an enqueue does not wait for the commit",
        f"{DJANGO}/backend.py",
        "        if not found.joins and connections[found.DATABASE].in_atomic_block:\n",
        "        if False:\n",
        (BACKEND, "-k", "elsewhere"),
    ),
    Mutant(
        "django: an enqueue is not part of the transaction",
        f"{DJANGO}/backend.py",
        "found.DATABASE if found.joins else None",
        "None",
        (BACKEND, "-k", "same_database"),
    ),
    Mutant(
        "django: a connection outlives its task",
        f"{DJANGO}/backend.py",
        "        finally:\n            close_old_connections()\n",
        "        finally:\n            pass\n",
        (BACKEND, "-k", "connection_that_broke"),
    ),
    Mutant(
        "django: a task with an unknown result is retried",
        f"{DJANGO}/backend.py",
        "drop_on=ReturnValueInvalid, ",
        "",
        (BACKEND, "-k", "not_json"),
    ),
    Mutant(
        "django: another database is taken for the store's",
        f"{DJANGO}/config.py",
        "_database(self.url) == _database(own)",
        "_database(self.url) is not None",
        (PROJECT, "-k", "another_database"),
    ),
    Mutant(
        "django: an unknown setting passes",
        f"{DJANGO}/config.py",
        "    if unknown := sorted(",
        "    given = {name: value for name, value in given.items() if name in known}\n    if unknown := sorted(",
        (PROJECT, "-k", "wrong_setting_is"),
    ),
    Mutant(
        "django: the admin's link is for everybody",
        f"{DJANGO}/admin.py",
        ' and request.user.has_perm("forebay.view_dashboard")',
        "",
        (PROJECT, "-k", "admin"),
    ),
    Mutant(
        "transaction: a lost lease is not noticed in the caller's own transaction",
        "src/forebay/work/context.py",
        "            after_commit = self._checked().settle_in(connection, self._lease, self._verdict())\n"
        "        except LeaseLost:\n            self._lost = True\n            self._on_lost()\n            raise\n",
        "            after_commit = self._checked().settle_in(connection, self._lease, self._verdict())\n"
        "        except LeaseLost:\n            return lambda: None\n",
        (BACKEND, "-k", "lost_lease"),
    ),
    Mutant(
        "postgres: a job that is being taken in is nowhere",
        "src/forebay/store/postgres/observing.py",
        "empty_inbox(self._session, known)",
        "empty_inbox(self._session)",
        ("tests/stores/test_postgres_transactions.py", "-k", "another_process_takes"),
    ),
]
