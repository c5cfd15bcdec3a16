"""Deleting memories that have expired, some at a time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select

from agentstore.engines.base.dialect import Mode
from agentstore.execution.unit import Unit
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.base.units import Units
from agentstore.values import validation

ROWS = 1_000
"""Rows that one transaction deletes at most."""


def delete_expired(units: Units, limit: int | None) -> int:
    """Delete what had expired when this began; see ``Memories.delete_expired``."""
    validation.optional_amount("limit", limit)
    pace, gone = Pace(units, ROWS), 0
    deadline = units.run(Mode.READ, _first_deadline)
    while deadline is not None and (limit is None or gone < limit):
        most = pace.rows if limit is None else min(pace.rows, limit - gone)
        deleted = pace.write(_delete_some, deadline, most)
        gone += deleted
        if deleted < most:
            break
    return gone


def _first_deadline(unit: Unit) -> datetime | None:
    """Give the present, or None if nothing has expired: then nothing needs to be locked."""
    now, memories = unit.now(), unit.tables.memories.c
    expired = select(memories.pk).where(memories.expires_at <= now)
    query = expired.order_by(memories.expires_at).limit(1)
    return None if unit.connection.execute(query).first() is None else now


def _delete_some(unit: Unit, pace: Pace, deadline: datetime, most: int) -> int:
    memories = unit.tables.memories
    deadline = min(deadline, unit.now())  # a clock that was set back brings memories back
    expired = (
        select(memories.c.pk)
        .where(memories.c.expires_at <= deadline)
        .order_by(memories.c.expires_at, memories.c.pk)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    pks = unit.connection.execute(expired).scalars().all()
    gone = 0
    for start in range(0, len(pks), 500):
        these = memories.c.pk.in_(pks[start : start + 500])
        gone += unit.connection.execute(delete(memories).where(these)).rowcount
    return gone
