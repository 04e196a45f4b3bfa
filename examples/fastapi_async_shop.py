"""FastAPI with async sessions: an order and its job in one transaction, one session for each request.

    FOREBAY_URL=postgresql://localhost/shop uvicorn fastapi_async_shop:app
    FOREBAY_URL=postgresql://localhost/shop forebay worker fastapi_async_shop:fb

SHOP_DATABASE is the shop's own Postgres database, for psycopg or asyncpg. If the store is in the same database, the job
is part of the transaction.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeAlias

from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from forebay import Forebay
from forebay.contrib.asgi import lifespan
from forebay.contrib.sqlalchemy import aenqueue_with

fb = Forebay()
engine = create_async_engine(os.environ.get("SHOP_DATABASE", "postgresql+psycopg://localhost/shop"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@fb.job(keep_result=True)
async def send_receipt(item: str) -> str:
    return f"receipt for {item}"


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[None]:
    async with lifespan(fb)(app):
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()


async def session_of_request() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as session, session.begin():
        yield session


# Without this scope the commit would be made after the response, which could no longer say that it failed.
RequestSession: TypeAlias = Annotated[AsyncSession, Depends(session_of_request, scope="function")]
app = FastAPI(lifespan=running)


@app.post("/orders", status_code=201)
async def order(item: str, session: RequestSession, x_fail: Annotated[bool, Header()] = False) -> dict[str, int]:
    placed = Order(item=item)
    session.add(placed)
    await session.flush()
    await aenqueue_with(session, send_receipt, item)
    if x_fail:
        raise HTTPException(409, "out of stock")
    return {"order": placed.id}
