"""Appending messages on SQLite: count on the session's row, then insert.

There is one writer, so nobody comes between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, bindparam, func, insert, select, update

from agentstore.engines.base.dialect import number_rows, room_in
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.models.deleting import session_is_open
from agentstore.models.tables import Tables


def next_activity(tables: Tables, of: str = "sessions") -> Any:
    """Count on from the largest; there is one writer, so no two can take the same."""
    column = tables[of].c.activity
    return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()


def append_messages(
    connection: Connection,
    tables: Tables,
    sessions: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    calls: Sequence[dict[str, Any]],
    marks: Sequence[dict[str, Any]],
    *,
    wait: bool,
) -> Collection[str]:
    """Count, then insert; see ``EngineDialect.append_messages``.

    Nobody else can have a session locked: who writes has the lock of the whole file.
    """
    count, add, index, mark = _statements(tables, dialect_of(connection))
    first_seqs: dict[str, int] = {}
    there: list[dict[str, Any]] = []
    begin = 0
    for session in sessions:
        end = begin + session["messages"]
        if counted := count.rows(connection, session):
            own = rows[begin:end]
            first_seqs[session["session_id"]] = number_rows(counted[0], session, own)
            there += own
        begin = end
    if there:
        add.execute_many(connection, there)
    for more, insertion in ((calls, index), (marks, mark)):
        owned = [each for each in more if each["session_id"] in first_seqs]
        for each in owned:
            each["seq"] += first_seqs[each["session_id"]]
        if owned:
            insertion.execute_many(connection, owned)
    return first_seqs


@lru_cache(maxsize=64)
def _statements(tables: Tables, driver: Dialect) -> tuple[Prepared, Prepared, Prepared, Prepared]:
    sessions = tables.sessions
    count = (
        update(sessions)
        .where(sessions.c.id == bindparam("session_id"), session_is_open(tables), room_in(sessions))
        .values(
            last_seq=sessions.c.last_seq + bindparam("messages"),
            turn=sessions.c.turn + bindparam("users"),
            message_count=sessions.c.message_count + bindparam("messages"),
            total_tokens=sessions.c.total_tokens + bindparam("tokens"),
            total_cost=sessions.c.total_cost + bindparam("cost"),
            activity=next_activity(tables),
            last_active_at=bindparam("now"),
        )
        .returning(sessions.c.last_seq, sessions.c.turn, sessions.c.active_branch)
    )
    columns = [column.name for column in tables.messages.columns if column.name != "pk"]
    calls = [column.name for column in tables.message_tool_calls.columns]
    marks = [column.name for column in tables.message_marks.columns]
    return (
        Prepared(count, driver),
        Prepared(insert(tables.messages).inline(), driver, columns),
        Prepared(insert(tables.message_tool_calls).inline(), driver, calls),
        Prepared(insert(tables.message_marks).inline(), driver, marks),
    )
