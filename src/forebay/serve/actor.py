"""Who asks, and what they may do: the one question that every route puts before it acts.

An actor has roles, queues and perhaps a tenant. What lies outside of them does not exist for it: a job of a foreign
queue or tenant and a job that never was get the same answer. Names that begin with `forebay.` are the server's own and
are reached by nobody.

    viewer     looks at queues, jobs, dead letters, schedules, logs and figures
    producer   enqueues, reads back and cancels jobs by their ids
    worker     claims, settles and extends
    operator   a viewer who also cancels, redrives, purges, pauses, resumes, runs and edits schedules
    admin      all of it, also queue specs, keys and the operators' log
"""

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.names import is_reserved


class Role(StrEnum):
    """What a key may be for; a key may have several."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


_IMPLIED: Final = {
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.VIEWER}),
    Role.ADMIN: frozenset(Role),
}


class Actor(Struct, frozen=True):
    """One caller. `queues` are names or patterns with `*`; `tenant` None: every tenant, and none."""

    name: str
    roles: frozenset[Role]
    queues: tuple[str, ...] = ("*",)
    tenant: str | None = None

    def has(self, role: Role) -> bool:
        return any(role in _IMPLIED.get(own, {own}) for own in self.roles)

    def sees(self, queue: str, tenant: str | None) -> bool:
        """Whether a job of this queue and tenant exists for this actor."""
        return self.reaches(queue) and self.tenant in (None, tenant)

    def reaches(self, queue: str) -> bool:
        return not is_reserved(queue) and any(fnmatchcase(queue, pattern) for pattern in self.queues)

    def stamped(self, tenant: str | None) -> str | None:
        """The tenant that a draft of this actor gets: its own, or the one it names if it has none."""
        if self.tenant is None or tenant is None or tenant == self.tenant:
            return self.tenant or tenant
        raise Invalid("tenant", "it is not the tenant of this key", "leave it out: the key's own is stamped")
