"""Histories by their marks: which messages have one, and which have none of some others.

A mark is looked up in its own index, which is in the order of the messages, so that the newest
with a mark are found without reading those that do not have it. What must not have a mark is
looked up message by message, from the newest on: what that costs depends on how many have to be
passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Select,
    and_,
    bindparam,
    exists,
    func,
    select,
    union,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.models.tables import Tables
from agentstore.repositories.lines.beginnings import with_prompts
from agentstore.repositories.lines.lines import Rows, require
from agentstore.repositories.lines.queries import COUNT, is_on, line_of, select_newest, shown_by
from agentstore.repositories.lines.rows import Columns
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER


@dataclass(frozen=True, slots=True)
class MarkFilter:
    """Which messages are meant: those that have any of ``wanted``, if there are any, and none of
    ``unwanted``.
    """

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]

    @classmethod
    def of(cls, mark: object, exclude_mark: object) -> MarkFilter | None:
        """Make one of a caller's arguments; None if it would let everything pass.

        Raises:
            InvalidInput: They are no marks.
        """
        made = cls(validation.marks("mark", mark), validation.marks("exclude_mark", exclude_mark))
        return made if made.wanted or made.unwanted else None

    @property
    def parameters(self) -> dict[str, str]:
        """What the statements of this module want of it."""
        return {
            **{f"wanted_{n}": mark for n, mark in enumerate(self.wanted)},
            **{f"unwanted_{n}": mark for n, mark in enumerate(self.unwanted)},
        }


def newest_marked(
    unit: Unit,
    session_id: str,
    count: int,
    marks: MarkFilter,
    branch: str | None,
    columns: Columns,
    *,
    prompts: bool,
) -> Rows:
    """Read the newest messages of a line that pass, the newest first; see ``lines.newest``.

    Where messages must have a mark, no prompts come.
    """
    limits = {"count": count, "through": MAX_INTEGER}
    which = "newest_and_prompts" if prompts and not marks.wanted else "newest"
    return _read(unit, session_id, marks, branch, columns, which, **limits)


def marked_between(
    unit: Unit,
    session_id: str,
    first_seq: int,
    last_seq: int,
    marks: MarkFilter,
    branch: str | None,
    columns: Columns,
) -> Rows:
    """Read all messages of a line that pass, in their order; see ``lines.between``."""
    limits = {"first": first_seq, "last": last_seq}
    return _read(unit, session_id, marks, branch, columns, "between", **limits)


def count_marked(unit: Unit, session_id: str, marks: MarkFilter, branch: str | None) -> int:
    """Count the messages of a line that pass.

    Raises:
        NotFound: There is no such session, or no such branch in it.
    """
    query = _select_passing(unit.tables, marks, func.count(), active=branch is None)
    parameters = {"session_id": session_id, "name": branch, **marks.parameters}
    count = int(unit.connection.execute(query, parameters).scalar_one())
    if not count:
        require(unit, session_id, branch)
    return count


def _read(
    unit: Unit,
    session_id: str,
    marks: MarkFilter,
    branch: str | None,
    columns: Columns,
    which: str,
    **limits: int,
) -> Rows:
    # What is prepared depends on how many marks there are, not on which.
    shape = MarkFilter(("",) * len(marks.wanted), ("",) * len(marks.unwanted))
    statements = _statements(
        unit.tables, unit.dialect, dialect_of(unit.connection), shape, branch is None, columns
    )
    statement: Prepared = getattr(statements, which)
    parameters = {"session_id": session_id, "name": branch, **limits, **marks.parameters}
    rows = statement.fetch(unit.connection, parameters)
    if not rows:
        require(unit, session_id, branch)
    return rows


@dataclass(frozen=True, slots=True)
class _MarkStatements:
    newest: Prepared
    newest_and_prompts: Prepared
    between: Prepared


@lru_cache(maxsize=1024)
def _statements(
    tables: Tables,
    dialect: EngineDialect,
    driver: Dialect,
    shape: MarkFilter,
    active: bool,
    columns: Columns,
) -> _MarkStatements:
    line, messages = line_of(tables, active=active), tables.messages.c
    first, last = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
    between = (
        _select_passing(tables, shape, *columns(messages), active=active, seqs=(first, last))
        .where(messages.seq.between(first, last))
        .order_by(messages.seq)
    )
    if shape.wanted:
        newest = both = Prepared(_newest_wanted(tables, line, shape, columns), driver)
    else:

        def passing(found: Any) -> ColumnElement[bool]:
            return and_(*_lacks(tables, found, shape))

        query = select_newest(tables, dialect, passing, active=active, columns=columns)
        newest = Prepared(query, driver)
        both = with_prompts(query, tables, dialect, driver, passing, active=active, columns=columns)
    return _MarkStatements(newest, both, Prepared(between, driver))


def _newest_wanted(tables: Tables, line: CTE, shape: MarkFilter, columns: Columns) -> Select[Any]:
    """Select the newest that have a mark: of each mark the newest, and of these together."""
    of_each = []
    for number in range(len(shape.wanted)):
        marks = tables.message_marks.alias(f"marks_{number}")
        found = tables.messages.alias(f"found_{number}")
        newest = (
            select(found.c.pk)
            .join_from(marks, found, found.c.id == marks.c.message_id)
            .where(
                marks.c.session_id == bindparam("session_id"),
                marks.c.mark == bindparam(f"wanted_{number}"),
                shown_by(line, found.c, in_order=True),
                *_lacks(tables, found.c, shape),
            )
            .order_by(marks.c.seq.desc())
            .limit(COUNT)
        )
        of_each.append(select(newest.subquery().c.pk))
    together = (of_each[0] if len(of_each) == 1 else union(*of_each)).subquery("together")
    messages = tables.messages
    return (
        select(*columns(messages.c))
        .join_from(together, messages, messages.c.pk == together.c.pk)
        .order_by(messages.c.seq.desc())
        .limit(COUNT)
    )


def _select_passing(
    tables: Tables,
    shape: MarkFilter,
    *columns: ColumnElement[Any],
    active: bool,
    seqs: tuple[ColumnElement[int], ColumnElement[int]] | None = None,
) -> Select[Any]:
    """Select all messages of a line that pass: beginning with their marks, if they must have any,
    so that the others are not read, and with those of these sequence numbers, if some are given.
    """
    line, messages = line_of(tables, active=active), tables.messages
    lacks = _lacks(tables, messages.c, shape)
    if not shape.wanted:
        return select(*columns).join_from(line, messages, is_on(line, tables)).where(*lacks)
    marks = tables.message_marks.c
    has = select(marks.message_id).where(
        marks.session_id == bindparam("session_id"),
        marks.mark.in_(_given("wanted", len(shape.wanted), marks.mark)),
    )
    if seqs is not None:
        has = has.where(marks.seq.between(*seqs))
    marked = has.distinct().subquery("marked")
    return (
        select(*columns)
        .join_from(marked, messages, messages.c.id == marked.c.message_id)
        .join(line, is_on(line, tables))
        .where(*lacks)
    )


def _lacks(tables: Tables, messages: Any, shape: MarkFilter) -> list[ColumnElement[bool]]:
    if not shape.unwanted:
        return []
    marks = tables.message_marks.alias("unwanted")
    has = exists().where(
        marks.c.message_id == messages.id,
        marks.c.mark.in_(_given("unwanted", len(shape.unwanted), marks.c.mark)),
    )
    return [~has]


def _given(name: str, count: int, mark: ColumnElement[str]) -> list[BindParameter[str]]:
    # In a list they do not learn their type from the column.
    return [bindparam(f"{name}_{number}", type_=mark.type) for number in range(count)]
