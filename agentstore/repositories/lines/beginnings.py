"""How a line begins, and how a turn does: what a history keeps though its limit cut it off."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Dialect, Select, bindparam, select

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.lines.lines import MOST_PROMPTS, Rows, select_prompts_of
from agentstore.repositories.lines.queries import SESSION_ID, for_each_segment, is_on, line_of
from agentstore.repositories.lines.rows import Columns


def prompts_of_line(unit: Unit, session_id: str, branch: str | None, columns: Columns) -> Rows:
    """Read the prompts with which a line begins: one query. Their numbers are below zero."""
    statement = _prompts(
        unit.tables, unit.dialect, dialect_of(unit.connection), branch is None, columns
    )
    return statement.fetch(unit.connection, {SESSION_ID: session_id, "name": branch})


def opening_of(unit: Unit, session_id: str, branch: str | None, seq: int, columns: Columns) -> Rows:
    """Read the user message that begins the turn of a message of a line; none in turn 0."""
    statement = _opening(unit.tables, dialect_of(unit.connection), branch is None, columns)
    return statement.fetch(unit.connection, {SESSION_ID: session_id, "name": branch, "seq": seq})


def select_prompts(
    tables: Tables,
    dialect: EngineDialect,
    *conditions: Callable[[Any], ColumnElement[bool]],
    active: bool,
    columns: Columns,
) -> Select[Any]:
    """Select the prompts with which a line begins, of the messages that meet conditions."""
    source, found = for_each_segment(
        line_of(tables, active=active, called="line_of_prompts"),
        tables,
        dialect,
        *conditions,
        order=lambda messages: messages.seq,
        limit=MOST_PROMPTS,
    )
    few = select(found.pk).select_from(source).order_by(found.seq).limit(MOST_PROMPTS)
    return select_prompts_of(tables, few, columns)


@lru_cache(maxsize=64)
def _prompts(
    tables: Tables, dialect: EngineDialect, driver: Dialect, active: bool, columns: Columns
) -> Prepared:
    query = select_prompts(tables, dialect, active=active, columns=columns)
    return Prepared(query, driver)


@lru_cache(maxsize=64)
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
        .scalar_subquery()
    )
    query = select(*columns(messages.c)).join_from(line, messages, is_on(line, tables))
    return Prepared(query.where(messages.c.role == "user", messages.c.turn == turn), driver)
