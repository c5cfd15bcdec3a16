"""The line of a branch: which messages it shows, and reading them.

Most branches are whole in themselves: they show their own messages and no others, and reading
them is one range of one index. The others are made of segments, each a range of one branch's
messages and all of them in the order of their sequence numbers, so that the line, too, is in that
order (see ``agentstore.models.sessions.BranchSegment``). Such a line is read from its newest
segment on, and no further than is asked for; how long its segments are does not matter.

What is read of the active branch is one statement if that is whole in itself, or was made of
segments when this store read it before; otherwise two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Select,
    bindparam,
    literal_column,
    select,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.prepared import Prepared, dialect_of
from agentstore.errors import NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import owner_stays
from agentstore.models.tables import Tables
from agentstore.repositories.lines.beginnings import FEW, prompts_among, with_prompts
from agentstore.repositories.lines.queries import (
    COUNT,
    SESSION_ID,
    is_on,
    line_of,
    select_newest,
)
from agentstore.repositories.lines.rows import Columns, line_columns
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER

Rows = Sequence[tuple[Any, ...]]
"""Of messages, with the columns that were asked for."""


def newest(
    unit: Unit,
    session_id: str,
    count: int,
    *,
    branch: str | None = None,
    through: int = MAX_INTEGER,
    whole: bool | None = None,
    columns: Columns = line_columns,
    prompts: bool = False,
) -> Rows:
    """Read the newest messages of a line, the newest first.

    Args:
        unit: The open unit.
        session_id: The session.
        count: How many at most.
        branch: The branch's name; None for the active one.
        through: Leave out what has a larger sequence number.
        whole: Whether the active branch is whole in itself, if the caller knows: it is one
            statement then, whichever it is.
        columns: What to read of each.
        prompts: Read the prompts with which the line begins too. They come in the same statement,
            with sequence numbers below zero, once more if they are among the newest; and then the
            rows are in no order, and ``through`` means nothing.

    Raises:
        NotFound: There is no such session, or no such branch in it.
    """
    statements = _statements(
        unit.tables, unit.dialect, dialect_of(unit.connection), branch is None, columns
    )
    parameters = {SESSION_ID: session_id, "name": branch, "count": count, "through": through}
    which = statements.and_prompts if prompts else (statements.newest_of_whole, statements.newest)
    return _read(unit, *which, parameters, whole)


def between(
    unit: Unit,
    session_id: str,
    first_seq: int = 0,
    last_seq: int = MAX_INTEGER,
    *,
    branch: str | None = None,
    whole: bool | None = None,
    columns: Columns = line_columns,
) -> Rows:
    """Read all messages of a line between two sequence numbers, both included, in their order.

    The other arguments are those of ``newest``.

    Raises:
        NotFound: There is no such session, or no such branch in it.
    """
    statements = _statements(
        unit.tables, unit.dialect, dialect_of(unit.connection), branch is None, columns
    )
    parameters = {SESSION_ID: session_id, "name": branch, "first": first_seq, "last": last_seq}
    return _read(unit, statements.between_of_whole, statements.between, parameters, whole)


def _read(
    unit: Unit,
    of_whole: Prepared | None,
    of_segments: Prepared,
    parameters: dict[str, Any],
    whole: bool | None,
) -> Rows:
    session_id = validation.text(SESSION_ID, parameters[SESSION_ID])
    if of_whole is None:
        whole = False
    # What reads segments reads a whole branch too, only with more ado.
    expected = session_id not in unit.segmented if whole is None else whole
    if of_whole is not None and expected:
        rows = of_whole.fetch(unit.connection, parameters)
        if rows or whole:
            return rows
    rows = of_segments.fetch(unit.connection, parameters)
    if rows and of_whole is not None:
        unit.segmented.add(session_id)
    if not rows:
        require(unit, session_id, parameters["name"])
    return rows


def require(unit: Unit, session_id: str, branch: str | None = None) -> None:
    """Require that there is such a session, and such a branch in it.

    Raises:
        NotFound: There is none.
    """
    sessions, branches = unit.tables.sessions.c, unit.tables.branches.c
    stays = owner_stays(unit.tables, sessions.user_id)
    query = select(sessions.pk).where(sessions.id == session_id, stays)
    if unit.connection.execute(query).first() is None:
        raise NotFound("session", session_id)
    if branch is None:
        return
    query = select(branches.number).where(
        branches.session_id == session_id, branches.name == branch, branches.gone.is_(False)
    )
    if unit.connection.execute(query).first() is None:
        raise no_branch(branch)


def no_branch(name: str) -> NotFound:
    """Make the error that says that a branch is not there."""
    return NotFound("branch", name, "branches.list() shows which there are.")


@dataclass(frozen=True, slots=True)
class _LineStatements:
    newest_of_whole: Prepared | None
    newest: Prepared
    and_prompts: tuple[Prepared | None, Prepared]
    between_of_whole: Prepared | None
    between: Prepared


@lru_cache(maxsize=1024)
def _statements(
    tables: Tables, dialect: EngineDialect, driver: Dialect, active: bool, columns: Columns
) -> _LineStatements:
    messages = tables.messages.c
    first, last = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
    line = line_of(tables, active=active)
    between = (
        select(*columns(messages))
        .join_from(line, tables.messages, is_on(line, tables))
        .where(messages.seq.between(first, last))
        .order_by(messages.seq)
    )
    query = select_newest(tables, dialect, active=active, columns=columns)
    newest = Prepared(query, driver)
    both = with_prompts(query, tables, dialect, driver, active=active, columns=columns)
    if not active:
        return _LineStatements(None, newest, (None, both), None, Prepared(between, driver))
    whole = _of_whole(tables, columns)
    newest_of_whole = (
        whole.where(messages.seq <= bindparam("through")).order_by(messages.seq.desc()).limit(COUNT)
    )
    between_of_whole = whole.where(messages.seq.between(first, last)).order_by(messages.seq)
    latest = dialect.last_of(whole, messages.seq, COUNT)
    of_whole = latest.union_all(_prompts_of_whole(tables, columns))
    return _LineStatements(
        Prepared(newest_of_whole, driver),
        newest,
        (Prepared(of_whole, driver, shape=newest_of_whole), both),
        Prepared(between_of_whole, driver),
        Prepared(between, driver),
    )


def _of_whole(tables: Tables, columns: Columns) -> Select[Any]:
    """Select from the active branch if it is whole in itself, else nothing."""
    return select(*columns(tables.messages.c)).where(*_on_whole(tables, tables.messages.c))


def _on_whole(
    tables: Tables, messages: Any, *conditions: ColumnElement[bool]
) -> list[ColumnElement[bool]]:
    # The branch is a subquery and not a join, so that PostgreSQL sees one branch and reads the
    # index backwards instead of sorting the session.
    sessions = tables.sessions.c
    active = (
        select(sessions.active_branch)
        .where(
            sessions.id == bindparam(SESSION_ID),
            sessions.tip.is_(None),
            owner_stays(tables, sessions.user_id),
            *conditions,
        )
        .scalar_subquery()
    )
    return [messages.session_id == bindparam(SESSION_ID), messages.branch == active]


def _prompts_of_whole(tables: Tables, columns: Columns) -> Select[Any]:
    """Select the prompts with which the active branch begins, if it is whole in itself.

    None where fewer messages than the newest were ever saved: those are all of them then.
    """
    first = tables.messages.alias("first")
    few = (
        select(first.c.pk)
        .where(*_on_whole(tables, first.c, tables.sessions.c.last_seq >= COUNT))
        .order_by(first.c.seq)
        .limit(literal_column(str(FEW)))
    )
    return prompts_among(tables, few, columns)
