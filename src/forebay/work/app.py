"""Loading the user's application by name: the only place that imports what it is told to."""

import importlib
import os
import sys
from typing import Any

from forebay.core.errors import Invalid


def find_app(target: str) -> Any:
    """`package.module:name`, imported."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise Invalid("app", f"{target!r} does not name an app", "write module:name, for example app:fb")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise Invalid(
            "app", f"{target!r} cannot be loaded: {error}", "write module:name, for example app:fb"
        ) from error
