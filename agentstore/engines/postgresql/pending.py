"""Pending writes of checkpoints, stored by one statement with the lock of their thread."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, bindparam, func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningUpdate

from agentstore.engines.postgresql.append import arrays
from agentstore.models.tables import Tables


def storing_writes(entered: ReturningUpdate[Any], tables: Tables, *, replace: bool) -> Select[Any]:
    """Lock, store and count in one statement; see ``EngineDialect.storing_writes``."""
    table = tables.checkpoint_writes
    thread = entered.cte("entered")
    kinds = {column.name: column.type for column in table.c if column.name != "thread_id"}
    new, arriving = arrays(kinds, "new")
    wanted = bindparam("wanted", type_=table.c.thread_id.type)
    rows = select(wanted, *new.values()).select_from(arriving.join(thread, true()))
    storing = insert(table).from_select(["thread_id", *kinds], rows)
    if replace:
        changed = {
            name: storing.excluded[name] for name in kinds if name not in table.primary_key.c
        }
        storing = storing.on_conflict_do_update(constraint=table.primary_key, set_=changed)
    else:
        storing = storing.on_conflict_do_nothing()
    stored = storing.returning(table.c.position).cte("stored")
    return select(
        select(func.count()).select_from(thread).scalar_subquery(),
        select(func.count()).select_from(stored).scalar_subquery(),
    )
