"""Lines: which messages a branch shows, how they are read, and how that changes.

Each message has a sequence number, which counts up in its session, and belongs to the branch on
which it was saved. A branch that grew from another one shows the beginning of that one too, and
nothing is copied for it. Its *line* is an array in its row: ranges of such numbers, each of the
messages of one branch, the oldest first. Here a conversation of four messages got a branch after
its first turn, and then two more messages::

    number       1   2   3   4   5   6      line
    main         u   a   u   a              [[0, 1, null]]
    beach                        u   a      [[0, 1, 2], [1, 5, null]]

A range that ends at ``null`` is open: the branch adds to it. A branch that is *gone* was deleted;
its row stays while others show messages of it, and its line is empty.

What holds:

- A message is there as long as a branch shows it.
- The numbers on a line only rise, so an order by number is the order of the conversation.
- No two branches share a line. A change of what one shows is an UPDATE of its row.
- A call that appends or removes messages, or changes a line, locks the session's row, and the
  counters agree with the messages.

This module reads, ``line_changes`` changes. Why it is built like this: ``docs/adr/0012-lines.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Known, Packed, Prepared, dialect_of
from agentstore.errors import InvalidRow, NotFound
from agentstore.execution.unit import Unit
from agentstore.records import MessageRecord
from agentstore.records.conversations import (
    MESSAGE_FIELDS,
    make_message_record,
    make_message_records,
    told_role,
)
from agentstore.repositories.operations import among, chunks, several
from agentstore.schema import (
    Tables,
    name_of_branch,
    owner_not_being_deleted,
    session_not_being_deleted,
)
from agentstore.schema.conversations import number_of
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, shifted
from agentstore.values.validation import INCOMPLETE, MAIN, STREAMING

# The columns of a message as repositories read them, and the record that is made of them.


_COLUMNS = (*MESSAGE_FIELDS[:-1], "chat_keys", "blocks")
"""As a record has its fields, and the blocks that are its content instead of the text."""

_RARE = _COLUMNS.index("tool_calls")
"""From here on the columns are mostly NULL."""

Columns = Callable[[ReadOnlyColumnCollection[str, Any]], list[ColumnElement[Any]]]
"""Gives what is read of a message, of the columns of the table or of something that has them too:
``message_columns``, ``line_columns``, or less.
"""


def message_columns(
    messages: ReadOnlyColumnCollection[str, Any],
) -> list[ColumnElement[Any]]:
    """Give the columns of a message, of the table or of something that has them too."""
    branch = branch_name(messages)
    return [branch if name == "branch" else messages[name] for name in _COLUMNS]


def line_columns(messages: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[Any]]:
    """Give the columns of a message on a line, whose session is the parameter ``session_id``."""
    often = message_columns(messages)[:_RARE]
    often[_COLUMNS.index("session_id")] = Known(SESSION_ID)
    return [*often, Packed(*[messages[name] for name in _COLUMNS[_RARE:]])]


def only_turn(messages: Any) -> list[Any]:
    """Select the turn alone."""
    return [messages.turn]


def main_columns(messages: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[Any]]:
    """Give ``line_columns`` on the line of a session without other branches than main.

    They hold no subquery, so they may stand in a RETURNING clause: on SQLite columns have no table
    there, and a subquery would take its own columns for them.
    """
    columns = line_columns(messages)
    columns[_COLUMNS.index("branch")] = Known(value=MAIN)
    return columns


def branch_name(messages: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[Any]:
    """Give the name of the branch in which a message was written; None if that is gone.

    It is looked up for each message, by its key, but for those of main, whose number says it.
    """
    (branch,) = messages["branch"].base_columns
    (reference,) = branch.foreign_keys
    return name_of_branch(reference.column.table, messages["session_id"], messages["branch"])


@lru_cache(maxsize=256)
def select_messages(tables: Tables) -> Select[Any]:
    """Select the columns of messages, but for those of users who are being deleted."""
    messages = tables.messages.c
    return select(*message_columns(messages)).where(
        session_not_being_deleted(tables, messages.session_id)
    )


def find_message(unit: Unit, message_id: str) -> MessageRecord | None:
    """Give a message, or None."""
    rows = unit.rows(find_row, id=message_id)
    return message_records(unit, rows)[0] if rows else None


def find_row(tables: Tables) -> Select[Any]:
    """Select the message of an ``id``."""
    return select_messages(tables).where(tables.messages.c.id == bindparam("id"))


def message_records(unit: Unit, rows: Iterable[Any]) -> list[MessageRecord]:
    """Make records of rows with ``message_columns``, in their order.

    What is still being streamed has the text that has come so far: one more query if there is
    any of these.
    """
    read = rows if isinstance(rows, list) else [*rows]
    if read and len(read[0]) > len(_COLUMNS):
        read = [row[: len(_COLUMNS)] for row in read]
    records = make_message_records(read)
    streaming = False
    for number, row in enumerate(read):
        if row[_LAYOUT] is not None or row[_BLOCKS] is not None:
            records[number] = message_record(row)
        if row[_STATUS] == STREAMING:
            streaming = True
    return with_what_has_come(unit, records) if streaming else records


def with_what_has_come(unit: Unit, records: Sequence[MessageRecord]) -> list[MessageRecord]:
    """Give records with the text of those that are being streamed as it is now.

    One of which nothing came for ``stream_timeout`` seconds is ``incomplete``: its writer
    has probably died. If it goes on after all, it says ``streaming`` again. One that has ended
    since it was read, and has no pieces any more, is read again: no text is ever seen to vanish.
    """
    streaming = [record.id for record in records if record.status == STREAMING]
    if not streaming:
        return list(records)
    partial, final = streamed(unit, streaming)
    oldest = shifted(unit.now(), -timedelta(seconds=unit.settings.stream_timeout))

    def as_it_is(record: MessageRecord) -> MessageRecord:
        now = partial.get(record.id)
        if now is None or record.status != STREAMING:
            return record
        if record.id in final:
            return final[record.id]
        idle = (now.latest or record.created_at) < oldest
        return replace(record, status=INCOMPLETE if idle else STREAMING, content=now.text)

    return [as_it_is(record) for record in records]


def streamed(unit: Unit, ids: Sequence[str]) -> tuple[dict[str, Partial], dict[str, MessageRecord]]:
    """Give what has come of messages that were being streamed, and those that have ended since."""
    partial = what_has_come(unit, ids)
    ended = [message_id for message_id, now in partial.items() if now.status != STREAMING]
    final: dict[str, MessageRecord] = {}
    for chunk in chunks(ended):
        asked = several("id", chunk)
        for row in unit.rows(_among, len(asked), **asked):
            final[row.id] = message_record(row)
    return partial, final


def _among(tables: Tables, ids: int) -> Select[Any]:
    return select_messages(tables).where(among(tables.messages.c.id, "id", ids))


def message_record(row: Any) -> MessageRecord:
    """Make a record of a row with ``message_columns``, and perhaps more behind them."""
    layout, blocks = row[_LAYOUT], row[_BLOCKS]
    if layout is None and blocks is None:
        return make_message_record(*row[:_BLOCKS])
    fields = [*row[:_BLOCKS]]
    fields[_ROLE] = told_role(fields[_ROLE], layout)
    fields[_CONTENT] = fields[_CONTENT] if blocks is None else blocks
    return make_message_record(*fields)


_ROLE, _CONTENT, _STATUS, _LAYOUT, _BLOCKS = map(
    _COLUMNS.index, ("role", "content", "status", "chat_keys", "blocks")
)


# The array of a line.


class Range(NamedTuple):
    """Messages of one branch, by their sequence numbers; MAX_INTEGER ends one that is open."""

    branch: int
    first: int
    last: int = MAX_INTEGER

    def within(self, first: int, last: int) -> Range:
        """Give what of it lies between two numbers, which may be nothing: first is behind last."""
        return Range(self.branch, max(self.first, first), min(self.last, last))


Line = Sequence[Range]
"""The ranges of a branch, the oldest first."""


def read_line(document: list[Any]) -> list[Range]:
    """Read a line as it is stored; raises InvalidRow."""
    try:
        return [
            Range(branch, first, MAX_INTEGER if last is None else last)
            for branch, first, last in document
        ]
    except (TypeError, ValueError):
        raise InvalidRow("branches", "line", "something that is no line") from None


def stored_line(line: Line) -> list[Any]:
    """Give a line as it is stored."""
    return [[b, first, None if last == MAX_INTEGER else last] for b, first, last in line]


def between_numbers(line: Line, first: int = 0, last: int = MAX_INTEGER) -> list[Range]:
    """Give what of a line lies between two numbers, both included."""
    parts = [each.within(first, last) for each in line]
    return [each for each in parts if each.first <= each.last]


# Reading a line. Most sessions have one branch, and reading it is one range of one index, in one
# statement. Where there are several, a statement reads the array, and joins the ranges to messages.


Rows = Sequence[tuple[Any, ...]]
"""Of messages, with the columns that were asked for."""


class Found(NamedTuple):
    """Rows as the driver gave them.

    Attributes:
        rows: The rows.
        statement: What gave them, and reads them.
        parameters: With which it did.
    """

    rows: list[Any]
    statement: Prepared
    parameters: dict[str, Any]

    def read(self, rows: list[Any] | None = None) -> Rows:
        """Give them, or these, as the columns' types say."""
        return self.statement.read(self.rows if rows is None else rows, self.parameters)


def newest(
    unit: Unit,
    session_id: str,
    count: int,
    *,
    branch: str | None = None,
    through: int = MAX_INTEGER,
    only_main: bool | None = None,
    columns: Columns = line_columns,
    prompts: bool = False,
) -> Found:
    """Find the newest messages of a line, the newest first.

    Args:
        unit: The open unit.
        session_id: The session.
        count: How many at most.
        branch: The branch's name; None for the active one.
        through: Leave out what has a larger sequence number.
        only_main: Whether the session never had another branch than main, if the caller knows.
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
    which = statements.and_prompts if prompts else (statements.newest_of_main, statements.newest)
    return _find(unit, *which, parameters, only_main, rows_of_newest)


def between(
    unit: Unit,
    session_id: str,
    first_seq: int = 0,
    last_seq: int = MAX_INTEGER,
    *,
    branch: str | None = None,
    only_main: bool | None = None,
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
    which = statements.between_of_main, statements.between
    return _find(unit, *which, parameters, only_main, Prepared.rows).read()


def _find(
    unit: Unit,
    of_one: Prepared | None,
    of_ranges: Prepared,
    parameters: dict[str, Any],
    only_main: bool | None,
    rows_of: Callable[[Prepared, Connection, dict[str, Any]], list[Any]],
) -> Found:
    session_id = validation.text(SESSION_ID, parameters[SESSION_ID])
    if of_one is not None:
        # The statement for ranges reads every session; this one is faster, where it will do.
        expected = session_id not in unit.branched if only_main is None else only_main
        if expected:
            rows = of_one.rows(unit.connection, parameters)
            if rows or only_main:
                return Found(rows, of_one, parameters)
    rows = rows_of(of_ranges, unit.connection, parameters)
    if not rows:
        require(unit, session_id, parameters["name"])
    elif of_one is not None:
        unit.branched.note(session_id, None)
    return Found(rows, of_ranges, parameters)


def rows_of_newest(
    statement: Prepared, connection: Connection, parameters: dict[str, Any]
) -> list[Any]:
    """Run what ``select_newest`` selected, alone or with prompts.

    It reads as many of the last ranges as would be enough if no number in them was missing. If they
    were not, it is run again for more of them: each time all of it, so that what comes is of one
    moment.
    """
    count = enough = parameters["count"]
    while True:
        found = statement.rows(connection, parameters | {"enough": enough})
        more = [row[-1] for row in found if row[-1] is not None]
        if enough < MAX_INTEGER and (not more or (more[0] and len(more) < count)):
            enough = min(64 * enough, MAX_INTEGER) if more else MAX_INTEGER
            continue
        return [row[:-1] for row in found]


def require(unit: Unit, session_id: str, branch: str | None = None) -> None:
    """Require that there is such a session, and such a branch in it.

    Raises:
        NotFound: There is none.
    """
    sessions, branches = unit.tables.sessions.c, unit.tables.branches.c
    stays = owner_not_being_deleted(unit.tables, sessions.user_id)
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
    return NotFound("branch", name, "branches.list() lists them.")


@dataclass(frozen=True, slots=True)
class _LineStatements:
    newest_of_main: Prepared | None
    newest: Prepared
    and_prompts: tuple[Prepared | None, Prepared]
    between_of_main: Prepared | None
    between: Prepared


@lru_cache(maxsize=1024)
def _statements(
    tables: Tables, dialect: EngineDialect, driver: Dialect, active: bool, columns: Columns
) -> _LineStatements:
    messages = tables.messages.c
    first, last = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
    line = line_of(tables, dialect, active=active)
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
    if columns is line_columns:
        columns = main_columns
    main = select(*columns(messages)).where(*_on_main(tables, messages))
    newest_of_main = (
        main.where(messages.seq <= bindparam("through")).order_by(messages.seq.desc()).limit(COUNT)
    )
    between_of_main = main.where(messages.seq.between(first, last)).order_by(messages.seq)
    latest = dialect.last_of(main, messages.seq, COUNT)
    # No prompts where fewer messages than the newest were ever saved: those are all of them then.
    begin = tables.messages.alias("first")
    long_enough = _on_main(tables, begin.c, tables.sessions.c.last_seq >= COUNT)
    of_main = latest.union_all(prompts_among(tables, begin, begin.c, columns, *long_enough))
    return _LineStatements(
        Prepared(newest_of_main, driver),
        newest,
        (Prepared(of_main, driver, shape=newest_of_main), both),
        Prepared(between_of_main, driver),
        Prepared(between, driver),
    )


def _on_main(
    tables: Tables, messages: Any, *conditions: ColumnElement[bool]
) -> list[ColumnElement[bool]]:
    """Say that messages are of the one branch of a session that never had another one."""
    # The branch is a subquery and not a join, so that PostgreSQL sees one branch and reads the
    # index backwards instead of sorting the session.
    sessions = tables.sessions.c
    active = (
        select(sessions.active_branch)
        .where(
            sessions.id == bindparam(SESSION_ID),
            sessions.last_branch == literal_column("0"),
            owner_not_being_deleted(tables, sessions.user_id),
            *conditions,
        )
        .scalar_subquery()
    )
    return [messages.session_id == bindparam(SESSION_ID), messages.branch == active]


# The line of a branch as queries see it: its ranges as a table, and messages joined to them.
#
# The parameters are ``session_id`` and, unless it is the active branch's, ``name``.


SESSION_ID = "session_id"
"""The name of the parameter that every line has."""

COUNT = bindparam("count", type_=BigInteger, literal_execute=True)
"""How many messages at most; it stands in the statement: see ``operations.written``."""


def is_on(line: CTE, tables: Tables) -> ColumnElement[bool]:
    """Say that a message is in a range of the line, for a join of the two."""
    messages = tables.messages.c
    return and_(
        messages.session_id == bindparam(SESSION_ID),
        messages.branch == line.c.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )


def shown_by(line: CTE, messages: Any, *, in_order: bool = False) -> ColumnElement[bool]:
    """Say that a message, given by its columns, is on the line.

    Args:
        line: The ranges.
        messages: The columns.
        in_order: Whether messages that an index gives in their order are to stay in it, because
            the first few are wanted: PostgreSQL may sort after a join, but makes none of an OFFSET.
    """
    this = select(line.c.branch).where(
        line.c.branch == messages.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )
    return (this.offset(literal_column("0")) if in_order else this).exists()


def for_each_range(
    line: CTE, tables: Tables, dialect: EngineDialect, *conditions: Any, order: Any, limit: Any
) -> tuple[FromClause, Any]:
    """Join to each range the first of its messages, in an order, that meet conditions.

    Args:
        line: The ranges.
        tables: The tables.
        dialect: The engine's.
        conditions: Functions of an alias of ``messages``.
        order: A function of the same alias: what to order by.
        limit: How many of each range.

    Returns:
        What to select from, and the columns of the messages in it.
    """
    found = tables.messages.alias("found")
    query = (
        select(found)
        .where(
            found.c.session_id == bindparam(SESSION_ID),
            found.c.branch == line.c.branch,
            found.c.seq.between(line.c.first_seq, line.c.last_seq),
            *(condition(found.c) for condition in conditions),
        )
        .order_by(order(found.c))
        .limit(limit)
    )
    return dialect.for_each(line, tables.messages, query)


def branch_of(
    tables: Tables, *, active: bool
) -> tuple[FromClause, ColumnElement[int], ColumnElement[bool]]:
    """Find the active branch of ``session_id``, or the one with this ``name``.

    Returns:
        What to select from, which has ``branches``; the branch's number; and the condition.
    """
    sessions, branches = tables.sessions.c, tables.branches.c
    if active:
        stays = owner_not_being_deleted(tables, sessions.user_id)
        is_active = and_(
            branches.session_id == sessions.pk, branches.number == sessions.active_branch
        )
        source = tables.sessions.join(tables.branches, is_active)
        return source, branches.number, and_(sessions.id == bindparam(SESSION_ID), stays)
    named = and_(
        branches.session_id == bindparam(SESSION_ID),
        branches.name == bindparam("name"),
        branches.gone.is_(False),
        session_not_being_deleted(tables, branches.session_id),
    )
    return tables.branches, branches.number, named


def line_of(tables: Tables, dialect: EngineDialect, *, active: bool, called: str = "line") -> CTE:
    """Give the ranges of a line as a table: ``place``, ``branch``, ``first_seq``, ``last_seq``.

    Its parameters are ``session_id`` and, unless it is the active branch's, ``name``. In one
    statement with another line it is ``called`` something else.
    """
    source, _, condition = branch_of(tables, active=active)
    ranges, (place, branch, first, last) = dialect.ranges(tables.branches.c.line)
    line = (
        select(
            place.label("place"),
            branch.label("branch"),
            first.label("first_seq"),
            func.coalesce(last, literal(MAX_INTEGER, BigInteger)).label("last_seq"),
        )
        .select_from(source)
        .select_from(ranges)
        .where(condition)
        .cte(called)
    )
    return line.prefix_with("MATERIALIZED")


def select_newest(
    tables: Tables,
    dialect: EngineDialect,
    *conditions: Callable[[Any], ColumnElement[bool]],
    active: bool,
    columns: Columns = line_columns,
    through: ColumnElement[int] | None = None,
) -> Select[Any]:
    """Select the newest messages, of no more ranges than may be needed; see ``rows_of_newest``.

    Its parameters are ``count``, ``enough`` and, unless it is given as an expression, ``through``,
    beside those of the line. Behind the columns comes whether the line has earlier ranges.
    """
    if through is None:
        through = bindparam("through", type_=BigInteger)
    enough = bindparam("enough", type_=BigInteger)
    line = line_of(tables, dialect, active=active)
    # The open range counts nothing: how many numbers are in it is not known here.
    numbers = case(
        (line.c.last_seq == literal(MAX_INTEGER, BigInteger), 0),
        else_=line.c.last_seq - line.c.first_seq + 1,
    )
    newer = func.sum(numbers).over(order_by=line.c.place.desc(), rows=(None, -1))
    measured = (
        select(line, func.coalesce(newer, 0).label("newer"))
        .where(line.c.first_seq <= through)
        .cte("measured")
        .prefix_with("MATERIALIZED")
    )
    last = select(measured).where(measured.c.newer < enough).cte("last_ranges")
    last = last.prefix_with("MATERIALIZED")
    earlier = select(func.count()).where(measured.c.newer >= enough)
    source, found = for_each_range(
        last,
        tables,
        dialect,
        lambda messages: messages.seq <= through,
        *conditions,
        order=lambda messages: messages.seq.desc(),
        limit=COUNT,
    )
    newest = select(*columns(found), earlier.scalar_subquery().label("earlier"))
    return newest.select_from(source).order_by(found.seq.desc()).limit(COUNT)


# What has come so far of messages that are being streamed.


@dataclass(frozen=True, slots=True)
class Partial:
    """A message with the pieces that it has, as one statement saw both.

    Attributes:
        status: The one that is stored; it may have ended since it was read.
        text: The pieces together.
        latest: When the last one came; None if there is none.
    """

    status: str
    text: str
    latest: datetime | None


def what_has_come(unit: Unit, ids: Sequence[str]) -> dict[str, Partial]:
    """Give what has come of messages, by their ids; those that are gone are left out."""
    status: dict[str, str] = {}
    come: dict[str, list[tuple[int, str]]] = {}
    latest: dict[str, datetime] = {}
    for chunk in chunks(ids):
        asked = several("id", chunk)
        rows = unit.rows(_come, len(asked), **asked)
        for message_id, stored, position, content, created_at in rows:
            status[message_id] = stored
            here = come.setdefault(message_id, [])
            if position is not None:
                if content is None:
                    raise InvalidRow("message_chunks", "content", "NULL")
                here.append((position, content))
            if created_at is not None:
                latest[message_id] = max(created_at, latest.get(message_id, created_at))
    return {
        message_id: Partial(
            stored, "".join(text for _, text in sorted(come[message_id])), latest.get(message_id)
        )
        for message_id, stored in status.items()
    }


def _come(tables: Tables, ids: int) -> Select[Any]:
    messages, pieces = tables.messages, tables.message_chunks
    here = messages.outerjoin(pieces, pieces.c.message_id == messages.c.id)
    columns = pieces.c.position, pieces.c.content, pieces.c.created_at
    query = select(messages.c.id, messages.c.status, *columns).select_from(here)
    return query.where(among(messages.c.id, "id", ids))


# How a line begins, and how a turn does: what a history keeps though its limit cut it off.


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
        conditions: Only prompts that meet these; functions of the columns of a message.
        active: Whether it is the active branch's line, or that of a name.
        columns: What to read of each prompt; see ``prompts_among``.
    """
    line = line_of(tables, dialect, active=active, called="line_of_prompts")
    # The first messages are in as many of the oldest ranges.
    oldest = select(line).where(line.c.place < FEW).cte("oldest")
    source, found = for_each_range(
        oldest,
        tables,
        dialect,
        order=lambda messages: messages.seq,
        limit=FEW,
    )
    prompts = prompts_among(tables, source, found, columns)
    prompts = prompts.where(*(condition(tables.messages.c) for condition in conditions))
    prompts = prompts.add_columns(cast(null(), Integer))
    return Prepared(select(query.subquery("newest")).union_all(prompts), driver, shape=query)


def prompts_among(
    tables: Tables,
    source: FromClause,
    found: Any,
    columns: Columns,
    *conditions: ColumnElement[bool],
) -> Select[Any]:
    """Select the prompts among the few messages at a line's beginning: those of system and
    developer before the first user message.

    Their sequence numbers come below zero, so that they are told from what comes with them.

    Args:
        tables: The tables.
        source: What has the messages of the line.
        found: The columns of these.
        columns: What to read of each prompt.
        conditions: Which of them are meant.
    """
    messages, session = tables.messages.c, number_of(found.session_id).label("session")
    few = (
        select(found.pk, session, found.seq, found.role)
        .select_from(source)
        .where(*conditions)
        .order_by(found.seq)
        .limit(FEW)
        .cte("few")
        .prefix_with("MATERIALIZED")
    )
    # Roles are written into the statement: SQLite prepares it again for each value that a partial
    # index could be about.
    user: ColumnElement[str] = literal_column("'user'")
    system: ColumnElement[str] = literal_column("'system'")
    developer: ColumnElement[str] = literal_column("'developer'")
    first_user = select(func.min(few.c.seq)).where(few.c.role == user).scalar_subquery()
    read = [(-each).label("seq") if each is messages.seq else each for each in columns(messages)]
    this = and_(messages.pk == few.c.pk, number_of(messages.session_id) == few.c.session)
    return (
        select(*read)
        .join_from(few, tables.messages, this)
        .where(
            or_(few.c.role == system, few.c.role == developer),
            few.c.seq < func.coalesce(first_user, MAX_INTEGER),
        )
    )


def opening_of(
    unit: Unit, session_id: str, branch: str | None, seq: int, columns: Columns
) -> Sequence[tuple[Any, ...]]:
    """Read the user message that begins the turn of a message of a line; none in turn 0."""
    driver = dialect_of(unit.connection)
    statement = _opening(unit.tables, unit.dialect, driver, branch is None, columns)
    return statement.fetch(unit.connection, {SESSION_ID: session_id, "name": branch, "seq": seq})


@lru_cache(maxsize=256)
def _opening(
    tables: Tables, dialect: EngineDialect, driver: Dialect, active: bool, columns: Columns
) -> Prepared:
    line, messages = line_of(tables, dialect, active=active), tables.messages
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
