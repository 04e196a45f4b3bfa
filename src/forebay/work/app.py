"""The user's application: what a worker needs of it, and its import by name."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from forebay.core.errors import Invalid
from forebay.store.protocol import Store
from forebay.work.handler import Handler
from forebay.work.hooks import Hooked
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
    """Import `package.module:name`. No other code imports a module named at run time.

    What the module itself raises is raised as it is.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise Invalid("app", f"{target!r} does not name an app", _REMEDY)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        remedy = f"run it in the directory of {error.name}, or {_REMEDY}"
        raise Invalid("app", f"{target!r} cannot be loaded from {os.getcwd()}: {error}", remedy) from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise Invalid("app", f"{module_name} has no {name!r}", apps_of(module)) from None


def apps_of(module: ModuleType) -> str:
    """The remedy for a name that is no app."""
    found = [name for name, value in vars(module).items() if isinstance(value, Hooked)]
    return " or ".join(f"write {module.__name__}:{name}" for name in found) or "write there: fb = Forebay()"
