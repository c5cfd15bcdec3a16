"""Lines: which messages a branch shows, how they are read, and how that changes.

Each message has a sequence number, which counts up in its session, and belongs to the branch on
which it was saved. A branch that grew from another one shows the beginning of that one too, and
nothing is copied for it. Here a conversation of four messages got a branch after its first turn,
and then two more messages::

    number       1   2   3   4   5   6
    main         u   a   u   a
    beach                        u   a

    the line of main    1 2 3 4      main has no tip: it is whole
    the line of beach   1 2 5 6      its tip is segment 2

    beach --tip--> segment 2             --previous--> segment 1           --previous--> none
                   beach, from 5 on                    main, from 1 to 2

The words:

- *line*: the messages that a branch shows, in the order of their numbers.
- *whole*: of a branch that shows all of its own messages and no others. Most are; they have no
  segments, and their line is one range of one index.
- *segment*: a range of the numbers of one branch, stored as one row of ``branch_segments``.
- *stretch*: such a range that is not stored.
- *tip*: the newest segment of a branch. It ends at the largest number there can be, so what is
  saved on the branch is on its line.
- *anchor*: the row at which a query begins: a session's, for its active branch, or a branch's.
- *gone*: of a branch that was deleted, whose row stays while others show messages of it.

What holds:

- A message is there as long as a branch shows it.
- The numbers on a line only rise, so an order by number is the order of the conversation.
- A segment is never changed, only replaced. So any number of branches share the older ones, and
  what is done to one branch changes no other.
- A call that appends or removes messages, or changes a line, locks the session's row, and the
  session's counters agree with its messages.

``lines`` reads, by the expressions of ``queries`` and the columns of ``rows``; ``cutting`` begins a
line with a part of another one; ``segments`` changes what a branch shows; ``removal`` deletes
messages and ``counters`` keeps count of them; ``partial_text`` is what has come of a message that
is being streamed. Why it is built like this: ``docs/adr/0012-segments.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Dialect,
    FromClause,
    Integer,
    Select,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstore.engines.base.dialect import EngineDialect
from agentstore.engines.base.statements import Packed, Prepared, dialect_of
from agentstore.errors import InvalidRow, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.tables import (
    name_of_branch,
    owner_not_being_deleted,
    session_not_being_deleted,
)
from agentstore.records import MessageRecord
from agentstore.records.conversations import MESSAGE_FIELDS, make_message_record, told_role
from agentstore.repositories.operations import chunks
from agentstore.schema import Tables
from agentstore.values import validation
from agentstore.values.types import MAX_INTEGER, SafeText, shifted
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
    return [*_often(messages), Packed(*[messages[name] for name in _COLUMNS[_RARE:]])]


def _often(messages: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[Any]]:
    columns = message_columns(messages)[:_RARE]
    columns[_COLUMNS.index("session_id")] = bindparam("session_id", type_=SafeText())
    return columns


def only_turn(messages: Any) -> list[Any]:
    """Select the turn alone."""
    return [messages.turn]


def main_columns(messages: ReadOnlyColumnCollection[str, Any]) -> list[ColumnElement[Any]]:
    """Give the columns of a message on the line of a session without other branches than main.

    They hold no subquery, so they may stand in a RETURNING clause: on SQLite columns have no table
    there, and a subquery would take its own columns for them.
    """
    columns = _often(messages)
    columns[_COLUMNS.index("branch")] = literal(MAIN, SafeText())
    return [*columns, *(messages[name] for name in _COLUMNS[_RARE:])]


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


def message_records(unit: Unit, rows: Iterable[Any]) -> list[MessageRecord]:
    """Make records of rows with ``message_columns``, in their order.

    What is still being streamed has the text that has come so far: one more query if there is
    any of these.
    """
    return with_what_has_come(unit, [message_record(row) for row in rows])


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
        query = select_messages(unit.tables).where(unit.tables.messages.c.id.in_(chunk))
        for row in unit.connection.execute(query):
            final[row.id] = message_record(row)
    return partial, final


def message_record(row: Any) -> MessageRecord:
    """Make a record of a row with ``message_columns``, and perhaps more behind them."""
    layout, blocks = row[_LAYOUT], row[_BLOCKS]
    if layout is None and blocks is None:
        return make_message_record(*row[:_BLOCKS])
    fields = [*row[:_BLOCKS]]
    fields[_ROLE] = told_role(fields[_ROLE], layout)
    fields[_CONTENT] = fields[_CONTENT] if blocks is None else blocks
    return make_message_record(*fields)


_ROLE, _CONTENT, _LAYOUT, _BLOCKS = map(_COLUMNS.index, ("role", "content", "chat_keys", "blocks"))


# The line of a branch: which messages it shows, and reading them.
#
# Most branches are whole in themselves: they show their own messages and no others, and reading
# them is one range of one index. The others are made of segments, each a range of one branch's
# messages and all of them in the order of their sequence numbers, so that the line, too, is in
# that order (see ``agentstore.models.conversations.BranchSegment``). Such a line is read from its
# newest segment on, and no further than is asked for; how long its segments are does not matter.
#
# What is read of the active branch is one statement if that is whole in itself, or was made of
# segments when this store read it before; otherwise two.


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
            owner_not_being_deleted(tables, sessions.user_id),
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


# The line of a branch as queries see it: its segments as a table, and messages joined to them.
#
# Everything here is an expression; ``lines`` runs some. Where a line begins, at the active branch
# or at one with a name, is an anchor, and from there it goes from segment to segment, the newest
# first. The parameters are ``session_id`` and, unless it is the active branch's, ``name``.


SESSION_ID = "session_id"
"""The name of the parameter that every line has."""

COUNT = bindparam("count", type_=BigInteger, literal_execute=True)
"""How many messages at most; it stands in the statement: see ``operations.written``."""


def is_on(line: CTE, tables: Tables) -> ColumnElement[bool]:
    """Say that a message is in a segment of the line, for a join of the two."""
    messages = tables.messages.c
    return and_(
        messages.session_id == bindparam(SESSION_ID),
        messages.branch == line.c.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )


def line_of(tables: Tables, *, active: bool, called: str = "line") -> CTE:
    """Give the segments of a line as a table: ``branch``, ``first_seq`` and ``last_seq``.

    Its parameters are ``session_id`` and, unless it is the active branch's, ``name``. In one
    statement with another line it is ``called`` something else.
    """
    return line_from(tables, anchor_of(tables, active=active), called=called)


def shown_by(line: CTE, messages: Any, *, in_order: bool = False) -> ColumnElement[bool]:
    """Say that a message, given by its columns, is on the line.

    Args:
        line: The segments.
        messages: The columns.
        in_order: Whether messages that an index gives in their order are to stay in it, because
            the first few are wanted: PostgreSQL may sort after a join, but makes none of an OFFSET.
    """
    this = select(line.c.branch).where(
        line.c.branch == messages.branch,
        messages.seq.between(line.c.first_seq, line.c.last_seq),
    )
    return (this.offset(literal_column("0")) if in_order else this).exists()


def for_each_segment(
    line: CTE, tables: Tables, dialect: EngineDialect, *conditions: Any, order: Any, limit: Any
) -> tuple[FromClause, Any]:
    """Join to each segment the first of its messages, in an order, that meet conditions.

    Args:
        line: The segments.
        tables: The tables.
        dialect: The engine's.
        conditions: Functions of an alias of ``messages``.
        order: A function of the same alias: what to order by.
        limit: How many of each segment.

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


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a line begins: at a row with the number of a branch and of its newest segment."""

    table: FromClause
    branch: ColumnElement[Any]
    tip: ColumnElement[Any]
    condition: ColumnElement[bool]


def anchor_of(tables: Tables, *, active: bool) -> Anchor:
    """Begin at the active branch of ``session_id``, or at the one with this ``name``."""
    sessions, branches = tables.sessions.c, tables.branches.c
    if active:
        stays = owner_not_being_deleted(tables, sessions.user_id)
        this = and_(sessions.id == bindparam(SESSION_ID), stays)
        return Anchor(tables.sessions, sessions.active_branch, sessions.tip, this)
    named = and_(
        branches.session_id == bindparam(SESSION_ID),
        branches.name == bindparam("name"),
        branches.gone.is_(False),
        session_not_being_deleted(tables, branches.session_id),
    )
    return Anchor(tables.branches, branches.number, branches.tip, named)


def line_from(
    tables: Tables,
    anchor: Anchor,
    measure: Callable[[Any, Any, Any], Any] | None = None,
    enough: Any = None,
    called: str = "line",
) -> CTE:
    """Go from segment to segment, the newest first.

    Args:
        tables: The tables.
        anchor: Where it begins.
        measure: Gives what a segment counts, of its branch and its first and last number.
        enough: What the segments may count together before it stops.
        called: The name of the table.
    """
    newest, next_ = tables.branch_segments.alias("newest"), tables.branch_segments
    session_id: BindParameter[str] = bindparam(SESSION_ID)
    tip = and_(newest.c.session_id == session_id, newest.c.number == anchor.tip)
    stretch: tuple[Any, Any, Any] = (
        func.coalesce(newest.c.branch, anchor.branch),
        func.coalesce(newest.c.first_seq, 1),
        func.coalesce(newest.c.last_seq, literal(MAX_INTEGER, BigInteger)),
    )
    names = ("branch", "first_seq", "last_seq")
    line = (
        select(
            anchor.branch.label("of_branch"),
            newest.c.number,
            newest.c.previous,
            literal(0, BigInteger).label("depth"),
            *(column.label(name) for column, name in zip(stretch, names, strict=True)),
            *([measure(*stretch).label("so_far")] if measure else []),
        )
        .select_from(anchor.table.outerjoin(newest, tip))
        .where(anchor.condition)
        .cte(called, recursive=True)
    )
    stretch = (next_.c.branch, next_.c.first_seq, next_.c.last_seq)
    is_previous = and_(next_.c.session_id == session_id, next_.c.number == line.c.previous)
    further = select(
        line.c.of_branch,
        next_.c.number,
        next_.c.previous,
        line.c.depth + 1,
        *stretch,
        *([line.c.so_far + measure(*stretch)] if measure else []),
    ).join_from(line, next_, is_previous)
    return line.union_all(further.where(line.c.so_far < enough) if measure else further)


def select_newest(
    tables: Tables,
    dialect: EngineDialect,
    *conditions: Callable[[Any], ColumnElement[bool]],
    active: bool,
    columns: Columns = line_columns,
    through: ColumnElement[int] | None = None,
) -> Select[Any]:
    """Select the newest messages, from no more segments than are needed for so many.

    Its parameters are ``count`` and, unless it is given as an expression, ``through``, beside those
    of the line. While it goes from segment to segment it counts what is in them, and stops when
    that is enough; a count ends at the limit, too. So what is read does not depend on how long the
    segments are, nor on how many there are further back.
    """
    if through is None:
        through = bindparam("through", type_=BigInteger)

    def messages_in(branch: Any, first: Any, last: Any) -> Any:
        counted = tables.messages.alias("counted")
        some = (
            select(counted.c.seq)
            .where(
                counted.c.session_id == bindparam(SESSION_ID),
                counted.c.branch == branch,
                counted.c.seq.between(first, last),
                counted.c.seq <= through,
                *(condition(counted.c) for condition in conditions),
            )
            .order_by(counted.c.seq.desc())
            .limit(COUNT)
            .correlate_except(counted)
            .subquery()
        )
        return select(func.count()).select_from(some).scalar_subquery()

    line = line_from(tables, anchor_of(tables, active=active), messages_in, COUNT)
    source, found = for_each_segment(
        line,
        tables,
        dialect,
        lambda messages: messages.seq <= through,
        *conditions,
        order=lambda messages: messages.seq.desc(),
        limit=COUNT,
    )
    newest = select(*columns(found)).select_from(source)
    return newest.order_by(found.seq.desc()).limit(COUNT)


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
    messages, pieces = unit.tables.messages, unit.tables.message_chunks
    status: dict[str, str] = {}
    come: dict[str, list[tuple[int, str]]] = {}
    latest: dict[str, datetime] = {}
    for chunk in chunks(ids):
        query = (
            select(
                messages.c.id,
                messages.c.status,
                pieces.c.position,
                pieces.c.content,
                pieces.c.created_at,
            )
            .select_from(messages.outerjoin(pieces, pieces.c.message_id == messages.c.id))
            .where(messages.c.id.in_(chunk))
        )
        for message_id, stored, position, content, created_at in unit.connection.execute(query):
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
