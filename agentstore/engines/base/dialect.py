"""Everything in which the engines differ: what a dialect promises, and what most need not say.

The rest of the library asks a dialect and never asks for its name. An engine difference is a method
here, with the promise that both engines keep. It is abstract, with a body in each engine; where one
of them has nothing to do, the body that does so is here.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    URL,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Engine,
    Executable,
    FromClause,
    Insert,
    Select,
    Table,
    TableClause,
    Update,
    event,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate
from sqlalchemy.types import TypeEngine

from agentstore.errors import AgentStoreError, DatabaseError, InvalidRow

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agentstore.engines.base.moving import Checks, Moving
    from agentstore.engines.base.search import SearchIndex
    from agentstore.engines.sqlite.moving import ChangeLog
    from agentstore.schema import Names, Tables
    from agentstore.settings import Settings


Change = Insert | Update | Delete
"""A statement that writes."""


class Mode(Enum):
    """What a unit of work needs from its transaction."""

    READ = "one statement that reads"
    SNAPSHOT = "several statements that read one state of the database"
    STATEMENT = "a write that is one statement where the engine can say it in one"
    WRITE = "several statements, all or nothing"


MODE = "agentstore_mode"
"""The execution option in which the engine of a mode carries it, for the begin event."""

WAIT_CANCELLED = "agentstore_wait_cancelled"
"""What says, in the ``info`` of a connection, that a commit did not wait for its standby: somebody
cancelled that, and the server only warns of it."""

LAST_USED = "agentstore_last_used"
"""What says, in the ``info`` of a connection, when it was used last, by the monotonic clock."""

READ_ONLY = "agentstore_read_only"
"""The execution option of a store's own engine that only reads."""


class Failure(Enum):
    """What a driver's error means for the question whether to try again."""

    ROLLED_BACK = "certainly nothing happened, and trying again may succeed"
    DISCONNECTED = "the connection broke; a commit under way is in doubt"
    FINAL = "trying again would fail again"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A driver's error in our words."""

    failure: Failure
    error: DatabaseError
    words: str = ""
    """The driver's, without ours about what was written, where it could not know that."""


FULL = 2**62
"""A session's counter that is as large takes no more. What one call adds is less than that, so no
counter ever has more than 64 bits, which SQLite would make a float."""


def room_in(sessions: Table) -> ColumnElement[bool]:
    """Say whether a session's counters have room for what a call adds; nothing is bound to it."""
    either = sessions.c.total_tokens.op("|")(type_coerce(sessions.c.total_cost, BigInteger))
    return either.op(">>")(literal_column("62")) == literal_column("0")


class EngineDialect(ABC):
    """One engine. It has one object, by which statements that are built once are kept."""

    schemas: bool
    """Whether the engine has schemas."""

    file_based: bool
    """Whether a database is a file."""

    single_writer: bool
    """Whether the engine takes one writer at a time."""

    threads_async_work: bool
    """Whether an AsyncStore runs units in threads, because the engine is in the process."""

    hides_rows: bool = False
    """Whether the engine itself hides, in a scope, what belongs to other users."""

    most_bytes: int
    """The most bytes in one column that can be stored and read again."""

    search: type[SearchIndex]
    """The engine's index for full-text search."""

    space: Space
    """How the engine gives back the space of what was deleted."""

    def writes_of_others(self, connection: Connection) -> int:
        """Give a number that is another one once other connections have written.

        Only where there is a single writer.
        """
        return 0

    @property
    def change_log(self) -> ChangeLog | None:
        """The log of changes that a copy follows; None where the engine has none."""
        return None

    # What is asked now and then is loaded when it is: a store at work needs none of it.

    package: str
    """The engine's own, of which ``moving`` and ``checks`` are loaded when they are asked for."""

    @property
    def moving(self) -> Moving:
        """How the engine is read whole, and loaded whole."""
        moving: Moving = import_module(f"{self.package}.moving").MOVING
        return moving

    @property
    def checks(self) -> Checks:
        """What the engine reports of itself, and what ``agentstore doctor`` looks at there."""
        checks: Checks = import_module(f"{self.package}.checks").CHECKS
        return checks

    @abstractmethod
    def url(self, url: URL, *, asynchronous: bool) -> URL:
        """Name the driver: the same URL opens in Store and in AsyncStore.

        Raises:
            UnsupportedUrl: The URL names a driver that is not supported.
        """

    def names_async_driver(self, url: URL) -> bool:
        """Say whether the URL asks for a driver that is asynchronous only."""
        return False

    def require_existing(self, url: URL) -> None:
        """Refuse a database that opening would create.

        Raises:
            DatabaseUnreachable: There is none.
        """

    @abstractmethod
    def engine_options(self, url: URL, settings: Settings) -> dict[str, Any]:
        """Give the arguments of ``create_engine``: pool, timeouts, connection arguments."""

    @abstractmethod
    def install(self, engine: Engine, settings: Settings, *, adopted: bool) -> None:
        """Add the connection events; on an adopted engine, for its open connections too.

        With ``read_only`` the database itself refuses writes by an engine of the store's own.
        """

    def take_over(self, connection: Connection) -> None:
        """Prepare a connection that was checked out, and is in no transaction, for a unit."""

    def leave_behind(self, connection: Connection, *, busy: bool) -> None:
        """Leave the connection that one writer keeps to the parent, in a child that was forked.

        Args:
            connection: The connection.
            busy: Whether the writer was using it.
        """

    @abstractmethod
    def abandon(self, connection: Connection) -> None:
        """See to it, in a child that was forked, that nothing that is done to a connection in use
        reaches the parent.
        """

    def many_connections(self, url: URL) -> bool:
        """Say whether this database can have more than one connection."""
        return True

    def prepare_writer(self, connection: Connection) -> None:
        """Prepare a connection that one writer keeps for itself."""

    def begin_to_write(self, connection: Connection, patience: float) -> None:
        """Begin a transaction that writes, on such a connection.

        Args:
            connection: The connection.
            patience: Seconds to wait for writers in other processes, where there can be but one.
        """
        connection.begin()

    def commit(self, connection: Connection) -> None:
        """Commit what was begun by ``begin_to_write``."""
        connection.commit()

    def roll_back(self, connection: Connection) -> None:
        """Roll back what was begun by ``begin_to_write``, if anything was."""
        connection.rollback()

    @abstractmethod
    def require_joinable(self, connection: Connection, tables: Tables) -> None:
        """Refuse a transaction of the application's in which a unit could not do what it promises.

        Raises:
            TransactionMisuse: It has failed, its connection is not set up as it has to be, or a
                temporary table is seen to hide one of ours.
        """

    def join_to_write(self, connection: Connection, tables: Tables) -> None:
        """Take in the application's transaction what a unit that writes takes when it begins."""

    def lock_name(self, connection: Connection, name: str) -> None:
        """Have others who lock this name wait until the transaction ends.

        Nothing to do where one writes at a time.
        """

    def refuse_to_wait_for_caller(self, engine: Engine, mode: Mode) -> None:
        """Refuse a unit that would wait for a transaction of the caller's own.

        Raises:
            TransactionMisuse: It would.
        """

    @abstractmethod
    def modes(self, engine: Engine, synchronous_commit: str | None = None) -> dict[Mode, Engine]:
        """Give the engine as each mode needs it; all share one pool.

        Args:
            engine: The engine.
            synchronous_commit: What commits wait for on a server; see ``Settings``.
        """

    def async_modes(
        self, engine: AsyncEngine, synchronous_commit: str | None = None
    ) -> dict[Mode, AsyncEngine]:
        """Do the same for an asynchronous engine."""
        modes = self.modes(engine.sync_engine, synchronous_commit)
        return {mode: type(engine)(tagged) for mode, tagged in modes.items()}

    def require_file(self, connection: Connection, *, each_time: bool = True) -> None:
        """Refuse a database whose file was deleted or replaced since it was opened.

        Called before each commit, so that none is acknowledged that is in no file.

        Args:
            connection: Of the store.
            each_time: Whether to look now, or only every so often.

        Raises:
            DatabaseReplaced: It was.
        """

    @abstractmethod
    def diagnose(self, error: DBAPIError) -> Diagnosis:
        """Say what a driver's error means."""

    def brings_itself_to_head(self, connection: Connection) -> bool:
        """Say whether this database is new and migrates without a command; a server never does."""
        return False

    def require_reach(self, connection: Connection, names: Names) -> None:
        """Refuse where tables are not found because this role may not look where they are.

        Raises:
            DatabaseReadOnly: It may not.
        """

    @abstractmethod
    def lock_for_migration(self, connection: Connection, names: Names) -> None:
        """Begin the transaction of a migration, and wait until no other one runs.

        Its commit waits for the disk, whatever was set.

        Raises:
            DatabaseBusy: Another migration took longer than the timeout.
        """

    def check_after_migration(self, connection: Connection) -> None:
        """Refuse, before the commit, what a migration must not leave; none where keys always hold.

        Raises:
            DatabaseError: Rows refer to rows that are gone.
        """

    def finish_migration(self, connection: Connection, tables: Tables) -> None:
        """Do, behind the commit, what nobody else need wait for and may be done again.

        Where there is nothing of it to do, this costs one short query at most.
        """

    def unlock_after_migration(self, connection: Connection) -> None:
        """Undo what ``lock_for_migration`` changed on the connection; no transaction is open."""

    def has_no_room(self, error: DBAPIError) -> bool:
        """Say whether a SUM of whole numbers failed because its result has no room for it.

        Nowhere where a sum has room for any number.
        """
        return False

    @abstractmethod
    def take_activity(self, connection: Connection, tables: Tables) -> int:
        """Take a number larger than every ``activity`` of a session; nobody else gets it."""

    def message_number(self, connection: Connection, tables: Tables) -> dict[str, int]:
        """Give ``pk`` for one that ``append_messages`` does not insert, or nothing."""
        return {}

    def by_bytes(self, column: ColumnElement[str]) -> ColumnElement[str]:
        """Give a column of text that compares and sorts as its UTF-8 does, in any database."""
        return column

    @abstractmethod
    def octets(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Give the bytes that a text takes, which is not NULL."""

    @abstractmethod
    def holds(self, text: ColumnElement[str], part: str, *, ascii: bool) -> ColumnElement[bool]:
        """Say that a text contains the parameter of this name: an ASCII word in lower case, which
        may be in any case there, or one character that is not ASCII.
        """

    @abstractmethod
    def next_put(self, tables: Tables) -> ColumnElement[int]:
        """Give a number larger than every ``activity`` of a checkpoint thread, as an expression."""

    @abstractmethod
    def each_line(
        self, lines: ColumnElement[Any]
    ) -> tuple[FromClause, ColumnElement[int], ColumnElement[int]]:
        """Take apart what a column of lines says: a JSON object of numbers by numbers.

        Returns:
            A row for each, to be joined with the table of the column; the number of the line, and
            that of its bytes.
        """

    def storing_writes(
        self, entered: ReturningUpdate[Any], tables: Tables, *, replace: bool
    ) -> Select[Any] | None:
        """Give one statement that locks a thread and stores the pending writes of a task.

        Args:
            entered: Locks the thread whose id is ``wanted``, and returns its row.
            tables: The tables.
            replace: Whether what is there gives way at the positions in ``replaced``, a list
                that is one parameter more.

        Returns:
            It counts the threads that were locked, and the writes that were stored. Beside the
            parameters of ``entered`` it takes a list for each other column of the writes.
            None where the engine cannot say it in one.
        """
        return None

    def putting(
        self,
        tables: Tables,
        entered: ReturningInsert[Any] | ReturningUpdate[Any] | None,
        *,
        merges: bool,
    ) -> Executable | None:
        """Give one statement that inserts a checkpoint with its pieces.

        Args:
            tables: The tables.
            entered: Changes or makes the row of the thread first; if it does not, nothing is
                inserted. Nor is anything if a piece that is to be merged is not there.
            merges: Whether there are pieces to be merged; else they are no parameters.

        Returns:
            It gives how many pieces were merged, and then the number of a thread that ``entered``
            makes; no row, and nothing is written, if the checkpoint's id is taken. Parameters are
            the columns of the checkpoint (``c_``), and lists of those of new pieces (``p_``), and
            of merged ones (``m_``), which take the place of what begins where they do or later on
            their lines.
            None where the engine gains nothing by it.
        """
        return None

    def at_once(self, connection: Connection, *changes: Change) -> CursorResult[Any]:
        """Make changes, by as few statements as ``together`` gives.

        Returns:
            The result of the last one.
        """
        *others, last = self.together(*changes)
        for change in others:
            connection.execute(change)
        return connection.execute(last)

    def together(self, *changes: Change) -> Sequence[Change]:
        """Give statements that make changes: one where that spares round trips.

        None of the changes may see what another one does, and no two may change the same row or
        the same unique value: in one statement they have no order. The last of them stays last.
        """
        return changes

    @abstractmethod
    def insert_missing(self, table: Table) -> Insert:
        """Give an INSERT that does nothing where a row with the same key is there already.

        It waits for a transaction that writes that key, so that a look afterwards finds the row.
        """

    @abstractmethod
    def lapse_reservations(
        self, connection: Connection, tables: Tables, user_id: str, now: datetime
    ) -> int:
        """Let a user's expired reservations lapse, and take them off ``quota_reserved``.

        Returns:
            How many did; 0 also where the user has none.
        """

    def enter_scope(self, connection: Connection, user_id: str) -> None:
        """Hide the rows of other users until the transaction ends, where ``hides_rows``.

        "" shows all of them again.
        """

    def scope_of(self, connection: Connection) -> str:
        """Give what ``enter_scope`` was told last in this transaction; "" if nothing."""
        return ""

    def log_position(self, connection: Connection, *, replayed: bool = False) -> str | None:
        """Give how far the server has written its log, or, as a standby, replayed its primary's.

        As PostgreSQL writes it, such as ``0/16B3748``; None where there is no such thing: in a
        file, and, if ``replayed``, on a server that follows nobody.
        """
        return None

    def require_answer(self, connection: Connection) -> None:
        """Ask what every server can say; raises what the driver does where none comes."""
        connection.execute(select(literal_column("1")))

    def drop_blobs(self, connection: Connection, tables: Tables, digests: Sequence[str]) -> int:
        """Delete those blobs that nobody attaches, in a scope that cannot see who does.

        Only where ``hides_rows``.

        Returns:
            How many were deleted.
        """
        raise NotImplementedError

    def grants(self, names: Names, role: str) -> list[str]:
        """Give the statements that let a role work in scopes, and nowhere else; none where there
        are no roles.
        """
        return []

    @abstractmethod
    def append_messages(
        self,
        connection: Connection,
        tables: Tables,
        sessions: Sequence[dict[str, Any]],
        rows: Sequence[dict[str, Any]],
        calls: Sequence[dict[str, Any]],
        marks: Sequence[dict[str, Any]],
        *,
        wait: bool,
    ) -> Collection[str]:
        """Count messages in their sessions and insert them; the only locks are those sessions.

        Args:
            connection: In a transaction, or in autocommit where ``Mode.STATEMENT`` says so.
            tables: The tables.
            sessions: Each once: its ``session_id``; ``now``, the latest time of its rows;
                ``earliest``, the earliest: the session stays ``in_order`` if no earlier message is
                more than ``MAX_SKEW`` later than that; and what to add: ``messages``, ``users``
                (those of the role user), ``tokens``, ``cost``.
            rows: The rows of ``messages`` without branch, those of the first session first, and
                so on; ``seq`` counts from 1 and ``turn`` from 0 or 1 in each session, to be added
                to what it has. They are given their numbers and the branch's name.
            calls: The rows of ``message_tool_calls``, ``seq`` as above.
            marks: The rows of ``message_marks``, ``seq`` as above.
            wait: Whether to wait for sessions that somebody else has locked, or to leave them
                out. Who waits names one session.

        Returns:
            The ids of the sessions that are there and were not left out. Nothing was written to
            the others.
        """

    def arriving(
        self, tables: Tables, kinds: Mapping[str, TypeEngine[Any]]
    ) -> tuple[dict[str, ColumnElement[Any]], ColumnElement[bool]] | None:
        """Give the columns of rows that arrive in one statement, a list of values for each column.

        Args:
            tables: The tables.
            kinds: The columns' types, by their names, which are those of the parameters.
                ``session_id`` is among them.

        Returns:
            The columns, and the condition that the row's session is locked by nobody; None where
            the engine is in this process, and rows may as well arrive one by one.
        """
        return None

    def server_clock(self) -> ColumnElement[datetime] | None:
        """Give the server's present as an expression; None where the engine is in this process
        and so has this machine's clock.
        """
        return None

    def announcing(
        self, statement: ReturningInsert[Any] | ReturningUpdate[Any], tables: Tables
    ) -> Executable:
        """Make a change of tasks that returns their whole rows tell waiting workers too.

        They hear at the commit, of rows that are pending now, and of those whose end lets another
        task of their session start. The rows come back as before, perhaps with more columns.
        """
        return statement

    def announce(self, connection: Connection, tables: Tables, queues: Iterable[str]) -> None:
        """Tell the workers of these queues, at the commit, that tasks may be claimable."""

    @abstractmethod
    def for_each(
        self, outer: FromClause, table: Table, found: Select[Any], *, all_outer: bool = False
    ) -> tuple[FromClause, ReadOnlyColumnCollection[str, Any]]:
        """Join to each row of ``outer`` the few rows of a table that a query finds for it.

        Args:
            outer: What has the rows that the query is run for.
            table: Whose rows are wanted; it has ``pk``.
            found: Selects whole rows of an alias of the table. It refers to columns of ``outer``,
                and has an order and a limit, so that an index answers it.
            all_outer: Keep rows of ``outer`` for which it finds none, as an outer join does.

        Returns:
            What to select from, and the table's columns in it.
        """

    @abstractmethod
    def ranges(self, line: ColumnElement[Any]) -> tuple[FromClause, list[ColumnElement[int]]]:
        """Give the array of a line as rows, for a FROM clause behind the table that has it.

        Returns:
            What to select from, and of each range: its place in the array from 0 on, its branch,
            its first sequence number and its last one, NULL where it is open.
        """

    def last_of(
        self, query: Select[Any], key: ColumnElement[int], count: BindParameter[int]
    ) -> Select[Any]:
        """Give the rows of a query with the largest keys, as a part of a UNION ALL; in no order.

        Args:
            query: Has neither an order nor a limit; an index gives its rows by their keys.
            key: A column of the query, above zero, that no two of its rows share.
            count: How many, one at least.
        """
        return select(query.order_by(key.desc()).limit(count).subquery("last"))

    def only_checked(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Give the column for a condition that is to be checked on rows that were found by
        another one, where a planner would not see that by itself.
        """
        return column

    @abstractmethod
    def task_signal(self, connection: Connection, tables: Tables) -> TaskSignal:
        """Give what a worker waits for between two claims, not opened yet."""


# What of a driver's error may be shown beside ours.


def cause_of(error: BaseException) -> BaseException | None:
    """Give the driver's own error; SQLAlchemy's around it would quote the statement.

    None where that may quote what somebody wrote: an error about a value, one that Python's module
    for SQLite made up itself (SQLite's own have a code), and whatever has more than one line, of
    which the further ones show the row that failed, or the line of a COPY.
    """
    cause: BaseException | None = getattr(error, "orig", None)
    if cause is None or isinstance(cause, AgentStoreError) or isinstance(error, DataError):
        return None
    if isinstance(cause, sqlite3.Error) and not hasattr(cause, "sqlite_errorcode"):
        return None
    return None if len(str(cause).splitlines()) > 1 else cause


def of_the_module(error: DBAPIError) -> DatabaseError:
    """Say what Python's module for SQLite complains of, without its words."""
    column = _UNDECODABLE.match(str(error.orig))
    if column is not None:
        name = "" if column[1].startswith("page_key_") else column[1]
        return InvalidRow("", name, "text that is not UTF-8")
    words, kind = str(error.orig), type(error.orig).__name__
    if words.startswith("Error binding parameter"):
        return DatabaseError(
            f"{kind} in Python's sqlite3 module: it cannot pass one of the arguments to SQLite, so "
            "the statement did not run. Check the arguments."
        )
    said = f": {words.rstrip('.')}" if words in _SAYINGS else ""
    return DatabaseError(f"{kind} in Python's sqlite3 module{said}. {UNKNOWN}")


UNKNOWN = (
    "agentstore does not know this error, nor whether anything was written before it: check before "
    "you repeat the call."
)
"""What is said after an error of the driver, or of SQLAlchemy, that nothing else is known of."""

OF_A_TRIGGER = "A trigger or a function that somebody added to the database raised an error"
"""What is said in the place of its own words, which may quote a row."""

_SAYINGS = {
    "Cannot operate on a closed cursor.",
    "Cannot operate on a closed database.",
    "Error creating function",
    "Recursive use of cursors not allowed.",
}
"""Of the module's own errors, some that help and quote no value."""

_UNDECODABLE = re.compile(r"Could not decode to UTF-8 column '(\w{1,63})'")


# Listening to the events of an engine, once.


_heard: WeakKeyDictionary[Engine, set[tuple[str, Callable[..., Any]]]] = WeakKeyDictionary()
_lock = Lock()


def listen_once(engine: Engine, name: str, listener: Callable[..., Any]) -> bool:
    """Listen to an engine's event, or to its pool's, unless this listener does; say whether it did.

    ``event.contains`` is not asked, because it goes by ``id()``: a pool that an engine disposed of
    leaves its listeners, and their registration, to the next one, and its id to whatever comes.
    """
    with _lock:
        known = _heard.setdefault(engine, set())
        if (name, listener) in known:
            return False
        known.add((name, listener))
    event.listen(engine, name, listener)
    return True


def is_heard_by(engine: Engine, name: str, listener: Callable[..., Any]) -> bool:
    """Say whether ``listen_once`` has this listener listen to the engine."""
    with _lock:
        return (name, listener) in _heard.get(engine, ())


# What a worker waits for between two claims.
#
# A signal says that something may have happened since it was last asked. It may say so for
# nothing. So a worker always asks the database, and also asks now and then without a signal: a
# signal saves time, and nothing relies on it.


class TaskSignal(ABC):
    """Tells that tasks may have become claimable. It belongs to one thread at a time."""

    interval: float | None
    """Seconds between two looks where nothing calls; None where ``fileno`` becomes readable."""

    @abstractmethod
    def open(self) -> None:
        """Begin to watch. What happened before is not told.

        Raises:
            DatabaseError: It cannot be watched; the worker is to look without a signal.
        """

    def fileno(self) -> int | None:
        """Give the descriptor that becomes readable when something happens, if there is one."""
        return None

    @abstractmethod
    def happened(self, queues: Collection[str]) -> bool:
        """Say whether anything may have happened to these queues since this was last asked.

        Raises:
            DatabaseError: The signal broke. Close it; another one may be opened.
        """

    @abstractmethod
    def close(self) -> None:
        """End it; twice is as good as once."""


# The space of deleted rows: each engine reuses it, and gives it back in its own way.


class Space(ABC):
    """How one engine handles free space; by default it has no pages to give back."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """Give the bytes that the database takes on its disk, or of memory."""

    def free_pages(self, connection: Connection) -> int:
        """Count the pages that ``give_back`` could give back now."""
        return 0

    def give_back(self, connection: Connection, pages: int) -> int:
        """Give up to so many free pages back to the system, in the open transaction that writes.

        Returns:
            How many were given back.
        """
        return 0

    @abstractmethod
    def tidy(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Clean up after rows were deleted from tables, outside of a transaction.

        Readers and writers do not wait for it for long.
        """


# What is needed to save a database in a file.
#
# A backup is a database that can be opened as it is. The engine whose databases are files makes
# and checks it, whatever engine the rows come from.


OnSteps = Callable[[int, int | None], None]
"""Gets how many pages are done, and how many there are, where that is known."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a database, or a file, holds.

    Attributes:
        revision: The schema's.
        rows: How many rows each table has, by its plain name, parents first.
        digests: What is in each table; empty where it is not at head.
        invalid: How many rows no other database would take; they are in no digest.
    """

    revision: str
    rows: Mapping[str, int]
    digests: Mapping[str, str] = field(default_factory=dict)
    invalid: int = 0

    def differing(self, other: Holdings) -> tuple[str, ...]:
        """Name the tables that are not the same in both."""
        found = [name for name, rows in self.rows.items() if other.rows.get(name) != rows]
        found += [
            name
            for name, digest in self.digests.items()
            if name in other.digests and other.digests[name] != digest and name not in found
        ]
        return tuple(found)


def count_rows(
    connection: Connection, tables: Iterable[Table | TableClause], there: set[str]
) -> dict[str, int]:
    """Count the rows of those tables that are there, by their names."""
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in tables
        if table.name in there
    }
