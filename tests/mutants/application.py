"""Guards of what an application attaches: hooks, middleware, injected values."""

from tests.mutants.guards import Mutant

HOOKS = "tests/unit/test_hooks.py"
LAYERS = "tests/unit/test_enqueue_layers.py"
LIFESPAN = "src/forebay/work/lifespan.py"

ASYNC = "tests/unit/test_async_client.py"
VERSIONS = "tests/unit/test_versions.py"
TESTER = "tests/unit/test_job_tester_rules.py"
WAITS = "tests/unit/test_job_tester_waits.py"
SIMULATOR = "tests/unit/test_simulator.py"
BATCHES = "src/forebay/work/batches.py"
BATCH_TESTS = "tests/unit/test_batches.py"

APPLICATION_MUTANTS = [
    Mutant(
        "schedules: a ticker that comes late cancels the job of the newest slot",
        "src/forebay/work/ticker.py",
        " or (current.last_at is not None and current.last_at >= tick):\n",
        ":\n",
        ("tests/unit/test_roles.py", "-k", "cancels_a_slow_job"),
    ),
    Mutant(
        "versions: a payload that is newer than the handler runs",
        "src/forebay/work/versions.py",
        "    if found <= version:\n",
        "    if True:\n",
        (VERSIONS, "-k", "newer"),
    ),
    Mutant(
        "versions: an old payload reaches the handler as it is",
        "src/forebay/work/signature.py",
        "        if version is not None and version < self.versions.current:\n",
        "        if False:\n",
        (VERSIONS, "-k", "step_by_step"),
    ),
    Mutant(
        "versions: a missing step is skipped",
        "src/forebay/work/versions.py",
        "            if step is None:\n",
        "            if step is None:\n                continue\n            if False:\n",
        (VERSIONS, "-k", "missing"),
    ),
    Mutant(
        "versions: what an app enqueues has no version",
        "src/forebay/client.py",
        "settings if version == 1 else replace(settings, meta=with_version(settings.meta, version))",
        "settings",
        (VERSIONS, "-k", "travels"),
    ),
    Mutant(
        "tester: an open circuit breaker lets jobs run",
        "src/forebay/testing/job_tester.py",
        "        if circuit is not None and (after := circuit.admit(self.clock.now())) > 0:\n",
        "        if circuit is not None and (after := circuit.admit(self.clock.now())) > 10**18:\n",
        (TESTER, "-k", "breaker"),
    ),
    Mutant(
        "tester: an app that is closed has its own store again",
        "src/forebay/client.py",
        "        with self._opening:\n            if self._store is not None:\n                self._store.close()\n",
        "        with self._opening:\n            self._replacement = None\n"
        "            if self._store is not None:\n                self._store.close()\n",
        (TESTER, "-k", "closed"),
    ),
    Mutant(
        "simulator: faults of a handler that waits hit the jobs that run meanwhile",
        "src/forebay/testing/simulator.py",
        "        points, self._points_left = self._points_left, None\n",
        "        points = self._points_left\n",
        (WAITS, "-k", "plain_handler"),
    ),
    Mutant(
        "simulator: a crash takes the last attempt of a job",
        "src/forebay/testing/simulator.py",
        "        survives = job.attempt < job.max_attempts and self._crashes.get(job.id, 0) < MAX_CRASHES\n",
        "        survives = True\n",
        (SIMULATOR, "-k", "half_of_the_work"),
    ),
    Mutant(
        "simulator: the order of jobs does not come from the seed",
        "src/forebay/testing/simulator.py",
        "        self._random.shuffle(leases)\n",
        "        random.SystemRandom().shuffle(leases)\n",
        (SIMULATOR, "-k", "same_seed"),
    ),
    Mutant(
        "simulator: no crash is inside of a plain handler",
        "src/forebay/testing/simulator.py",
        "            raise SimulatedCrash\n",
        "            return\n",
        (SIMULATOR, "-k", "at_an_enqueue"),
    ),
    Mutant(
        "batches: a cancelled job keeps its place in the batch",
        BATCHES,
        "            self.members = [(call, future) for call, future in self.members if not future.done()]\n",
        "            pass\n",
        (BATCH_TESTS, "-k", "cancelled_job_leaves"),
    ),
    Mutant(
        "batches: a function runs on after all its jobs have ended",
        BATCHES,
        "            self.task.cancel()\n",
        "            pass\n",
        (BATCH_TESTS, "-k", "too_long"),
    ),
    Mutant(
        "batches: a batch waits until it is full",
        BATCHES,
        "            batch.timer = loop.call_later(self._wait, self._start, batch)\n",
        "",
        (BATCH_TESTS, "-k", "does_not_fill", "--timeout", "60"),
    ),
    Mutant(
        "batches: outcomes of too few items count",
        BATCHES,
        "        if not isinstance(returned, list) or len(returned) != count:\n",
        "        if not isinstance(returned, list):\n",
        (BATCH_TESTS, "-k", "whole_batch", "--timeout", "60"),
    ),
    Mutant(
        "batches: an error of one job quotes the secrets of another",
        "src/forebay/work/handler.py",
        "        others = running.secrets if isinstance(running, RunningBatch) else ()\n",
        "        others = ()\n",
        (BATCH_TESTS, "-k", "secrets"),
    ),
    Mutant(
        "async: a cancelled stream of drafts goes on",
        "src/forebay/async_client.py",
        "            cancelled.set()\n",
        "            pass\n",
        (ASYNC, "-k", "cancelled_stream"),
    ),
    Mutant(
        "async: each aget is a call of its own",
        "src/forebay/client.py",
        "        return await self._async().get(job_id)\n",
        "        return self.get(job_id)\n",
        (ASYNC, "-k", "thousand"),
    ),
    Mutant(
        "async: type checkers take any option",
        "src/forebay/client.py",
        "    def using(self, **settings: Unpack[EnqueueOptions]) -> Bound[P]:\n",
        "    def using(self, **settings: Any) -> Bound[P]:\n",
        (ASYNC, "-k", "error_of_mypy"),
    ),
    Mutant(
        "async: type checkers take any option of a job",
        "src/forebay/client.py",
        "    def job(self, **options: Unpack[JobOptions]) -> ",
        "    def job(self, **options: Any) -> ",
        (ASYNC, "-k", "error_of_mypy"),
    ),
    Mutant(
        "batches: a value of one job is shared by all of its batch",
        BATCHES,
        '        if found is not None and providers[found].scope == "job":\n',
        "        if False:\n",
        (BATCH_TESTS, "-k", "no_value_of_one_job"),
    ),
    Mutant(
        "breaker: kinds that name one dependency have breakers of their own",
        "src/forebay/core/breaker.py",
        '        return (None, kind) if self.name is None else (self.name, "")\n',
        "        return (self.name, kind)\n",
        ("tests/unit/test_pool.py", "-k", "one_dependency"),
    ),
    Mutant(
        "hooks: a layer of enqueues that wants a value is accepted",
        "src/forebay/work/hooks.py",
        "            if (found := injectable(hint, self.providers)) is not None:\n                what = ",
        "            if (found := injectable(hint, ())) is not None:\n                what = ",
        (HOOKS, "-k", "refused_at_its_declaration"),
    ),
    Mutant(
        "django: a task that is drained on its last attempt has failed",
        "src/forebay/contrib/django/backend.py",
        "        stopped = ctx.stop is not None and isinstance(error, CancelledError)\n",
        "        stopped = False\n",
        ("tests/contrib/test_django_signals.py", "-k", "drained and async"),
    ),
    Mutant(
        "django: a task whose result cannot be kept has ended well",
        "src/forebay/contrib/django/backend.py",
        "    body = None if ctx.settled else app().registry[ctx.job.kind].encode_result(plain)\n",
        "    body = None\n",
        ("tests/contrib/test_django_signals.py", "-k", "last_signal and large"),
    ),
    Mutant(
        "hooks: a worker whose start-up failed works all the same",
        "src/forebay/work/worker.py",
        "            return CANNOT_START\n        for number",
        "            pass\n        for number",
        (HOOKS, "-k", "start_up_hook_that_fails"),
    ),
    Mutant(
        "hooks: a failed start leaves its values open",
        LIFESPAN,
        "            self.stop()\n            raise StartupFailed",
        "            raise StartupFailed",
        (HOOKS, "-k", "start_up_hook_that_fails"),
    ),
    Mutant(
        "hooks: a shutdown hook may hang for ever",
        LIFESPAN,
        "        thread.join(timeout)\n",
        "        thread.join(300)\n",
        (HOOKS, "-k", "shutdown_is_bounded"),
    ),
    Mutant(
        "worker: a drain waits for an idle claimer",
        "src/forebay/work/worker.py",
        "        self._claiming.stop(0)\n",
        "        self._claiming.stop(None)\n",
        ("tests/unit/test_roles.py", "-k", "idle_claimer"),
    ),
    Mutant(
        "worker: a drain does not wait for a claim in progress",
        "src/forebay/work/worker.py",
        "        self.claimer.join(_MAX_CLAIM)\n",
        "",
        ("tests/unit/test_roles.py", "-k", "claim_under_way"),
    ),
    Mutant(
        "hooks: shutdown comes before the drain",
        "src/forebay/work/worker.py",
        "        self.claimer.close()\n        self.pool.release_pending()\n",
        "        self.claimer.close()\n        self._lifespan.stop_within(1)\n        self.pool.release_pending()\n",
        (HOOKS, "-k", "shutdown_comes_after"),
    ),
    Mutant(
        "hooks: idle children are killed before their shutdown hooks",
        "src/forebay/work/worker.py",
        "        if self._hooks.needs_shutdown:\n            self.pool.hang_up()\n",
        "",
        (HOOKS, "-k", "child_processes"),
    ),
    Mutant(
        "middleware: an async layer is left in another task than it was entered in",
        LIFESPAN,
        "        return self._run(self._enter())\n",
        "        return self._run(self._manager.__aenter__())\n",
        (HOOKS, "-k", "context_variables"),
    ),
    Mutant(
        "middleware: a suppressed error of an enqueue is a receipt of nothing",
        "src/forebay/client.py",
        "            return self._receipt(taken, draft)\n        raise _suppressed()\n",
        "            return self._receipt(taken, draft)\n        return None  # type: ignore[return-value]\n",
        (HOOKS, "-k", "not_suppress"),
    ),
    Mutant(
        "injection: a process value is made for each job",
        LIFESPAN,
        "                    if kind not in self._values:\n                        self._values[kind] = ",
        "                    if True:\n                        _ = ",
        (HOOKS, "-k", "made_once"),
    ),
    Mutant(
        "injection: a value of a process may take one of a job",
        "src/forebay/work/hooks.py",
        '        if scope == "process" and (kind is Context or self.providers[kind].scope == "job"):\n',
        "        if False:\n",
        (HOOKS, "-k", "refused_at_its_declaration"),
    ),
    Mutant(
        "injection: a type that nothing provides is refused at the first run",
        "src/forebay/work/signature.py",
        '        if found is not None:\n            remedy = f"call fb.provide',
        '        if False:\n            remedy = f"call fb.provide',
        (HOOKS, "-k", "refused_at_its_declaration"),
    ),
    Mutant(
        "layers: schedules of a worker pass by them",
        "src/forebay/work/worker.py",
        "Ticker(store, layers=self._hooks.enqueue_layers_for(app.registry))",
        "Ticker(store)",
        (LAYERS, "-k", "worker_ticker"),
    ),
    Mutant(
        "layers: an app changes the schedules of another",
        "src/forebay/work/hooks.py",
        "self.enter_enqueue(stack, draft) if draft.kind in kinds else draft",
        "self.enter_enqueue(stack, draft)",
        (LAYERS, "-k", "no_other"),
    ),
    Mutant(
        "layers: one that raises holds up other schedules",
        "src/forebay/work/ticker.py",
        "            except Exception as error:\n                _log.warning(",
        "            except QueueFull as error:\n                _log.warning(",
        (LAYERS, "-k", "leaves_the_slot"),
    ),
]
