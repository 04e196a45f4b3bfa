"""Flask: an order and its job in one transaction. The dashboard is a process of its own: `forebay serve`.

FOREBAY_URL=sqlite:///jobs.db flask --app flask_shop run
FOREBAY_URL=sqlite:///jobs.db forebay worker flask_shop:fb
FOREBAY_URL=sqlite:///jobs.db forebay serve --app flask_shop:fb
"""

import os

from flask import Flask, abort, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from forebay import Forebay
from forebay.contrib.sqlalchemy import enqueue_with

app = Flask(__name__)
fb = Forebay()
engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))


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
