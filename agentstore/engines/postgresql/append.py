"""Appending messages on PostgreSQL: lock, count and insert in one statement.

Its first part locks the sessions' rows, counts on them and returns the numbers; the others insert.
One round trip, and callers with different sessions never wait for each other. A single message
travels as plain parameters, many as arrays side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.types import TypeEngine

from agentstore.engines.base.dialect import number_rows, room_in
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.models.branch_names import name_of_branch
from agentstore.models.deleting import session_is_open
from agentstore.models.tables import Tables
from agentstore.values.encoding import decode_text
from agentstore.values.paging import LISTED_WITHIN
from agentstore.values.types import Json


def next_activity(tables: Tables) -> Any:
    """Take the next of a sequence, which nobody waits for, as an expression.

    It is no ``Sequence`` of SQLAlchemy's, whose key in an engine's cache of statements leaves the
    schema out: stores of two schemas on one engine would take from the same one.
    """
    names = tables.names
    schema = "" if names.schema is None else f"{names.schema}."
    name = f"'{schema}{names.prefix}activity'"  # plain words
    sequence: ColumnElement[str] = literal_column(name)
    return func.nextval(sequence, type_=BigInteger)


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
    """Lock, count and insert in one statement; see ``EngineDialect.append_messages``."""
    named = any(session["branch"] is not None for session in sessions)
    many = len(sessions) > 1
    shape = _AppendShape(many, len(rows) > 1, bool(calls), bool(marks), wait, named)
    statement = _statement(tables, dialect_of(connection), shape)
    columns = _message_columns(tables)
    parameters: dict[str, Any] = {}
    if shape.sessions:
        for name in (*_COUNTS, "branch") if named else _COUNTS:
            parameters[f"s_{name}"] = [session[name] for session in sessions]
    else:
        parameters |= sessions[0]
    if shape.rows:
        for name in (*_OF_EACH, *columns):
            parameters[f"m_{name}"] = [row[name] for row in rows]
    else:
        for name in columns:
            parameters[f"m_{name}"] = rows[0][name]
    for prefix, names, more in (("c_", _CALL_COLUMNS, calls), ("k_", _MARK_COLUMNS, marks)):
        for name in names if more else ():
            parameters[f"{prefix}{name}"] = [each[name] for each in more]
    counted = {decode_text(row[0]): row[1:] for row in statement.rows(connection, parameters)}
    begin = 0
    for session in sessions:
        end = begin + session["messages"]
        if (numbers := counted.get(session["session_id"])) is not None:
            *counts, branch, name = numbers
            if name is None:
                name = _name_of_new(connection, tables, session["session_id"], branch)
            number_rows((*counts, name and decode_text(name)), session, rows[begin:end])
        begin = end
    return counted


def _name_of_new(connection: Connection, tables: Tables, session_id: str, branch: int) -> Any:
    """Look the name of a branch up that was made while the statement waited for the session.

    The statement sees the session as it is once it has the lock, and all else as it was before.
    """
    sessions = tables.sessions.c
    name = name_of_branch(tables.branches, sessions.pk, literal(branch, BigInteger))
    query = select(type_coerce(name, Text)).where(sessions.id == session_id)
    return connection.execute(query).scalar()


_COUNTS = ("session_id", "messages", "users", "tokens", "cost", "now", "bearable")
_OF_EACH = ("session_id", "created_at")
"""Columns of messages that the session says, where there is one message."""
_CALL_COLUMNS = ("session_id", "message_id", "position", "seq", "name", "call_id")
_MARK_COLUMNS = ("session_id", "message_id", "seq", "mark")


@lru_cache(maxsize=256)
def _message_columns(tables: Tables) -> tuple[str, ...]:
    given_by_the_database = {"pk", "session", "branch", "created_at"}
    return tuple(c.name for c in tables.messages.columns if c.name not in given_by_the_database)


class _AppendShape(NamedTuple):
    """Which parts of the statement there are, and which of them come as arrays.

    Attributes:
        named: Whether a session says which branch has to be its active one.
    """

    sessions: bool
    rows: bool
    calls: bool
    marks: bool
    wait: bool
    named: bool


@lru_cache(maxsize=1024)
def _statement(tables: Tables, driver: Dialect, shape: _AppendShape) -> Prepared:
    return Prepared(_build(tables, shape), driver)


def _build(tables: Tables, shape: _AppendShape) -> Select[Any]:
    messages = tables.messages
    if shape.sessions:
        counted = _counted_many(tables, named=shape.named)
    else:
        counted = _counted_one(tables, wait=shape.wait, named=shape.named)
    columns = _message_columns(tables)
    if shape.rows:
        kinds = {f"m_{c}": _kind(tables, messages, c) for c in (*_OF_EACH, *columns)}
        new, source = arrays(kinds, "new")
        source = source.join(counted, counted.c.id == new["m_session_id"])
    else:
        new = {f"m_{c}": _given(f"m_{c}", messages.c[c].type) for c in columns}
        source = counted
    values = {c: new[f"m_{c}"] for c in columns}
    values["seq"] += counted.c.before_seq
    values["turn"] += counted.c.before_turn
    values["session_id"] = counted.c.pk
    values["branch"] = counted.c.active_branch
    values["created_at"] = new["m_created_at"] if shape.rows else _now(tables)
    added = (
        insert(messages)
        .from_select(list(values), select(*values.values()).select_from(source))
        .cte("added")
    )
    answer = select(
        counted.c.id,
        counted.c.last_seq,
        counted.c.turn,
        counted.c.active_branch,
        name_of_branch(tables.branches, counted.c.pk, counted.c.active_branch),
    ).add_cte(added)
    beside = (
        (shape.calls, tables.message_tool_calls, "c_", _CALL_COLUMNS),
        (shape.marks, tables.message_marks, "k_", _MARK_COLUMNS),
    )
    for there_are, table, prefix, columns in beside:
        if there_are:
            kinds = {f"{prefix}{c}": _kind(tables, table, c) for c in columns}
            new, source = arrays(kinds, f"new_{table.name}")
            source = source.join(counted, counted.c.id == new[f"{prefix}session_id"])
            values = {c: new[f"{prefix}{c}"] for c in columns}
            values["seq"] += counted.c.before_seq
            values["session_id"] = counted.c.pk
            rows = select(*values.values()).select_from(source)
            answer = answer.add_cte(
                insert(table).from_select(list(values), rows).cte(f"added_{table.name}")
            )
    return answer


def _kind(tables: Tables, table: Table, column: str) -> TypeEngine[Any]:
    """Give the type of what is sent for a column: for a session its id."""
    return (tables.sessions.c.id if column == "session_id" else table.c[column]).type


def _now(tables: Tables) -> BindParameter[Any]:
    return bindparam("now", type_=tables.sessions.c.created_at.type)


def _counted_one(tables: Tables, *, wait: bool, named: bool) -> CTE:
    sessions = tables.sessions
    counts = {
        "messages": bindparam("messages", type_=BigInteger),
        "users": bindparam("users", type_=BigInteger),
        "tokens": bindparam("tokens"),
        "cost": bindparam("cost"),
        "now": _now(tables),
        "bearable": bindparam("bearable", type_=sessions.c.created_at.type),
    }
    here = sessions.c.id == bindparam("session_id", type_=sessions.c.id.type)
    counting = update(sessions).where(here)
    if named:
        counting = counting.where(_active(tables) == bindparam("branch", type_=_name(tables)))
    if not wait:
        locked = _locked(select(sessions.c.id).where(here))
        counting = counting.where(sessions.c.id == locked.c.id)
    activity = select(next_activity(tables).label("activity")).cte("taken")
    return _count(counting, tables, counts, activity.c.activity)


def _active(tables: Tables) -> ColumnElement[Any]:
    """Select the name of the active branch."""
    return name_of_branch(tables.branches, tables.sessions.c.pk, tables.sessions.c.active_branch)


def _name(tables: Tables) -> TypeEngine[Any]:
    return tables.branches.c.name.type


def _locked(wanted: Select[Any]) -> CTE:
    return wanted.with_for_update(key_share=True, skip_locked=True).cte("locked")


def _counted_many(tables: Tables, *, named: bool) -> CTE:
    """Count on several sessions, but for those that somebody else has locked: a call waits for
    nobody but those who write to its own session.
    """
    sessions = tables.sessions
    kinds = {
        "s_session_id": sessions.c.id.type,
        "s_messages": BigInteger(),
        "s_users": BigInteger(),
        "s_tokens": sessions.c.total_tokens.type,
        "s_cost": sessions.c.total_cost.type,
        "s_now": sessions.c.last_active_at.type,
        "s_bearable": sessions.c.last_active_at.type,
    }
    if named:
        kinds["s_branch"] = _name(tables)
    given, arriving = arrays(kinds, "given")
    wanted = select(given["s_session_id"]).select_from(arriving)
    number = next_activity(tables).label("activity")
    locked = _locked(select(sessions.c.id, number).where(sessions.c.id.in_(wanted)))
    counting = update(sessions).where(
        sessions.c.id == given["s_session_id"], sessions.c.id == locked.c.id
    )
    if named:
        wanted_branch = given["s_branch"]
        counting = counting.where(or_(wanted_branch.is_(None), _active(tables) == wanted_branch))
    counts = {name: given[f"s_{name}"] for name in _COUNTS if name != "session_id"}
    return _count(counting, tables, counts, locked.c.activity)


def _count(
    counting: Update,
    tables: Tables,
    counts: Mapping[str, ColumnElement[Any]],
    activity: ColumnElement[int],
) -> CTE:
    """Count on; the activity may have been taken before somebody else's who was let go first."""
    sessions = tables.sessions.c
    listed = sessions.listed_activity
    return (
        counting.where(session_is_open(tables), room_in(tables.sessions))
        .values(
            last_seq=sessions.last_seq + counts["messages"],
            turn=sessions.turn + counts["users"],
            message_count=sessions.message_count + counts["messages"],
            total_tokens=sessions.total_tokens + counts["tokens"],
            total_cost=sessions.total_cost + counts["cost"],
            activity=func.greatest(sessions.activity, activity),
            listed_activity=case((activity - listed < LISTED_WITHIN, listed), else_=activity),
            last_active_at=counts["now"],
            newest_at=func.greatest(sessions.newest_at, counts["now"]),
            in_order=and_(sessions.in_order, sessions.newest_at <= counts["bearable"]),
        )
        .returning(
            sessions.pk,
            sessions.id,
            sessions.last_seq,
            sessions.turn,
            sessions.active_branch,
            (sessions.last_seq - counts["messages"]).label("before_seq"),
            (sessions.turn - counts["users"]).label("before_turn"),
        )
        .cte("counted")
    )


def _given(name: str, kind: Any) -> ColumnElement[Any]:
    return cast(bindparam(name, type_=kind), kind)


def arrays(kinds: Mapping[str, TypeEngine[Any]], name: str) -> tuple[dict[str, Any], FromClause]:
    """Give the columns of rows that travel as arrays side by side, and where they come from."""
    # JSON travels as text and is cast on arrival, because an array of json has no operators.
    arrays = [
        bindparam(column, type_=ARRAY(Text() if isinstance(kind, Json) else kind))
        for column, kind in kinds.items()
    ]
    rows = func.unnest(*arrays).table_valued(*kinds, name=name).render_derived()
    row: dict[str, Any] = {
        column: cast(rows.c[column], kind) if isinstance(kind, Json) else rows.c[column]
        for column, kind in kinds.items()
    }
    return row, rows
