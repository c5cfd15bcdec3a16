"""Marks on messages: what an agent's memory sorts them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    Executable,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    select,
    union,
)

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.execution.unit import Unit
from agentstore.repositories import lines, scopes
from agentstore.repositories.line_changes import lock_session
from agentstore.repositories.operations import (
    MOST_IDS,
    Repository,
    among,
    chunks,
    ids_of,
    reads,
    several,
    writes,
)
from agentstore.schema import Tables, session_not_being_deleted
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER


class Marks(Repository):
    """The marks of messages.

    A mark is a str of 1 to 255 characters. It is on the message, on whatever branch that is seen.
    """

    __slots__ = ()

    @scopes.names(ids=scopes.messages)
    @reads
    def of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Give the marks of messages, each message's in alphabetical order.

        Args:
            ids: The messages.

        Returns:
            By their ids; a message that has no mark, or does not exist, is left out.
        """
        found: dict[str, list[str]] = {}
        for chunk in chunks(ids_of("ids", ids)):
            asked = several("id", chunk)
            for message_id, mark in self.unit.rows(_of, len(asked), **asked):
                found.setdefault(message_id, []).append(mark)
        return {message_id: tuple(sorted(each)) for message_id, each in found.items()}

    @scopes.SESSION
    @reads
    def count(self, session_id: str) -> dict[str, int]:
        """Count the messages of a session that have each mark, on all branches."""
        counted = self.unit.rows(_count, session_id=session_id)
        return dict(sorted((mark, int(count)) for mark, count in counted))

    @scopes.names(session_id=scopes.session, ids=scopes.few_messages)
    @writes
    def update(
        self,
        session_id: str,
        new: str | Enum | None,
        old: str | Enum | None = None,
        ids: Sequence[str] | None = None,
        *,
        external_ids: Sequence[str] | None = None,
    ) -> int:
        """Change the marks of messages of a session.

        ===========  ===========  ============================================
        ``new``      ``old``      what happens
        ===========  ===========  ============================================
        a mark       None         every message gets ``new``
        a mark       a mark       where ``old`` is, ``new`` takes its place
        None         a mark       ``old`` is taken away
        None         None         all marks are taken away
        ===========  ===========  ============================================

        Args:
            session_id: The session.
            new: The mark to be there afterwards; an ``Enum`` of str counts as its value.
            old: The mark to be gone afterwards.
            ids: Only of these messages, up to 5,000; ids that do not exist, or are of
                another session, are ignored. None means all messages of the session.
            external_ids: The same, by the application's own ids. With both, the messages of
                either.

        Returns:
            How many messages were changed, each counted once. One that has ``new`` already, and
            no ``old``, is not changed.

        Raises:
            NotFound: There is no such session.
            InvalidInput: A mark is no str, or is empty or too long; or there are too many ids.
        """
        wanted = None if new is None else validation.mark("new", new)
        unwanted = None if old is None else validation.mark("old", old)
        only = None if ids is None else ids_of("ids", ids, most=MOST_IDS)
        own = None
        if external_ids is not None:
            own = ids_of("external_ids", external_ids, most=MOST_IDS)
        lock_session(self.unit, session_id)
        if wanted is not None and wanted == unwanted:
            return 0
        if own is not None:
            found = dict.fromkeys(only or ())
            for chunk in chunks(own):
                asked: dict[str, Any] = several("external_id", chunk)
                rows = self.unit.rows(_ids, len(asked), session_id=session_id, **asked)
                found |= dict.fromkeys(row.id for row in rows)
            only = [*found]
        changed = 0
        for narrowed in [None] if only is None else chunks(only):
            asked = {"session_id": session_id, **(several("id", narrowed) if narrowed else {})}
            shape = unwanted is not None, len(asked) - 1
            if wanted is not None:
                marks = {"mark": wanted, "beside": unwanted}
                put = self.unit.count(_put, self.unit.dialect, *shape, **asked, **marks)
                if unwanted is None:
                    changed += put
                    continue
            if unwanted is None:
                changed += self.unit.first(_marked, *shape, **asked)[0]
            gone = self.unit.count(_take_away, *shape, mark=unwanted, **asked)
            changed += 0 if unwanted is None else gone
        return changed


def _of(tables: Tables, ids: int) -> Select[Any]:
    marks = tables.message_marks.c
    stays = session_not_being_deleted(tables, marks.session_id)
    return select(marks.message_id, marks.mark).where(among(marks.message_id, "id", ids), stays)


def _count(tables: Tables) -> Select[Any]:
    marks = tables.message_marks.c
    stays = session_not_being_deleted(tables, marks.session_id)
    these = marks.session_id == bindparam("session_id"), stays
    return select(marks.mark, func.count()).where(*these).group_by(marks.mark)


def _ids(tables: Tables, external_ids: int) -> Select[Any]:
    """Select the ids of messages with external ids."""
    messages = tables.messages.c
    there = messages.session_id == bindparam("session_id"), messages.external_id.is_not(None)
    these = among(messages.external_id, "external_id", external_ids)
    return select(messages.id).where(*there, these)


def _put(tables: Tables, dialect: EngineDialect, beside: bool, ids: int) -> Executable:
    """Put a mark on messages, so many or all; or ``beside`` another mark."""
    marks = tables.message_marks
    source = marks.c if beside else tables.messages.c
    id = source.message_id if beside else source.id
    mark = bindparam("mark", type_=marks.c.mark.type)
    new = select(id, mark, source.session_id, source.seq)
    new = new.where(*_these(source.session_id, id, ids))
    if beside:
        new = new.where(marks.c.mark == bindparam("beside"))
    columns = ["message_id", "mark", "session_id", "seq"]
    return dialect.insert_missing(marks).from_select(columns, new)


def _marked(tables: Tables, _: bool, ids: int) -> Select[Any]:
    """Count the messages that have a mark."""
    marks = tables.message_marks.c
    these = _these(marks.session_id, marks.message_id, ids)
    return select(func.count(marks.message_id.distinct())).where(*these)


def _take_away(tables: Tables, one: bool, ids: int) -> Executable:
    """Delete a mark, or all marks, of messages, so many or all."""
    marks = tables.message_marks
    gone = delete(marks).where(*_these(marks.c.session_id, marks.c.message_id, ids))
    return gone.where(marks.c.mark == bindparam("mark")) if one else gone


def _these(session_id: Any, id: ColumnElement[Any], ids: int) -> list[ColumnElement[bool]]:
    return [session_id == bindparam("session_id"), *([among(id, "id", ids)] if ids else [])]


# Histories by their marks: which messages have one, and which have none of some others.
#
# A mark is looked up in its own index, which is in the order of the messages, so that the newest
# with a mark are found without reading those that do not have it. What must not have a mark is
# looked up message by message, from the newest on: what that costs depends on how many have to be
# passed over.


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
        if mark is None and exclude_mark is None:
            return None
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
    columns: lines.Columns,
    *,
    prompts: bool,
) -> lines.Found:
    """Find the newest messages of a line that pass, the newest first; see ``lines.newest``.

    Where messages must have a mark, no prompts come.
    """
    limits = {"count": count, "through": MAX_INTEGER}
    which = "newest_and_prompts" if prompts and not marks.wanted else "newest"
    return _find(unit, session_id, marks, branch, columns, which, **limits)


def marked_between(
    unit: Unit,
    session_id: str,
    first_seq: int,
    last_seq: int,
    marks: MarkFilter,
    branch: str | None,
    columns: lines.Columns,
) -> lines.Rows:
    """Read all messages of a line that pass, in their order; see ``lines.between``."""
    limits = {"first": first_seq, "last": last_seq}
    return _find(unit, session_id, marks, branch, columns, "between", **limits).read()


def count_marked(unit: Unit, session_id: str, marks: MarkFilter, branch: str | None) -> int:
    """Count the messages of a line that pass.

    Raises:
        NotFound: There is no such session, or no such branch in it.
    """
    query = _select_passing(unit.tables, unit.dialect, marks, func.count(), active=branch is None)
    parameters = {"session_id": session_id, "name": branch, **marks.parameters}
    count = int(unit.connection.execute(query, parameters).scalar_one())
    if not count:
        lines.require(unit, session_id, branch)
    return count


def _find(
    unit: Unit,
    session_id: str,
    marks: MarkFilter,
    branch: str | None,
    columns: lines.Columns,
    which: str,
    **limits: int,
) -> lines.Found:
    # What is prepared depends on how many marks there are, not on which.
    shape = MarkFilter(("",) * len(marks.wanted), ("",) * len(marks.unwanted))
    statements = _statements(
        unit.tables, unit.dialect, dialect_of(unit.connection), shape, branch is None, columns
    )
    statement: Prepared = getattr(statements, which)
    parameters = {"session_id": session_id, "name": branch, **limits, **marks.parameters}
    ranged = which != "between" and not marks.wanted
    rows = (lines.rows_of_newest if ranged else Prepared.rows)(
        statement, unit.connection, parameters
    )
    if not rows:
        lines.require(unit, session_id, branch)
    return lines.Found(rows, statement, parameters)


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
    columns: lines.Columns,
) -> _MarkStatements:
    line, messages = lines.line_of(tables, dialect, active=active), tables.messages.c
    first, last = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
    between = (
        _select_passing(
            tables, dialect, shape, *columns(messages), active=active, seqs=(first, last)
        )
        .where(messages.seq.between(first, last))
        .order_by(messages.seq)
    )
    if shape.wanted:
        newest = both = Prepared(_newest_wanted(tables, line, shape, columns), driver)
    else:

        def passing(found: Any) -> ColumnElement[bool]:
            return and_(*_lacks(tables, found, shape))

        query = lines.select_newest(tables, dialect, passing, active=active, columns=columns)
        newest = Prepared(query, driver)
        both = lines.with_prompts(
            query, tables, dialect, driver, passing, active=active, columns=columns
        )
    return _MarkStatements(newest, both, Prepared(between, driver))


def _newest_wanted(
    tables: Tables, line: CTE, shape: MarkFilter, columns: lines.Columns
) -> Select[Any]:
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
                lines.shown_by(line, found.c, in_order=True),
                *_lacks(tables, found.c, shape),
            )
            .order_by(marks.c.seq.desc())
            .limit(lines.COUNT)
        )
        of_each.append(select(newest.subquery().c.pk))
    together = (of_each[0] if len(of_each) == 1 else union(*of_each)).subquery("together")
    messages = tables.messages
    return (
        select(*columns(messages.c))
        .join_from(together, messages, messages.c.pk == together.c.pk)
        .order_by(messages.c.seq.desc())
        .limit(lines.COUNT)
    )


def _select_passing(
    tables: Tables,
    dialect: EngineDialect,
    shape: MarkFilter,
    *columns: ColumnElement[Any],
    active: bool,
    seqs: tuple[ColumnElement[int], ColumnElement[int]] | None = None,
) -> Select[Any]:
    """Select all messages of a line that pass: beginning with their marks, if they must have any,
    so that the others are not read, and with those of these sequence numbers, if some are given.
    """
    line, messages = lines.line_of(tables, dialect, active=active), tables.messages
    lacks = _lacks(tables, messages.c, shape)
    if not shape.wanted:
        return select(*columns).join_from(line, messages, lines.is_on(line, tables)).where(*lacks)
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
        .join(line, lines.is_on(line, tables))
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
