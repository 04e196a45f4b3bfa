"""The dashboard: pages under `/ui`, rendered on the server, readable without a script and live with one.

views/       a store in, values out: bounded, no HTTP, no HTML
pages/       routes: roles, views, templates; every change is a POST and is recorded in the operator log
templates/   all markup, escaped by default;  static/: one style sheet, one script, one icon
view_cache   what the pages of one server share;  bulk_actions: actions on many jobs;  live: pages that update
"""

from fastapi import FastAPI

from forebay.serve.dashboard.pages import router
from forebay.serve.dashboard.view_cache import ViewCache


def mount(app: FastAPI) -> None:
    """Add the dashboard to an app that has its `ServerContext`."""
    app.state.view_cache = ViewCache(app.state.context)
    app.include_router(router)


__all__ = ["mount"]
