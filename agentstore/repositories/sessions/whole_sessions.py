"""Sessions as files of conversations have them: read whole, one by one, and how each was laid out.

The layout says what an unusual line of an imported file looked like. It is in no record and no
argument of a public method: an import writes it, an export reads it, and callers of the store
neither see nor set it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update

from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord, SessionRecord
from agentstore.repositories.base import scoping
from agentstore.repositories.messages.histories import History
from agentstore.repositories.messages.portions import RECORDS
from agentstore.repositories.sessions.rows import select_session, session_record
from agentstore.values import validation
from agentstore.values.states import NO_BRANCH


@dataclass(frozen=True, slots=True)
class WholeSession:
    """A session of one moment, with the messages of its active branch, the oldest first."""

    session: SessionRecord
    layout: Any
    messages: list[MessageRecord]


def ids_after(unit: Unit, after: int, limit: int, user_id: str | None) -> list[tuple[int, str]]:
    """Give the row numbers and ids of sessions, of a user if given, in the order of creation.

    Args:
        unit: Where to read.
        after: The last row number before; 0 begins.
        limit: How many to give at most.
        user_id: Whose sessions; None for all.
    """
    sessions = unit.tables.sessions.c
    query = select(sessions.pk, sessions.id).where(
        sessions.pk > validation.amount("after", after),
        sessions.active_branch > NO_BRANCH,
        *scoping.sessions(unit, sessions.id),
    )
    if user_id is not None:
        query = query.where(sessions.user_id == validation.text("user_id", user_id))
    query = query.order_by(sessions.pk).limit(validation.amount("limit", limit))
    rows = unit.connection.execute(query)
    return [(row.pk, row.id) for row in rows]


def read_whole(unit: Unit, session_id: str) -> WholeSession:
    """Read a session, its layout and the messages of its active branch.

    Raises:
        NotFound: There is no such session.
    """
    sessions, data = unit.tables.sessions.c, unit.tables.session_data.c
    query = select_session(unit.tables).add_columns(data.layout, sessions.tip)
    query = query.where(*scoping.sessions(unit, sessions.id))
    key = {"session_id": validation.text("session_id", session_id)}
    row = unit.connection.execute(query, key).first()
    if row is None:
        raise NotFound("session", session_id)
    history = History(unit, session_id, None, None, RECORDS, whole=row.tip is None)
    messages = history.last(None, keep_tool_calls=True)
    return WholeSession(session_record(row), row.layout, messages)


def keep_layout(unit: Unit, session_id: str, layout: Any) -> None:
    """Write down how the line of an import was laid out that this session was made of.

    Raises:
        NotFound: There is no such session.
    """
    data = unit.tables.session_data
    query = update(data).where(
        data.c.session_id == session_id, *scoping.sessions(unit, data.c.session_id)
    )
    values = {"layout": validation.document("line", layout)}
    if unit.connection.execute(query.values(values)).rowcount == 0:
        raise NotFound("session", session_id)
