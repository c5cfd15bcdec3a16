"""Taking back the last message of a session that has only its first branch, in three statements.

::

    read       the last message, the turn of the one before it, and the session's counters; and
               lock the session
    count off  in the session's row, if its counters are still those, and its branch the only one
    delete     the message

On PostgreSQL the first statement may wait for the lock, and has read what was there before. But
each message that comes, goes or is replaced changes the counters. So if the second statement finds
them as they were, the first one read what is there. Otherwise nothing was changed, and the caller
takes the longer way.

Attachments go with their message. They change under the session's lock too: PostgreSQL sees them
when it deletes the message, and SQLite, where nobody else writes meanwhile, when it reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    update,
)

from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open
from agentstore.models.tables import Tables
from agentstore.records import MessageRecord
from agentstore.repositories.attachments.blobs import drop_unattached
from agentstore.repositories.lines.queries import SESSION_ID
from agentstore.repositories.lines.rows import main_columns, message_record
from agentstore.repositories.lines.tallies import Tally, change
from agentstore.repositories.search.search import forget_deleted
from agentstore.values.states import STREAMING

_COUNTERS = ("last_seq", "message_count", "total_tokens", "total_cost")
_MESSAGE = ("id", "seq", "turn", "role", "status", "token_count", "cost")


def pop_of_whole(unit: Unit, session_id: str) -> MessageRecord | None:
    """Delete and give the last message; None if there is none, or if it is not that simple.

    Args:
        unit: In a write transaction.
        session_id: The session.
    """
    statements = _statements(unit.tables, dialect_of(unit.connection))
    rows = statements.read.fetch(unit.connection, {SESSION_ID: session_id})
    if not rows:
        return None
    message_id, _, _, role, status, tokens, cost, attached, session_turn, *counters = rows[0]
    if status == STREAMING:  # its text is in pieces
        return None
    turn = rows[1][_MESSAGE.index("turn")] if len(rows) > 1 else 0
    given = {SESSION_ID: session_id, "tokens": tokens, "cost": cost, "now_turn": turn}
    given |= dict(zip(_COUNTERS, counters, strict=True))
    if not statements.count_off.rows(unit.connection, given):
        return None
    given = {SESSION_ID: session_id, "message_id": message_id}
    ((*columns, attached_now),) = statements.delete.fetch(unit.connection, given)
    digests = ",".join(filter(None, (attached, attached_now)))
    drop_unattached(unit, digests.split(",") if digests else ())
    forget_deleted(unit)
    change(unit, session_id, 0, Tally(0, session_turn - turn - (role == "user")))
    return message_record(columns)


@dataclass(frozen=True, slots=True)
class _Popping:
    read: Prepared
    count_off: Prepared
    delete: Prepared


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> _Popping:
    messages, sessions = tables.messages.c, tables.sessions.c
    never_branched = sessions.last_branch == 0
    this = (sessions.id == bindparam(SESSION_ID), session_is_open(tables), never_branched)
    last = (
        select(*(messages[name] for name in _MESSAGE))
        .where(
            messages.session_id == bindparam(SESSION_ID),
            messages.branch == select(sessions.last_branch).where(*this).scalar_subquery(),
        )
        .order_by(messages.seq.desc())
        .limit(literal_column("2"))
        .subquery("last")
    )
    # After a wait the row that was locked is the newest; what was read with it is not.
    seen = tables.sessions.alias("seen")
    read = (
        select(
            *last.c,
            _attached_to(tables, last.c.id),
            seen.c.turn,
            *(seen.c[name] for name in _COUNTERS),
        )
        .join_from(last, seen, seen.c.id == bindparam(SESSION_ID))
        .join(tables.sessions, sessions.pk == seen.c.pk)
        .order_by(last.c.seq.desc())
        .with_for_update(of=tables.sessions)
    )
    as_read = [sessions[name] == bindparam(name) for name in _COUNTERS]
    tokens = bindparam("tokens", type_=BigInteger)
    cost = bindparam("cost", type_=messages.cost.type)
    count_off = (
        update(tables.sessions)
        .where(*this, *as_read, sessions.total_tokens >= tokens, sessions.total_cost >= cost)
        .values(
            message_count=sessions.message_count - 1,
            total_tokens=sessions.total_tokens - tokens,
            total_cost=sessions.total_cost - cost,
            turn=bindparam("now_turn"),
        )
        .returning(sessions.pk)
    )
    message_id = bindparam("message_id", type_=messages.id.type)
    gone = delete(tables.messages).where(messages.id == message_id)
    deleted = gone.returning(*main_columns(messages), _attached_to(tables, message_id))
    return _Popping(*(Prepared(each, driver) for each in (read, count_off, deleted)))


def _attached_to(tables: Tables, message_id: ColumnElement[Any]) -> ColumnElement[str | None]:
    """Select the digests of what is attached to a message, with commas between them."""
    attachments = tables.attachments.c
    digests = select(func.aggregate_strings(attachments.digest, ","))
    return digests.where(attachments.message_id == message_id).scalar_subquery().label("attached")
