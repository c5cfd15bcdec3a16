"""Appending messages on PostgreSQL: lock, count and insert in one statement.

Its first part locks the session's row, counts on it and returns the numbers; the others insert.
One round trip, and two sessions never wait for each other. A single message travels as plain
parameters, many as arrays side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Connection,
    Dialect,
    FromClause,
    Select,
    Text,
    bindparam,
    cast,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy import Sequence as DatabaseSequence

from agentstore.dialects.base import Appended
from agentstore.prepared import Prepared
from agentstore.schema import Tables
from agentstore.states import NO_BRANCH
from agentstore.types import Json


def next_activity(tables: Tables) -> Any:
    """Take the next of a sequence, which nobody waits for."""
    names = tables.names
    return DatabaseSequence(f"{names.prefix}activity", schema=names.schema).next_value()


def append(
    connection: Connection,
    tables: Tables,
    session: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    calls: Sequence[dict[str, Any]],
    marks: Sequence[dict[str, Any]],
) -> Appended | None:
    """Append messages; see ``EngineDialect.append_messages``."""
    many = len(rows) > 1
    statement = _statement(
        tables, connection.dialect, many=many, calls=bool(calls), marks=bool(marks)
    )
    parameters = dict(session)
    for column in _message_columns(tables):
        values = [row[column] for row in rows]
        parameters[f"m_{column}"] = values if many else values[0]
    for column in _CALL_COLUMNS if calls else ():
        parameters[f"c_{column}"] = [call[column] for call in calls]
    for column in _MARK_COLUMNS if marks else ():
        parameters[f"k_{column}"] = [mark[column] for mark in marks]
    landed = statement.rows(connection, parameters)
    if not landed:
        return None
    return Appended.at(landed[0], session, rows)


_CALL_COLUMNS = ("message_id", "position", "seq", "name", "call_id")
_MARK_COLUMNS = ("message_id", "seq", "mark")


@lru_cache(maxsize=64)
def _message_columns(tables: Tables) -> tuple[str, ...]:
    given_by_the_database = {"pk", "session_id", "branch", "created_at"}
    return tuple(c.name for c in tables.messages.columns if c.name not in given_by_the_database)


@lru_cache(maxsize=256)
def _statement(
    tables: Tables, driver: Dialect, *, many: bool, calls: bool, marks: bool
) -> Prepared:
    return Prepared(_append(tables, many=many, calls=calls, marks=marks), driver)


def _append(tables: Tables, *, many: bool, calls: bool, marks: bool) -> Select[Any]:
    sessions, messages = tables.sessions, tables.messages
    session_id = bindparam("session_id", type_=sessions.c.id.type)
    now = bindparam("now", type_=sessions.c.created_at.type)
    counted = (
        update(sessions)
        .where(sessions.c.id == session_id, sessions.c.active_branch > NO_BRANCH)
        .values(
            last_seq=sessions.c.last_seq + bindparam("messages"),
            turn=sessions.c.turn + bindparam("users"),
            message_count=sessions.c.message_count + bindparam("messages"),
            total_tokens=sessions.c.total_tokens + bindparam("tokens"),
            total_cost=sessions.c.total_cost + bindparam("cost"),
            activity=next_activity(tables),
            last_active_at=now,
        )
        .returning(sessions.c.last_seq, sessions.c.turn, sessions.c.active_branch)
        .cte("counted")
    )
    before_seq = counted.c.last_seq - bindparam("messages", type_=BigInteger)
    before_turn = counted.c.turn - bindparam("users", type_=BigInteger)
    columns = _message_columns(tables)
    new, source = _new_rows(
        {f"m_{c}": messages.c[c].type for c in columns}, "new", counted, many=many
    )
    values = {c: new[f"m_{c}"] for c in columns}
    values["seq"] += before_seq
    values["turn"] += before_turn
    values |= {"session_id": session_id, "branch": counted.c.active_branch, "created_at": now}
    added = (
        insert(messages)
        .from_select(list(values), select(*values.values()).select_from(source))
        .cte("added")
    )
    answer = select(counted.c.last_seq, counted.c.turn, counted.c.active_branch).add_cte(added)
    beside = (
        (calls, tables.message_tool_calls, "c_", _CALL_COLUMNS),
        (marks, tables.message_marks, "k_", _MARK_COLUMNS),
    )
    for there_are, table, prefix, columns in beside:
        if there_are:
            types = {f"{prefix}{c}": table.c[c].type for c in columns}
            new, source = _new_rows(types, f"new_{table.name}", counted, many=True)
            values = {c: new[f"{prefix}{c}"] for c in columns}
            values["seq"] += before_seq
            values["session_id"] = session_id
            rows = select(*values.values()).select_from(source)
            answer = answer.add_cte(
                insert(table).from_select(list(values), rows).cte(f"added_{table.name}")
            )
    return answer


def _new_rows(
    types: dict[str, Any], name: str, counted: CTE, *, many: bool
) -> tuple[dict[str, Any], FromClause]:
    """Give the columns of new rows and where they come from, beside the counted session:
    parameters for one row, arrays side by side for many.
    """
    if not many:
        single = {
            column: cast(bindparam(column, type_=kind), kind) for column, kind in types.items()
        }
        return single, counted
    # JSON travels as text and is cast on arrival, because an array of json has no operators.
    arrays = [
        bindparam(column, type_=ARRAY(Text() if isinstance(kind, Json) else kind))
        for column, kind in types.items()
    ]
    rows = func.unnest(*arrays).table_valued(*types, name=name).render_derived()
    row: dict[str, Any] = {
        column: cast(rows.c[column], kind) if isinstance(kind, Json) else rows.c[column]
        for column, kind in types.items()
    }
    return row, counted.join(rows, true())
