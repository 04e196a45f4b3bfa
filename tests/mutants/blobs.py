"""Guards of large payloads and of HTTP pushes, and how each is broken."""

from tests.mutants.guards import Mutant

BLOBS = "src/forebay/blobs.py"


def tests(name: str) -> tuple[str, ...]:
    return ("tests/unit/test_blobs.py", "-k", f"{name} and not s3")


BLOB_MUTANTS = [
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
        "        left -= {_referred(job.body) for job in page.jobs}\n",
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
        "(SealBroken, BlobMissing, *self.retry_on)",
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
        "src/forebay/work/loop.py",
        "stored = is_reference(body)",
        "stored = False",
        tests("off_the_loop"),
    ),
]
