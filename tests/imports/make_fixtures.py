"""Make the databases that the tests of imports read, by the frameworks themselves.

    python -m tests.imports.make_fixtures openai langgraph_sqlite langgraph_postgres tutorial
    python -m tests.imports.make_fixtures adk adk_sqlite agentscope    # where these are installed

Each is kept as the file, or as the rows of a server's tables; where the framework is too heavy for
these tests also what it reads of it. What a framework would never write, such as a broken row, is
added last, by plain SQL.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"

AWKWARD = "half \ud83d, whole 😀, nothing \x00, Grüezi"
"""Half a character, an emoji, a NUL."""


def kept(path: Path, name: str) -> None:
    """Write a SQLite database down."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    keep(path.read_bytes(), f"{name}.db")


def keep(data: bytes, name: str) -> None:
    """Write bytes down."""
    (FIXTURES / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))


def content(name: str) -> bytes:
    """Give the bytes of a fixture."""
    return gzip.decompress((FIXTURES / f"{name}.gz").read_bytes())


def loaded(name: str, path: Path) -> Path:
    """Make the SQLite database of a fixture."""
    path.write_bytes(content(f"{name}.db"))
    return path


# --- OpenAI Agents SDK -----------------------------------------------------------------------


def openai(path: Path) -> None:
    """Sessions with and without branches, and rows that are broken."""
    from agents import RunContextWrapper, SQLiteSession, Usage
    from agents.extensions.memory import AdvancedSQLiteSession

    def say(role: str, text: str) -> dict[str, object]:
        return {"role": role, "content": text}

    def call(name: str) -> list[dict[str, object]]:
        arguments = '{"q": "x", "limit": 3.0}'
        return [
            {"type": "function_call", "name": name, "call_id": "c1", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": AWKWARD},
        ]

    class Result:
        """As much of a run's result as its usage is read from."""

        def __init__(self, tokens: int) -> None:
            usage = Usage(requests=2, input_tokens=tokens, output_tokens=7, total_tokens=tokens + 7)
            self.context_wrapper = RunContextWrapper(None, usage)

    async def plain() -> None:
        session = SQLiteSession("plain", path)
        parts = [{"type": "input_text", "text": AWKWARD}, {"type": "input_image", "image_url": "u"}]
        await session.add_items([{"content": parts, "role": "user"}])
        await session.add_items([*call("search"), say("assistant", AWKWARD)])  # type: ignore[list-item]
        message = {
            "id": "msg_1",
            "content": [{"annotations": [], "text": "Yes.", "type": "output_text", "logprobs": []}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
        reasoning = {"id": "rs_1", "summary": [], "type": "reasoning", "encrypted_content": None}
        await session.add_items([reasoning, message, say("user", "")])  # type: ignore[list-item]
        session.close()
        empty = SQLiteSession("popped until it was empty", path)
        await empty.add_items([say("user", "gone")])  # type: ignore[list-item]
        await empty.pop_item()
        empty.close()

    async def advanced() -> None:
        session = AdvancedSQLiteSession(session_id="branches", db_path=path, create_tables=True)
        for n in range(1, 5):
            answer = [say("user", f"question {n}"), *call(f"tool_{n}"), say("assistant", f"{n}")]
            await session.add_items(answer)  # type: ignore[arg-type]
            await session.store_run_usage(Result(n * 10))  # type: ignore[arg-type]
        await session.create_branch_from_turn(3, "instead")
        await session.add_items([say("user", "other 3"), say("assistant", AWKWARD)])  # type: ignore[list-item]
        await session.store_run_usage(Result(100))  # type: ignore[arg-type]
        await session.create_branch_from_turn(3, "deeper")
        await session.add_items([say("user", "third 3")])  # type: ignore[list-item]
        await session.switch_to_branch("main")
        await session.create_branch_from_turn(1, "from nothing")
        await session.add_items([say("user", "anew"), say("assistant", "so be it")])  # type: ignore[list-item]
        await session.switch_to_branch("main")
        await session.create_branch_from_turn(2, "deleted")
        await session.add_items([say("user", "never")])  # type: ignore[list-item]
        await session.delete_branch("deleted", force=True)
        await session.switch_to_branch("main")
        for _ in range(9):  # back into what "instead" has, too
            await session.pop_item()
        await session.add_items([say("assistant", "after popping")])  # type: ignore[list-item]
        session.close()
        cleared = AdvancedSQLiteSession(session_id="cleared", db_path=path, create_tables=True)
        await cleared.add_items([say("user", "before")])  # type: ignore[list-item]
        await cleared.clear_session()
        await cleared.add_items([say("system", "Be brief."), say("user", "after")])  # type: ignore[list-item]
        await cleared.create_branch_from_turn(1, "with the prompt")
        await cleared.add_items([say("user", "again")])  # type: ignore[list-item]
        cleared.close()

    asyncio.run(plain())
    asyncio.run(advanced())
    with sqlite3.connect(path) as broken:
        insert = "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)"
        broken.execute(insert, ("plain", '{"role": "user", "content": "cut o'))
        broken.execute(insert, ("plain", '{"role": "user", "content": "last"}'))
        broken.execute(insert, ("plain", '["no object"]'))
        broken.execute(insert, ("plain", '{"role": "user", "content": [NaN]}'))
        broken.execute(insert, ("no row in agent_sessions", '{"role": "user", "content": "hi"}'))
        broken.execute(insert, ("branches", '{"role": "user", "content": "on no branch"}'))
        structure = (
            "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, "
            "sequence_number, user_turn_number, branch_turn_number) VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        broken.execute(structure, ("branches", 4711, "main", "user", 4711, 9, 9))
        broken.execute(structure, ("nobody", 4711, "main", "user", 1, 1, 1))
        usage = "INSERT INTO turn_usage (session_id, branch_id, user_turn_number) VALUES (?, ?, ?)"
        broken.execute(usage, ("branches", "gone", 1))
    broken.close()


# --- LangGraph -------------------------------------------------------------------------------


def langgraph_sqlite(path: Path) -> None:
    """Threads with subgraphs, forks and pending writes, and rows that are broken."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    from tests.imports.graphs import run

    with SqliteSaver.from_conn_string(str(path)) as saver:
        run(saver)
    with sqlite3.connect(path) as broken:
        insert = "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)"
        broken.execute(insert, ("broken", "", "1", None, "msgpack", b"\xc1", b"{}"))
        empty = b"\x82\xaechannel_values\x80\xa2id\xa1"
        broken.execute(insert, ("broken", "", "2", "1", "msgpack", empty + b"2", b"{}"))
        broken.execute(insert, ("broken", "", "3", "2", "msgpack+aes", b"closed", b"{}"))
        broken.execute(insert, ("broken", "", "4", "2", "msgpack", empty + b"4", b"{"))
        broken.execute(insert, ("broken", "", "5", "2", "msgpack", empty + b"2", b"{}"))
        writes = "INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        broken.execute(writes, ("broken", "", "2", "t", "", 0, "c", None, b"x"))
        broken.execute(writes, ("broken", "", "9", "t", "", 0, "c", "bytes", b"early"))
    broken.close()


POSTGRES_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


def langgraph_postgres() -> None:
    """The same threads on a server, and rows that are broken."""
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row

    from tests.imports.graphs import run
    from tests.programs.copies import driver_url
    from tests.servers import Server, installations

    def plain(value: object) -> object:
        return {"hex": value.hex()} if isinstance(value, bytes) else value

    with Server(installations()[0]) as server:
        url = driver_url(server.create_database("fixture"))
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            run(saver)
        rows = {}
        with psycopg.connect(url, row_factory=dict_row) as connection:
            for name in POSTGRES_TABLES:
                query = psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier(name))
                found = connection.execute(query).fetchall()
                rows[name] = [{k: plain(v) for k, v in row.items()} for row in found]
    rows["checkpoints"] += [
        {**rows["checkpoints"][0], "thread_id": "broken", "checkpoint_id": "1", "checkpoint": []},
        {**rows["checkpoints"][0], "thread_id": "broken", "checkpoint_id": "2",
            "checkpoint": {"id": "2", "channel_versions": {"odd": "1"}, "channel_values": {}}},
    ]  # fmt: skip
    rows["checkpoint_blobs"].append(
        {
            **rows["checkpoint_blobs"][0], "thread_id": "broken", "channel": "odd", "version": "1",
            "type": "msgpack", "blob": {"hex": "c1"},
        }
    )  # fmt: skip
    # As LangGraph wrote it before version 4: what was sent is with the parent.
    old = {"v": 3, "ts": "2024-01-01T00:00:00+00:00", "versions_seen": {}, "channel_values": {}}
    for id, parent in (("1", None), ("2", "1")):
        checkpoint = {**old, "id": id, "channel_versions": {"a": "1"}}
        place = {"thread_id": "old", "checkpoint_ns": "", "checkpoint_id": id}
        row = {**rows["checkpoints"][0], **place, "parent_checkpoint_id": parent}
        rows["checkpoints"].append({**row, "checkpoint": checkpoint, "metadata": {"step": 1}})
    place = {"thread_id": "old", "checkpoint_ns": "", "checkpoint_id": "1", "task_id": "t"}
    sent = {"channel": "__pregel_tasks", "type": "msgpack", "idx": 0, "blob": {"hex": "9101"}}
    rows["checkpoint_writes"].append({**rows["checkpoint_writes"][0], **place, **sent})
    keep(json.dumps(rows).encode(), "langgraph_postgres.json")


def restored(url: str) -> None:
    """Make the tables of the fixture in an empty database."""
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.types.json import Jsonb

    def value(found: object, name: str) -> object:
        if name in ("checkpoint", "metadata"):
            return Jsonb(found)
        return bytes.fromhex(found["hex"]) if isinstance(found, dict) else found

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
    with psycopg.connect(url) as connection:
        for name, rows in json.loads(content("langgraph_postgres.json")).items():
            for row in rows:
                statement = psycopg.sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                    psycopg.sql.Identifier(name),
                    psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, row)),
                    psycopg.sql.SQL(", ").join([psycopg.sql.Placeholder()] * len(row)),
                )
                connection.execute(statement, [value(v, k) for k, v in row.items()])


# --- The tutorial ----------------------------------------------------------------------------

TUTORIAL = """
CREATE TABLE users (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, email TEXT, api_key_hash TEXT, quota_total INTEGER,
    quota_used INTEGER, preferences_json TEXT, created_at TEXT, updated_at TEXT
);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, user_id TEXT NOT NULL, title TEXT, status TEXT, model TEXT,
    total_tokens INTEGER, total_cost REAL, message_count INTEGER, metadata_json TEXT,
    created_at TEXT, updated_at TEXT
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL,
    content TEXT NOT NULL, tool_calls_json TEXT, tool_call_id TEXT, token_count INTEGER,
    created_at TEXT
);
CREATE TABLE tasks (
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL, type TEXT NOT NULL, payload_json TEXT,
    status TEXT, result_json TEXT, priority INTEGER, max_retries INTEGER, retry_count INTEGER,
    created_at TEXT, started_at TEXT, completed_at TEXT
);
CREATE TABLE tool_logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_id INTEGER,
    tool_name TEXT NOT NULL, input_json TEXT NOT NULL, output_json TEXT, elapsed_ms REAL,
    success INTEGER, error_message TEXT, created_at TEXT
);
"""
"""The tutorial's five tables, by the columns that its programs write."""


def tutorial(path: Path) -> None:
    """Rows as programs of the tutorial leave them, and rows that are broken."""

    def at(second: int) -> str:
        return f"2026-03-01 12:{second // 60:02}:{second % 60:02}"

    call = [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]
    whole = "whole 😀, nothing \x00, Grüezi"
    said = [
        ("s1", "system", "Be brief.", None, None, 3),
        ("s1", "user", whole, None, None, 50),
        ("s1", "assistant", "", json.dumps(call), None, 80),
        ("s1", "tool", '{"found": 3}', None, "c1", 30),
        ("s1", "assistant", "半字 " * 3, None, None, 120),
        ("s2", "user", "one second", None, None, 1),
        ("s2", "assistant", "for both", None, None, 2),
        ("s1", "user", "calls are broken", "[{", None, 1),
        ("s1", "user", "negative", None, None, -1),
        ("nobody", "user", "lost", None, None, 1),
    ]
    logs = [
        ("s1", 3, "search", '{"query": "x", "api_key": "sk-123"}', '{"n": 3}', 350.5, 1, None),
        ("s1", None, "search", "{}", None, None, 0, "timed out"),
        ("s1", 8, "search", "[1]", "null", 2, 1, None),
        ("s1", 3, "", "{}", None, None, 1, None),
    ]
    tasks = [
        ("t1", "completed", '{"summary": "ok"}', 1),
        ("t2", "pending", None, 5),
        ("t3", "running", None, 0),
        ("t4", "failed", '{"error": "no"}', 0),
        ("t5", "paused", None, 0),
        ("t6", "cancelled", None, 0),
        ("t7", "cancelled", '{"half": 1}', 0),
    ]
    with sqlite3.connect(path) as db:
        db.executescript(TUTORIAL)
        users = [
            ("u1", "Alice", "alice@example.org", 100_000, 320, '{"lang": "de"}'),
            ("u2", "Bob", "", 100, 160, "{}"),
            ("u3", "Carol", "", 100, 0, "{broken"),
        ]
        for id, name, email, total, used, preferences in users:
            row = (id, name, email, None, total, used, preferences, at(0), at(0))
            db.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        sessions = [
            ("s1", "u1", "学习 AI Agent", "paused", 283, 5, '{"tag": [1, 2.5]}', 600),
            ("s2", "u1", "新对话", "active", 3, 2, "{}", 500),
            ("s3", "u2", None, "completed", 0, 0, "{}", 400),
            ("s4", "gone", "of nobody", "active", 0, 0, "{}", 300),
        ]
        for id, user, title, status, tokens, count, metadata, when in sessions:
            row = (id, user, title, status, "gpt-4o-mini", tokens, 0.0, count, metadata)
            db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, at(10), at(when)),
            )
        message = "INSERT INTO messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
        for second, values in enumerate(said):
            db.execute(message, (*values, at(100 if values[0] == "s2" else 20 + second)))
        log = "INSERT INTO tool_logs VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        for second, values in enumerate(logs):
            db.execute(log, (*values, at(50 + second)))
        task = "INSERT INTO tasks VALUES (?, 's1', 'sum', '{\"max\": 200}', ?, ?, ?, 3, 0, ?, ?, ?)"
        for second, (id, status, result, priority) in enumerate(tasks):
            times = (at(200 + second), at(300 + second), at(350 + second))
            db.execute(task, (id, status, result, priority, *times))
    db.close()


# --- Google ADK ------------------------------------------------------------------------------


def adk(path: Path) -> None:
    """Sessions of two apps, with shared state, and rows that are broken."""
    from google.adk.sessions import DatabaseSessionService

    _adk(path, "adk", DatabaseSessionService(f"sqlite+aiosqlite:///{path}"))


def adk_sqlite(path: Path) -> None:
    """The same by the other service."""
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    _adk(path, "adk_sqlite", SqliteSessionService(str(path)))


def _adk(path: Path, name: str, service: Any) -> None:
    said = said_by_adk(service, "whole 😀, nothing \x00, Grüezi")
    keep(json.dumps(said).encode(), f"{name}.json")
    with closing(sqlite3.connect(path)) as broken, broken:
        insert = (
            "INSERT INTO events (id, app_name, user_id, session_id, invocation_id, timestamp, "
            "event_data) VALUES (?, 'weather', 'alice', ?, 'i', ?, ?)"
        )
        at = "2023-11-14 22:13:21.500000" if name == "adk" else 1.7e9 + 1.5
        broken.execute(insert, ("cut", "s1", at, '{"author": "us'))
        broken.execute(insert, ("no author", "s1", at, "{}"))
        broken.execute(insert, ("lost", "nowhere", at, '{"author": "user"}'))
        broken.execute("INSERT INTO user_states VALUES ('weather', 'broken', '[1]', ?)", (at,))


def said_by_adk(service: Any, whole: str) -> list[dict[str, Any]]:
    """Make sessions with a text in them, and give what the service reads of them."""
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions
    from google.genai import types

    def event(author: str, at: float, *parts: types.Part, **delta: object) -> Event:
        content = types.Content(role="user", parts=[*parts]) if parts else None
        changed = {key.replace("_", ":", 1): value for key, value in delta.items()}
        return Event(
            author=author,
            timestamp=at,
            invocation_id=f"inv {at}",
            content=content,
            actions=EventActions(state_delta=changed),
        )

    call = types.FunctionCall(id="c1", name="search", args={"q": whole, "n": 2.5})
    answer = types.FunctionResponse(id="c1", name="search", response={"found": [1, None]})
    events = [
        event("user", 1.7e9 + 0.25, types.Part(text=whole)),
        event("agent", 1.7e9 + 1, types.Part(function_call=call), app_theme="dark"),
        event("agent", 1.7e9 + 2, types.Part(function_response=answer), user_city="Bern"),
        event("agent", 1.7e9 + 2, types.Part(text="tied"), types.Part(text="in time"), n=1),
        event("agent", 1.7e9 + 3.5, temp_raw="gone", count=7),
    ]

    async def write() -> list[dict[str, Any]]:
        for app, user, id in (("weather", "alice", "s1"), ("weather/2", "bob/3", "s 1")):
            state = {"begun": True, "app:version": 2, "user:name": user, "odd": [whole, 1e100]}
            session = await service.create_session(
                app_name=app, user_id=user, session_id=id, state=state
            )
            for each in events:
                await service.append_event(session, each.model_copy(deep=True))
        await service.create_session(app_name="weather", user_id="alice", session_id="empty")
        said = []
        for app in ("weather", "weather/2"):
            for listed in (await service.list_sessions(app_name=app)).sessions:
                who = {"app_name": app, "user_id": listed.user_id, "session_id": listed.id}
                found = await service.get_session(**who)
                assert found is not None
                said.append(found.model_dump(mode="json", exclude_none=True))
        if hasattr(service, "close"):
            await service.close()
        return said

    return asyncio.run(write())


# --- AgentScope ------------------------------------------------------------------------------


def agentscope(path: Path) -> None:
    """Memories of two users, with marks, and rows that are broken."""
    url = f"sqlite+aiosqlite:///{path}"
    said = said_by_agentscope(url, "whole 😀, nothing \x00, half \ud83d, Grüezi")
    keep(json.dumps(said).encode(), "agentscope.json")
    with closing(sqlite3.connect(path)) as broken, broken:
        insert = 'INSERT INTO message (id, msg, session_id, "index") VALUES (?, ?, ?, ?)'
        message = {"id": "m", "name": "x", "role": "user", "content": "hers", "metadata": None}
        broken.execute(insert, ("alice-chat 1-cut", '{"name": "al', "chat 1", 2))
        broken.execute(insert, ("alice-chat 1-odd", '{"id": "odd"}', "chat 1", 3))
        broken.execute(insert, ("carol-chat 1-m", json.dumps(message), "chat 1", 99))
        broken.execute(insert, ("dave-lost-m", json.dumps(message), "lost", 1))
        broken.execute("INSERT INTO message_mark VALUES ('nothing', 'asked')")


def said_by_agentscope(url: str, whole: str) -> list[dict[str, Any]]:
    """Make memories with a text in them, and give what AgentScope reads of them."""
    from agentscope.memory import AsyncSQLAlchemyMemory
    from agentscope.message import Msg
    from sqlalchemy.ext.asyncio import create_async_engine

    call = {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": whole, "n": 2.5}}
    answer = {"type": "tool_result", "id": "c1", "name": "search", "output": whole}
    text = {"type": "text", "text": "three"}

    async def write() -> list[dict[str, Any]]:
        engine = create_async_engine(url)
        said = []
        for user, session in (("alice", "chat 1"), ("bob/2", "chat-2"), (None, None)):
            memory = AsyncSQLAlchemyMemory(engine, session_id=session, user_id=user)
            await memory.add(Msg("alice", whole, "user", metadata={"n": [1, None]}), marks="asked")
            await memory.add(Msg("friend", [text, call], "assistant"), marks=["hint", "call"])
            await memory.add([Msg("system", [answer], "system"), Msg("friend", "", "assistant")])
            gone = Msg("friend", "gone", "assistant")
            await memory.add(gone)
            await memory.delete([gone.id])
            every = [each.to_dict() for each in await memory.get_memory()]
            marked = {
                mark: [each.id for each in await memory.get_memory(mark=mark)]
                for mark in ("asked", "hint", "call", "none")
            }
            who = {"user_id": memory.user_id, "session_id": memory.session_id}
            said.append({**who, "messages": every, "marked": marked})
            await memory.close()
        await engine.dispose()
        return said

    return asyncio.run(write())


MAKERS: dict[str, Callable[[Path], None]] = {
    "openai": openai, "langgraph_sqlite": langgraph_sqlite, "tutorial": tutorial, "adk": adk,
    "adk_sqlite": adk_sqlite, "agentscope": agentscope,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Make the fixtures that are named."""
    FIXTURES.mkdir(exist_ok=True)
    for name in names:
        if name == "langgraph_postgres":
            langgraph_postgres()
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.db"
            MAKERS[name](path)
            kept(path, name)


if __name__ == "__main__":
    main(sys.argv[1:])
