"""mTLS: the roles of client certificates. TLS has verified the certificate; this maps its name to roles.

    {"billing-worker": {"roles": ["worker"], "queues": ["billing.*"]}}

Names are compared with the certificate's common name, exactly. A client whose name is not listed may connect and needs
a key.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.serve.actor import Actor, Role

PEER: Final = "forebay.peer"
"""The ASGI scope key under which the protocol stores the common name of the client's certificate."""


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    roles: tuple[Role, ...]
    queues: tuple[str, ...] = ("*",)
    tenant: str | None = None


class Certificates:
    """Actors by common name."""

    def __init__(self, grants: dict[str, Grant]) -> None:
        self._actors = {
            name: Actor(f"cert:{name}", frozenset(grant.roles), grant.queues, grant.tenant)
            for name, grant in grants.items()
        }

    @classmethod
    def from_file(cls, path: Path) -> "Certificates":
        try:
            return cls(msgspec.json.decode(path.read_bytes(), type=dict[str, Grant]))
        except (OSError, msgspec.DecodeError) as error:
            raise Invalid("client roles", f"{path}: {error}", 'write {"name": {"roles": ["worker"]}}') from None

    def actor(self, name: str) -> Actor | None:
        return self._actors.get(name)


def common_name(certificate: dict[str, Any] | None) -> str | None:
    """The common name in a result of `SSLObject.getpeercert`; None unless there is exactly one."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for field, value in part if field == "commonName"]
    return names[0] if len(names) == 1 else None
