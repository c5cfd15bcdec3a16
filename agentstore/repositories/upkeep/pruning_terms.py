"""What a retention policy means at one moment: which rows it dooms, as conditions.

Those who delete and those who only count ask here, so that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, and_, false, literal, select, tuple_

from agentstore.execution.unit import Unit
from agentstore.models.leaving import leaving
from agentstore.models.tables import Tables
from agentstore.repositories.messages.streams import idle_streams
from agentstore.repositories.upkeep.expiry import is_closed
from agentstore.retention import RetentionPolicy

Progress = Callable[[str, int], object]
"""Is told a rule's name, and how many rows of it are done."""

PAGE = 1_000
"""Rows that one look for old ones goes by."""

ENDED = {"completed": "completed_at", "cancelled": "cancelled_at", "dead": "dead_at"}
"""Which column says when a task ended."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A policy, applied at a moment: whatever becomes old after it is left to the next time.

    Attributes:
        takes_turns: Whether writers wait for each other, and are owed a pause.
    """

    policy: RetentionPolicy
    now: datetime
    takes_turns: bool

    def seen_at(self, now: datetime) -> Terms:
        """Give the terms for a later look: a clock that was set back makes rows young again."""
        return replace(self, now=min(self.now, now))

    def before(self, age: timedelta) -> datetime:
        """Give the moment that everything older than this age comes before."""
        return self.now - age


def begin(unit: Unit, policy: RetentionPolicy) -> Terms:
    """Read the clock."""
    return Terms(policy, unit.now(), unit.dialect.single_writer)


def doomed_idle(tables: Tables, terms: Terms) -> ColumnElement[bool]:
    """Give the condition under which a session has been idle for too long."""
    policy, sessions = terms.policy, tables.sessions.c
    assert policy.sessions_idle is not None
    conditions = [sessions.last_active_at < terms.before(policy.sessions_idle)]
    if policy.session_statuses:
        conditions.append(sessions.status.in_(policy.session_statuses))
    if policy.keep_marked:
        marks = tables.message_marks.c
        kept = select(literal(1)).where(
            marks.session_id == sessions.id, marks.mark.in_(policy.keep_marked)
        )
        conditions.append(~kept.exists())
    return and_(*conditions)


def doomed_task(tables: Tables, terms: Terms, status: str) -> ColumnElement[bool]:
    """Give the condition under which a task of this status ended long enough ago."""
    policy, tasks = terms.policy, tables.tasks.c
    assert policy.finished_tasks is not None
    ended = tasks[ENDED[status]]
    return and_(tasks.status == status, ended < terms.before(policy.finished_tasks))


def doomed_checkpoint(tables: Tables, terms: Terms, checkpoints: Any) -> ColumnElement[bool]:
    """Give the condition under which a checkpoint is too old, and not among the latest; its tags
    are to be asked for besides, see ``is_milestone``.
    """
    policy, c = terms.policy, checkpoints.c
    newer = tables.checkpoints.alias("newer")
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
    conditions = [enough.exists()]
    if policy.checkpoints_max_age is not None:
        conditions.insert(0, c.created_at < terms.before(policy.checkpoints_max_age))
    return and_(*conditions)


def is_milestone(policy: RetentionPolicy, tags: Sequence[Any]) -> bool:
    """Say whether one of a checkpoint's tags keeps it."""
    return not set(policy.checkpoints_keep_tags).isdisjoint(tags)


def walked(
    unit: Unit,
    table: Table,
    columns: Sequence[ColumnElement[Any]],
    after: int,
    along: Sequence[ColumnElement[bool]],
    *conditions: ColumnElement[bool],
) -> tuple[Sequence[Row[Any]], int | None]:
    """Look through the next ``PAGE`` rows of a table, in the order of their row numbers.

    Args:
        unit: One that sees one state.
        table: The table.
        columns: What is wanted; the first is the row number.
        after: The row number to go on from; 0 to begin with.
        along: Conditions that an index answers together with the row number.
        conditions: What else the wanted rows meet.

    Returns:
        The wanted rows among them, and the row number to go on from; None at the end.
    """
    pk = table.c.pk
    here = [pk > after, *along]
    edge_query = select(pk).where(*here).order_by(pk).limit(1).offset(PAGE - 1)
    edge = unit.connection.execute(edge_query).scalar()
    if edge is not None:
        here.append(pk <= edge)
    query = select(*columns).where(*here, *conditions).order_by(pk)
    return unit.connection.execute(query).all(), edge


def doomed_sessions(unit: Unit, terms: Terms, ids: Sequence[str]) -> set[str]:
    """Say which of up to ``PAGE`` sessions a policy dooms now."""
    policy, sessions = terms.policy, unit.tables.sessions.c
    idle: ColumnElement[bool] = false()
    if policy.sessions_idle is not None:
        idle = doomed_idle(unit.tables, terms)
    query = select(
        sessions.id,
        sessions.active_branch,
        sessions.ttl_seconds,
        sessions.last_active_at,
        idle.label("idle"),
        sessions.user_id.in_(leaving(unit.tables)).label("of_leaving"),
    ).where(sessions.id.in_(ids))
    return {
        row.id
        for row in unit.connection.execute(query)
        if row.idle
        or row.of_leaving
        or is_closed(row)
        or (policy.expired_sessions and has_expired(row, terms.now))
    }


def has_expired(session: Any, now: datetime) -> bool:
    """Say whether a session's own time to live is over."""
    if session.ttl_seconds is None:
        return False
    return bool(session.last_active_at + timedelta(seconds=session.ttl_seconds) <= now)


def idle_messages(unit: Unit, terms: Terms, after: int, most: int) -> Sequence[Row[Any]]:
    """Find messages of which nothing has come for too long: ``id``, ``session_id``, ``pk``, in the
    order of their row numbers.
    """
    assert terms.policy.streams is not None
    timeout = timedelta(seconds=unit.settings.stream_timeout)
    oldest = terms.before(max(terms.policy.streams, timeout))
    pk = unit.tables.messages.c.pk
    query = idle_streams(unit.tables, oldest).add_columns(pk).where(pk > after)
    return unit.connection.execute(query.order_by(pk).limit(most)).all()
