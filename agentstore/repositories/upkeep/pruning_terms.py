"""What the rules of a retention policy have in common, and which sessions match one.

A rule finds rows without a lock, page by page, and then either counts them or deletes them, so a
dry run and a prune start from the same rows. A row goes with the first rule that it matches: what
belongs to a session that would go is counted with the session, and no later rule counts it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Row, Select, Table, and_, false, literal, select, tuple_

from agentstore.execution.unit import Unit
from agentstore.models.deleting import being_deleted
from agentstore.models.tables import Tables
from agentstore.repositories.base.operations import window
from agentstore.repositories.base.pacing import Pace
from agentstore.repositories.upkeep.expiry import is_closed
from agentstore.retention import RetentionPolicy
from agentstore.values.instants import shifted

PAGE = 1_000
"""Rows that one look goes through."""

Items = Sequence[Any]
"""What a rule found: mostly rows."""

Place = tuple[Any, ...] | None
"""The key of the last row of a page, to go on behind; empty at the beginning, None at the end."""

Found = tuple[Items, Place]


@dataclass(frozen=True, slots=True)
class PruningTerms:
    """A policy, applied at a moment: what becomes old later is left to the next call."""

    policy: RetentionPolicy
    now: datetime

    def seen_at(self, now: datetime) -> PruningTerms:
        """Give the terms for a later look: after a clock is set back, fewer rows are old."""
        return replace(self, now=min(self.now, now))

    def before(self, age: timedelta | None) -> datetime:
        """Give the moment before which everything is older than this age."""
        assert age is not None
        return shifted(self.now, -age)


def begin(unit: Unit, policy: RetentionPolicy) -> PruningTerms:
    """Read the clock."""
    return PruningTerms(policy, unit.now())


@dataclass(frozen=True, slots=True)
class Done:
    """What one transaction deleted, or counted.

    Attributes:
        things: How many of what the rule is about.
        rows: How many rows, by table.
        left: The items that are still to be looked at.
    """

    things: int
    rows: Mapping[str, int]
    left: Items = ()


class Rule(Protocol):
    """One rule of a policy."""

    name: str
    """As reports say it; two rules may share a name."""

    def find(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        """Find the next items to delete, without a lock."""

    def find_to_count(self, unit: Unit, terms: PruningTerms, place: Place) -> Found:
        """Find the next items to count, where these are not those to delete."""
        return self.find(unit, terms, place)

    def count(self, unit: Unit, terms: PruningTerms, items: Items) -> Done:
        """Count what would go of some of the items, leaving out what an earlier rule deletes."""

    def delete(self, unit: Unit, pace: Pace, terms: PruningTerms, items: Items) -> Done:
        """Delete the first of the items that still match, as far as one transaction goes.

        Items that another transaction has locked are skipped.
        """


def lock_free(
    unit: Unit, column: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> Sequence[Any]:
    """Lock the rows that no other transaction has locked; give one column of them."""
    query = select(column).where(*conditions).order_by(column.table.c.pk)
    return unit.connection.execute(query.with_for_update(skip_locked=True)).scalars().all()


# --- Pages -------------------------------------------------------------------------------------


def next_page(
    unit: Unit,
    query: Select[Any],
    key: Sequence[ColumnElement[Any]],
    place: Place,
    *,
    descending: bool = False,
) -> tuple[Sequence[Row[Any]], Place]:
    """Read the next ``PAGE`` rows of a query in the order of a key that no two rows share."""
    if place:
        # With its type: SQLAlchemy's own for a datetime writes another text, which is never larger.
        here = [literal(value, column.type) for value, column in zip(place, key, strict=True)]
        row, last = (tuple_(*key), tuple_(*here)) if len(key) > 1 else (key[0], here[0])
        query = query.where(row < last if descending else row > last)
    order = [column.desc() if descending else column for column in key]
    query = query.add_columns(*key).order_by(*order).limit(PAGE)
    rows = unit.connection.execute(query).all()
    return rows, tuple(rows[-1][-len(key) :]) if len(rows) == PAGE else None


def pages(
    unit: Unit,
    query: Select[Any],
    key: Sequence[ColumnElement[Any]],
    *,
    descending: bool = False,
) -> Iterator[Sequence[Row[Any]]]:
    """Read all rows of a query, page by page; see ``next_page``."""
    place: Place = ()
    while place is not None:
        rows, place = next_page(unit, query, key, place, descending=descending)
        yield rows


def oldest(
    unit: Unit, query: Select[Any], key: Sequence[ColumnElement[Any]], place: Place, until: datetime
) -> Found:
    """Read the next page of what is older than a moment; the key begins with the time."""
    query = query.where(*window(key[0], place[0] if place else None, until))
    return next_page(unit, query, key, place)


def walked(
    unit: Unit,
    table: Table,
    columns: Sequence[ColumnElement[Any]],
    place: Place,
    along: Sequence[ColumnElement[bool]],
    *conditions: ColumnElement[bool],
) -> Found:
    """Look through the next ``PAGE`` rows of a table, in the order of their row numbers.

    Args:
        unit: One that sees one state.
        table: The table.
        columns: What is wanted.
        place: The row number to go on from.
        along: Conditions that an index answers together with the row number.
        conditions: What else the wanted rows meet.

    Returns:
        The wanted rows among them, and where to go on.
    """
    pk = table.c.pk
    here = [pk > (place[0] if place else 0), *along]
    edge_query = select(pk).where(*here).order_by(pk).limit(1).offset(PAGE - 1)
    edge = unit.connection.execute(edge_query).scalar()
    if edge is not None:
        here.append(pk <= edge)
    query = select(*columns).where(*here, *conditions).order_by(pk)
    return unit.connection.execute(query).all(), None if edge is None else (edge,)


# --- Sessions that match -------------------------------------------------------------------------


def is_idle(tables: Tables, terms: PruningTerms) -> ColumnElement[bool]:
    """Give the condition under which a session has been idle for too long."""
    policy, sessions = terms.policy, tables.sessions.c
    conditions = [sessions.last_active_at < terms.before(policy.sessions_idle)]
    if policy.session_statuses:
        conditions.append(sessions.status.in_(policy.session_statuses))
    if policy.keep_marked:
        marks = tables.message_marks.c
        kept = select(literal(1)).where(
            marks.session_id == sessions.pk, marks.mark.in_(policy.keep_marked)
        )
        conditions.append(~kept.exists())
    return and_(*conditions)


def expires(terms: PruningTerms, session: Row[Any]) -> bool:
    """Say whether a session's own time to live is over, or it is being deleted already."""
    if is_closed(session):
        return True
    if session.ttl_seconds is None or not terms.policy.expired_sessions:
        return False
    return bool(
        shifted(session.last_active_at, timedelta(seconds=session.ttl_seconds)) <= terms.now
    )


def staying(unit: Unit, terms: PruningTerms, items: Items) -> Items:
    """Give those of up to ``PAGE`` rows whose session stays, or that have none."""
    sessions = unit.tables.sessions.c
    ids = sorted({item.session_id for item in items if item.session_id is not None})
    idle = false() if terms.policy.sessions_idle is None else is_idle(unit.tables, terms)
    query = select(
        sessions.id,
        sessions.active_branch,
        sessions.ttl_seconds,
        sessions.last_active_at,
        idle.label("idle"),
        sessions.user_id.in_(being_deleted(unit.tables)).label("of_deleted_user"),
    ).where(sessions.id.in_(ids))
    going = {
        row.id
        for row in unit.connection.execute(query)
        if row.idle or row.of_deleted_user or expires(terms, row)
    }
    return [item for item in items if item.session_id not in going]
