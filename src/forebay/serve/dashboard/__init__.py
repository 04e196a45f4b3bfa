"""The dashboard: pages under `/ui`, rendered on the server, readable without a script and live with one.

views/       a store in, values out: bounded, no HTTP, no HTML
pages/       routes: who may see it, which view, which template; every change is a POST and is written down
templates/   all markup, escaped by default;  static/: one style sheet, one script, one icon
desk         what the pages of one server share;  moves: acts on many jobs;  live: pages that follow by themselves
"""

from fastapi import FastAPI

from forebay.serve.dashboard.desk import Desk
from forebay.serve.dashboard.pages import router


def mount(app: FastAPI) -> None:
    """Add the dashboard to a server whose ground and door are there."""
    app.state.desk = Desk(app.state.ground)
    app.include_router(router)


__all__ = ["mount"]
