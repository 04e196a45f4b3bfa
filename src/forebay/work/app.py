"""The user's application: what a worker needs of it, and its import by name."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forebay.core.errors import Invalid
from forebay.store.protocol import Store
from forebay.work.handler import Handler
from forebay.work.role import WorkerRole

_REMEDY = "write module:name, for example app:fb"


class App(Protocol):
    """The part of an application that a worker uses."""

    @property
    def url(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def registry(self) -> Mapping[str, Handler]: ...

    def roles(self) -> Sequence[WorkerRole]:
        """Roles that its workers run besides their own."""


def find_app(target: str) -> Any:
    """Import `package.module:name`. No other code imports a module named at run time."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise Invalid("app", f"{target!r} does not name an app", _REMEDY)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise Invalid("app", f"{target!r} cannot be loaded: {error}", _REMEDY) from error
