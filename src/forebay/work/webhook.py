"""A kind of job that is delivered by HTTP: one signed POST for each attempt, retried by the rules of its queue.

2xx acknowledges the job. 408, 425, 429, 5xx, timeouts and broken connections are retried, not before `Retry-After`. Any
other answer is a dead letter at once: the receiver has refused it, is gone (410), or has moved (a redirect is never
followed). The body of the answer is not read.

A URL may come from a customer, so it must not reach inside: the host is resolved here, and only public addresses are
connected to, the very ones that were checked. `allow` names hosts and networks that may be private, and may be plain
http. Messages name the host alone; path and query may hold tokens, and headers do.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Timer
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from forebay.core.errors import Invalid
from forebay.core.humanize import iso
from forebay.webhooks import ID, SIGNATURE, TIMESTAMP, keys_of, sign
from forebay.work.context import Context
from forebay.work.handler import Drop, RetryAfter

MAX_TIMEOUT: Final = 300.0
MAX_RETRY_AFTER: Final = 86_400.0
"""Seconds for which a receiver can put off the next attempt."""

_RETRIED: Final = frozenset((408, 425, 429))
_RESERVED: Final = frozenset((ID, TIMESTAMP, SIGNATURE, "host", "content-length", "transfer-encoding", "connection"))
_NAT64: Final = IPv6Network("64:ff9b::/96")

IpAddress = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class DeliveryFailed(Exception):
    """A delivery that is worth another attempt."""


class Endpoint:
    """Where webhooks of one kind go, and how."""

    def __init__(
        self,
        url: str,
        secret: str | Sequence[str],
        *,
        allow: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float = 15.0,
    ) -> None:
        parts = urlsplit(url)
        self._host = (parts.hostname or "").rstrip(".")
        self._networks, self._hosts = _allowed(allow)
        if parts.scheme not in ("http", "https") or not self._host or parts.fragment:
            raise Invalid("webhook url", "it is not an address of a server", "write https://host/path")
        if parts.username is not None or parts.password is not None:
            raise Invalid("webhook url", "it holds a password", "send it in headers={'Authorization': …}")
        if not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
            raise Invalid("timeout", f"{timeout!r:.40} is not a number of seconds", f"give up to {MAX_TIMEOUT:g}")
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = _checked_headers(headers or {})
        self._timeout = timeout
        self._secrets = [secret] if isinstance(secret, str) else list(secret)
        keys_of(self._secrets)

    def __repr__(self) -> str:
        return f"Endpoint({self._host})"

    def handler(self, kind: str) -> Callable[..., int]:
        """The handler of jobs of this kind; it returns the status of the answer."""

        def push(ctx: Context, **data: Any) -> int:
            job = ctx.job
            body = msgspec.json.encode({"type": kind, "timestamp": iso(job.enqueued_at), "data": data})
            return self.deliver(f"{kind}-{job.id}-{job.enqueued_at}", body)

        push.__name__ = push.__qualname__ = kind
        return push

    def deliver(self, message_id: str, body: bytes) -> int:
        """One signed POST. Raises `Drop`, `RetryAfter` or `DeliveryFailed` unless the answer is 2xx."""
        address = self._address()
        connection = _Connection(self._host, self._port, address, self._secure, self._timeout)
        signed = sign(message_id, int(time.time()), body, self._secrets)
        headers = {"content-type": "application/json", "user-agent": "forebay", **self._headers, **signed}
        deadline = Timer(self._timeout, connection.abort)
        deadline.daemon = True
        status, retry_after = 0, None
        with closing(connection):
            deadline.start()
            try:
                connection.request("POST", self._path, body, headers)
                with closing(connection.getresponse()) as answer:
                    status, retry_after = answer.status, answer.getheader("retry-after")
            except TimeoutError:
                connection.aborted = True
            except (OSError, HTTPException) as error:
                if not connection.aborted:
                    raise DeliveryFailed(f"POST to {self._host}: {type(error).__name__}") from None
            finally:
                deadline.cancel()
        if connection.aborted:
            raise DeliveryFailed(f"POST to {self._host}: no answer within {self._timeout:g} s")
        self._check(status, retry_after)
        return status

    def _check(self, status: int, retry_after: str | None) -> None:
        if 200 <= status < 300:
            return
        said = f"POST to {self._host}: status {status}"
        if status not in _RETRIED and status < 500:
            raise Drop(f"{said}; {'redirects are not followed' if status < 400 else 'it is not sent again'}")
        wait = seconds_of(retry_after)
        if wait is None:
            raise DeliveryFailed(said)
        raise RetryAfter(wait, said)

    def _address(self) -> IpAddress:
        """An address of the host that may be connected to."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            raise DeliveryFailed(f"POST to {self._host}: its name cannot be resolved") from None
        addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        permitted = [each for each in addresses if self._permits(each)]
        if not permitted:
            private = "is not https, and" if not self._secure else "has no public address, and"
            raise Drop(f"POST to {self._host}: it {private} is not allowed: name the host or its network in allow=")
        return permitted[0]

    def _permits(self, address: IpAddress) -> bool:
        if self._host.lower() in self._hosts or any(address in network for network in self._networks):
            return True
        return self._secure and all(each.is_global and not each.is_multicast for each in _meanings(address))


class _Connection(HTTPConnection):
    """To the address that was checked, whatever the name means by now; TLS is for the name."""

    def __init__(self, host: str, port: int, address: IpAddress, secure: bool, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._address = str(address)
        self._context = ssl.create_default_context() if secure else None
        self.default_port = 443 if secure else 80
        self.aborted = False

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)

    def abort(self) -> None:
        """End the exchange from another thread: its time is up."""
        self.aborted = True
        with suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds in a Retry-After header, which has a number or a date; None: there is none that can be read."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return min(float(text), MAX_RETRY_AFTER)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    left = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)
    return min(max(0.0, left.total_seconds()), MAX_RETRY_AFTER)


def _meanings(address: IpAddress) -> Iterator[IpAddress]:
    """The address, and the IPv4 address that it may be translated to."""
    yield address
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address in _NAT64:
            yield IPv4Address(int(address) & 0xFFFFFFFF)


def _allowed(allow: Sequence[str]) -> tuple[list[Network], set[str]]:
    """Networks and names of hosts."""
    if isinstance(allow, str):
        raise Invalid("allow", "it is one string", "give a list: ['10.0.0.0/8', 'hooks.internal']")
    networks: list[Network] = []
    hosts: set[str] = set()
    for each in allow:
        try:
            networks.append(ip_network(each))
        except ValueError:
            if "/" in each or not each:
                raise Invalid("allow", f"{each!r:.60} is neither a host nor a network", "write 10.0.0.0/8") from None
            hosts.add(each.lower().rstrip("."))
    return networks, hosts


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").isalnum() or name.lower() in _RESERVED:
            raise Invalid("webhook header", f"{name!r:.60} is reserved or not a name", "use another one")
        if not value.isascii() or not value.isprintable():
            raise Invalid(f"webhook header {name}", "its value is not printable ASCII", "encode it")
    return {name.lower(): value for name, value in headers.items()}
