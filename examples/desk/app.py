"""The application: one engine, one store on it, and one transaction over the tables of both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from agentstore import AsyncStore
from desk.models import PREFIX, User


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the engine and the store while the application runs."""
    url = make_url(os.environ.get("DATABASE_URL", "sqlite:///desk.db"))
    if url.drivername == "sqlite":
        url = url.set(drivername="sqlite+aiosqlite")
    engine = create_async_engine(url)
    async with AsyncStore(engine=engine, table_prefix=PREFIX) as store:
        app.state.store = store
        app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
        yield
    await engine.dispose()


async def opened_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Give each request an ORM session; what it does not commit is rolled back."""
    async with request.app.state.sessions() as session:
        yield session


def opened_store(request: Request) -> AsyncStore:
    """Give the store, which all requests share."""
    return request.app.state.store


Db = Annotated[AsyncSession, Depends(opened_session)]
Store = Annotated[AsyncStore, Depends(opened_store)]
app = FastAPI(lifespan=lifespan)


class SignUp(BaseModel):
    """Who signs up."""

    name: str
    email: str


class Question(BaseModel):
    """What somebody asks."""

    text: str
    session_id: str | None = None


@app.post("/users", status_code=201)
async def sign_up(new: SignUp, db: Db, store: Store) -> dict[str, int]:
    """Make a user of the application's and one of agentstore's: both, or neither.

    The transaction ends here, before the answer is sent; a dependency may end after it.
    """
    try:
        async with db.begin():
            theirs = await store.joined(db).users.create(new.name, email=new.email)
            user = User(email=new.email, agent_user_id=theirs.id)
            db.add(user)
    except IntegrityError:
        raise HTTPException(409, "This address has signed up already.") from None
    return {"id": user.id}


@app.post("/users/{user_id}/questions")
async def ask(user_id: int, question: Question, db: Db, store: Store) -> dict[str, str]:
    """Save a question and its answer, each in a transaction of the store's own."""
    user = await db.get(User, user_id)
    if user is None:
        raise HTTPException(404, "There is no such user.")
    await db.commit()  # no transaction stays open while the model thinks
    scoped = store.scoped(user.agent_user_id)
    session_id = question.session_id or (await scoped.sessions.create()).id
    await scoped.messages.save(session_id, "user", question.text)
    answer = answer_of_a_model(await scoped.messages.chat(session_id))
    await scoped.messages.save(session_id, "assistant", answer)
    return {"session_id": session_id, "answer": answer}


def answer_of_a_model(messages: list[dict[str, str]]) -> str:
    """Stand for a call of a model."""
    return f"You have asked {sum(each['role'] == 'user' for each in messages)} times."
