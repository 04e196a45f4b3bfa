"""A real server for tests: uvicorn on a free port of this machine, in a thread, and keys of every role."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Thread
from typing import Any, TypeAlias

import httpx
from fastapi import FastAPI

from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.context import ServerContext
from forebay.serve.run import HttpServer
from forebay.serve.security.keys import ApiKey, mint
from forebay.serve.settings import ServeSettings
from forebay.store.protocol import Store

_CONTEXT = ssl.create_default_context()
"""Made once: every client that makes its own reads all certificates of the machine."""


class _QuickStopServer(HttpServer):
    """Looks more often whether it is to stop: there are many tests."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Site:
    """One server in a thread, with its keys: `key(role)` makes one, `client(role)` is a client that carries it."""

    def __init__(self, store: Store, settings: ServeSettings | None = None, app: FastAPI | None = None) -> None:
        self.store = store
        chosen = settings or ServeSettings(port=0, drain=1)
        self.app = app or create_app(store, chosen)
        self._stack = ExitStack()
        self._server = _QuickStopServer(self.app, chosen)
        self._thread = Thread(target=self._server.run, name="test-server", daemon=True)

    @property
    def context(self) -> ServerContext:
        found: ServerContext = self.app.state.context
        return found

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> "Site":
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.005)
            assert self._thread.is_alive(), "the server did not start"
        return self

    def stop_soon(self) -> None:
        """As a SIGTERM would."""
        self._server.should_exit = True

    def stop(self) -> None:
        self._stack.close()
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not stop"

    def key(self, *roles: Role, **limits: Any) -> str:
        """The text of a new key."""
        key, text = mint("test", roles or (Role.ADMIN,), self.store.now(), **limits)
        self.admit(key)
        return text

    def admit(self, key: ApiKey) -> None:
        """Known to every server on the store, and at once to this one."""
        follower = self.context.authenticator.follower
        assert follower is not None
        follower.create(key, "test")

    def client(self, *roles: Role, headers: Mapping[str, str] | None = None, **limits: Any) -> httpx.Client:
        """A client with a new key of these roles (all of them when none is named)."""
        return self.with_key(self.key(*roles, **limits), headers)

    def with_key(self, key: str | None, headers: Mapping[str, str] | None = None) -> httpx.Client:
        given = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx.Client(
            base_url=self.url, headers={**given, **(headers or {})}, timeout=30, trust_env=False, verify=_CONTEXT
        )
        self._stack.callback(client.close)
        return client


Serving: TypeAlias = Callable[..., Site]
