"""FastAPI: an order and its job in one transaction, and the dashboard under the app's own path and login.

    FOREBAY_URL=sqlite:///jobs.db uvicorn fastapi_shop:app
    FOREBAY_URL=sqlite:///jobs.db forebay worker fastapi_shop:fb

SHOP_DATABASE is the shop's own database. If both are the same Postgres database, the job is part of the transaction.
"""

import os
import secrets
from collections.abc import Iterator
from typing import Annotated, TypeAlias

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

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


def operator_of(request: Request) -> Actor | None:
    """The app's own login: here a token in a cookie."""
    given = request.cookies.get("shop", "")
    return Actor("ann", frozenset({Role.OPERATOR})) if secrets.compare_digest(given, TOKEN) else None


dashboard = Dashboard(fb, operator_of, login_url="/login")
app = FastAPI(lifespan=lifespan(fb, dashboard))
app.mount("/jobs", dashboard)


def session_of_request() -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


# Without this scope the commit would be made after the response, which could no longer say that it failed.
RequestSession: TypeAlias = Annotated[Session, Depends(session_of_request, scope="function")]


@app.post("/orders", status_code=201)
def order(item: str, session: RequestSession, x_fail: Annotated[bool, Header()] = False) -> dict[str, int]:
    placed = Order(item=item)
    session.add(placed)
    session.flush()
    enqueue_with(session, send_receipt, placed.id)
    if x_fail:
        raise HTTPException(409, "out of stock")
    return {"order": placed.id}
