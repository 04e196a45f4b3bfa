"""The guards of the dashboard: what is escaped, who sees what, what is written down, what is bounded."""

from tests.mutants.guards import Mutant

HOME = "src/forebay/serve/dashboard"
TESTS = "tests/serve/test_dashboard"


def pages(test: str) -> tuple[str, ...]:
    return (f"{TESTS}_pages.py::test_{test}",)


def moves(test: str) -> tuple[str, ...]:
    return (f"{TESTS}_bulk.py::test_{test}",)


def views(test: str) -> tuple[str, ...]:
    return (f"{TESTS}_views.py::test_{test}",)


def desk(test: str) -> tuple[str, ...]:
    return (f"{TESTS}_cache.py::test_{test}",)


def xss(test: str) -> tuple[str, ...]:
    return (f"{TESTS}_xss.py::test_{test}",)


DASHBOARD_MUTANTS = [
    Mutant("pages escape nothing", f"{HOME}/render.py", "autoescape=True", "autoescape=False", xss("a_job_s_own_page")),
    Mutant(
        "an address is put together unquoted",
        f"{HOME}/render.py",
        'quote(str(step), safe="")',
        "str(step)",
        xss("steps_of_an_address_stay_steps"),
    ),
    Mutant(
        "payloads are shown with their secrets",
        f"{HOME}/render.py",
        "redact(kind, value)",
        "value",
        pages("secrets_are_hidden_wherever_they_could_show"),
    ),
    Mutant(
        "timelines are shown with their secrets",
        f"{HOME}/pages/jobs.py",
        "replace(moment, error=redact_text(moment.error, known))",
        "moment",
        pages("secrets_are_hidden_wherever_they_could_show"),
    ),
    Mutant(
        "causes are shown with their secrets",
        f"{HOME}/pages/dead.py",
        "redact_text(each.last_message, secrets_of(job))",
        "each.last_message",
        pages("secrets_are_hidden_wherever_they_could_show"),
    ),
    Mutant(
        "errors are shown with their secrets",
        f"{HOME}/pages/jobs.py",
        "redact_job(hide_owner(actor, found))",
        "hide_owner(actor, found)",
        pages("secrets_are_hidden_wherever_they_could_show"),
    ),
    Mutant(
        "sums of all tenants are shown to one",
        f"{HOME}/pages/routing.py",
        "    if actor.tenant is not None:\n        raise not_found(what)\n",
        "",
        pages("a_tenant_sees_its_own_jobs_and_no_sums"),
    ),
    Mutant(
        "a foreign queue is paused",
        f"{HOME}/view_cache.py",
        "for spec in self._specs.get() if actor.reaches(spec.name)}",
        "for spec in self._specs.get()}",
        pages("queues_out_of_reach_do_not_exist"),
    ),
    Mutant(
        "a foreign queue is listed",
        f"{HOME}/view_cache.py",
        "if not actor.reaches(name) or name in self._logs()",
        "if name in self._logs()",
        pages("queues_out_of_reach_do_not_exist"),
    ),
    Mutant(
        "a foreign job is shown",
        f"{HOME}/pages/jobs.py",
        "    if not sees_job(actor, found):\n",
        "    if False:\n",
        pages("a_tenant_sees_its_own_jobs_and_no_sums"),
    ),
    Mutant(
        "a foreign job is cancelled",
        f"{HOME}/pages/jobs.py",
        "    if found is None or not sees_job(actor, found):\n",
        "    if found is None:\n",
        pages("a_tenant_sees_its_own_jobs_and_no_sums"),
    ),
    Mutant(
        "a foreign job that is gone is shown",
        f"{HOME}/pages/jobs.py",
        "timeline.queue is None or not actor.sees(timeline.queue, timeline.tenant)",
        "timeline.queue is None",
        pages("a_gone_job_is_shown_by_the_ledger"),
    ),
    Mutant(
        "foreign jobs are listed",
        f"{HOME}/views/search.py",
        "            actor.sees(job.home or job.queue, job.tenant)\n            and ",
        "            ",
        views("no_tenant_finds_what_is_not_its_own"),
    ),
    Mutant(
        "a gate of another queue is set",
        f"{HOME}/pages/queues.py",
        "    if not has_gate(spec, wanted) or not controls_gate(",
        "    if not controls_gate(",
        pages("a_queue_is_paused_and_resumed_and_its_gate_opened"),
    ),
    Mutant(
        "a queue is paused for minus five minutes",
        f"{HOME}/pages/queues.py",
        "Meta(ge=1, le=_MAX_MINUTES)",
        "Meta(le=_MAX_MINUTES)",
        pages("a_queue_is_paused_and_resumed_and_its_gate_opened"),
    ),
    Mutant(
        "a form that does not fit its type is an internal error",
        f"{HOME}/pages/routing.py",
        "        raise invalid_value(error) from None\n",
        "        raise\n",
        pages("an_invalid_form_names_its_field_to_callers_that_may_send_it"),
    ),
    Mutant(
        "a cancel is not written down",
        f"{HOME}/pages/jobs.py",
        '    record_action(cache.store, actor.name, action, f"job {job_id}", queue=found.queue)\n',
        "",
        pages("a_job_is_cancelled_and_redriven"),
    ),
    Mutant(
        "another operator's bulk action is found",
        f"{HOME}/bulk_actions.py",
        "return action if action is not None and action.actor.name == actor.name else None",
        "return action",
        moves("a_move_stays_within_what_its_actor_sees"),
    ),
    Mutant(
        "a dry run starts at once",
        f"{HOME}/bulk_actions.py",
        '        if action.phase == "choosing":\n            action.phase = "chosen"\n',
        '        action.phase = "moving"\n        await self._run(action)\n',
        moves("a_dry_run_changes_nothing_and_says_how_many"),
    ),
    Mutant(
        "a bulk action does not keep its rate",
        f"{HOME}/bulk_actions.py",
        "            await asyncio.sleep(max(0.0, began + start / action.rate - monotonic()))\n",
        "",
        moves("a_move_keeps_its_pace_and_stops_on_request"),
    ),
    Mutant(
        "a bulk action cannot be stopped",
        f"{HOME}/bulk_actions.py",
        '            if action.phase != "moving":\n                return\n',
        "",
        moves("a_move_keeps_its_pace_and_stops_on_request"),
    ),
    Mutant(
        "a live page of a removed job goes blank",
        f"{HOME}/live.py",
        "                if not page.live:\n",
        "                if False:\n",
        pages("a_page_of_a_job_that_is_removed_is_loaded_again"),
    ),
    Mutant(
        "the name of a worker is capitalised",
        f"{HOME}/templates/job.html",
        "sentence if job.owner and sentence.startswith(job.owner) else ",
        "",
        pages("a_sentence_that_begins_with_a_worker_keeps_its_name"),
    ),
    Mutant(
        "a stream outlives its session",
        f"{HOME}/live.py",
        "            if await _user_now(request) != actor:\n",
        "            if False:\n",
        pages("a_stream_changes_with_the_store_and_ends_with_the_session"),
    ),
    Mutant(
        "live pages without number",
        f"{HOME}/live.py",
        "    if request.app.state.view_cache.streams >= MAX_STREAMS:\n",
        "    if False:\n",
        pages("streams_are_bounded_and_given_back"),
    ),
    Mutant(
        "what was not read counts as nothing",
        f"{HOME}/views/rates.py",
        "        if (step + 1) * STEP <= self._known_from:\n            return None\n",
        "",
        views("a_pulse_that_cannot_keep_up_has_a_gap_and_not_a_zero"),
    ),
    Mutant(
        "a look never ends early",
        f"{HOME}/views/search.py",
        "        if clock() >= until:\n",
        "        if False:\n",
        views("a_look_that_is_ended_says_where_to_go_on"),
    ),
    Mutant(
        "a census in parts is called whole",
        f"{HOME}/views/causes.py",
        "self._so_far(whole=False)",
        "self._so_far(whole=True)",
        views("a_census_in_steps_shows_what_it_has"),
    ),
    Mutant(
        "a life that is cut does not say so",
        f"{HOME}/views/timeline.py",
        '    cut = f"The ledger holds',
        '    cut = "" and f"The ledger holds',
        views("a_long_life_is_looked_up_at_its_moments_and_says_so"),
    ),
    Mutant(
        "numbers of before a change are shown",
        f"{HOME}/view_cache.py",
        " and observed.at - observed.took > self._invalidated_at:",
        ":",
        desk("an_answer_that_others_got_is_not_asked_for_again"),
    ),
    Mutant(
        "an answer under way during a change is kept",
        f"{HOME}/view_cache.py",
        'monotonic() if began >= self._invalidated_at else float("-inf")',
        "monotonic()",
        desk("an_answer_that_was_under_way_during_a_change_is_no_answer"),
    ),
    Mutant(
        "records that accept nothing are taken for the end of a ledger",
        f"{HOME}/views/timeline.py",
        "                sides.append((low, middle))\n                low = min(high, middle + MAX_AROUND)\n",
        "                high = middle\n",
        views("jobs_that_came_after_a_drained_backlog_are_found_in_the_ledger"),
    ),
    Mutant(
        "only the likelier side of a ledger is searched",
        f"{HOME}/views/timeline.py",
        "                sides.append((low, middle))\n",
        "",
        views("jobs_that_ran_in_another_order_than_they_came_are_found_in_the_ledger"),
    ),
    Mutant(
        "what an id was is shown to actors of some queues",
        f"{HOME}/pages/jobs.py",
        'if timeline is None and actor.queues == ("*",) and actor.tenant is None and',
        "if timeline is None and",
        pages("the_last_job_of_a_schedule_has_a_page_also_where_nothing_is_remembered"),
    ),
    Mutant(
        "a window of ids that is too large is shown in part",
        f"{HOME}/views/search.py",
        "    return None, _WINDOW_PAGES\n",
        "    return found, _WINDOW_PAGES\n",
        views("a_window_of_ids_that_holds_too_much_is_made_smaller"),
    ),
    Mutant(
        "workers of foreign queues are shown",
        f"{HOME}/pages/workers.py",
        " if any(map(actor.reaches, each.queues))",
        "",
        pages("idle_workers_are_on_the_page_of_workers"),
    ),
    Mutant(
        "a history is not written down",
        "src/forebay/serve/metrics/history.py",
        "        self._store.append(HISTORY_LOG, [_encode(step)])\n",
        "",
        ("tests/serve/test_metrics_history.py::test_steps_that_are_over_outlive_the_server",),
    ),
    Mutant(
        "a step that is half counted is shown",
        "src/forebay/serve/metrics/history.py",
        "at // STEP * STEP if entry.offset == 0 else at + 1",
        "at // STEP * STEP",
        ("tests/serve/test_metrics_history.py::test_what_is_not_fully_counted_is_unknown_and_not_zero",),
    ),
    Mutant(
        "a requeue that lost a race says what the job was",
        "src/forebay/serve/api/dead.py",
        "        found = store.get([job.id])[0]\n",
        "        found = job\n",
        ("tests/serve/test_api_bulk.py::test_a_requeue_that_comes_second_says_what_the_job_is_now",),
    ),
    Mutant(
        "gates beyond the first page are passed over",
        "src/forebay/explain.py",
        "(known[:limit], known[limit - 1].name)",
        "(known[:limit], None)",
        ("tests/serve/test_api_gates.py::test_a_key_for_some_queues_reaches_every_page_of_its_gates",),
    ),
    Mutant(
        "a silent worker is shown for ever",
        "src/forebay/store/sqlite/control.py",
        "WHERE owner > ? AND until > ? ORDER",
        "WHERE owner > ? AND until + ? > 0 ORDER",
        ("tests/stores/test_conformance.py", "-k", "sqlite-presence"),
    ),
    Mutant(
        "an object store that does not answer delays a page",
        "src/forebay/serve/dashboard/view_cache.py",
        "if self._guard.acquire(timeout=seconds):\n                self._guard.release()\n        return self._value",
        "if self._guard.acquire():\n                self._guard.release()\n        return self._value",
        ("tests/serve/test_last_verdict.py",),
    ),
]
