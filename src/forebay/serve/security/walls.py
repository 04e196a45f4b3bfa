"""The walls around an app, outermost first: careful headers, bounded bodies, the door. One call puts them up."""

from fastapi import FastAPI

from forebay.serve.security.body import Bodies
from forebay.serve.security.door import Door, Doorkeeper
from forebay.serve.security.headers import Careful
from forebay.serve.security.sessions import Sessions
from forebay.serve.settings import ServeSettings


def put_up(app: FastAPI, door: Door, settings: ServeSettings) -> None:
    """Starlette puts what is added last outermost."""
    door.sessions = Sessions(door)
    app.add_middleware(Doorkeeper, door=door)
    app.add_middleware(
        Bodies,
        body_most=settings.body_most,
        headers_bytes=settings.headers_most,
        body_seconds=settings.body_seconds,
    )
    app.add_middleware(Careful)
