"""Reading sessions: their rows as records, with documents from the cache where that is right."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, select

from agentstore.execution.session_cache import Documents
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.models.tables import Tables
from agentstore.records import SessionRecord
from agentstore.records.base import complete
from agentstore.values import validation


def find_session(unit: Unit, session_id: str) -> SessionRecord | None:
    """Give a session, or None.

    One statement. A second one only where the cache has other documents than the session has
    now: they are then read with the rest of it once more, so that all is of one moment.
    """
    cache = unit.cache
    if cache is None:
        row = _fetch(unit, session_id, documents=True)
        return None if row is None else session_record(row)
    key = validation.text("session_id", session_id)
    if cache.knows(key):
        row = _fetch(unit, key, documents=False)
        if row is None:
            cache.forget([key])
            return None
        if (documents := cache.find(key, _version(row))) is not None:
            return session_record(row, documents)
    row = _fetch(unit, key, documents=True)
    if row is None:
        return None
    cache.remember(key, _version(row), (row.metadata, row.config, row.state))
    return session_record(row)


def session_record(row: Any, documents: Documents | None = None) -> SessionRecord:
    """Make a record of a row that ``select_sessions`` selected.

    Args:
        row: The row.
        documents: What the row does not have, if it was selected without them.
    """
    metadata, config, state = documents or (row.metadata, row.config, row.state)
    return complete(
        SessionRecord(
            id=row.id,
            user_id=row.user_id,
            status=row.status,
            title=row.title,
            model=row.model,
            metadata=metadata,
            config=config,
            state=state,
            version=row.version,
            question=row.question,
            asked_at=row.asked_at,
            message_count=row.message_count,
            total_tokens=row.total_tokens,
            total_cost=row.total_cost,
            last_seq=row.last_seq,
            last_turn=row.turn,
            ttl=None if row.ttl_seconds is None else timedelta(seconds=row.ttl_seconds),
            created_at=row.created_at,
            last_active_at=row.last_active_at,
            updated_at=row.updated_at,
            epoch=row.epoch,
        )
    )


@lru_cache(maxsize=256)
def select_sessions(tables: Tables, *, documents: bool = True) -> Select[Any]:
    """Select sessions with what is beside them, without their documents if so wanted."""
    sessions, data = tables.sessions.c, tables.session_data.c
    query = select(
        sessions.pk,
        sessions.id,
        sessions.user_id,
        sessions.status,
        sessions.title,
        sessions.model,
        sessions.message_count,
        sessions.total_tokens,
        sessions.total_cost,
        sessions.last_seq,
        sessions.turn,
        sessions.ttl_seconds,
        sessions.created_at,
        sessions.last_active_at,
        data.version,
        data.question,
        data.asked_at,
        data.updated_at,
        data.epoch,
    )
    if documents:
        query = query.add_columns(data.metadata, data.config, data.state)
    query = query.join_from(tables.sessions, tables.session_data)
    return query.where(owner_stays(tables, sessions.user_id))


@lru_cache(maxsize=256)
def select_session(tables: Tables, *, documents: bool = True) -> Select[Any]:
    """Select the session whose id is the parameter ``session_id``."""
    query = select_sessions(tables, documents=documents)
    return query.where(tables.sessions.c.id == bindparam("session_id"))


def _fetch(unit: Unit, session_id: str, *, documents: bool) -> Any:
    query = select_session(unit.tables, documents=documents)
    return unit.connection.execute(query, {"session_id": session_id}).first()


def _version(row: Any) -> tuple[Any, ...]:
    """Give what tells this version of the documents from every other.

    The version counts from 1 in each session; the rest is for sessions that are deleted and made
    again under the same id, and for databases that are restored from a backup.
    """
    return row.pk, row.created_at, row.version, row.updated_at
