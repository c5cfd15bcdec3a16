"""Appending messages on SQLite: count on the session's row, then insert.

There is one writer, so nobody comes between.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Table,
    UnaryExpression,
    and_,
    bindparam,
    case,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.operators import custom_op

from agentstore import errors
from agentstore.engines.base.dialect import TaskSignal, room_in
from agentstore.engines.base.statements import Prepared, dialect_of
from agentstore.engines.sqlite.files import file_name
from agentstore.engines.sqlite.moving import last_taken
from agentstore.schema import Tables, name_of_branch, session_is_open
from agentstore.values.encoding import decode_text
from agentstore.values.types import innermost
from agentstore.values.validation import LISTED_WITHIN


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
    """Count, then insert; see ``EngineDialect.append_messages``.

    Nobody else can have a session locked: who writes has the lock of the whole file. The activity
    of a session is the row number of its newest message. The rows have the session's number and
    the branch's name afterwards.
    """
    count, list_anew, add, add_plain, index, mark = _statements(tables, dialect_of(connection))
    added: dict[str, tuple[int, int]] = {}
    there: list[dict[str, Any]] = []
    names: list[tuple[str, Sequence[dict[str, Any]]]] = []
    begin = 0
    for session in sessions:
        end = begin + session["messages"]
        session["so_far"] = len(there)
        counting, elsewhere = count, None
        if session["branch"] is not None:
            counting, elsewhere = _counting_on(tables, dialect_of(connection))
        if counted := counting.rows(connection, session):
            own = rows[begin:end]
            last_seq, turn, number, branch, activity, behind, session_pk, active = counted[0]
            if elsewhere is not None and number != active:
                place = {"pk": session_pk, "number": number}
                ((turn,),) = elsewhere.rows(connection, session | place)
            if behind >= LISTED_WITHIN:
                list_anew.execute_many(connection, [session])
            first, first_turn = last_seq - len(own), turn - session["users"]
            for pk, row in enumerate(own, activity - len(own) + 1):
                row["pk"], row["session_id"], row["branch"] = pk, session_pk, number
                row["seq"] += first
                row["turn"] += first_turn
            added[session["session_id"]] = first, session_pk
            there += own
            names.append((branch if branch.isascii() else decode_text(branch), own))
        begin = end
    if there:
        plain = [*map(_rare, there)].count(_NONE_OF_THEM) == len(there)
        (add_plain if plain else add).execute_many(connection, there)
        for name, own in names:
            for row in own:
                row["branch"] = name
    for more, insertion in ((calls, index), (marks, mark)):
        owned = [each for each in more if each["session_id"] in added]
        for each in owned:
            first, each["session_id"] = added[each["session_id"]]
            each["seq"] += first
        if owned:
            insertion.execute_many(connection, owned)
    return added


_RARE = (
    *("blocks", "tool_calls", "tool_call_id", "name", "metadata", "payload"),
    *("external_id", "chat_keys", "idempotency_key"),
)
"""Columns that are NULL in most messages. The driver takes ten times as long for a NULL as for a
number: it asks whether somebody adapts None."""
_rare = itemgetter(*_RARE)
_NONE_OF_THEM = (None,) * len(_RARE)


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> tuple[Prepared, ...]:
    sessions = tables.sessions
    # A statement of its own: SQLite writes to an index even if a column keeps its value.
    here = sessions.c.id == bindparam("session_id")
    list_anew = update(sessions).where(here).values(listed_activity=sessions.c.activity)
    return (
        Prepared(_counting(tables), driver),
        Prepared(list_anew, driver),
        _insertion(tables.messages, driver),
        _insertion(tables.messages, driver, without=_RARE),
        _insertion(tables.message_tool_calls, driver),
        _insertion(tables.message_marks, driver),
    )


@lru_cache(maxsize=256)
def _counting_on(tables: Tables, driver: Dialect) -> tuple[Prepared, Prepared]:
    """Count for the branch with a name; and then in its own row, where it is not the active one."""
    branches, sessions = tables.branches, tables.sessions.c
    name = bindparam("branch", type_=branches.c.name.type)
    named = and_(branches.c.name == name, branches.c.gone.is_(False))
    number = select(branches.c.number).where(branches.c.session_id == sessions.pk, named)
    onto = number.correlate(tables.sessions).scalar_subquery()  # also where it is in another one
    users = bindparam("users", type_=BigInteger())
    elsewhere = (
        update(branches)
        .where(
            branches.c.session_id == bindparam("pk", type_=BigInteger()),
            branches.c.number == bindparam("number", type_=BigInteger()),
        )
        .values(
            messages=branches.c.messages + bindparam("messages"),
            turns=branches.c.turns + users,
            turn=branches.c.turn + users,
        )
        .returning(branches.c.turn)
    )
    return Prepared(_counting(tables, onto), driver), Prepared(elsewhere, driver)


def _counting(tables: Tables, onto: ColumnElement[int] | None = None) -> ReturningUpdate[Any]:
    """Count in the session's row; ``onto`` is the branch, if not the active one is meant."""
    sessions = tables.sessions
    here = sessions.c.id == bindparam("session_id")
    now, skew_limit = (
        bindparam(name, type_=sessions.c.created_at.type) for name in ("now", "skew_limit")
    )
    messages: ColumnElement[Any] = bindparam("messages")
    users: ColumnElement[Any] = bindparam("users")
    shown: list[ColumnElement[Any]] = [messages, users]
    branch: ColumnElement[Any] = sessions.c.active_branch
    if onto is not None:
        here = and_(here, onto.is_not(None))
        shown = [case((onto == branch, count), else_=0) for count in shown]
        branch = onto
    return (
        update(sessions)
        .where(here, session_is_open(tables), room_in(sessions))
        .values(
            last_seq=sessions.c.last_seq + messages,
            turn=sessions.c.turn + shown[1],
            message_count=sessions.c.message_count + messages,
            branch_messages=sessions.c.branch_messages + shown[0],
            branch_turns=sessions.c.branch_turns + shown[1],
            total_tokens=sessions.c.total_tokens + bindparam("tokens"),
            total_cost=sessions.c.total_cost + bindparam("cost", type_=BigInteger()),
            activity=last_taken(tables) + bindparam("so_far") + messages,
            last_active_at=now,
            newest_at=func.max(sessions.c.newest_at, now),
            in_order=and_(sessions.c.in_order, sessions.c.newest_at <= skew_limit),
        )
        .returning(
            sessions.c.last_seq,
            sessions.c.turn,
            branch,
            name_of_branch(tables.branches, sessions.c.pk, branch),
            sessions.c.activity,
            sessions.c.activity - sessions.c.listed_activity,
            sessions.c.pk,
            sessions.c.active_branch,
        )
    )


def _insertion(table: Table, driver: Dialect, without: tuple[str, ...] = ()) -> Prepared:
    """Insert rows that say their session by the number, which was just read."""
    number = bindparam("session_id", type_=BigInteger())
    other = ("session_id", *without)
    rest = [column.key for column in table.columns if column.key not in other]
    return Prepared(insert(table).inline().values(session_id=number), driver, rest)


# SQLite's connections in a process that was forked.
#
# SQLite notes the locks of all connections to a file in one place in the process, and the system
# has them by process: a child inherits the notes and not the locks. Its own connections to that
# file would not take what the notes say is taken already, and a third process could delete the
# WAL into which they write. So before a child opens such a file, what it inherited is closed,
# which writes nothing as long as it is idle, and the notes are gone with it.
#
# A connection that another thread was using at the fork cannot be closed: it may be in the middle
# of a write, part of which is memory that the parent shares. It is kept for good, also from
# Python's collection. And as that thread may have held one of SQLite's own locks, which nobody in
# the child will ever let go, the child opens no file at all, and calls nothing of SQLite's.


_FILE = "agentstore_file"

File = tuple[int, int]

_records: WeakSet[Any] = WeakSet()
"""Where the pools of our engines keep connections to files."""

_left: list[tuple[File, sqlite3.Connection]] = []
"""What the parent had open at the fork, and did not use."""

_in_use = False
"""Whether it used some."""


def note_opening(record: Any) -> None:
    """Take note of a connection to a file that is being opened; ``note_open`` ends that."""
    _records.add(record)


def note_open(record: Any, url: URL) -> None:
    """Take note that a connection to a file is open."""
    record.info[_FILE] = str(url.database)


def close_what_is_left(url: URL) -> None:
    """Close what was inherited of a file.

    Raises:
        TransactionMisuse: The parent was using some file at the fork.
    """
    if _in_use:
        raise errors.TransactionMisuse(
            "This process was forked while its parent was using a SQLite file, in a transaction or "
            "in another thread, so it cannot open any. Fork before a store is used, close the "
            "store before the fork, or start processes by spawn."
        )
    file = _identity(str(url.database)) if _left else None
    for entry in [entry for entry in _left if entry[0] == file]:
        _left.remove(entry)
        entry[1].close()


def leave_behind(connection: Connection, *, busy: bool) -> None:
    """Leave one connection, which is in no pool, to the parent; in the child."""
    _leave(connection.connection, str(connection.engine.url.database), busy=busy)


def abandon(connection: Connection) -> None:
    """Put nothing in the place of a connection that the forking thread itself is using."""
    _leave(connection.connection, str(connection.engine.url.database), busy=True)


class _Nothing:
    """What the holder of a connection rolls back and closes instead."""

    def rollback(self) -> None:
        """Do nothing."""

    commit = close = rollback


def _in_child() -> None:
    for record in list(_records):
        if record.dbapi_connection is not None:
            path = record.info.get(_FILE)  # none while another thread opens it
            _leave(record, path or "", busy=record.in_use or path is None)
    _records.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _leave(holder: Any, path: str, *, busy: bool) -> None:
    """Take the driver's connection out of what holds it."""
    global _in_use
    inherited = innermost(holder.dbapi_connection)
    if not isinstance(inherited, sqlite3.Connection):
        return
    holder.dbapi_connection = _Nothing()
    # Python closes what it collects. Nobody but we may close this.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    file = _identity(path)
    if busy:
        _in_use = True
    elif file is not None:
        _left.append((file, inherited))


def _identity(path: str) -> File | None:
    try:
        found = Path(file_name(path)).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# How SQLite's workers learn of tasks: they look whether the file has changed.
#
# ``PRAGMA data_version`` changes on a connection when any other one, of this process or another,
# has committed. It reads a counter in shared memory and takes a few microseconds.


_INTERVAL = 0.02
"""Seconds. A look takes 5 µs, so fifty in a second are a four-thousandth of a core."""


class FileTasks:
    """What ``EngineDialect`` says of tasks."""

    def only_checked(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Put SQLite's unary plus in front, which keeps a term from choosing an index."""
        return UnaryExpression(column, operator=custom_op("+"), type_=column.type)

    def task_signal(self, connection: Connection, tables: Tables) -> TaskSignal:
        """Watch the file that this connection is to."""
        databases = connection.exec_driver_sql("PRAGMA database_list").all()
        return FileSignal(next(file for _, name, file in databases if name == "main"))


class FileSignal(TaskSignal):
    """A connection of its own that looks whether others have committed.

    A database in memory has no other connections. There the answer is always that something may
    have happened, and the worker asks the tasks themselves.
    """

    interval: float | None = _INTERVAL

    def __init__(self, file: str) -> None:
        """Watch this file; the empty name is memory."""
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None

    def open(self) -> None:
        """Connect, and remember how things are now."""
        if self._file:
            self._guarded(self._connect)

    def happened(self, queues: Collection[str]) -> bool:
        """Look."""
        if self._connection is None:
            return True
        before = self._version
        self._guarded(self._look)
        return self._version != before

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        self._connection = sqlite3.connect(
            self._file, isolation_level=None, check_same_thread=False
        )
        self._look()

    def _look(self) -> None:
        assert self._connection is not None
        (self._version,) = self._connection.execute("PRAGMA data_version").fetchone()

    def _guarded(self, call: Any) -> None:
        try:
            call()
        except sqlite3.Error as error:
            raise errors.DatabaseError(
                f"The file cannot be watched ({error}). Check the path in the URL and the disk."
            ) from error
