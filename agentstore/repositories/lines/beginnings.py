"""How a line begins, and how a turn does: what a history keeps though its limit cut it off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Integer,
    Select,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.lines.queries import SESSION_ID, for_each_segment, is_on, line_of
from agentstore.repositories.lines.rows import Columns
from agentstore.values.types import MAX_INTEGER

MOST_PROMPTS = 4
"""A line's prompts are looked for among so many messages at its beginning."""

FEW = literal_column(str(MOST_PROMPTS), Integer)
"""``MOST_PROMPTS`` as a limit that is written into a statement.

PostgreSQL takes a limit that is a parameter for a tenth of the rows. One plan for all calls then
looks expensive, so it plans at each call, which takes longer than the reading.
"""


def with_prompts(
    query: Select[Any],
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    *conditions: Callable[[Any], ColumnElement[bool]],
    active: bool,
    columns: Columns,
) -> Prepared:
    """Prepare a query of a line's messages together with the prompts that the line begins with.

    Args:
        query: Selects the columns.
        tables: The tables.
        dialect: The engine's.
        driver: What to compile for.
        conditions: Only prompts that meet these, and only messages that do so precede them.
        active: Whether it is the active branch's line, or that of a name.
        columns: What to read of each prompt; see ``prompts_among``.
    """
    line = line_of(tables, active=active, called="line_of_prompts")
    deepest = select(func.max(line.c.depth)).scalar_subquery()
    # Each segment has a message at least, so the first messages are in as many of the oldest.
    oldest = select(line).where(line.c.depth > deepest - MOST_PROMPTS).cte("oldest")
    source, found = for_each_segment(
        oldest,
        tables,
        dialect,
        *conditions,
        order=lambda messages: messages.seq,
        limit=FEW,
    )
    few = select(found.pk).select_from(source).order_by(found.seq).limit(FEW)
    prompts = prompts_among(tables, few, columns)
    return Prepared(select(query.subquery("newest")).union_all(prompts), driver, shape=query)


def prompts_among(tables: Tables, few: Select[Any], columns: Columns) -> Select[Any]:
    """Select the prompts among the few messages at a line's beginning, given by ``pk``: those of
    system and developer before the first user message.

    Their sequence numbers come below zero, so that they are told from what comes with them.
    """
    messages, first = tables.messages.c, tables.messages.alias("first_user")
    # Roles are written into the statement: SQLite prepares it again for each value that a partial
    # index could be about.
    user: ColumnElement[str] = literal_column("'user'")
    system: ColumnElement[str] = literal_column("'system'")
    developer: ColumnElement[str] = literal_column("'developer'")
    users = select(func.min(first.c.seq)).where(first.c.pk.in_(few), first.c.role == user)
    read = [(-each).label("seq") if each is messages.seq else each for each in columns(messages)]
    return select(*read).where(
        messages.pk.in_(few),
        or_(messages.role == system, messages.role == developer),
        messages.seq < func.coalesce(users.scalar_subquery(), MAX_INTEGER),
    )


def opening_of(
    unit: Unit, session_id: str, branch: str | None, seq: int, columns: Columns
) -> Sequence[tuple[Any, ...]]:
    """Read the user message that begins the turn of a message of a line; none in turn 0."""
    statement = _opening(unit.tables, dialect_of(unit.connection), branch is None, columns)
    return statement.fetch(unit.connection, {SESSION_ID: session_id, "name": branch, "seq": seq})


@lru_cache(maxsize=256)
def _opening(tables: Tables, driver: Dialect, active: bool, columns: Columns) -> Prepared:
    line, messages = line_of(tables, active=active), tables.messages
    one = messages.alias("one")
    turn = (
        select(one.c.turn)
        .where(
            one.c.session_id == bindparam(SESSION_ID),
            one.c.branch == line.c.branch,
            one.c.seq.between(line.c.first_seq, line.c.last_seq),
            one.c.seq == bindparam("seq", type_=BigInteger),
        )
        .select_from(line)
        .correlate(None)
        .scalar_subquery()
    )
    query = select(*columns(messages.c)).join_from(line, messages, is_on(line, tables))
    return Prepared(query.where(messages.c.role == "user", messages.c.turn == turn), driver)
