"""Litestar: an order and its job in one transaction, and the dashboard under the app's own path and login.

FOREBAY_URL=sqlite:///jobs.db uvicorn litestar_shop:app
FOREBAY_URL=sqlite:///jobs.db forebay worker litestar_shop:fb
"""

import os
import secrets
from collections.abc import Iterator

from litestar import Litestar, asgi, post
from litestar.di import NamedDependency, Provide
from litestar.exceptions import ClientException
from litestar.params import FromQuery
from litestar.types import Receive, Scope, Send
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.requests import Request

from forebay import Forebay
from forebay.contrib.asgi import Actor, Dashboard, Role, lifespan
from forebay.contrib.sqlalchemy import enqueue_with

fb = Forebay()
engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))
TOKEN = os.environ.get("SHOP_TOKEN") or secrets.token_urlsafe()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


Base.metadata.create_all(engine)


@fb.job(keep_result=True)
def send_receipt(order: int) -> str:
    with Session(engine) as session:
        return f"receipt for {session.get_one(Order, order).item}"


def session_of_request() -> Iterator[Session]:
    """Litestar ends it after the handler and before the response, which can still say that the commit failed."""
    with Session(engine) as session, session.begin():
        yield session


@post("/orders", dependencies={"session": Provide(session_of_request)}, sync_to_thread=True)
def order(item: FromQuery[str], session: NamedDependency[Session], fail: FromQuery[bool] = False) -> dict[str, int]:
    placed = Order(item=item)
    session.add(placed)
    session.flush()
    enqueue_with(session, send_receipt, placed.id)
    if fail:
        raise ClientException("out of stock", status_code=409)
    return {"order": placed.id}


def operator_of(request: Request) -> Actor | None:
    """The app's own login: here a token in a cookie."""
    given = request.cookies.get("shop", "")
    return Actor("ann", frozenset({Role.OPERATOR})) if secrets.compare_digest(given, TOKEN) else None


dashboard = Dashboard(fb, operator_of, path="/jobs", login_url="/login")


@asgi("/jobs", is_mount=True, copy_scope=True)
async def jobs(scope: Scope, receive: Receive, send: Send) -> None:
    await dashboard(scope, receive, send)


app = Litestar([order, jobs], lifespan=[lifespan(fb, dashboard)])
