"""Appending messages on PostgreSQL: lock, count and insert in one statement.

Its first part locks the sessions' rows, counts on them and returns the numbers; the others insert.
One round trip, and callers with different sessions never wait for each other. A single message
travels as plain parameters, many as arrays side by side.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from psycopg import OperationalError, pq, sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Executable,
    FromClause,
    Function,
    Integer,
    Select,
    Table,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate
from sqlalchemy.types import TypeEngine

from agentstore import errors
from agentstore.engines.base.dialect import TaskSignal, room_in
from agentstore.engines.base.statements import (
    RARE,
    Prepared,
    dialect_of,
    has_none_of_the_rare,
)
from agentstore.schema import Tables, name_of_branch, session_is_open
from agentstore.values.encoding import decode_text, encode_text
from agentstore.values.types import Json
from agentstore.values.validation import LISTED_WITHIN, MAX_SKEW


def next_activity(tables: Tables) -> Any:
    """Take the next of a sequence, which nobody waits for, as an expression.

    It is no ``Sequence`` of SQLAlchemy's, whose key in an engine's cache of statements leaves the
    schema out: stores of two schemas on one engine would take from the same one.
    """
    names = tables.names
    schema = "" if names.schema is None else f"{names.schema}."
    name = f"'{schema}{names.prefix}activity'"  # plain words
    sequence: ColumnElement[str] = literal_column(name)
    return func.nextval(sequence, type_=BigInteger)


def append_messages(
    connection: Connection,
    tables: Tables,
    sessions: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    calls: Sequence[dict[str, Any]],
    marks: Sequence[dict[str, Any]],
    *,
    wait: bool,
) -> Collection[str]:
    """Lock, count and insert in one statement; see ``EngineDialect.append_messages``."""
    named = {session["branch"] for session in sessions} != {None}
    many = len(sessions) > 1
    onto = "onto" in sessions[0]
    plain = has_none_of_the_rare(rows)
    shape = _AppendShape(many, len(rows) > 1, plain, bool(calls), bool(marks), wait, named, onto)
    statement = _statement(tables, dialect_of(connection), shape)
    parameters: dict[str, Any] = {}
    if shape.sessions:
        for name in (*_COUNTS, "branch") if named else _COUNTS:
            parameters[f"s_{name}"] = [session[name] for session in sessions]
    else:
        parameters |= sessions[0]
    columns = _message_columns(tables, plain)
    if shape.rows:
        for parameter, name in (*_OF_EACH, *columns):
            parameters[parameter] = [row[name] for row in rows]
    else:
        row = rows[0]
        for parameter, name in columns:
            parameters[parameter] = row[name]
    for prefix, names, more in (("c_", _CALL_COLUMNS, calls), ("k_", _MARK_COLUMNS, marks)):
        for name in names if more else ():
            parameters[f"{prefix}{name}"] = [each[name] for each in more]
    counted = {
        row[0] if row[0].isascii() else decode_text(row[0]): row[1:]
        for row in statement.rows(connection, parameters)
    }
    begin = 0
    for session in sessions:
        end = begin + session["messages"]
        if (numbers := counted.get(session["session_id"])) is not None:
            last_seq, last_turn, branch, name = numbers
            if name is None:
                name = _name_of_new(connection, tables, session["session_id"], branch)
            for row in rows[begin:end]:
                row["seq"] += last_seq - session["messages"]
                row["turn"] += last_turn - session["users"]
                row["branch"] = name if name is None or name.isascii() else decode_text(name)
        begin = end
    return counted


def _name_of_new(connection: Connection, tables: Tables, session_id: str, branch: int) -> Any:
    """Look the name of a branch up that was made while the statement waited for the session.

    The statement sees the session as it is once it has the lock, and all else as it was before.
    """
    sessions = tables.sessions.c
    name = name_of_branch(tables.branches, sessions.pk, literal(branch, BigInteger))
    query = select(type_coerce(name, Text)).where(sessions.id == session_id)
    return connection.execute(query).scalar()


_SKEW: ColumnElement[Any] = literal_column("INTERVAL '1 second'").op("*")(
    literal_column(str(MAX_SKEW.total_seconds()))
)
_COUNTS = ("session_id", "messages", "users", "tokens", "cost", "now", "earliest")
_OF_EACH = (("m_session_id", "session_id"), ("m_created_at", "created_at"))
"""Columns that the session says where there is one message, each behind its parameter."""
_CALL_COLUMNS = ("session_id", "message_id", "position", "seq", "name", "call_id")
_MARK_COLUMNS = ("session_id", "message_id", "seq", "mark")


@lru_cache(maxsize=256)
def _message_columns(tables: Tables, plain: bool) -> tuple[tuple[str, str], ...]:
    """Give the columns that a message says, each behind its parameter; if plain, without RARE."""
    left_out = {"pk", "session", "branch", "created_at", *(RARE if plain else ())}
    names = [c.name for c in tables.messages.columns if c.name not in left_out]
    return tuple((f"m_{name}", name) for name in names)


class _AppendShape(NamedTuple):
    """Which parts of the statement there are, and which of them come as arrays.

    Attributes:
        plain: Whether the messages have none of the columns that are rare.
        named: Whether a session says which branch has to be its active one.
        onto: Whether the one session is locked, and says ``onto`` which other branch it is.
    """

    sessions: bool
    rows: bool
    plain: bool
    calls: bool
    marks: bool
    wait: bool
    named: bool
    onto: bool


@lru_cache(maxsize=1024)
def _statement(tables: Tables, driver: Dialect, shape: _AppendShape) -> Prepared:
    return Prepared(_build(tables, shape), driver)


def _build(tables: Tables, shape: _AppendShape) -> Select[Any]:
    messages = tables.messages
    if shape.sessions:
        counted = _counted_many(tables, named=shape.named)
    elif shape.onto:
        counted = _counted_elsewhere(tables)
    else:
        counted = _counted_one(tables, wait=shape.wait, named=shape.named)
    columns = _message_columns(tables, shape.plain)
    if shape.rows:
        kinds = {p: _kind(tables, messages, c) for p, c in (*_OF_EACH, *columns)}
        new, source = arrays(kinds, "new")
        source = source.join(counted, counted.c.id == new["m_session_id"])
    else:
        new = {p: _given(p, messages.c[c].type) for p, c in columns}
        source = counted
    values = {c: new[p] for p, c in columns}
    values["seq"] += counted.c.before_seq
    values["turn"] += counted.c.before_turn
    values["session_id"] = counted.c.pk
    values["branch"] = counted.c.active_branch
    values["created_at"] = new["m_created_at"] if shape.rows else _now(tables)
    added = (
        insert(messages)
        .from_select(list(values), select(*values.values()).select_from(source))
        .cte("added")
    )
    answer = select(
        counted.c.id,
        counted.c.last_seq,
        counted.c.turn,
        counted.c.active_branch,
        name_of_branch(tables.branches, counted.c.pk, counted.c.active_branch),
    ).add_cte(added)
    beside = (
        (shape.calls, tables.message_tool_calls, "c_", _CALL_COLUMNS),
        (shape.marks, tables.message_marks, "k_", _MARK_COLUMNS),
    )
    for there_are, table, prefix, names in beside:
        if there_are:
            kinds = {f"{prefix}{c}": _kind(tables, table, c) for c in names}
            new, source = arrays(kinds, f"new_{table.name}")
            source = source.join(counted, counted.c.id == new[f"{prefix}session_id"])
            values = {c: new[f"{prefix}{c}"] for c in names}
            values["seq"] += counted.c.before_seq
            values["session_id"] = counted.c.pk
            rows = select(*values.values()).select_from(source)
            answer = answer.add_cte(
                insert(table).from_select(list(values), rows).cte(f"added_{table.name}")
            )
    return answer


def _kind(tables: Tables, table: Table, column: str) -> TypeEngine[Any]:
    """Give the type of what is sent for a column: for a session its id."""
    return (tables.sessions.c.id if column == "session_id" else table.c[column]).type


def _now(tables: Tables) -> BindParameter[Any]:
    return bindparam("now", type_=tables.sessions.c.created_at.type)


def _counted_elsewhere(tables: Tables) -> CTE:
    """Count on a branch that is not the active one, in its row: all but what that shows."""
    branches = tables.branches
    counts = _counts_of_one(tables)
    here = tables.sessions.c.id == bindparam("session_id", type_=tables.sessions.c.id.type)
    activity = select(next_activity(tables).label("activity")).cte("taken")
    counting = update(tables.sessions).where(here)
    session = _count(counting, tables, counts, activity.c.activity, elsewhere=True)
    moved = (
        update(branches)
        .where(
            branches.c.session_id == session.c.pk,
            branches.c.number == bindparam("onto", type_=BigInteger),
        )
        .values(
            messages=branches.c.messages + counts["messages"],
            turns=branches.c.turns + counts["users"],
            turn=branches.c.turn + counts["users"],
        )
        .returning(branches.c.number, branches.c.turn)
        .cte("moved")
    )
    return (
        select(
            session.c.pk,
            session.c.id,
            session.c.last_seq,
            moved.c.turn,
            moved.c.number.label("active_branch"),
            session.c.before_seq,
            (moved.c.turn - counts["users"]).label("before_turn"),
        )
        .join_from(session, moved, true())
        .cte("counted_elsewhere")
    )


def _counts_of_one(tables: Tables) -> dict[str, ColumnElement[Any]]:
    return {
        "messages": bindparam("messages", type_=BigInteger),
        "users": bindparam("users", type_=BigInteger),
        "tokens": bindparam("tokens"),
        "cost": bindparam("cost", type_=BigInteger),
        "now": _now(tables),
        "earliest": bindparam("earliest", type_=tables.sessions.c.created_at.type),
    }


def _counted_one(tables: Tables, *, wait: bool, named: bool) -> CTE:
    sessions, counts = tables.sessions, _counts_of_one(tables)
    here = sessions.c.id == bindparam("session_id", type_=sessions.c.id.type)
    counting = update(sessions).where(here)
    if named:
        counting = counting.where(_active(tables) == bindparam("branch", type_=_name(tables)))
    activity = select(next_activity(tables).label("activity"))
    if wait:
        taken = activity.cte("taken")
    else:
        taken = _locked(activity.add_columns(sessions.c.id).where(here))
        counting = counting.where(sessions.c.id == taken.c.id)
    return _count(counting, tables, counts, taken.c.activity)


def _active(tables: Tables) -> ColumnElement[Any]:
    """Select the name of the active branch."""
    return name_of_branch(tables.branches, tables.sessions.c.pk, tables.sessions.c.active_branch)


def _name(tables: Tables) -> TypeEngine[Any]:
    return tables.branches.c.name.type


def _locked(wanted: Select[Any]) -> CTE:
    return wanted.with_for_update(key_share=True, skip_locked=True).cte("locked")


def _counted_many(tables: Tables, *, named: bool) -> CTE:
    """Count on several sessions, but for those that somebody else has locked: a call waits for
    nobody but those who write to its own session.
    """
    sessions = tables.sessions
    kinds = {
        "s_session_id": sessions.c.id.type,
        "s_messages": BigInteger(),
        "s_users": BigInteger(),
        "s_tokens": sessions.c.total_tokens.type,
        "s_cost": BigInteger(),
        "s_now": sessions.c.last_active_at.type,
        "s_earliest": sessions.c.last_active_at.type,
    }
    if named:
        kinds["s_branch"] = _name(tables)
    given, arriving = arrays(kinds, "given")
    wanted = select(given["s_session_id"]).select_from(arriving)
    number = next_activity(tables).label("activity")
    locked = _locked(select(sessions.c.id, number).where(sessions.c.id.in_(wanted)))
    counting = update(sessions).where(
        sessions.c.id == given["s_session_id"], sessions.c.id == locked.c.id
    )
    if named:
        wanted_branch = given["s_branch"]
        counting = counting.where(or_(wanted_branch.is_(None), _active(tables) == wanted_branch))
    counts = {name: given[f"s_{name}"] for name in _COUNTS if name != "session_id"}
    return _count(counting, tables, counts, locked.c.activity)


def _count(
    counting: Update,
    tables: Tables,
    counts: Mapping[str, ColumnElement[Any]],
    activity: ColumnElement[int],
    *,
    elsewhere: bool = False,
) -> CTE:
    """Count on; the activity may have been taken before somebody else's who was let go first."""
    sessions = tables.sessions.c
    listed = sessions.listed_activity
    latest = counts["earliest"].op("+")(_SKEW)
    shown: dict[str, Any] = {
        "turn": sessions.turn + counts["users"],
        "branch_messages": sessions.branch_messages + counts["messages"],
        "branch_turns": sessions.branch_turns + counts["users"],
    }
    return (
        counting.where(session_is_open(tables), room_in(tables.sessions))
        .values(
            last_seq=sessions.last_seq + counts["messages"],
            message_count=sessions.message_count + counts["messages"],
            total_tokens=sessions.total_tokens + counts["tokens"],
            total_cost=sessions.total_cost + counts["cost"],
            activity=func.greatest(sessions.activity, activity),
            listed_activity=case((activity - listed < LISTED_WITHIN, listed), else_=activity),
            last_active_at=counts["now"],
            newest_at=func.greatest(sessions.newest_at, counts["now"]),
            in_order=and_(sessions.in_order, sessions.newest_at <= latest),
            **({} if elsewhere else shown),
        )
        .returning(
            sessions.pk,
            sessions.id,
            sessions.last_seq,
            sessions.turn,
            sessions.active_branch,
            (sessions.last_seq - counts["messages"]).label("before_seq"),
            (sessions.turn - counts["users"]).label("before_turn"),
        )
        .cte("counted")
    )


def _given(name: str, kind: Any) -> ColumnElement[Any]:
    return sql_cast(bindparam(name, type_=kind), kind)


def arrays(kinds: Mapping[str, TypeEngine[Any]], name: str) -> tuple[dict[str, Any], FromClause]:
    """Give the columns of rows that travel as arrays side by side, and where they come from."""
    # JSON travels as text and is cast on arrival, because an array of json has no operators.
    arrays = [
        bindparam(column, type_=ARRAY(Text() if isinstance(kind, Json) else kind))
        for column, kind in kinds.items()
    ]
    rows = func.unnest(*arrays).table_valued(*kinds, name=name).render_derived()
    row: dict[str, Any] = {
        column: sql_cast(rows.c[column], kind) if isinstance(kind, Json) else rows.c[column]
        for column, kind in kinds.items()
    }
    return row, rows


# Connections to PostgreSQL in a process that was forked.
#
# The child has the parent's sockets. Whatever it wrote to one, were it only the rollback of what
# its own copy of a block had begun, or a farewell, would reach the parent's session. So each of
# them is replaced by a socket that leads nowhere.


_open: WeakSet[Any] = WeakSet()
"""The driver's connections of our own engines."""


def note(own: Any) -> None:
    """Take note of a new connection of an engine that is ours."""
    _open.add(own)


def sever(own: Any) -> None:
    """Replace a connection's socket; in the child."""
    try:
        number = own.pgconn.socket
    except OperationalError:
        return  # it is closed
    nowhere, other = socket.socketpair()
    with nowhere, other:
        os.dup2(nowhere.fileno(), number, inheritable=False)


def _in_child() -> None:
    for own in list(_open):
        sever(own)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# How PostgreSQL's workers learn of tasks: NOTIFY in the changing transaction, LISTEN in theirs.
#
# A notification names a queue, or is empty where any queue may be meant. It is sent when its
# transaction commits, and never if that is rolled back; equal ones of a transaction are one.


_PENDING: ColumnElement[str] = literal_column("'pending'")
_ANY_QUEUE: ColumnElement[str] = literal_column("''")


class NotifyingTasks:
    """What ``EngineDialect`` says of tasks."""

    def server_clock(self) -> ColumnElement[datetime]:
        """Read the server's clock, again for each statement even inside a transaction."""
        return func.statement_timestamp(type_=DateTime(timezone=True))

    def announcing(
        self, statement: ReturningInsert[Any] | ReturningUpdate[Any], tables: Tables
    ) -> Executable:
        """Notify in the same statement: it is sent if, and when, the change is committed."""
        changed = statement.cte("changed").c
        queue = case((changed.status == _PENDING, changed.queue), else_=_ANY_QUEUE)
        told = (
            select(func.count(sql_cast(_notify(tables, queue), Text)))  # of however many rows
            .where((changed.status == _PENDING) | changed.alone_in_session)
            .scalar_subquery()
        )
        return select(*changed, told.label("told"))

    def announce(self, connection: Connection, tables: Tables, queues: Iterable[str]) -> None:
        """Notify each queue once; the empty name means any."""
        for queue in sorted(set(queues)):
            connection.execute(select(_notify(tables, encode_text(queue))))

    def task_signal(self, connection: Connection, tables: Tables) -> TaskSignal:
        """Listen on a connection of its own, made as this one was."""
        # Imported here, with the driver that it needs: programs on SQLite do without both.

        info = cast("Any", connection.connection.driver_connection).info
        return ListeningSignal(info.get_parameters(), info.password, _channel(tables))


def _channel(tables: Tables) -> str:
    """Name the channel: one for the tables of each schema and prefix of a database."""
    names = tables.names
    if names.schema is None and not names.prefix:
        return "agentstore_tasks"
    place = f"{names.schema or ''}.{names.prefix}".encode()
    return f"agentstore_tasks_{hashlib.blake2b(place, digest_size=8).hexdigest()}"


def _notify(tables: Tables, queue: Any) -> Function[Any]:
    return func.pg_notify(_channel(tables), queue)


# Checkpoints and the writes after them, each stored by one statement.


def storing_writes(entered: ReturningUpdate[Any], tables: Tables, *, replace: bool) -> Select[Any]:
    """Lock, store and count in one statement; see ``EngineDialect.storing_writes``."""
    table = tables.checkpoint_writes
    thread = entered.cte("entered")
    kinds = {column.name: column.type for column in table.c if column.name != "thread_id"}
    new, arriving = arrays(kinds, "new")
    wanted = bindparam("wanted", type_=table.c.thread_id.type)
    rows = select(wanted, *new.values()).select_from(arriving.join(thread, true()))
    storing = pg_insert(table).from_select(["thread_id", *kinds], rows)
    if replace:
        changed = {
            name: storing.excluded[name] for name in kinds if name not in table.primary_key.c
        }
        key = [*table.primary_key.c]
        wanted_places = bindparam("replaced", type_=ARRAY(kinds["position"]))
        gives_way = storing.excluded.position == any_(wanted_places)
        storing = storing.on_conflict_do_update(index_elements=key, set_=changed, where=gives_way)
    else:
        storing = storing.on_conflict_do_nothing()
    stored = storing.returning(table.c.position).cte("stored")
    return select(
        select(func.count()).select_from(thread).scalar_subquery(),
        select(func.count()).select_from(stored).scalar_subquery(),
    )


@lru_cache(maxsize=256)  # four milliseconds
def putting(
    tables: Tables,
    entered: ReturningInsert[Any] | ReturningUpdate[Any] | None,
    *,
    merges: bool,
) -> Executable:
    """Insert all that belongs to a checkpoint; see ``EngineDialect.putting``.

    Where it enters the thread too, it does so only if no piece is missing: alone in its
    transaction, it would commit a thread that is entered and a checkpoint that is not there.

    Pieces are rarely merged, and without that the server has less to plan. The text has fewer than
    4,096 characters; psycopg parses a longer one again at each call, which takes 0.2 ms.
    """
    points, values = tables.checkpoints, tables.checkpoint_values
    new = {
        column.name: bindparam(f"c_{column.name}", type_=column.type)
        for column in points.c
        if column is not points.c.pk
    }
    thread = new["thread_id"]
    end, ends = _arriving(values, "m_", "thread_id")
    line = and_(values.c.thread_id == thread, values.c.line == end["line"])
    given: list[Any] = []
    if entered is None:
        putting = pg_insert(points).values(new)
    else:
        if merges and isinstance(entered, ReturningUpdate):
            there = exists().where(line, values.c.start == end["start"])
            lacking = select(end["line"]).select_from(ends).where(~there)
            entered = entered.where(~lacking.exists())
        row = [sql_cast(value, points.c[name].type) for name, value in new.items()]
        thread_row = entered.cte("entered")
        if "pk" in thread_row.c:  # it was made
            given = [select(thread_row.c.pk.label("thread_pk")).scalar_subquery()]
        rows = select(*row).select_from(thread_row)
        putting = pg_insert(points).from_select([*new], rows)
    point = putting.on_conflict_do_nothing().returning(points.c.pk).cte("point")

    piece, arriving = _arriving(values, "p_", "thread_id")
    rows = select(thread, *piece.values()).select_from(arriving.join(point, true()))
    stored = pg_insert(values).from_select(["thread_id", *piece], rows).cte("stored")
    if not merges:
        none = literal_column("0", Integer).label("merged")
        return select(none, *given).select_from(point).add_cte(stored)
    merging = (
        update(values)
        .values({name: end[name] for name in end if name not in values.primary_key.c})
        .where(line, values.c.start == end["start"], point.c.pk.is_not(None))
    )
    merged = merging.returning(values.c.line).cte("merged")
    behind = and_(line, values.c.start > end["start"], point.c.pk.is_not(None))
    dropped = delete(values).where(behind).cte("dropped")
    count = select(func.count()).select_from(merged).scalar_subquery()
    counted = select(count.label("merged"), *given).select_from(point)
    return counted.add_cte(stored, merged, dropped)


def _arriving(table: Table, prefix: str, *but: str) -> tuple[dict[str, Any], Any]:
    """Give the columns of a table, but for some, of rows that travel as arrays."""
    kinds = {f"{prefix}{c.name}": c.type for c in table.c if c.name not in but}
    new, source = arrays(kinds, f"arriving_{prefix}{table.name}")
    return {name.removeprefix(prefix): column for name, column in new.items()}, source


# How a worker on PostgreSQL hears of tasks: LISTEN, on a connection of its own.


class ListeningSignal(TaskSignal):
    """A connection of its own that listens.

    It works on libpq itself, which a Store's connections and an AsyncStore's have in common.
    """

    interval: float | None = None

    def __init__(self, parameters: Mapping[str, str], password: str, channel: str) -> None:
        """Listen on this channel of the server of these connection parameters."""
        self._parameters = parameters
        self._password = password
        self._channel = channel
        self._connection: pq.abc.PGconn | None = None

    def __repr__(self) -> str:
        """Name the channel only."""
        return f"ListeningSignal({self._channel!r})"

    def open(self) -> None:
        """Connect and listen."""
        complete = make_conninfo("", **self._parameters, password=self._password or None)
        connection = pq.PGconn.connect(complete.encode("utf-8"))
        self._connection = connection
        if connection.status != pq.ConnStatus.OK:
            raise self._broken()
        listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
        if connection.exec_(listen.as_bytes()).status != pq.ExecStatus.COMMAND_OK:
            raise self._broken()

    def fileno(self) -> int | None:
        """Give the socket."""
        return None if self._connection is None else self._connection.socket

    def happened(self, queues: Collection[str]) -> bool:
        """Read what has arrived."""
        if self._connection is None:
            raise self._broken()
        meant = {encode_text(queue).encode("utf-8") for queue in queues} | {b""}
        found = False
        try:
            self._connection.consume_input()
            while (notification := self._connection.notifies()) is not None:
                found = found or notification.extra in meant
        except OperationalError as error:
            raise self._broken() from error
        return found

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.finish()
            self._connection = None

    def _broken(self) -> errors.DatabaseError:
        self.close()
        return errors.DatabaseUnreachable(
            "The connection that listens for tasks broke, or could not be made; workers poll "
            "instead. Check that the server is running and takes one more connection."
        )
