"""Writing on SQLite: append messages, begin and commit, and what becomes of files at a fork.

There is one writer, so nobody comes between its transaction's statements.
"""

from __future__ import annotations

import ctypes
import os
import random
import sqlite3
import time
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import (
    URL,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Table,
    UnaryExpression,
    Update,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    select,
    type_coerce,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.operators import custom_op

from agentstore import errors
from agentstore.engines.base.dialect import TaskSignal, room_in
from agentstore.engines.base.statements import (
    NO_TRANSACTION,
    RARE,
    ByDriver,
    Prepared,
    dialect_of,
    has_none_of_the_rare,
    run_sql,
)
from agentstore.engines.sqlite.files import WATCHED, file_name
from agentstore.engines.sqlite.moving import last_taken
from agentstore.schema import Tables, name_of_branch, session_is_open
from agentstore.values.encoding import decode_text
from agentstore.values.types import (
    MICROSECOND,
    MadeId,
    has_listeners,
    innermost,
    raise_as_sqlalchemy,
)
from agentstore.values.validation import LISTED_WITHIN, MAX_SKEW

_LEFT = "agentstore_left"
"""What a connection remembers: the row number taken last, and how sessions were left then."""

_MOST_LEFT = 256
"""Sessions of which a connection remembers how it left them."""


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
    """Look, count, then insert; see ``EngineDialect.append_messages``.

    Nobody else can have a session locked: who writes has the lock of the whole file. The activity
    of a session is the row number of its newest message. The rows have the session's number and
    the branch's name afterwards.

    While nobody else writes, the connection remembers how it left a session on its first branch,
    whose name never changes. Such a session is not looked for: it is counted in on condition that
    all is as it was left.
    """
    find, find_on, count, count_if_left, count_elsewhere, list_anew, *insertions = _statements(
        tables, dialect_of(connection)
    )
    add, add_plain, index, mark = insertions
    info = connection.info
    last, left = info.get(_LEFT) or (0, dict[str, tuple[Any, ...]]())
    leaving: dict[str, tuple[Any, ...]] = {}
    added: dict[str, tuple[int, int]] = {}
    there: list[dict[str, Any]] = []
    names: list[tuple[str, Sequence[dict[str, Any]]]] = []
    begin = 0
    for session in sessions:
        own = rows[begin : begin + session["messages"]]
        begin += len(own)
        session_id, named = session["session_id"], session["branch"] is not None
        place = None if named else left.pop(session_id, None)
        if place is not None:
            place = *place, last
            _say(session, place, len(there))
            if not count_if_left.count(connection, session):
                place = None  # somebody else has written since
        if place is None:
            found = (find_on if named else find).rows(connection, session)
            if not found:
                continue
            (place,) = found
            _say(session, place, len(there))
            count.count(connection, session)
        session_pk, seq, turn, number, active, branch, listed, taken = place
        if number != active:
            count_elsewhere.count(connection, session)
        if session["activity"] - listed >= LISTED_WITHIN:
            list_anew.count(connection, session)
            listed = session["activity"]
        if number == active == 0 and taken == last:  # nobody else writes just now
            ends = seq + len(own), turn + session["users"]
            leaving[session_id] = (session_pk, *ends, number, active, branch, listed)
        for pk, row in enumerate(own, taken + len(there) + 1):
            row["pk"], row["session_id"], row["branch"] = pk, session_pk, number
            row["seq"] += seq
            row["turn"] += turn
        added[session_id] = seq, session_pk
        there += own
        names.append((branch if branch.isascii() else decode_text(branch), own))
    if there:
        plain = has_none_of_the_rare(there)
        (add_plain if plain else add).execute_many(connection, there)
        left |= leaving
        if len(left) > _MOST_LEFT:
            left.clear()
        info[_LEFT] = there[-1]["pk"], left
        for name, own in names:
            for row in own:
                row["branch"] = name
    for more, insertion in ((calls, index), (marks, mark)) if calls or marks else ():
        owned = [each for each in more if each["session_id"] in added]
        for each in owned:
            first, each["session_id"] = added[each["session_id"]]
            each["seq"] += first
        if owned:
            insertion.execute_many(connection, owned)
    return added


def _say(session: dict[str, Any], place: Sequence[Any], before: int) -> None:
    """Say where a session is, for the statements that count; some rows come before its own."""
    pk, seq, turn, number, active, _, _, taken = place
    messages = session["messages"]
    session["pk"], session["number"], session["taken"] = pk, number, taken
    session["last_seq"], session["last_turn"] = seq, turn
    session["activity"] = taken + before + messages
    shown = (messages, session["users"]) if number == active else (0, 0)
    session["shown"], session["shown_users"] = shown


@lru_cache(maxsize=256)
def _statements(tables: Tables, driver: Dialect) -> tuple[Prepared, ...]:
    sessions = tables.sessions
    # A statement of its own: SQLite writes to an index even if a column keeps its value.
    here = sessions.c.pk == _whole("pk")
    list_anew = update(sessions).where(here).values(listed_activity=sessions.c.activity)
    return (
        Prepared(_finding(tables), driver),
        Prepared(_finding_on(tables), driver),
        Prepared(_counting(tables), driver),
        Prepared(_counting_if_left(tables), driver),
        Prepared(_counting_elsewhere(tables), driver),
        Prepared(list_anew, driver),
        _insertion(tables.messages, driver),
        _insertion(tables.messages, driver, without=RARE),
        _insertion(tables.message_tool_calls, driver),
        _insertion(tables.message_marks, driver),
    )


def _whole(name: str) -> BindParameter[int]:
    return bindparam(name, type_=BigInteger())


def _number(column: ColumnElement[Any]) -> ColumnElement[int]:
    """Give a counter as a number: where it is damaged, a session takes messages all the same."""
    return column + literal_column("0", BigInteger)


def _finding(tables: Tables) -> Select[Any]:
    """Look a session up that takes messages: where its active branch goes on.

    This SELECT and an UPDATE by the row's number take less time than one UPDATE with RETURNING, for
    which SQLite fills a table of its own.
    """
    sessions = tables.sessions.c
    active = sessions.active_branch
    name = name_of_branch(tables.branches, sessions.pk, active)
    return _open_session(tables, _number(sessions.turn), active, active, name)


def _finding_on(tables: Tables) -> Select[Any]:
    """Look it up where the branch with a name goes on, active or not."""
    sessions, branches = tables.sessions.c, tables.branches.c
    named = branches.name == bindparam("branch", type_=branches.name.type)
    turn = case((branches.number == sessions.active_branch, sessions.turn), else_=branches.turn)
    return _open_session(
        tables, _number(turn), branches.number, sessions.active_branch, branches.name
    ).where(branches.session_id == sessions.pk, named, branches.gone.is_(False))


def _open_session(tables: Tables, *branch: ColumnElement[Any]) -> Select[Any]:
    sessions = tables.sessions
    return select(
        sessions.c.pk,
        _number(sessions.c.last_seq),
        *branch,
        _number(sessions.c.listed_activity),
        last_taken(tables),
    ).where(*_open(tables))


def _open(tables: Tables) -> list[ColumnElement[bool]]:
    """Say which session takes messages."""
    sessions = tables.sessions
    this = sessions.c.id == bindparam("session_id")
    return [this, session_is_open(tables), room_in(sessions)]


def _counting(tables: Tables) -> Update:
    """Count in the session's row; what is ``shown`` is on the active branch."""
    sessions = tables.sessions.c
    now, earliest = (bindparam(n, type_=sessions.created_at.type) for n in ("now", "earliest"))
    more = {
        **dict.fromkeys(("last_seq", "message_count"), "messages"),
        **dict.fromkeys(("turn", "branch_turns"), "shown_users"),
        "branch_messages": "shown",
        "total_tokens": "tokens",
        "total_cost": "cost",
    }
    counted = {column: sessions[column] + _whole(name) for column, name in more.items()}
    counted |= {"activity": _whole("activity"), "last_active_at": now}
    counted["newest_at"] = func.max(sessions.newest_at, now)
    skew = literal_column(str(MAX_SKEW // MICROSECOND), BigInteger)
    in_time = type_coerce(sessions.newest_at, BigInteger) - skew <= earliest
    counted["in_order"] = and_(sessions.in_order, in_time)
    return update(tables.sessions).where(sessions.pk == _whole("pk")).values(counted)


def _counting_if_left(tables: Tables) -> Update:
    """Count in the session's row if ``_finding`` would give what is said of it.

    ``listed_activity`` is not compared: if it has grown meanwhile, the session is only listed again
    earlier than it has to be.
    """
    sessions = tables.sessions.c
    return _counting(tables).where(
        *_open(tables),
        sessions.last_seq == _whole("last_seq"),
        sessions.turn == _whole("last_turn"),
        sessions.active_branch == literal_column("0", BigInteger),
        last_taken(tables) == _whole("taken"),
    )


def _counting_elsewhere(tables: Tables) -> Update:
    """Count in the row of a branch that is not the active one."""
    branches = tables.branches.c
    more = {"messages": "messages", "turns": "users", "turn": "users"}
    counted = {column: branches[column] + _whole(name) for column, name in more.items()}
    here = (branches.session_id == _whole("pk"), branches.number == _whole("number"))
    return update(tables.branches).where(*here).values(counted)


def _insertion(table: Table, driver: Dialect, without: tuple[str, ...] = ()) -> Prepared:
    """Insert rows that say their session by its number; their ids were made by ``new_id``."""
    given: dict[str, BindParameter[Any]] = {"session_id": _whole("session_id")}
    if "id" in table.c:
        given["id"] = bindparam("id", type_=MadeId())
    rest = [column.key for column in table.columns if column.key not in (*given, *without)]
    return Prepared(insert(table).inline().values(given), driver, rest)


# A transaction that writes, from BEGIN IMMEDIATE to COMMIT.


BEGIN_IMMEDIATE = "BEGIN IMMEDIATE"
"""What begins a transaction that writes: it has the lock of the file before it reads."""

WAITED = "agentstore_waited"
"""The seconds, of a driver's error, that were waited before it."""

_PAUSES = (0.001, 0.006)
"""Seconds between two tries to begin to write, the shortest and the longest."""


class FileWrites:
    """What ``EngineDialect`` says of the writer, and of the files that it writes to."""

    append_messages = staticmethod(append_messages)

    def prepare_writer(self, connection: Connection) -> None:
        """Let it hear at once that another process writes; see ``begin_to_write``.

        With a WAL nobody is waited for once the transaction has begun. It is begun and committed
        by the driver itself: some fifty calls of SQLAlchemy's would take longer than the rest.
        """
        connection.execution_options(**{NO_TRANSACTION: ByDriver()})
        if pragma(connection, "journal_mode") == "wal":
            pragma(connection, "busy_timeout=0")

    def begin_to_write(self, connection: Connection, patience: float) -> None:
        """Try again after short pauses of different lengths.

        SQLite's own pauses grow to 100 ms. As the lock goes to the one who happens to try in the
        moments between two transactions, a writer that rarely tries waits very long beside one
        that is busy.
        """
        by_driver: ByDriver | None = connection.get_execution_options().get(NO_TRANSACTION)
        begun = time.monotonic()
        while True:
            try:
                if by_driver is None:
                    connection.begin()
                    return
                if has_listeners(connection, commits=True):
                    by_driver.close()
                    connection.begin()
                elif by_driver.cursor is None:
                    driver: Any = connection.connection.dbapi_connection
                    by_driver.cursor = driver.cursor()
                run_sql(connection, BEGIN_IMMEDIATE, begin=False)
                return
            except DBAPIError as error:
                code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
                waited = time.monotonic() - begun
                if code != sqlite3.SQLITE_BUSY or waited > patience:
                    setattr(error.orig, WAITED, waited)
                    raise
                if connection.in_transaction():
                    connection.rollback()
            time.sleep(random.uniform(*_PAUSES))  # noqa: S311 - that they do not try in step

    def commit(self, connection: Connection) -> None:
        """Commit by the driver, unless SQLAlchemy has begun too."""
        if connection.in_transaction():
            connection.commit()
            return
        driver: Any = connection.connection.dbapi_connection
        try:
            connection.dialect.do_commit(driver)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in other words
            raise_as_sqlalchemy(connection, error, "COMMIT", None)

    def roll_back(self, connection: Connection) -> None:
        """Roll back by the driver, unless SQLAlchemy has begun too."""
        by_driver: ByDriver | None = connection.get_execution_options().get(NO_TRANSACTION)
        if by_driver is not None:
            by_driver.close()
        if connection.in_transaction():
            connection.rollback()
            return
        try:
            connection.dialect.do_rollback(connection.connection)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in other words
            raise_as_sqlalchemy(connection, error, "ROLLBACK", None)

    def require_file(self, connection: Connection, *, each_time: bool = True) -> None:
        """Compare device and inode, of the log too."""
        watched = connection.info.get(WATCHED)
        if watched is None:
            return
        watch = watched.watch
        if (
            (each_time and watch.each_time)
            or watch.broken is not None
            or time.monotonic() >= watch.next_look
        ):
            watched.look()


def pragma(connection: Connection, name: str) -> Any:
    """Set or read a pragma outside of a transaction, where alone some of them work."""
    driver = connection.connection.dbapi_connection
    assert driver is not None
    cursor = driver.cursor()
    cursor.execute(f"PRAGMA {name}")
    row = cursor.fetchone()
    cursor.close()
    return row and row[0]


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
