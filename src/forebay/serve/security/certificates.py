"""mTLS: what a client's certificate may do. The server's own TLS has checked it; here its name is given rights.

    {"billing-worker": {"roles": ["worker"], "queues": ["billing.*"]}}

Names are the certificate's common name, exactly. A name that is not listed may connect, and shows a key like anybody.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.serve.actor import Actor, Role

PEER: Final = "forebay.peer"
"""Where the server's protocol leaves the name of a client's certificate in an ASGI scope."""


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    roles: tuple[Role, ...]
    queues: tuple[str, ...] = ("*",)
    tenant: str | None = None


class Certificates:
    """Rights by common name."""

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
            raise Invalid("client roles", str(error), 'write {"name": {"roles": ["worker"]}}') from None

    def actor(self, name: str) -> Actor | None:
        return self._actors.get(name)


def common_name(certificate: dict[str, Any] | None) -> str | None:
    """Of what `SSLObject.getpeercert` gives; None without exactly one."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for field, value in part if field == "commonName"]
    return names[0] if len(names) == 1 else None
