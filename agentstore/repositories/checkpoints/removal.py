"""Removing checkpoints so that those that stay are whole: with all their values, and a parent.

What stays is led past what goes: its parent is then the nearest ancestor that stays. A value
goes with the last checkpoint that holds it, or anything that was built on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, select, update

from agentstore.errors import InvalidInput
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.records import DeletionReceipt
from agentstore.repositories.base.operations import chunks
from agentstore.repositories.checkpoints.puts import tags_of
from agentstore.repositories.checkpoints.rows import checkpoints_of
from agentstore.repositories.checkpoints.value_lines import drop_entries, drop_unneeded
from agentstore.values import validation

Rows = Sequence[Any]
Doomed = Callable[[Rows], Iterable[Row[Any]]]
"""Chooses from the checkpoints of a namespace, the latest first, those that are to go."""


def remove_all(unit: Unit, thread_id: str) -> DeletionReceipt:
    """Delete a thread that is locked, and everything in it."""
    tables = unit.tables
    prefix = len(tables.names.prefix)
    counts: dict[str, int] = {}
    # Read off the tables, as ``ownership`` does, and what refers before what it refers to.
    for table in reversed(tables.metadata.sorted_tables):
        if "thread_id" in table.c:
            theirs = delete(table).where(table.c.thread_id == thread_id)
            if gone := unit.connection.execute(theirs).rowcount:
                counts[table.name[prefix:]] = gone
    threads = tables.checkpoint_threads
    unit.connection.execute(delete(threads).where(threads.c.id == thread_id))
    counts["checkpoint_threads"] = 1
    return DeletionReceipt(dict(sorted(counts.items())))


def unless_kept(
    now: datetime,
    keep_last: int | None,
    max_age: timedelta | None,
    keep_tags: Sequence[str],
    keep_ids: Sequence[str] = (),
) -> Doomed:
    """Check a policy, and make a function that chooses the checkpoints that it does not keep.

    Raises:
        InvalidInput: There is no policy, or an argument of it is not valid.
    """
    milestones, named = set(tags_of(keep_tags)), set(keep_ids)
    if keep_last is not None:
        validation.amount("keep_last", keep_last)
    oldest = None
    if max_age is not None:
        if not isinstance(max_age, timedelta) or max_age < timedelta(0):
            raise InvalidInput("max_age must be a timedelta, zero or more.")
        try:
            oldest = now - max_age
        except OverflowError:
            raise InvalidInput("max_age reaches back before the year 1.") from None
    if keep_last is None and oldest is None and not milestones and not named:
        raise InvalidInput(
            "There is no policy. Say what to keep: keep_last, max_age, keep_tags or keep_ids; "
            "delete_thread() deletes all."
        )

    def doomed(rows: Rows) -> Iterable[Row[Any]]:
        for number, row in enumerate(rows):
            kept = (
                number < max(keep_last or 0, 1)  # the latest stays: the steps count on from it
                or (oldest is not None and row.created_at >= oldest)
                or not milestones.isdisjoint(row.tags)
                or row.id in named
            )
            if not kept:
                yield row

    return doomed


def namespaces_of(unit: Unit, thread_id: str) -> list[str]:
    """Give the namespaces in which a thread has checkpoints."""
    checkpoints = unit.tables.checkpoints.c
    query = select(checkpoints.namespace).distinct().where(checkpoints.thread_id == thread_id)
    return sorted(unit.connection.execute(query).scalars())


def would_go(unit: Unit, thread_id: str, namespace: str, choose: Doomed) -> DeletionReceipt:
    """Count the checkpoints that ``remove`` would remove."""
    going = sum(1 for _ in choose(_rows(unit, thread_id, namespace)))
    return _receipt(Counter(checkpoints=going))


def remove(unit: Unit, thread_id: str, namespace: str, choose: Doomed) -> DeletionReceipt:
    """Remove checkpoints of a thread that is locked."""
    rows = _rows(unit, thread_id, namespace)
    doomed = {row.id for row in choose(rows)}
    return _receipt(_take_away(unit, thread_id, namespace, rows, doomed))


def total(receipts: Iterable[DeletionReceipt]) -> DeletionReceipt:
    """Add receipts up."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(receipt.rows)
    return _receipt(counts)


def _rows(unit: Unit, thread_id: str, namespace: str) -> Rows:
    checkpoints = unit.tables.checkpoints.c
    query = checkpoints_of(unit.tables).with_only_columns(
        checkpoints.pk,
        checkpoints.id,
        checkpoints.parent_id,
        checkpoints.step,
        checkpoints.tags,
        checkpoints.run_id,
        checkpoints.created_at,
    )
    return unit.connection.execute(
        query.order_by(checkpoints.step.desc(), checkpoints.pk.desc()),
        {"thread_id": thread_id, "namespace": namespace},
    ).all()


@lru_cache(maxsize=256)
def weight(tables: Tables) -> ColumnElement[int]:
    """Say how many rows may go with a checkpoint, as an expression: with each entry a value may."""
    c, entries, writes = tables.checkpoints.c, tables.checkpoint_entries.c, tables.checkpoint_writes
    values = select(func.count()).where(entries.checkpoint_pk == c.pk).scalar_subquery()
    pending = (
        select(func.count())
        .where(
            writes.c.thread_id == c.thread_id,
            writes.c.namespace == c.namespace,
            writes.c.checkpoint_id == c.id,
        )
        .scalar_subquery()
    )
    return (1 + 2 * values + pending).label("weight")


def as_many_as(rows: Rows, most: int) -> list[Any]:
    """Take the first of rows with a ``weight``, up to so much in all, and one at least."""
    few: list[Any] = []
    for row in rows:
        most -= row.weight
        if most < 0 and few:
            break
        few.append(row)
    return few


def remove_some(
    unit: Unit, thread_id: str, namespace: str, going: Rows, *, values: bool = True
) -> Counter[str]:
    """Remove a few checkpoints of a thread that is locked, without reading its others.

    Args:
        unit: In a write transaction.
        thread_id: The thread.
        namespace: Its namespace.
        going: Rows with ``pk``, ``id`` and ``parent_id``.
        values: Whether values go that nothing needs any more. To look for them reads the lines
            that they are on; not needed when the whole thread is to be deleted.

    Returns:
        For each table that lost rows, how many.
    """
    checkpoints = unit.tables.checkpoints.c
    doomed = {row.id for row in going}
    led_past: list[Any] = []
    for chunk in chunks(sorted(doomed)):
        query = select(checkpoints.pk, checkpoints.id, checkpoints.parent_id).where(
            checkpoints.thread_id == thread_id,
            checkpoints.namespace == namespace,
            checkpoints.parent_id.in_(chunk),
        )
        children = unit.connection.execute(query).all()
        led_past += [row for row in children if row.id not in doomed]
    return +_take_away(unit, thread_id, namespace, [*going, *led_past], doomed, values=values)


def _take_away(
    unit: Unit,
    thread_id: str,
    namespace: str,
    rows: Rows,
    doomed: set[str],
    *,
    values: bool = True,
) -> Counter[str]:
    """Remove the doomed ones of the rows, which hold these and all that came from them."""
    if not doomed:
        return Counter()
    checkpoints, writes = unit.tables.checkpoints, unit.tables.checkpoint_writes
    led_past = [
        {"its_pk": row.pk, "new_parent": parent} for row, parent in _new_parents(rows, doomed)
    ]
    if led_past:
        change = update(checkpoints).where(checkpoints.c.pk == bindparam("its_pk"))
        unit.connection.execute(change.values(parent_id=bindparam("new_parent")), led_past)
    counts: Counter[str] = Counter()
    going = [row for row in _children_first(rows) if row.id in doomed]
    counts["checkpoint_entries"], lines = drop_entries(unit, [row.pk for row in going])
    for chunk in chunks(going):
        theirs = delete(writes).where(
            writes.c.thread_id == thread_id,
            writes.c.namespace == namespace,
            writes.c.checkpoint_id.in_([row.id for row in chunk]),
        )
        counts["checkpoint_writes"] += unit.connection.execute(theirs).rowcount
        gone = delete(checkpoints).where(checkpoints.c.pk.in_([row.pk for row in chunk]))
        counts["checkpoints"] += unit.connection.execute(gone).rowcount
    if values:
        counts["checkpoint_values"] = drop_unneeded(unit, thread_id, lines)
    return counts


def _new_parents(rows: Rows, doomed: set[str]) -> Iterable[tuple[Row[Any], str | None]]:
    """Give the rows that stay and whose parent goes, each with its nearest ancestor that stays."""
    parents = {row.id: row.parent_id for row in rows}
    for row in rows:
        if row.id in doomed or row.parent_id not in doomed:
            continue
        passed = [row.parent_id]
        ancestor = parents[row.parent_id]
        while ancestor in doomed:
            passed.append(ancestor)
            ancestor = parents[ancestor]
        parents.update(dict.fromkeys(passed, ancestor))  # the next one need not climb again
        yield row, ancestor


def _children_first(rows: Rows) -> list[Row[Any]]:
    """Order checkpoints so that none comes before those that came from it."""
    here = {row.id for row in rows}
    children: dict[str | None, list[Row[Any]]] = {}
    for row in rows:
        children.setdefault(row.parent_id if row.parent_id in here else None, []).append(row)
    ordered = list(children.get(None, ()))
    for row in ordered:  # grows while it is walked along
        ordered += children.get(row.id, ())
    return ordered[::-1]


def _receipt(counts: Counter[str]) -> DeletionReceipt:
    return DeletionReceipt({table: gone for table, gone in sorted(counts.items()) if gone})
