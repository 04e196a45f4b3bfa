"""Guards of large payloads, of webhooks and of searches, and how each is broken."""

from tests.mutants.guards import Mutant

BLOBS = "src/forebay/blobs.py"
WEBHOOK = "src/forebay/work/webhook.py"
WEBHOOKS = "src/forebay/webhooks.py"


def tests(name: str) -> tuple[str, ...]:
    return ("tests/unit/test_blobs.py", "-k", f"{name} and not s3")


def webhook_tests(name: str) -> tuple[str, ...]:
    return ("tests/unit/test_webhooks.py", "-k", name)


PAYLOAD_MUTANTS = [
    Mutant(
        "blobs: the digest is not compared",
        BLOBS,
        "if len(body) != reference.size or sha256(body).hexdigest() != reference.sha256:",
        "if len(body) != reference.size:",
        tests("damaged"),
    ),
    Mutant(
        "blobs: a name may lead out of the blob store",
        BLOBS,
        "        if not _NAME.fullmatch(name):\n            raise BlobDamaged",
        "        if not name:\n            raise BlobDamaged",
        tests("outside"),
    ),
    Mutant(
        "blobs: any size is read",
        BLOBS,
        "if not 0 <= reference.size <= _SEALED * self.max_bytes:",
        "if reference.size < 0:",
        tests("bounded"),
    ),
    Mutant(
        "blobs: a sweep removes what jobs refer to",
        BLOBS,
        '        left -= {_referred(body) for job in page.jobs for body in (job.body, job.result_body or b"")}\n',
        "",
        tests("a_sweep"),
    ),
    Mutant(
        "blobs: a sweep has no grace time",
        BLOBS,
        "and _written_at(name) < before:",
        "and _written_at(name):",
        tests("a_sweep"),
    ),
    Mutant(
        "blobs: every worker sweeps at its start",
        BLOBS,
        "if last is not None and now - last <",
        "if last is None and now <",
        tests("once_an_hour"),
    ),
    Mutant(
        "blobs: the payload is not sealed",
        BLOBS,
        "        if self.vault is not None:\n            body = self.vault.seal_body",
        "        if self.vault is None and self.vault is not None:\n            body = self.vault.seal_body",
        tests("vault_seals"),
    ),
    Mutant(
        "blobs: a damaged blob is tried again",
        "src/forebay/work/handler.py",
        "PayloadMismatch, BlobDamaged, ResultInvalid",
        "PayloadMismatch, ResultInvalid",
        tests("damaged"),
    ),
    Mutant(
        "blobs: a missing blob is fatal for strict handlers",
        "src/forebay/work/handler.py",
        "(SealBroken, BlobMissing, BlobFailed, *self.retry_on)",
        "(SealBroken, *self.retry_on)",
        tests("rules_for_retries"),
    ),
    Mutant(
        "blobs: a key does not recognise a large payload",
        "src/forebay/core/payload.py",
        "    if reference is not None and reference.same is not None:\n",
        "    if reference is not None and reference.same is None:\n",
        tests("recognises"),
    ),
    Mutant(
        "blobs: an async handler's blob is read on the loop",
        "src/forebay/work/handler.py",
        "return is_reference(job.body) or (",
        "return False and is_reference(job.body) or (",
        tests("off_the_loop"),
    ),
    Mutant(
        "webhook: any address is connected to",
        WEBHOOK,
        "return self._secure and all(each.is_global and not each.is_multicast for each in _meanings(address))",
        "return self._secure",
        webhook_tests("private_addresses"),
    ),
    Mutant(
        "webhook: an address inside another one is not seen",
        WEBHOOK,
        "for each in _meanings(address))",
        "for each in [address])",
        webhook_tests("private_addresses"),
    ),
    Mutant(
        "webhook: the name is resolved again",
        WEBHOOK,
        "socket.create_connection((self._address, self.port)",
        "socket.create_connection((self.host, self.port)",
        webhook_tests("was_checked"),
    ),
    Mutant(
        "webhook: plain http to anywhere",
        WEBHOOK,
        "return self._secure and all(",
        "return not self._secure or all(",
        webhook_tests("plain_http"),
    ),
    Mutant(
        "webhook: an answer may take for ever",
        WEBHOOK,
        "            deadline.start()\n",
        "            deadline.daemon = True\n",
        webhook_tests("never_whole"),
    ),
    Mutant(
        "webhook: a refusal is tried again",
        WEBHOOK,
        "if status not in _RETRIED and status < 500:",
        "if status not in _RETRIED and status < 400:",
        webhook_tests("refusal"),
    ),
    Mutant(
        "webhook: Retry-After is ignored",
        WEBHOOK,
        "        if wait is None:\n",
        "        if wait is None or wait:\n",
        webhook_tests("honoured"),
    ),
    Mutant(
        "webhook: Retry-After has no bound",
        WEBHOOK,
        "return min(float(text), MAX_RETRY_AFTER)",
        "return float(text)",
        webhook_tests("bounded"),
    ),
    Mutant(
        "webhook: an old delivery is valid",
        WEBHOOKS,
        "now) - int(at)) > tolerance:",
        "now) - int(at)) > 10**9:",
        webhook_tests("changed_or_is_old"),
    ),
    Mutant(
        "webhook: any signature is valid",
        WEBHOOKS,
        "    if not any(matches):\n",
        "    if not matches:\n",
        webhook_tests("changed_or_is_old"),
    ),
    Mutant(
        "webhook: the timestamp is not signed",
        WEBHOOKS,
        'signed = f"{message_id}.{timestamp}.".encode() + body',
        'signed = f"{message_id}.".encode() + body',
        webhook_tests("changed_or_is_old"),
    ),
    Mutant(
        "webhook: errors quote the whole address",
        WEBHOOK,
        'said = f"POST to {self._host}: status {status}"',
        'said = f"POST to {self._host}{self._path}: status {status}"',
        webhook_tests("holds_a_secret"),
    ),
    Mutant(
        "retry after: lost between processes",
        "src/forebay/work/isolate.py",
        'return _Reply("failed", error=failure, after=after)',
        'return _Reply("failed", error=failure)',
        webhook_tests("process_of_its_own"),
    ),
    Mutant(
        "search: a secret is found out by searching for it",
        "src/forebay/serve/security/visibility.py",
        "shown = job if sees_secrets(actor) else redact_job(job)\n    return holds(",
        "shown = job\n    return holds(",
        ("tests/serve/test_search.py", "-k", "secret"),
    ),
    Mutant(
        "search: a page drops what it has no room for",
        "src/forebay/store/shell.py",
        "Page(found[:limit], found[limit - 1].id)",
        "Page(found[:limit], page.next)",
        ("tests/stores/test_conformance.py", "-k", "memory and continues_where_it_stopped"),
    ),
    Mutant(
        "search: a page reads as many jobs as there are",
        "src/forebay/store/shell.py",
        "self.backend.browse(query, after, CONTENT_SCAN)",
        "self.backend.browse(query, after, 3 * CONTENT_SCAN)",
        ("tests/stores/test_conformance.py", "-k", "memory and continues_where_it_stopped"),
    ),
    Mutant(
        "search: ls reads without an end",
        "src/forebay/cli/inspect.py",
        "for _ in range(MAX_SCAN // CONTENT_SCAN):",
        "for _ in range(MAX_SCAN):",
        ("tests/unit/test_content.py", "-k", "ls_finds"),
    ),
    Mutant(
        "search: any number of conditions",
        "src/forebay/core/content.py",
        "if type(conditions) is not tuple or len(conditions) > MAX_CONDITIONS:",
        "if type(conditions) is not tuple:",
        ("tests/unit/test_content.py", "-k", "mistakes"),
    ),
    Mutant(
        "enqueue: a payload from the command line is not sealed",
        "src/forebay/cli/enqueue.py",
        "app.enqueue_draft(app.codec.encoded(draft))",
        "app.enqueue_draft(draft)",
        tests("command_line_is_sealed"),
    ),
    Mutant(
        "blobs: a sweep takes the results of kept jobs",
        BLOBS,
        'for body in (job.body, job.result_body or b"")}',
        "for body in (job.body,)}",
        tests("results_of_kept_jobs"),
    ),
    Mutant(
        "blobs: a large result is not sealed",
        BLOBS,
        "        sealed = body if self.vault is None else self.vault.seal(kind, body, _SEALED * blobs.max_bytes)\n",
        "        sealed = body\n",
        tests("seals_a_large_result"),
    ),
    Mutant(
        "blobs: the event loop waits for a result to be written",
        "src/forebay/work/handler.py",
        "is_reference(job.body) or (self.keep_result and self.signature.has_blobs)",
        "is_reference(job.body)",
        tests("off_the_loop"),
    ),
]
