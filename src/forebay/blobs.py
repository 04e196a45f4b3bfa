"""Large payloads and results by claim check: the blob store keeps them, the job carries a reference to each.

    fb = Forebay(url, blobs="s3://bucket/forebay")        # file:, memory:, any URL of fsspec

A payload above the threshold is written before its job is enqueued, so a job that exists has its blob. The reference
holds a name, a size and a SHA-256, never an address: a worker reads only its own blob store, and runs nothing whose
bytes are not those that were enqueued. A vault seals the payload before it is written. A large result is written before
its job is settled, and read on demand; if it cannot be written, the run has failed.

Jobs are authoritative. A blob that no job refers to, and that is older than a day, is removed by `sweep`: the job ended
and is no longer kept, its enqueue failed, or it was a duplicate. A worker sweeps every hour, `forebay blobs sweep` at
any time. A blob store belongs to one job store: a sweep removes what the jobs of that store do not refer to.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.errors import BlobDamaged, BlobFailed, BlobMissing, Invalid
from forebay.core.instant import Instant, checked_micros, from_datetime
from forebay.core.job import Draft, Job
from forebay.core.limits import MAX_DURATION, PAYLOAD_BYTES
from forebay.core.payload import BLOB, BlobReference, Json, digest, encode_payload, is_reference, reference_of
from forebay.core.policy import check_between
from forebay.store.protocol import Query, Store

if TYPE_CHECKING:
    from forebay.vault import Vault

T = TypeVar("T")

THRESHOLD: Final = 64 * 1024
"""Bytes up to which a payload stays in its job, unless the app says otherwise."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the largest payload, unless the app says otherwise."""

UPPER_BOUND: Final = 1024 * 1024 * 1024
"""The largest `max_bytes`: a payload is encoded, sealed and decoded in memory."""

GRACE: Final = timedelta(days=1)
"""The age below which no blob is swept: the enqueue that wrote it may not have committed yet."""

_INTERVAL: Final = timedelta(hours=1)
_REST: Final = 300.0
_PAUSE: Final = 0.05
"""Seconds between two pages of a sweep in a worker."""

_PAGE: Final = 200
_MAX_CANDIDATES: Final = 100_000
"""Names in memory during a sweep; more of them need another pass over the jobs."""

_BUCKETS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""File systems without directories, on which `makedirs` would create a missing bucket."""

_SEALED: Final = 2
"""How many times larger than its payload an envelope may be."""

_NAME: Final = re.compile(r"\d{4}-\d\d-\d\d/\d{6}-[0-9a-f]{32}")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SWEPT: Final = "swept"
"""The blob that says when the last sweep began."""


class Swept(Struct, frozen=True):
    """What a sweep has done so far: blobs that were old enough, and those of them that were removed."""

    examined: int = 0
    removed: int = 0


class Blobs:
    """A blob store: a root directory on any file system of fsspec.

    threshold   payloads above so many bytes go there
    max_bytes   the largest payload
    options     passed to the file system of the URL, for example an endpoint
    filesystem  an fsspec file system to use instead of the URL's own; then the URL is a path on it
    """

    def __init__(
        self,
        url: str,
        *,
        threshold: int = THRESHOLD,
        max_bytes: int = MAX_BYTES,
        options: dict[str, Any] | None = None,
        filesystem: Any = None,
    ) -> None:
        check_between("threshold", threshold, 1, PAYLOAD_BYTES)
        check_between("max_bytes", max_bytes, PAYLOAD_BYTES, UPPER_BOUND)
        self.threshold: Final = threshold
        self.max_bytes: Final = max_bytes
        self._fs, self._root = (filesystem, url.rstrip("/")) if filesystem is not None else _opened(url, options or {})

    def put(self, draft: Draft, body: bytes) -> Draft:
        """Write the payload; returns the draft with a reference to it. `BlobFailed`: it is not known to be written."""
        same = None if draft.key is None else digest(draft.kind, body).hex()
        return replace(draft, payload=None, body=self._reference(draft.kind, body, "payload", same))

    def put_result(self, kind: str, body: bytes) -> bytes:
        """Write the result; returns a reference to it. `BlobFailed`: it is not known to be written."""
        return self._reference(kind, body, "result", None)

    def get(self, kind: str, reference: BlobReference) -> bytes:
        """The payload that the reference means, verified."""
        name = reference.name
        if not _NAME.fullmatch(name):
            raise BlobDamaged(kind, repr(name[:80]), "that is not the name of a blob")
        if not 0 <= reference.size <= _SEALED * self.max_bytes:
            raise BlobDamaged(kind, name, f"{reference.size} bytes are more than max_bytes={self.max_bytes} allows")
        try:
            with self._fs.open(self._path(name), "rb") as file:
                body: bytes = file.read(reference.size + 1)
        except FileNotFoundError as error:
            raise BlobMissing(kind, name, "it does not exist") from error
        except Exception as error:
            raise BlobMissing(kind, name, f"the blob store failed with {type(error).__name__}") from error
        if len(body) != reference.size or sha256(body).hexdigest() != reference.sha256:
            raise BlobDamaged(kind, name, "its bytes are not those that were written")
        return body

    def sweep(self, store: Store, older_than: timedelta = GRACE, *, dry_run: bool = False) -> Swept:
        """Remove blobs older than this that no job of the store refers to."""
        swept = Swept()
        for swept in self.sweeping(store, older_than, dry_run=dry_run):  # noqa: B007
            pass
        return swept

    def sweeping(self, store: Store, older_than: timedelta = GRACE, *, dry_run: bool = False) -> Iterator[Swept]:
        """As `sweep`, page by page of jobs."""
        before = store.now() - checked_micros("older_than", older_than, timedelta(0), MAX_DURATION)
        swept, names = Swept(), self._names(before)
        while candidates := {name for name, _ in zip(names, range(_MAX_CANDIDATES), strict=False)}:
            examined = len(candidates)
            for left in _unreferenced(store, candidates):
                candidates = left
                yield swept
            for name in () if dry_run else candidates:
                self._remove(name)
            swept = Swept(swept.examined + examined, swept.removed + len(candidates))
            yield swept

    def swept_at(self) -> Instant | None:
        """When the last sweep of any worker began; None: never."""
        try:
            return int(self._fs.cat_file(self._path(_SWEPT)))
        except (FileNotFoundError, ValueError):
            return None

    def mark_swept(self, at: Instant) -> None:
        self._write(_SWEPT, b"%d" % at)

    def _reference(self, kind: str, body: bytes, what: str, same: str | None) -> bytes:
        now = datetime.now(UTC)
        name = f"{now:%Y-%m-%d}/{now:%H%M%S}-{secrets.token_hex(16)}"
        try:
            self._write(name, body)
        except Exception as error:
            raise BlobFailed(kind, len(body), type(error).__name__, what) from error
        return msgspec.json.encode({BLOB: BlobReference(name, len(body), sha256(body).hexdigest(), same)})

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _write(self, name: str, body: bytes) -> None:
        path = self._path(name)
        try:
            self._fs.pipe_file(path, body)
        except FileNotFoundError:
            if _BUCKETS.intersection(_protocols(self._fs)):
                raise
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, body)
        if "file" in _protocols(self._fs):
            _sync(path)

    def _remove(self, name: str) -> None:
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def _names(self, before: Instant) -> Iterator[str]:
        """The names of blobs that were written before the instant, a day at a time."""
        for day in sorted(self._list("")):
            if not _DAY.fullmatch(day):
                continue
            for leaf in sorted(self._list(day)):
                name = f"{day}/{leaf}"
                if _NAME.fullmatch(name) and _written_at(name) < before:
                    yield name

    def _list(self, directory: str) -> list[str]:
        path = f"{self._root}/{directory}".rstrip("/")
        try:
            return [PurePosixPath(found).name for found in self._fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []


class PayloadCodec:
    """What client and worker do to payloads and results: a vault seals them, large ones go to the blob store."""

    def __init__(self, vault: "Vault | None", blobs: Blobs | None) -> None:
        self.vault: Final = vault
        self._blobs = blobs

    @property
    def blobs(self) -> Blobs | None:
        return self._blobs

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest payload."""
        return PAYLOAD_BYTES if self.blobs is None else self.blobs.max_bytes

    def draft(self, make: Callable[[Json], Draft], payload: Json) -> Draft:
        """The draft that `make` returns for the payload, sealed and by reference as this app has it."""
        blobs = self.blobs
        if blobs is None:
            return self.encoded(make(payload))
        body = encode_payload(payload, blobs.max_bytes)
        return self.encoded(make(payload)) if len(body) <= blobs.threshold else self._stored(blobs, make(None), body)

    async def prepare(self, make: Callable[[], T]) -> T:
        """What `make` returns, in a thread where it may use a blob store."""
        import asyncio

        return make() if self.blobs is None else await asyncio.to_thread(make)

    def encoded(self, draft: Draft) -> Draft:
        """A draft that was made elsewhere, sealed and by reference; one that is already so stays as it is."""
        if is_reference(draft.body):
            return draft
        blobs = self.blobs
        if blobs is not None and len(draft.body) > blobs.threshold:
            return self._stored(blobs, draft, draft.body)
        return draft if self.vault is None else self.vault.seal_draft(draft)

    def open(self, kind: str, body: bytes) -> bytes:
        """The payload itself; a body that is neither sealed nor a reference is returned unchanged."""
        reference = reference_of(body)
        if reference is not None:
            blobs = self.blobs
            if blobs is None:
                raise BlobMissing(kind, reference.name, "this process has no blob store")
            body = blobs.get(kind, reference)
        return body if self.vault is None else self.vault.open(kind, body)

    def keep_result(self, kind: str, body: bytes) -> bytes:
        """What the job keeps of an encoded result: itself, sealed if there is a vault, or a reference to it."""
        blobs = self.blobs
        if blobs is None or len(body) <= blobs.threshold:
            return body if self.vault is None else self.vault.seal(kind, body)
        sealed = body if self.vault is None else self.vault.seal(kind, body, _SEALED * blobs.max_bytes)
        return blobs.put_result(kind, sealed)

    def open_job(self, job: Job) -> Job:
        """The job with its payload and result unsealed; a reference stays one."""
        return job if self.vault is None else self.vault.open_job(job)

    def _stored(self, blobs: Blobs, draft: Draft, body: bytes) -> Draft:
        if self.vault is not None:
            body = self.vault.seal_body(draft, body, _SEALED * blobs.max_bytes)
        return blobs.put(draft, body)


class BlobSweeper:
    """A role of a worker: sweeps if no worker has within the hour, a page of jobs at a step."""

    name = "blob sweeper"

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs
        self._sweep: Iterator[Swept] | None = None

    def step(self) -> float:
        if self._sweep is None:
            now, last = self._store.now(), self._blobs.swept_at()
            if last is not None and now - last < checked_micros("interval", _INTERVAL, timedelta(0), MAX_DURATION):
                return _REST
            self._blobs.mark_swept(now)
            self._sweep = self._blobs.sweeping(self._store)
        try:
            done = next(self._sweep, None) is None
        except BaseException:
            self._sweep = None
            raise
        if done:
            self._sweep = None
        return _REST if done else _PAUSE


def blobs_of(given: "Blobs | str | None") -> Blobs | None:
    return Blobs(given) if isinstance(given, str) else given


def _unreferenced(store: Store, names: set[str]) -> Iterator[set[str]]:
    """The names that neither a job nor a schedule refers to; yielded page by page, final at the end.

    Ids only grow: a job that is made during the scan is reached at its end.
    """
    left = names - {_referred(schedule.draft.body) for schedule in store.schedules()}
    after: int | None = 0
    while left and after is not None:
        page = store.browse(Query(), after, _PAGE)
        left -= {_referred(body) for job in page.jobs for body in (job.body, job.result_body or b"")}
        after = page.next
        yield left
    yield left


def _referred(body: bytes) -> str:
    reference = reference_of(body)
    return "" if reference is None else reference.name


def _written_at(name: str) -> Instant:
    return from_datetime(datetime.strptime(name[:17], "%Y-%m-%d/%H%M%S").replace(tzinfo=UTC))


def _opened(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise Invalid("blobs", "fsspec is not installed", "pip install 'forebay[blobs]'") from None
    try:
        filesystem, root = url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as error:
        scheme = url.partition(":")[0]
        raise Invalid("blobs", f"{scheme}: {error}", "give a URL of fsspec, and install its file system") from None
    return filesystem, root.rstrip("/")


def _protocols(filesystem: Any) -> tuple[str, ...]:
    given = filesystem.protocol
    return (given,) if isinstance(given, str) else tuple(given)


def _sync(path: str) -> None:
    """Durable before the job is: the file, its directory and the directory above, which may be new."""
    parent = os.path.dirname(path)
    for each in (path, parent, os.path.dirname(parent)):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
