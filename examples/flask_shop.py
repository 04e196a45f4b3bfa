"""Flask: an order and its job in one transaction, and the dashboard under the app's own path and login.

FOREBAY_URL=sqlite:///jobs.db flask --app flask_shop run
FOREBAY_URL=sqlite:///jobs.db forebay worker flask_shop:fb
"""

import os
import secrets
from typing import Any

from flask import Flask, abort, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from forebay import Forebay
from forebay.contrib.sqlalchemy import enqueue_with
from forebay.contrib.wsgi import Actor, Role, WsgiDashboard

app = Flask(__name__)
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
    with app.app_context(), Session(engine) as session:
        return f"receipt for {session.get_one(Order, order).item}"


@app.post("/orders")
def order() -> tuple[dict[str, int], int]:
    with Session(engine) as session, session.begin():
        placed = Order(item=request.args["item"])
        session.add(placed)
        session.flush()
        enqueue_with(session, send_receipt, placed.id)
        if "fail" in request.args:
            abort(409, "out of stock")
        return {"order": placed.id}, 201


def operator_of(environ: dict[str, Any]) -> Actor | None:
    """The app's own login: here a token in a cookie; `session` and the user of Flask-Login work as in a view."""
    with app.request_context(environ):
        given = request.cookies.get("shop", "")
    return Actor("ann", frozenset({Role.OPERATOR})) if secrets.compare_digest(given, TOKEN) else None


dashboard = WsgiDashboard(fb, operator_of, login_url="/login")
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/jobs": dashboard})  # type: ignore[method-assign]
