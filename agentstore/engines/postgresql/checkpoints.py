"""Checkpoints and the writes after them, each stored by one statement."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Executable,
    Integer,
    Select,
    Table,
    and_,
    any_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
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
        key = [*table.primary_key.c]
        wanted_places = bindparam("replaced", type_=ARRAY(kinds["position"]))
        gives_way = storing.excluded.position == any_(wanted_places)
        storing = storing.on_conflict_do_update(index_elements=key, set_=changed, where=gives_way)
    else:
        storing = storing.on_conflict_do_nothing()
    stored = storing.returning(table.c.position).cte("stored")
    return select(
        select(func.count()).select_from(thread).scalar_subquery(),
        select(func.count()).select_from(stored).scalar_subquery(),
    )


@lru_cache(maxsize=256)  # four milliseconds
def putting(tables: Tables, entered: ReturningUpdate[Any] | None, *, merges: bool) -> Executable:
    """Insert all that belongs to a checkpoint; see ``EngineDialect.putting``.

    Where it enters the thread too, it does so only if no piece is missing: alone in its
    transaction, it would commit a thread that is entered and a checkpoint that is not there.

    Pieces are rarely merged. Without them the text has fewer than 4,096 characters. psycopg parses
    a longer text again at each call, which takes 0.2 ms.
    """
    points, values = tables.checkpoints, tables.checkpoint_values
    entries = tables.checkpoint_entries
    new = {
        column.name: bindparam(f"c_{column.name}", type_=column.type)
        for column in points.c
        if column is not points.c.pk
    }
    thread = new["thread_id"]
    end, ends = _arriving(values, "m_", "thread_id")
    line = and_(values.c.thread_id == thread, values.c.line == end["line"])
    if entered is None:
        putting = insert(points).values(new)
    else:
        if merges:
            there = exists().where(line, values.c.start == end["start"])
            lacking = select(end["line"]).select_from(ends).where(~there)
            entered = entered.where(~lacking.exists())
        row = [cast(value, points.c[name].type) for name, value in new.items()]
        rows = select(*row).select_from(entered.cte("entered"))
        putting = insert(points).from_select([*new], rows)
    point = putting.on_conflict_do_nothing().returning(points.c.pk).cte("point")

    piece, arriving = _arriving(values, "p_", "thread_id")
    rows = select(thread, *piece.values()).select_from(arriving.join(point, true()))
    stored = insert(values).from_select(["thread_id", *piece], rows).cte("stored")

    entry, arriving = _arriving(entries, "e_", "thread_id", "checkpoint_pk")
    rows = select(point.c.pk, thread, *entry.values()).select_from(arriving.join(point, true()))
    held = insert(entries).from_select(["checkpoint_pk", "thread_id", *entry], rows).cte("held")
    if not merges:
        none = literal_column("0", Integer).label("merged")
        return select(none).select_from(point).add_cte(stored, held)
    merging = (
        update(values)
        .values({name: end[name] for name in end if name not in values.primary_key.c})
        .where(line, values.c.start == end["start"], point.c.pk.is_not(None))
    )
    merged = merging.returning(values.c.line).cte("merged")
    behind = and_(line, values.c.start > end["start"], point.c.pk.is_not(None))
    dropped = delete(values).where(behind).cte("dropped")
    count = select(func.count()).select_from(merged).scalar_subquery()
    counted = select(count.label("merged")).select_from(point)
    return counted.add_cte(stored, merged, dropped, held)


def _arriving(table: Table, prefix: str, *but: str) -> tuple[dict[str, Any], Any]:
    """Give the columns of a table, but for some, of rows that travel as arrays."""
    kinds = {f"{prefix}{c.name}": c.type for c in table.c if c.name not in but}
    new, source = arrays(kinds, f"arriving_{prefix}{table.name}")
    return {name.removeprefix(prefix): column for name, column in new.items()}, source
