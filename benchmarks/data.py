"""Conversations to write and databases to read: sized like real ones, and the same every time.

A conversation goes round in four: a question, a call of a tool, its result, an answer. Lengths
are log-normal, because real ones are: most messages are short and a few are long. The mean of a
message's text and calls is about 400 bytes of UTF-8. Every third conversation is in Chinese.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from agentstore.values.encoding import dump_json
from agentstore.values.types import new_id

SEED = 20_260_101
START = datetime(2026, 1, 1, tzinfo=UTC)
SESSIONS_OF_A_USER = 50
OLD, TENTH = "old", "tenth"
"""Marks."""

Message = dict[str, Any]
"""The arguments of ``messages.save``."""

Row = dict[str, Any]
"""One row of a table: times are datetimes, documents are written out already."""

_ENGLISH = (
    "Could you change my flight to Friday morning?",
    "The reservation is paid for by credit card.",
    "Let me look up the details of your booking first.",
    "I am sorry, but basic economy tickets cannot be modified.",
    "There are two direct flights, at 07:15 and at 09:40.",
    "Please confirm with yes that I should go ahead.",
    "Each passenger may take two bags without extra charge.",
    "The difference of $128.50 will be refunded within five days.",
    "It's the one from Zürich, not the one from Geneva 🙂.",
)
_CHINESE = (
    "北京今天天气晴朗，最高气温二十五度。",
    "请帮我推荐一家人均消费一百元左右的餐馆。",
    "这个景点早上九点开门，门票六十元。",
    "好的，我先帮您查询一下订单的详细信息。",
    "从酒店到故宫坐地铁大约需要半个小时。",
    "请问您还有其他需要帮助的吗？",
    "附近有没有评分在四点五以上的酒店？",
)
_TOOLS = ("get_reservation", "search_flights", "book_hotel", "weather", "calculate")


def messages(count: int, seed: int = SEED) -> Iterator[Message]:
    """Make so many messages, in the order of their conversation."""
    rng = random.Random(seed)
    call_id = tool = ""
    for number in range(count):
        sentences = _CHINESE if number // 12 % 3 == 2 else _ENGLISH
        step = number % 4
        if step == 0:
            yield {
                "role": "user",
                "content": _text(rng, sentences, 110),
                "token_count": rng.randint(10, 120),
            }
        elif step == 1:
            call_id, tool = f"call_{rng.getrandbits(96):024x}", rng.choice(_TOOLS)
            yield {
                "role": "assistant",
                "content": None,
                "tool_calls": [_call(rng, call_id, tool, sentences)],
                "token_count": rng.randint(30, 200),
                "cost": _cost(rng),
            }
        elif step == 2:
            yield {
                "role": "tool",
                "content": json.dumps(
                    {"status": "ok", "result": _text(rng, sentences, 450)}, ensure_ascii=False
                ),
                "tool_call_id": call_id,
                "name": tool,
                "token_count": rng.randint(20, 900),
            }
        else:
            yield {
                "role": "assistant",
                "content": _text(rng, sentences, 330),
                "token_count": rng.randint(20, 700),
                "cost": _cost(rng),
                "metadata": {"model": "a-model", "finish_reason": "stop", "latency_ms": 812.5},
            }


def _text(rng: random.Random, sentences: tuple[str, ...], median: int) -> str:
    """Join sentences up to about so many bytes, at most ten times the median."""
    wanted = min(rng.lognormvariate(math.log(median), 0.8), 10 * median)
    parts, size = [], 0
    while size < wanted:
        parts.append(rng.choice(sentences))
        size += len(parts[-1].encode())
    return " ".join(parts)


def _call(rng: random.Random, call_id: str, tool: str, sentences: tuple[str, ...]) -> Any:
    arguments = {"id": f"R{rng.randrange(10**6):06d}", "reason": rng.choice(sentences)}
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def _cost(rng: random.Random) -> Decimal:
    return Decimal(rng.randint(1_000, 4_000_000)).scaleb(-9)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database is filled with before anything is measured.

    Attributes:
        sessions: How many there are; user number n has 50 of them, among all the others' ones.
        long: Sessions with messages, and how many; the others are empty.
    """

    sessions: int
    long: dict[str, int]

    @property
    def users(self) -> list[str]:
        """The ids of all users."""
        return [f"user-{n:06d}" for n in range(max(1, self.sessions // SESSIONS_OF_A_USER))]

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Give the tables by their plain names, parents first, with their rows."""
        yield "users", self._users()
        ids = [*self.long, *(new_id() for _ in range(self.sessions - len(self.long)))]
        totals = {name: _totals(size) for name, size in self.long.items()}
        yield "sessions", self._sessions(ids, totals)
        yield "session_data", (documents(session_id) for session_id in ids)
        yield "branches", (main_branch(number) for number, _ in enumerate(ids, start=1))
        for session, size in enumerate(self.long.values(), start=1):
            # A message's id is needed twice; so many of them fit into memory.
            written = list(_written(session, size))
            yield "messages", (row for row, _ in written)
            yield "message_tool_calls", (call for _, calls in written for call in calls)
            yield "message_marks", (mark for row, _ in written for mark in _marks(row, size))

    def _users(self) -> Iterator[Row]:
        for user in self.users:
            yield {
                "id": user,
                "name": f"Name of {user}",
                "preferences": '{"language":"en"}',
                "created_at": START,
                "updated_at": START,
            }

    def _sessions(self, ids: list[str], totals: dict[str, Row]) -> Iterator[Row]:
        users = self.users
        for number, session_id in enumerate(ids):
            at = START + timedelta(seconds=number)
            yield {
                "id": session_id,
                "user_id": users[number % len(users)],
                "title": f"Conversation {number}",
                "model": "a-model",
                "activity": number + 1,
                "listed_activity": number + 1,
                "created_at": at,
                "last_active_at": at,
                "newest_at": at,
                **(totals.get(session_id) or _totals(0)),
            }


def _marks(message: Row, size: int) -> Iterator[Row]:
    """Mark the older nine tenths of a session's messages, and every tenth message."""
    marks = [OLD] if message["seq"] <= size - size // 10 else []
    marks += [TENTH] if message["seq"] % 10 == 0 else []
    for mark in marks:
        yield {
            "message_id": message["id"],
            "mark": mark,
            "session": message["session"],
            "seq": message["seq"],
        }


def _totals(size: int) -> Row:
    made = list(messages(size))
    turns = sum(message["role"] == "user" for message in made)
    return {
        "last_seq": size,
        "turn": turns,
        "branch_messages": size,
        "branch_turns": turns,
        "message_count": size,
        "total_tokens": sum(message["token_count"] for message in made),
        "total_cost": sum(int(message.get("cost", 0) * 10**9) for message in made),
    }


def documents(session_id: str) -> Row:
    """Give the documents of a session."""
    return {
        "session_id": session_id,
        "metadata": dump_json({"channel": "web", "tags": ["travel", "旅行"], "locale": "de-CH"}),
        "config": dump_json({"model": "a-model", "temperature": 0.2, "max_tokens": 4096}),
        "state": dump_json({"step": 4, "plan": ["look up", "confirm", "book"], "done": False}),
        "updated_at": START,
    }


def main_branch(session: int) -> Row:
    """Give the branch that every session has."""
    return {
        "session": session,
        "number": 0,
        "name": "main",
        "line": "[[0,1,null]]",
        "created_at": START,
    }


def _written(session: int, size: int) -> Iterator[tuple[Row, list[Row]]]:
    turn = 0
    for seq, message in enumerate(messages(size), start=1):
        turn += message["role"] == "user"
        identity = new_id()
        row = {
            "id": identity,
            "session": session,
            "branch": 0,
            "seq": seq,
            "turn": turn,
            "role": message["role"],
            "token_count": message["token_count"],
            "cost": int(message.get("cost", 0) * 10**9),
            "created_at": START + timedelta(seconds=seq),
            "name": message.get("name"),
            "tool_call_id": message.get("tool_call_id"),
            "content": message["content"],
        }
        for column in ("tool_calls", "metadata"):
            value = message.get(column)
            row[column] = None if value is None else dump_json(value)
        calls = [
            {
                "message_id": identity,
                "position": position,
                "session": session,
                "seq": seq,
                "name": call["function"]["name"],
                "call_id": call["id"],
            }
            for position, call in enumerate(message.get("tool_calls") or ())
        ]
        yield row, calls
