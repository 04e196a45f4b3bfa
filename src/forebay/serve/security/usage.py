"""Quotas shared by all servers of a store, across restarts.

Each server appends what its callers used to the retained log `forebay.usage`, every `PUBLISH_SECONDS` if there is
anything, and reads what the other servers appended. Between two reads a caller can exceed its quota by what all servers
admit in that time. Callers without a quota are not counted. Entries older than `KEPT` are trimmed.
"""

import secrets
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.instant import days, hours, micros
from forebay.serve.security.keys import ensure_log
from forebay.serve.security.limits import QueueNames, Quotas
from forebay.store.protocol import Store

USAGE_LOG: Final = "forebay.usage"
PUBLISH_SECONDS: Final = 2.0
KEPT: Final = days(1) + hours(1)
READ_BATCH: Final = 1_000
NAMES_BATCH: Final = 1_000
TRIM_INTERVAL: Final = 1_000
"""Entries between two trims."""


class UsageReport(Struct, frozen=True):
    """What the callers of one server used since its last report: jobs, and names of queues without a spec."""

    server: str
    jobs: dict[str, int]
    queues: dict[str, list[str]] = {}


_decode: Final = msgspec.json.Decoder(UsageReport).decode


class UsageFollower:
    """A role: appends this server's usage to the log, and adds the other servers' usage to the quotas."""

    name = "usage"

    def __init__(self, store: Store, quotas: Quotas, names: QueueNames) -> None:
        self._store = store
        self._quotas = quotas
        self._names = names
        self._server = secrets.token_hex(8)
        self._offset: int | None = None
        self._unreported_jobs: dict[str, int] = {}
        self._unreported_names: list[tuple[str, str]] = []

    def step(self) -> float:
        self._publish()
        if self._offset is not None or any(spec.name == USAGE_LOG for spec in self._store.specs()):
            self._read_others()
        return PUBLISH_SECONDS

    def _publish(self) -> None:
        for caller, jobs in self._quotas.take_unreported().items():
            self._unreported_jobs[caller] = self._unreported_jobs.get(caller, 0) + jobs
        self._unreported_names += [
            (caller, name) for caller, names in self._names.take_unreported().items() for name in names
        ]
        while self._unreported_jobs or self._unreported_names:
            ensure_log(self._store, USAGE_LOG, KEPT)
            named: dict[str, list[str]] = {}
            for caller, name in self._unreported_names[:NAMES_BATCH]:
                named.setdefault(caller, []).append(name)
            body = msgspec.json.encode(UsageReport(self._server, self._unreported_jobs, named))
            (entry,) = self._store.append(USAGE_LOG, [body])
            self._unreported_jobs, self._unreported_names = {}, self._unreported_names[NAMES_BATCH:]
            if entry.offset % TRIM_INTERVAL == 0:
                self._store.trim(USAGE_LOG, self._store.now() - micros(KEPT), TRIM_INTERVAL)

    def _read_others(self) -> None:
        (first, _), *_ = self._store.extent(USAGE_LOG)
        after = first - 1 if self._offset is None else max(self._offset, first - 1)
        while page := self._store.read(USAGE_LOG, 0, after, READ_BATCH):
            for entry in page:
                report = _decode(entry.body)
                if report.server != self._server:
                    self._quotas.add_remote(report.jobs, entry.at / 1_000_000)
                    self._names.add_remote(report.queues, entry.at / 1_000_000)
            after = page[-1].offset
        self._offset = after
