"""The rule about checkpoints that are old, or more than a thread keeps.

They are deleted in the order of their row numbers, which threads share, thread by thread under a
lock on it; there each is looked at again. What stays is led past what goes, so that it is whole
after every transaction. They are counted thread by thread, because how many values go depends on
all checkpoints of a thread.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal, select, tuple_

from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.checkpoints.removal import as_many_as, remove_some, weight
from agentstore.repositories.upkeep.pruning_terms import (
    Done,
    Found,
    Items,
    Place,
    PruningTerms,
    Rule,
    lock_free,
    pages,
    staying,
    walked,
)

MOST = 200
"""Checkpoints that one transaction removes at most."""


class _CheckpointRule(Rule):
    """Checkpoints that the policy does not keep."""

    name = "checkpoints"

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        checkpoints = unit.tables.checkpoints
        c = checkpoints.c
        columns = [c.pk, c.thread_id, c.namespace, c.tags, weight(unit.tables)]
        rows, place = walked(unit, checkpoints, columns, place, [], _matching(unit, terms))
        return sorted(_untagged(terms, rows), key=_order), place

    def find_to_count(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        """Find the threads that have something to lose and do not go with their session."""
        threads, checkpoints = unit.tables.checkpoint_threads, unit.tables.checkpoints.c
        old = select(checkpoints.pk).where(
            checkpoints.thread_id == threads.c.id, _matching(unit, terms)
        )
        columns = [threads.c.id, threads.c.session_id]
        stays = owner_stays(unit.tables, threads.c.user_id)
        rows, place = walked(unit, threads, columns, place, [], old.exists(), stays)
        return staying(unit, terms, rows), place

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        rows = _count_in_thread(unit, terms, items[0].id)
        return Done(rows["checkpoints"], rows, items[1:])

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        tables = unit.tables
        threads, c = tables.checkpoint_threads.c, tables.checkpoints.c
        counts: Counter[str] = Counter()
        done = 0
        few = as_many_as(items[:MOST], pace.rows)
        for (thread_id, namespace), group in groupby(few, key=lambda row: _order(row)[:2]):
            if done and pace.is_spent:
                break
            pks = [row.pk for row in group]
            done += len(pks)
            if not lock_free(unit, threads.pk, threads.id == thread_id):
                continue
            query = select(c.pk, c.id, c.parent_id, c.tags)
            query = query.where(c.pk.in_(pks), _matching(unit, terms))
            going = _untagged(terms, unit.connection.execute(query).all())
            counts.update(remove_some(unit, thread_id, namespace, going))
        return Done(counts["checkpoints"], counts, items[done:])


def _order(row: Any) -> tuple[str, str, int]:
    return row.thread_id, row.namespace, row.pk


def _matching(unit: Unit, terms: PruningTerms) -> ColumnElement[bool]:
    """Give the condition under which a checkpoint is too old, and not among the latest; its tags
    are to be asked for besides, see ``_untagged``.
    """
    policy, checkpoints = terms.policy, unit.tables.checkpoints
    c, newer = checkpoints.c, checkpoints.alias("newer")
    enough = (
        select(literal(1))
        .where(
            newer.c.thread_id == c.thread_id,
            newer.c.namespace == c.namespace,
            tuple_(newer.c.step, newer.c.pk) > tuple_(c.step, c.pk),
        )
        .correlate(checkpoints)
        .offset(max(policy.checkpoints_keep_last or 0, 1) - 1)
        .limit(1)
    )
    conditions: list[ColumnElement[bool]] = [enough.exists()]
    if policy.checkpoints_max_age is not None:
        conditions.insert(0, c.created_at < terms.before(policy.checkpoints_max_age))
    return and_(*conditions)


def _untagged(terms: PruningTerms, rows: Items) -> list[Any]:
    """Leave out the checkpoints that one of their tags keeps."""
    kept = set(terms.policy.checkpoints_keep_tags)
    return [row for row in rows if kept.isdisjoint(row.tags)]


def _count_in_thread(unit: Unit, terms: PruningTerms, thread_id: str) -> Counter[str]:
    """Count what a thread would lose, page by page; memory holds the thread's lines."""
    tables = unit.tables
    c, entries, writes = (
        tables.checkpoints.c,
        tables.checkpoint_entries.c,
        tables.checkpoint_writes.c,
    )
    matching = _matching(unit, terms).label("matching")
    query = select(c.id, c.tags, matching).where(c.thread_id == thread_id)
    counts: Counter[str] = Counter()
    needed: dict[int, int] = {}
    touched: set[int] = set()
    for rows in pages(unit, query, [c.namespace, c.step, c.pk]):
        going = _untagged(terms, [row for row in rows if row.matching])
        gone = {row.pk for row in going}
        counts["checkpoints"] += len(going)
        held = select(entries.checkpoint_pk, entries.line, entries.length)
        held = held.where(entries.checkpoint_pk.in_([row.pk for row in rows]))
        for pk, line, length in unit.connection.execute(held):
            if pk in gone:
                counts["checkpoint_entries"] += 1
                touched.add(line)
            else:
                needed[line] = max(needed.get(line, -1), length)
        for namespace, group in groupby(going, key=lambda row: row.namespace):
            theirs = select(func.count()).where(
                writes.thread_id == thread_id,
                writes.namespace == namespace,
                writes.checkpoint_id.in_([row.id for row in group]),
            )
            counts["checkpoint_writes"] += unit.connection.execute(theirs).scalar_one()
    counts["checkpoint_values"] = _count_unneeded(unit, thread_id, needed, touched)
    return counts


def _count_unneeded(unit: Unit, thread_id: str, needed: dict[int, int], touched: set[int]) -> int:
    """Count the pieces of touched lines, and of those below, that nothing is left to need.

    Lines are numbered as they are begun, so those that a line is built on have smaller numbers.

    Args:
        unit: One that sees one state.
        thread_id: The thread.
        needed: For each line, the length up to which checkpoints that stay hold it; is changed.
        touched: The lines that checkpoints hold which go; is changed.
    """
    values = unit.tables.checkpoint_values.c
    query = select(values.base_line, values.base_length).where(values.thread_id == thread_id)
    gone = 0
    for rows in pages(unit, query, [values.line, values.start], descending=True):
        for row in rows:
            goes = row.line in touched and row.start >= max(needed.get(row.line, 0), 1)
            if not row.start:  # the first piece goes with the line
                goes = row.line in touched and row.line not in needed
            gone += goes
            if row.base_line is None:
                continue
            if goes:
                touched.add(row.base_line)
            else:
                needed[row.base_line] = max(needed.get(row.base_line, -1), row.base_length)
    return gone


CHECKPOINTS = _CheckpointRule()
