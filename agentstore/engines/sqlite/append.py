"""Appending messages on SQLite: count on the session's row, then insert.

There is one writer, so nobody comes between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Dialect,
    Table,
    and_,
    bindparam,
    func,
    insert,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from agentstore.engines.base.dialect import number_rows, room_in
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.engines.sqlite.activity import last_taken
from agentstore.models.branch_names import name_of_branch
from agentstore.models.deleting import session_is_open
from agentstore.models.tables import Tables
from agentstore.values.encoding import decode_text
from agentstore.values.paging import LISTED_WITHIN


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

    Nobody else can have a session locked: who writes has the lock of the whole file. The activity
    of a session is the row number of its newest message. The rows have the session's number and
    the branch's name afterwards.
    """
    count, list_anew, add, index, mark = _statements(tables, dialect_of(connection))
    added: dict[str, tuple[int, int]] = {}
    there: list[dict[str, Any]] = []
    names: list[tuple[str, Sequence[dict[str, Any]]]] = []
    begin = 0
    for session in sessions:
        end = begin + session["messages"]
        session["so_far"] = len(there)
        counting = count
        if session["branch"] is not None:
            counting = _counting_on(tables, dialect_of(connection))
        if counted := counting.rows(connection, session):
            own = rows[begin:end]
            *numbers, branch, activity, behind, session_pk = counted[0]
            if behind >= LISTED_WITHIN:
                list_anew.execute_many(connection, [session])
            for pk, row in enumerate(own, activity - len(own) + 1):
                row["pk"], row["session_id"] = pk, session_pk
            first = number_rows(numbers, session, own)
            added[session["session_id"]] = first, session_pk
            there += own
            names.append((decode_text(branch), own))
        begin = end
    if there:
        add.execute_many(connection, there)
        for name, own in names:
            for row in own:
                row["branch"] = name
    for more, insertion in ((calls, index), (marks, mark)):
        owned = [each for each in more if each["session_id"] in added]
        for each in owned:
            first, each["session_id"] = added[each["session_id"]]
            each["seq"] += first
        if owned:
            insertion.execute_many(connection, owned)
    return added


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> tuple[Prepared, ...]:
    sessions = tables.sessions
    # A statement of its own: SQLite writes to an index even if a column keeps its value.
    here = sessions.c.id == bindparam("session_id")
    list_anew = update(sessions).where(here).values(listed_activity=sessions.c.activity)
    beside = (tables.messages, tables.message_tool_calls, tables.message_marks)
    return (
        Prepared(_counting(tables), driver),
        Prepared(list_anew, driver),
        *(_insertion(table, driver) for table in beside),
    )


@lru_cache(maxsize=256)
def _counting_on(tables: Tables, driver: Dialect) -> Prepared:
    """Count only if the active branch has this name."""
    branches, sessions = tables.branches, tables.sessions.c
    active = name_of_branch(branches, sessions.pk, sessions.active_branch)
    named = active == bindparam("branch", type_=branches.c.name.type)
    return Prepared(_counting(tables).where(named), driver)


def _counting(tables: Tables) -> ReturningUpdate[Any]:
    sessions = tables.sessions
    here = sessions.c.id == bindparam("session_id")
    now, bearable = (
        bindparam(name, type_=sessions.c.created_at.type) for name in ("now", "bearable")
    )
    return (
        update(sessions)
        .where(here, session_is_open(tables), room_in(sessions))
        .values(
            last_seq=sessions.c.last_seq + bindparam("messages"),
            turn=sessions.c.turn + bindparam("users"),
            message_count=sessions.c.message_count + bindparam("messages"),
            total_tokens=sessions.c.total_tokens + bindparam("tokens"),
            total_cost=sessions.c.total_cost + bindparam("cost"),
            activity=last_taken(tables) + bindparam("so_far") + bindparam("messages"),
            last_active_at=now,
            newest_at=func.max(sessions.c.newest_at, now),
            in_order=and_(sessions.c.in_order, sessions.c.newest_at <= bearable),
        )
        .returning(
            sessions.c.last_seq,
            sessions.c.turn,
            sessions.c.active_branch,
            name_of_branch(tables.branches, sessions.c.pk, sessions.c.active_branch),
            sessions.c.activity,
            sessions.c.activity - sessions.c.listed_activity,
            sessions.c.pk,
        )
    )


def _insertion(table: Table, driver: Dialect) -> Prepared:
    """Insert rows that say their session by the number, which was just read."""
    number = bindparam("session_id", type_=BigInteger())
    rest = [column.key for column in table.columns if column.key != "session_id"]
    return Prepared(insert(table).inline().values(session_id=number), driver, rest)
