"""A chat service: streams, tools, quotas; it goes on after kill -9. docs/service.md explains it.

    uvicorn chat_service:app
    curl -N localhost:8000/chats/c1 --json '{"user": "ann", "text": "Weather in Oslo?", "key": "1"}'

The model is a stand-in that needs no key; OpenAI's client is two lines, in ``ask_model``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from agentstore import AsyncStore
from agentstore.errors import NotFound, QuotaExceeded, TakenByAnother
from agentstore.records import InterruptedTurn, MessageRecord

QUOTA = 10_000
RESERVED = 2_000
MOST_CALLS = 5
INTERRUPTED_AFTER = timedelta(seconds=float(os.environ.get("INTERRUPTED_AFTER", "300")))


async def ask_model(messages: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Stream an answer: first a call of a tool, then words.

    With OpenAI's client it is ``async def ask_model(messages): return await
    client.chat.completions.create(model=..., messages=messages, tools=..., stream=True,
    stream_options={"include_usage": True})``, and ``await ask_model(history)`` below.
    """

    def chunk(usage: Any = None, **delta: Any) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta}] if delta else []
        return {"choices": choices, "model": "gpt-4o-mini", "usage": usage}

    if messages[-1]["role"] == "user":
        function = {"name": "weather", "arguments": json.dumps({"city": "Oslo"})}
        yield chunk(tool_calls=[{"index": 0, "id": f"call_{len(messages)}", "function": function}])
    else:
        for word in f"It is {messages[-1]['content']} there.".split(" "):
            yield chunk(content=word + " ")
            await asyncio.sleep(float(os.environ.get("SECONDS_A_WORD", "0.1")))
    yield chunk(usage={"prompt_tokens": 90, "completion_tokens": 10})


async def weather(city: str) -> str:
    """Say how the weather is: the tool."""
    return {"Oslo": "-3 ℃"}[city]


async def answered(store: AsyncStore, asked: MessageRecord) -> str | None:
    """Give what was answered to a question that comes again; None if it is to be answered now."""
    newest = True
    async for message in store.messages.iter(asked.session_id, branch=asked.branch):
        if message.turn != asked.turn:
            newest = False
            continue
        if message.id == asked.id and newest:
            return None
        complete = message.role == "assistant" and message.status == "complete"
        if complete and not message.tool_calls:
            return message.text
        break
    raise HTTPException(409, "This question is being answered, or others have come since.")


async def answer(store: AsyncStore, session_id: str, *said: str) -> AsyncIterator[str]:
    """Answer what was said last, after saving ``said``: a text and its idempotency key."""
    async with store.turn(session_id, reserve=RESERVED) as turn:
        if said:
            asked = await turn.save("user", said[0], idempotency_key=said[1])
            if (before := await answered(store, asked)) is not None:
                yield before
                return
        for _ in range(MOST_CALLS):
            history = await turn.chat(limit=50)
            if not history or history[-1]["role"] == "assistant":  # somebody else was faster
                yield history[-1]["content"] if history else ""
                return
            stream = turn.stream(ask_model(history))
            async for text in stream:
                yield text
            assert stream.message is not None
            if not stream.message.tool_calls:
                return
            for call in stream.message.tool_calls:
                given, error = json.loads(call["function"]["arguments"]), None
                try:
                    result = await weather(**given)
                except Exception as problem:  # noqa: BLE001 - the model hears of it
                    result = error = repr(problem)
                ids = {"message_id": stream.message.id, "tool_call_id": call["id"]}
                await turn.log("weather", input=given, output=result, error=error, **ids)
                await turn.save("tool", result, tool_call_id=call["id"], name="weather")


async def go_on(store: AsyncStore) -> None:
    """End the turns that a process which is gone has begun, now and each minute."""
    while True:
        async for turn in store.sessions.iter_interrupted(older_than=INTERRUPTED_AFTER):
            try:
                await end(store, turn)
            except Exception:
                logging.exception("session %s cannot go on", turn.session.id)
        await asyncio.sleep(60)


async def end(store: AsyncStore, turn: InterruptedTurn) -> None:
    """Answer what was not answered."""
    if turn.streams:  # half an answer, which is answered again
        await store.messages.delete(turn.streams)
    for held in turn.reservations:
        await store.users.release_quota(held.id)
    for call_id in turn.unanswered:
        failed = "The program was interrupted. It may have been done or not."
        await store.messages.save(turn.session.id, "tool", failed, tool_call_id=call_id)
    async for _ in answer(store, turn.session.id):
        pass


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store while the service runs, and end what the last one left."""
    async with AsyncStore() as store:  # of AGENTSTORE_URL
        app.state.store = store
        going_on = asyncio.create_task(go_on(store))
        yield
        going_on.cancel()
        await asyncio.wait([going_on])


app = FastAPI(lifespan=lifespan)


@app.exception_handler(NotFound)
@app.exception_handler(TakenByAnother)
async def no_chat(request: Request, error: Exception) -> JSONResponse:
    """Answer alike for a chat that does not exist and for another user's."""
    return JSONResponse({"detail": "There is no such chat."}, 404)


class Question(BaseModel):
    """What a user says; ``key`` is the same when the request is sent again."""

    user: str
    text: str
    key: str


@app.post("/chats/{chat}")
async def say(chat: str, question: Question, request: Request) -> StreamingResponse:
    """Answer, word by word."""
    store: AsyncStore = request.app.state.store
    user = await store.users.ensure(question.user, quota_total=QUOTA)
    try:
        await store.sessions.ensure(chat, user.id, title=question.text[:80])
        texts = answer(store, chat, question.text, question.key)
        first = await anext(texts, "")  # what cannot begin is refused before the answer has begun
    except QuotaExceeded as error:
        raise HTTPException(429, f"{error.remaining} tokens are left.") from None

    async def body() -> AsyncIterator[str]:
        yield first
        async for text in texts:
            yield text

    return StreamingResponse(body(), media_type="text/plain")


@app.get("/chats/{chat}")
async def read(chat: str, user: str, request: Request) -> list[dict[str, Any]]:
    """Give the last messages; while an answer is streamed, what there is of it."""
    store: AsyncStore = request.app.state.store
    messages = await store.scoped(user).messages.history(chat, 50)
    return [{"role": m.role, "content": m.content, "status": m.status} for m in messages]
