"""The guards of the HTTP side: who gets in, how far, how much, what is written down, and what nobody gets to see."""

from tests.mutants.guards import Mutant

HOME = "src/forebay/serve/security"
MATRIX = ("tests/serve/test_matrix.py", "-k", "each_role and (jobs or claim or cron)")
FORGED = ("tests/serve/test_matrix.py", "-k", "no_page_changes")
REDACTION = ("tests/unit/test_redaction.py",)
VAULT = ("tests/unit/test_vault.py",)


def tests(room: str, test: str) -> tuple[str, ...]:
    return (f"tests/serve/test_security_{room}.py::test_{test}",)


SECURITY_MUTANTS = [
    Mutant(
        "nobody is refused",
        f"{HOME}/door.py",
        "    if visit is None:\n        raise",
        "    if False:\n        raise",
        MATRIX,
    ),
    Mutant(
        "roles are not asked for",
        f"{HOME}/door.py",
        "if not any(actor.has(role) for role in roles):",
        "if False:",
        MATRIX,
    ),
    Mutant("every queue is reached", "src/forebay/serve/actor.py", "fnmatchcase(queue, pattern)", "True", MATRIX),
    Mutant(
        "our own logs are reached",
        "src/forebay/serve/actor.py",
        "return not is_reserved(queue) and ",
        "return ",
        tests("acts", "nobody_reads_or_writes_the_log_over_http"),
    ),
    Mutant(
        "a foreign tenant is stamped",
        "src/forebay/serve/actor.py",
        "self.tenant is None or tenant is None or tenant == self.tenant",
        "True",
        tests("keys", "actors_reach_their_queues_and_never_forebays_own"),
    ),
    Mutant(
        "half a secret is enough",
        f"{HOME}/keys.py",
        "hmac.compare_digest(digest(parts[2] if parts else text), key.digest if key else _NOBODY)",
        "key is not None",
        tests("keys", "only_the_very_text_is_the_key"),
    ),
    Mutant(
        "keys never expire",
        f"{HOME}/keys.py",
        "return key.expires_at is not None and now >= key.expires_at",
        "return False",
        tests("keys", "revoked_and_expired_keys_are_nobodys"),
    ),
    Mutant(
        "a revocation is not heard",
        f"{HOME}/keys.py",
        "self._keys.pop(key_id, None)",
        "pass",
        tests("keys", "the_log_is_followed_and_what_is_not_understood_is_passed_over"),
    ),
    Mutant(
        "workers of one tenant",
        f"{HOME}/keys.py",
        "if Role.WORKER in self.roles or Role.ADMIN in self.roles:",
        "if Role.ADMIN in self.roles:",
        tests("keys", "bad_keys_are_refused"),
    ),
    Mutant(
        "keys are trusted for ever",
        f"{HOME}/following.py",
        "return self._now() - self._read_at < TRUSTED_SECONDS",
        "return True",
        tests("keys", "keys_are_trusted_for_a_while_without_the_store_and_then_no_more"),
    ),
    Mutant(
        "any algorithm",
        f"{HOME}/tokens.py",
        'header.get("alg") not in self._rules.algorithms or header["alg"] != key.algorithm_name',
        'header["alg"] != key.algorithm_name',
        tests("tokens", "only_the_algorithms_of_the_rules_count"),
    ),
    Mutant(
        "every unknown kid asks the issuer",
        f"{HOME}/tokens.py",
        "self._now() - self._asked_at >= REFETCH_SECONDS and ",
        "",
        tests("tokens", "a_flood_of_unknown_kids_asks_the_issuer_once_in_a_while"),
    ),
    Mutant(
        "redirects are followed",
        f"{HOME}/tokens.py",
        "build_opener(_NoRedirect)",
        "build_opener()",
        tests("tokens", "redirects_are_not_followed_and_a_silent_issuer_is_no_bearer"),
    ),
    Mutant(
        "a certificate of two names",
        f"{HOME}/certificates.py",
        "if len(names) == 1 else None",
        "if names else None",
        tests("tls", "a_certificate_without_one_name_is_nobody"),
    ),
    Mutant(
        "plain http for everybody",
        f"{HOME}/bind.py",
        "    if not insecure:\n",
        "    if False:\n",
        tests("tls", "beyond_this_machine_needs_keys_and_tls_or_the_word"),
    ),
    Mutant(
        "no places at once",
        f"{HOME}/limits.py",
        "if own >= each or self._under_way[waits] >= most:",
        "if False:",
        tests("limits", "places_are_held_while_a_request_is_under_way_and_given_back"),
    ),
    Mutant(
        "a bucket without a bottom",
        f"{HOME}/limits.py",
        "wait = 0.0 if level >= 1 else (1 - level) / rate",
        "wait = 0.0",
        tests("limits", "a_bucket_gives_its_burst_and_then_its_rate"),
    ),
    Mutant(
        "buckets for ever",
        f"{HOME}/limits.py",
        "if len(self._levels) > self._most:",
        "if False:",
        tests("limits", "a_hundred_thousand_callers_need_bounded_memory"),
    ),
    Mutant(
        "a quota is not counted",
        f"{HOME}/limits.py",
        "            self._add(caller, jobs, now)\n",
        "",
        tests("limits", "quotas_count_by_the_hour_and_the_day_and_all_or_none"),
    ),
    Mutant(
        "bodies of any size",
        f"{HOME}/body.py",
        "if self._most is not None and self._size > self._most:",
        "if False:",
        tests("body", "a_body_without_a_length_is_cut_by_the_wall_itself"),
    ),
    Mutant(
        "compressed bodies",
        f"{HOME}/body.py",
        'if any(value.strip().lower() not in (b"", b"identity") for value in encodings):',
        "if False:",
        tests("body", "compressed_bodies_are_refused_before_they_are_opened"),
    ),
    Mutant(
        "headers without end",
        f"{HOME}/body.py",
        "if len(headers) > HEADERS_MOST or weight > self._headers_bytes:",
        "if False:",
        tests("body", "too_many_or_too_large_headers_are_refused"),
    ),
    Mutant(
        "slow heads",
        f"{HOME}/guarded.py",
        "self._timer = self.loop.call_later(self.head_seconds, self.transport.close)",
        "pass",
        tests("body", "clients_that_are_slow_are_cut_and_nobody_else_waits"),
    ),
    Mutant(
        "long polls are cut like slow heads",
        f"{HOME}/guarded.py",
        "        self._under_way += 1\n        self._disarm()\n",
        "        self._under_way += 1\n",
        tests("body", "long_polls_outlive_the_patience_for_slow_clients"),
    ),
    Mutant(
        "slow bodies",
        f"{HOME}/body.py",
        "async with asyncio.timeout_at(self._until if self._most is not None else now + self._seconds):",
        "async with asyncio.timeout_at(now + 3_600):",
        tests("body", "clients_that_are_slow_are_cut_and_nobody_else_waits"),
    ),
    Mutant(
        "forged forms", f"{HOME}/sessions.py", "            await check_csrf(request)\n", "            pass\n", FORGED
    ),
    Mutant("forms of other sites", f"{HOME}/sessions.py", "    if not own:\n", "    if False:\n", FORGED),
    Mutant(
        "sessions for ever",
        f"{HOME}/sessions.py",
        "now - session.seen < IDLE_SECONDS and ",
        "",
        tests("sessions", "a_session_ends_when_it_is_idle_or_old"),
    ),
    Mutant(
        "a session outlives its key",
        f"{HOME}/sessions.py",
        "return None if key is None else pass_of(key)",
        "return visit",
        tests("sessions", "a_session_ends_with_its_key"),
    ),
    Mutant(
        "a one-time token opens twice",
        f"{HOME}/sessions.py",
        "self._once.pop(shown, (None, 0.0))",
        "self._once.get(shown, (None, 0.0))",
        tests("sessions", "a_one_time_token_opens_once_and_not_for_long"),
    ),
    Mutant(
        "scripts in pages",
        f"{HOME}/headers.py",
        "script-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        tests("sessions", "every_answer_tells_browsers_to_be_careful"),
    ),
    Mutant(
        "acts keep secrets",
        f"{HOME}/acts.py",
        'shown = rules().payload("", msgspec.to_builtins(facts))',
        "shown = msgspec.to_builtins(facts)",
        tests("acts", "acts_come_newest_first_page_by_page"),
    ),
    Mutant(
        "errors keep secrets",
        "src/forebay/work/handler.py",
        "shown.text(text[-_LOOKED_AT:], secrets)",
        "text",
        tests("canaries", "no_canary_comes_out"),
    ),
    Mutant(
        "the terminal shows secrets",
        "src/forebay/cli/command.py",
        "return job if self.args.raw else redact_job(job)",
        "return job",
        tests("canaries", "the_terminal_shows_secrets_only_when_asked"),
    ),
    Mutant(
        "every number is a card",
        "src/forebay/core/redaction.py",
        "HIDDEN if passes_luhn(found[0]) else found[0]",
        "HIDDEN",
        REDACTION,
    ),
    Mutant(
        "traces keep secrets",
        "src/forebay/work/redacting.py",
        "record.exc_text = self._redaction.text(record.exc_text)",
        "pass",
        REDACTION,
    ),
    Mutant(
        "an envelope for any kind",
        "src/forebay/vault.py",
        "encrypt(nonce, body, kind.encode())",
        'encrypt(nonce, body, b"k")',
        VAULT,
    ),
    Mutant(
        "a mark by the newest key",
        "src/forebay/vault.py",
        "list(keys.values())[-1]",
        "list(keys.values())[0]",
        VAULT,
    ),
    Mutant(
        "what cannot be opened is dropped",
        "src/forebay/work/handler.py",
        "isinstance(error, (SealBroken, *self.retry_on))",
        "isinstance(error, self.retry_on)",
        ("tests/stores/test_vault.py", "-k", "memory and without_the_key"),
    ),
]
