"""Scratch keys in a Redis server that is in use: a prefix for each use, and nothing of it is left."""

from secrets import token_hex
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.cluster import RedisCluster

from forebay_proof.servers.process import ServerUnavailable

_AT_ONCE = 500


class ScratchKeys:
    """The prefixes of one run; they begin alike, so that leftovers of a crash are easily found."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._name = f"forebay-scratch-{token_hex(4)}"
        self._count = 1
        self.shown = self._parts._replace(netloc=self._parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def url(self) -> str:
        options = {**dict(parse_qsl(self._parts.query)), "prefix": self._prefix}
        return self._parts._replace(query=urlencode(options)).geturl()

    @property
    def _prefix(self) -> str:
        return f"{self._name}-{self._count:03}"

    def renew(self) -> None:
        """Delete what was written, and go on with another prefix."""
        try:
            with self._client() as client:
                for keys in _some(client, f"{{{self._prefix}}}:*"):
                    client.unlink(*keys)
        except redis.RedisError as error:
            raise ServerUnavailable(f"no connection to the server: {type(error).__name__}") from None
        self._count += 1

    def _client(self) -> "redis.Redis | RedisCluster":
        if not self._parts.scheme.endswith("+cluster"):
            return redis.Redis.from_url(self._parts._replace(query="").geturl())
        scheme, first = self._parts.scheme.removesuffix("+cluster"), self._parts.netloc.partition(",")[0]
        return RedisCluster.from_url(f"{scheme}://{first}/0")


def _some(client: "redis.Redis | RedisCluster", pattern: str) -> list[list[bytes]]:
    keys = list(client.scan_iter(pattern, count=_AT_ONCE))
    return [keys[place : place + _AT_ONCE] for place in range(0, len(keys), _AT_ONCE)]
