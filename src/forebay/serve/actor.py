"""The caller of a route and its permissions.

An actor has roles, queues and optionally a tenant. What is outside of them does not exist for it: a job of another
queue or tenant gets the same response as a job that does not exist. Names that begin with `forebay.` are reserved for
the server, and no actor can reach them.

    viewer     reads queues, jobs, dead letters, schedules, logs and statistics
    producer   enqueues jobs, reads and cancels them by id
    worker     claims, settles and extends
    operator   a viewer who also cancels, redrives, purges, pauses, resumes, runs and edits schedules
    admin      all of the above, and queue specs, keys and the operator log
"""

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.names import is_reserved


class Role(StrEnum):
    """A role of a key; a key may have several."""

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
    """One caller. `queues` are names or patterns with `*`; `tenant` None: jobs of every tenant and of no tenant."""

    name: str
    roles: frozenset[Role]
    queues: tuple[str, ...] = ("*",)
    tenant: str | None = None

    def has(self, role: Role) -> bool:
        """Whether it has the role; an admin has all of them."""
        return any(role in _IMPLIED.get(own, {own}) for own in self.roles)

    def sees(self, queue: str, tenant: str | None) -> bool:
        """Whether a job of this queue and tenant exists for this actor."""
        return self.reaches(queue) and self.tenant in (None, tenant)

    def reaches(self, queue: str) -> bool:
        """Whether the queue is among its queues, and not reserved."""
        return not is_reserved(queue) and any(fnmatchcase(queue, pattern) for pattern in self.queues)

    def stamped(self, tenant: str | None) -> str | None:
        """The tenant of a draft of this actor: its own, or the given one if it has none."""
        if self.tenant is None or tenant is None or tenant == self.tenant:
            return self.tenant or tenant
        raise Invalid("tenant", f"{tenant} is not the tenant of this key", "leave it out: the key's tenant is used")
