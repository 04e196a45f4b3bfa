"""Quotas that hold for all servers of a store together, and outlive their restarts.

Each server adds what its callers spent to the retained log `forebay.usage`, once in `EVERY_SECONDS` and only if there
is something, and reads there what the others spent. Between two looks a caller may get a little more than its quota:
what all servers let pass in that time. Callers without a quota are not counted. Entries of days gone by are trimmed.
"""

import secrets
from typing import Final

import msgspec
from msgspec import Struct

from forebay.core.instant import days, hours, micros
from forebay.serve.security.keys import make_log
from forebay.serve.security.limits import QueueNames, Quotas
from forebay.store.protocol import Store

USAGE_LOG: Final = "forebay.usage"
EVERY_SECONDS: Final = 2.0
KEPT: Final = days(1) + hours(1)
READ_AT_ONCE: Final = 1_000
NAMES_AT_ONCE: Final = 1_000
TRIM_EVERY: Final = 1_000
"""Entries after which what is too old is dropped."""


class Spent(Struct, frozen=True):
    """What callers of one server spent since it last said so: jobs, and names of queues that were new of them."""

    server: str
    jobs: dict[str, int]
    queues: dict[str, list[str]] = {}


class UsageFollower:
    """A role: tells the log what was spent here, and the quotas what was spent elsewhere."""

    name = "usage"

    def __init__(self, store: Store, quotas: Quotas, names: QueueNames) -> None:
        self._store = store
        self._quotas = quotas
        self._names = names
        self._server = secrets.token_hex(8)
        self._offset: int | None = None
        self._unsaid: dict[str, int] = {}
        self._unnamed: list[tuple[str, str]] = []

    def step(self) -> float:
        self._tell()
        if self._offset is not None or any(spec.name == USAGE_LOG for spec in self._store.specs()):
            self._listen()
        return EVERY_SECONDS

    def _tell(self) -> None:
        for caller, jobs in self._quotas.news().items():
            self._unsaid[caller] = self._unsaid.get(caller, 0) + jobs
        self._unnamed += [(caller, name) for caller, names in self._names.news().items() for name in names]
        while self._unsaid or self._unnamed:
            make_log(self._store, USAGE_LOG, KEPT)
            named: dict[str, list[str]] = {}
            for caller, name in self._unnamed[:NAMES_AT_ONCE]:
                named.setdefault(caller, []).append(name)
            body = msgspec.json.encode(Spent(self._server, self._unsaid, named))
            (entry,) = self._store.append(USAGE_LOG, [body])
            self._unsaid, self._unnamed = {}, self._unnamed[NAMES_AT_ONCE:]
            if entry.offset % TRIM_EVERY == 0:
                self._store.trim(USAGE_LOG, self._store.now() - micros(KEPT), TRIM_EVERY)

    def _listen(self) -> None:
        (first, _), *_ = self._store.extent(USAGE_LOG)
        after = first - 1 if self._offset is None else max(self._offset, first - 1)
        while page := self._store.read(USAGE_LOG, 0, after, READ_AT_ONCE):
            for entry in page:
                spent = msgspec.json.decode(entry.body, type=Spent)
                if spent.server != self._server:
                    self._quotas.learn(spent.jobs, entry.at / 1_000_000)
                    self._names.learn(spent.queues, entry.at / 1_000_000)
            after = page[-1].offset
        self._offset = after
