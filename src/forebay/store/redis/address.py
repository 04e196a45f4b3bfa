"""The URL of a Redis store: where the server is, which keys are ours, and how much the operator has relaxed.

    redis://user:password@host:6379/0?durability=everysec&prefix=orders&delivery=streams

`rediss://` is the same with TLS, `unix:///run/redis.sock?db=0` a socket. `durability` is what the operator says that an
answer may promise: `always` (the default) that it outlives a crash of the machine, `everysec` and `none` less; the
server is held to it when the store is opened. `delivery` is how ready jobs are kept, `sets` or `streams`: the first job
of a store decides, and a URL that says otherwise is refused. `call_timeout` is in how many seconds a command must be
answered. Everything else in the query is for the driver.
"""

from typing import Final, Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.names import is_name
from forebay.store.connection_pool import split_call_timeout

Durability = Literal["always", "everysec", "none", "trusted"]
Delivery = Literal["sets", "streams"]
_PREFIX: Final = "forebay"


class Address(Struct, frozen=True):
    """Where a store is. `prefix` is what all its keys begin with, in braces: one slot of a cluster.

    `delivery` is None where the URL does not say: as the store is, and sets if it is new.
    """

    url: str
    name: str
    prefix: str
    durability: Durability
    delivery: Delivery | None
    patience: float

    @classmethod
    def of(cls, url: str) -> "Address":
        url, patience = split_call_timeout(url)
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        durability = options.pop("durability", "always")
        if durability not in get_args(Durability):
            raise Invalid("durability", f"{durability!r} is none", f"use {', '.join(get_args(Durability))}")
        delivery = options.pop("delivery", None)
        if delivery is not None and delivery not in get_args(Delivery):
            raise Invalid("delivery", f"{delivery!r} is none", f"use {', '.join(get_args(Delivery))}")
        prefix = options.pop("prefix", _PREFIX)
        if not is_name(prefix):
            raise Invalid("prefix", f"{prefix!r} is not a name", "use letters, digits, _ . : and -")
        plain = parts._replace(query=urlencode(options)).geturl()
        kept = cast(Delivery | None, delivery)
        return cls(plain, _masked(plain), f"{{{prefix}}}:", cast(Durability, durability), kept, patience)

    @property
    def durable(self) -> bool:
        """Whether an answer outlives a crash of the machine."""
        return self.durability in ("always", "trusted")

    def hidden(self, text: str) -> str:
        """A text of the driver without our password."""
        password = urlsplit(self.url).password
        for secret in (password, unquote(password)) if password else ():
            text = text.replace(secret, "***")
        return text


def _masked(url: str) -> str:
    """The URL for people: without its password."""
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if user else ''}{place}{parts.path}"
