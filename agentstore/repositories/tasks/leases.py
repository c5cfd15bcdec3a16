"""Leases under a clock that was set back: none is held for longer than it was given for.

A lease says when it ends, and with ``updated_at`` when it was given or renewed. If that is yet to
come, the clock was set back meanwhile, and the end is as far away as that. Such a lease begins anew
at the present, with the length that it had: a dead worker's task is taken away after that, and a
living one's heartbeat comes before.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, select, update

from agentstore.execution.unit import Unit
from agentstore.repositories.tasks.arguments import MAX_LEASE
from agentstore.repositories.tasks.rows import RUNNING
from agentstore.values.types import UtcDateTime

_LATEST = 1_000
"""Leases that are looked at, those that end last. Only if as many end even later, because they are
longer than the clock was set back, do others have to wait for these."""

_LONGEST = timedelta(seconds=MAX_LEASE)


def begin_anew(unit: Unit, now: ColumnElement[Any]) -> None:
    """Have the leases begin now that were given at a time which is yet to come.

    Args:
        unit: In a write transaction. What others have locked is passed over.
        now: The present, by the clock of the leases.
    """
    tasks = unit.tables.tasks
    latest = (
        select(tasks.c.pk, tasks.c.updated_at)
        .where(tasks.c.status == RUNNING, tasks.c.lease_expires_at > now)
        .order_by(tasks.c.lease_expires_at.desc())
        .limit(_LATEST)
        .cte("latest")
        .prefix_with("MATERIALIZED")
    )
    query = (
        select(tasks.c.pk, tasks.c.lease_expires_at, tasks.c.updated_at, now.label("now"))
        .where(tasks.c.pk.in_(select(latest.c.pk).where(latest.c.updated_at > now)))
        .with_for_update(skip_locked=True)
    )
    leases = [
        {
            "row": row.pk,
            "begin": row.now,
            "end": row.now + min(row.lease_expires_at - row.updated_at, _LONGEST),
        }
        for row in unit.connection.execute(query).all()
        if row.updated_at > row.now  # it may have been renewed since it was chosen
    ]
    if leases:
        moved = update(tasks).where(tasks.c.pk == bindparam("row", type_=tasks.c.pk.type))
        begin, end = (bindparam(name, type_=UtcDateTime()) for name in ("begin", "end"))
        unit.connection.execute(moved.values(lease_expires_at=end, updated_at=begin), leases)


__all__ = ["begin_anew"]
