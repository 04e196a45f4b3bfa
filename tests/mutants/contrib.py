"""Guards of the integrations with web frameworks, and how each is broken."""

from tests.mutants.guards import Mutant

DJANGO = "src/forebay/contrib/django"
BACKEND = "tests/contrib/test_django_backend.py"
PROJECT = "tests/contrib/test_django_project.py"
SESSIONS = "tests/contrib/test_sqlalchemy.py"
TESTER = "tests/contrib/test_job_tester_transactions.py"
WEB = "tests/contrib/test_web_frameworks.py"

CONTRIB_MUTANTS = [
    Mutant(
        "django: an enqueue does not wait for the commit",
        f"{DJANGO}/backend.py",
        "        if not joins and connections[found.DATABASE].in_atomic_block:\n",
        "        if False:\n",
        (BACKEND, "-k", "elsewhere"),
    ),
    Mutant(
        "django: an enqueue is not part of the transaction",
        f"{DJANGO}/backend.py",
        "found.DATABASE if joins else None",
        "None",
        (BACKEND, "-k", "same_database"),
    ),
    Mutant(
        "django: a connection outlives its task",
        f"{DJANGO}/project.py",
        "        finally:\n            _close_old_connections()\n",
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
        "django: a result is read as the reference to its blob",
        f"{DJANGO}/backend.py",
        "decode_payload(fb.codec.open(job.kind, job.result_body))",
        "job.result",
        (BACKEND, "-k", "blob_store"),
    ),
    Mutant(
        "django: another database is taken for the store's",
        f"{DJANGO}/config.py",
        "database_of(self.url) == database_of(own)",
        "database_of(self.url) is not None",
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
        "django: the admin's link is for every user",
        f"{DJANGO}/admin.py",
        ' and request.user.has_perm("forebay.view_dashboard")',
        "",
        (PROJECT, "-k", "admin"),
    ),
    Mutant(
        "transaction: a lost lease is not noticed in the caller's own transaction",
        "src/forebay/work/context.py",
        "        with self._noting_loss():\n"
        "            after_commit = self._checked().settle_in(connection, self._lease, self._verdict())\n",
        "        try:\n            after_commit = self._checked().settle_in(connection, self._lease, self._verdict())\n"
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
    Mutant(
        "mounted: a page of another site makes changes by the API",
        "src/forebay/serve/security/auth.py",
        'scope["method"] not in SAFE_METHODS and not is_same_origin(Request(scope))',
        "False",
        (WEB, "-k", "fastapi and sqlite"),
    ),
    Mutant(
        "mounted: any token is a user's CSRF token",
        "src/forebay/serve/security/sessions.py",
        "    if not wanted or not hmac.compare_digest(given.encode(), wanted.encode()):\n",
        "    if not wanted:\n",
        (WEB, "-k", "fastapi and sqlite"),
    ),
    Mutant(
        "mounted: links leave the path of the host",
        "src/forebay/serve/dashboard/render.py",
        "{MOUNTED_AT.get()}/ui/",
        "/ui/",
        (WEB, "-k", "fastapi and sqlite"),
    ),
    Mutant(
        "mounted: a live page outlives the login at the host",
        "src/forebay/serve/dashboard/live.py",
        "    return await host_actor(host, request)\n",
        "    return session_of(request, touch=False)\n",
        (WEB, "-k", "live_page", "--timeout", "60"),
    ),
    Mutant(
        "sqlalchemy: a released savepoint is taken for the commit",
        "src/forebay/contrib/sqlalchemy.py",
        "    if session.in_nested_transaction():\n        return\n",
        "",
        (SESSIONS, "-k", "savepoint"),
    ),
    Mutant(
        "sqlalchemy: jobs survive the rollback of their savepoint",
        "src/forebay/contrib/sqlalchemy.py",
        " if ended not in each.within]",
        "]",
        (SESSIONS, "-k", "savepoint"),
    ),
    Mutant(
        "sqlalchemy: jobs of a closed session wait for the next commit",
        "src/forebay/contrib/sqlalchemy.py",
        "    if ended.parent is None:\n        session.info[_DEFERRED] = []\n",
        "    return\n",
        (SESSIONS, "-k", "closed"),
    ),
    Mutant(
        "sqlalchemy: any Postgres database is taken for the store's",
        "src/forebay/contrib/sqlalchemy.py",
        "own is not None and database_of(job.app.url) == own",
        "own is not None",
        (SESSIONS, "-k", "another_database"),
    ),
    Mutant(
        "tester: a session joins the app's own store",
        "src/forebay/contrib/sqlalchemy.py",
        "    if job.app.store_replaced:\n        return False\n",
        "",
        (TESTER, "-k", "session_enqueues"),
    ),
    Mutant(
        "tester: a task joins the app's own store",
        f"{DJANGO}/backend.py",
        "found.joins and not app().store_replaced",
        "found.joins",
        (TESTER, "-k", "test_django"),
    ),
    Mutant(
        "tester: a job closes the connection of a TestCase",
        f"{DJANGO}/project.py",
        "        if not connection.in_atomic_block:\n",
        "        if True:\n",
        (TESTER, "-k", "test_django"),
    ),
    Mutant(
        "flask: a stream holds a thread",
        "src/forebay/contrib/wsgi.py",
        '"text/event-stream" in environ.get("HTTP_ACCEPT", "") or ',
        "",
        (WEB, "-k", "bounded_and_holds"),
    ),
    Mutant(
        "flask: a body of any size is read",
        "src/forebay/contrib/wsgi.py",
        "        if not 0 <= size <= self._settings.max_body:",
        "        if size < 0:",
        (WEB, "-k", "bounded_and_holds"),
    ),
    Mutant(
        "flask: the users of the application are not those of the dashboard",
        "src/forebay/contrib/wsgi.py",
        "Dashboard(fb, host, settings=self._settings)",
        "Dashboard(fb, None, settings=self._settings)",
        (WEB, "-k", "test_flask and sqlite"),
    ),
]
