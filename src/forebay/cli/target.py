"""The app that a command line names as `module:name`; it is imported, not run."""

import os
import sys
from typing import Any

from forebay.cli.resolve_store import connecting, masked
from forebay.client import Forebay
from forebay.core.errors import Invalid
from forebay.store.protocol import Store
from forebay.work.app import apps_of, find_app


def load(target: str, url: str | None) -> Forebay:
    """The app. A store from the command line applies to the app, in this process and its children, or is refused."""
    if url is not None:
        os.environ["FOREBAY_URL"] = url
    app = _found(target)
    if url is not None and app.url != url:
        raise Invalid(
            "store",
            f"{target} has its own store, {masked(app.url)}",
            "write Forebay() without a URL there, so that --store or FOREBAY_URL decides",
        )
    return app


def _found(target: str) -> Forebay:
    try:
        app: Any = find_app(target)
    except Invalid:
        raise
    except Exception as error:
        # The user's module may raise anything on import.
        where = _last_line(error)
        raise Invalid(
            "app", f"{target!r} failed on import{where}: {type(error).__name__}: {error}", "fix the error"
        ) from None
    if not isinstance(app, Forebay):
        what = f"{target!r} is of type {type(app).__name__}, not a Forebay"
        raise Invalid("app", what, apps_of(sys.modules[target.partition(":")[0]]))
    return app


def _last_line(error: Exception) -> str:
    """The file and line where it was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({os.path.basename(error.filename)}:{error.lineno})"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"


def opened_by(app: Forebay) -> Store:
    """The app's store, or `CommandFailed` with the reason."""
    with connecting(app.url):
        return app.store


def queues_of(app: Forebay) -> tuple[str, ...]:
    """The queues of the app's handlers, which its worker serves by default."""
    return tuple(sorted({handler.queue for handler in app.registry.values()})) or ("default",)
