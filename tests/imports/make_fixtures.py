"""Make the databases that the tests of imports read, by the frameworks themselves.

    python -m tests.imports.make_fixtures openai langgraph_sqlite tutorial     # in .venv
    python -m tests.imports.make_fixtures adk agentscope                # where these are installed

Each becomes a dump in SQL, or, where JSON says what the framework itself reads of it, two files.
What a framework would never write, such as a broken row, is added last, by plain SQL.
"""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"

AWKWARD = "half \ud83d, whole 😀, nothing \x00, Grüezi"
"""Half a character, an emoji, a NUL."""


def dumped(path: Path, name: str) -> None:
    """Write a SQLite database down as SQL."""
    with sqlite3.connect(path) as connection:
        lines = [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    kept("\n".join(lines) + "\n", name)


def kept(text: str, name: str) -> None:
    """Write a dump to its file."""
    packed = gzip.compress(text.encode(), mtime=0)
    (FIXTURES / f"{name}.sql.gz").write_bytes(packed)


def dump_of(name: str) -> str:
    """Give the dump of a fixture."""
    return gzip.decompress((FIXTURES / f"{name}.sql.gz").read_bytes()).decode()


def loaded(name: str, path: Path) -> Path:
    """Make a SQLite database of a dump."""
    with sqlite3.connect(path) as connection:
        connection.executescript(dump_of(name))
    connection.close()
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


MAKERS: dict[str, Callable[[Path], None]] = {
    "openai": openai,
    "langgraph_sqlite": langgraph_sqlite,
}


def main(names: list[str]) -> None:
    """Make the fixtures that are named."""
    FIXTURES.mkdir(exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.db"
            MAKERS[name](path)
            dumped(path, name)


if __name__ == "__main__":
    main(sys.argv[1:])
