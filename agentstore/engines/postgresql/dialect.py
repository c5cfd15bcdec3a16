"""PostgreSQL, through psycopg 3.

Connections are in autocommit, so that what takes one statement is one round trip, and switching
nothing back and forth. Other transactions begin with a BEGIN of ours, which the driver would send
as well. Engines with an isolation level of their own would do
too, but cost more, and a task that is cancelled while it is set would lose the connection.

A hot write is one statement made of common table expressions: its first part locks and counts
on the session's row, so two sessions never wait for each other.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import selectors
import time
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from psycopg import OperationalError, pq
from psycopg.types.string import TextLoader
from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    CheckConstraint,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    case,
    cast,
    collate,
    event,
    func,
    literal_column,
    select,
    text,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError
from sqlalchemy.pool import PoolResetState
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.types import TypeEngine

from agentstore import errors
from agentstore.engines.base.dialect import (
    LAST_USED,
    MODE,
    OF_A_TRIGGER,
    READ_ONLY,
    UNKNOWN,
    WAIT_CANCELLED,
    Diagnosis,
    EngineDialect,
    Failure,
    Mode,
    Space,
    is_heard_by,
    listen_once,
)
from agentstore.engines.base.statements import NO_TRANSACTION, run_sql
from agentstore.engines.postgresql.append import (
    NotifyingTasks,
    append_messages,
    arrays,
    next_activity,
    note,
    putting,
    sever,
    storing_writes,
)
from agentstore.engines.postgresql.checks import ServerSpace, unchecked
from agentstore.engines.postgresql.row_security import SecuredRows
from agentstore.engines.postgresql.search import PostgreSQLSearch
from agentstore.errors import TransactionMisuse
from agentstore.schema import Names, Tables
from agentstore.settings import AUTO, Settings
from agentstore.values.types import names_of_prepared, number_statements_from

if TYPE_CHECKING:
    from agentstore.engines.base.dialect import Change


# How transactions begin and end on PostgreSQL, and connections of an application's own engine.
#
# Connections are in autocommit: what is one statement needs nothing around it, and other units say
# their BEGIN themselves. One of the application's own engine is so while a unit has it, and as the
# application left it afterwards. Its isolation level, which the driver keeps, is not touched: the
# driver would name it in the BEGIN that it sends by itself, and so does ours.


_TAKEN_OVER = "agentstore_taken_over"
_IN_AUTOCOMMIT = (Mode.READ, Mode.STATEMENT)
_COMMIT = "synchronous_commit"
_COMMIT_OPTION = "agentstore_synchronous_commit"
"""The execution option of a mode that writes in which a store says what commits wait for."""
_SNAPSHOTS = ("REPEATABLE READ", "SERIALIZABLE")
"""The levels at which several statements read one state of the database; the first will do."""
_PQTRANS_IDLE = 0
"""libpq's word for a connection that is in no transaction."""
_PQTRANS_INERROR = 3
"""libpq's word for a transaction that has failed."""


def beginning(tagged: Engine, engine: Engine) -> Engine:
    """Say BEGIN on an engine with options, unless the one that it was made of does."""
    if not is_heard_by(engine, "begin", begin):
        listen_once(tagged, "begin", begin)
    return tagged


def tags(engine: Engine, mode: Mode, synchronous_commit: str | None) -> dict[str, Any]:
    """Give the execution options of a mode.

    What commits wait for is set in each transaction, because what is set on a connection stays on
    one of the server's that a pooler lends to others. So a write that is one statement becomes a
    transaction of three.
    """
    options: dict[str, Any] = {MODE: mode}
    if synchronous_commit is not None and mode in (Mode.STATEMENT, Mode.WRITE):
        options[_COMMIT_OPTION] = synchronous_commit
    elif mode in _IN_AUTOCOMMIT and not engine.get_execution_options().get(READ_ONLY):
        options[NO_TRANSACTION] = True
    return options


def end_what_is_open(driver_s: Any, record: Any, state: PoolResetState) -> None:
    """Roll back before a connection goes back to the pool, if there is something; a listener.

    Most come in autocommit, and psycopg takes its time to find out that it has nothing to do.
    """
    if state.terminate_only or not state.asyncio_safe:
        return
    own = getattr(driver_s, "driver_connection", driver_s)
    if own.pgconn.transaction_status != _PQTRANS_IDLE:
        driver_s.rollback()
    record.info[LAST_USED] = time.monotonic()  # see test_those_idle


def begin(connection: Connection) -> None:
    """Begin a transaction as the mode needs it; a listener."""
    options = connection.get_execution_options()
    if MODE not in options and "isolation_level" in options:
        return  # not a unit, and its user has chosen
    mode, level = options.get(MODE, Mode.WRITE), options.get(_COMMIT_OPTION)
    statement = None if mode in _IN_AUTOCOMMIT and not level else _opening(connection, mode)
    if options.get(READ_ONLY):
        statement = f"{statement or 'BEGIN'} READ ONLY"
    if statement is None:
        return
    if level is None:
        run_sql(connection, statement, begin=False)
        return
    setting = f"SET LOCAL {_COMMIT} = {level}"
    driver_s: Any = connection.connection.driver_connection
    if driver_s.prepare_threshold == 0:  # nothing that is prepared may have two statements
        run_sql(connection, statement, begin=False)
        run_sql(connection, setting, begin=False)
    else:
        run_sql(connection, f"{statement}; {setting}", begin=False)


def _opening(connection: Connection, mode: Mode) -> str:
    """Give what begins a transaction."""
    driver_s: Any = connection.connection.driver_connection
    level = driver_s.isolation_level
    chosen = "" if level is None else str(level.name).replace("_", " ")
    if mode is Mode.SNAPSHOT and chosen not in _SNAPSHOTS:
        chosen = _SNAPSHOTS[0]
    return f"BEGIN ISOLATION LEVEL {chosen}" if chosen else "BEGIN"


def give_back(driver_s: Any, record: Any) -> None:
    """Have a pool take a connection back as it was before ``take_over``; a listener."""
    if driver_s is None or not record.info.pop(_TAKEN_OVER, False) or driver_s.closed:
        return
    driver_s.rollback()  # an engine may be told not to do so in autocommit
    driver_s.autocommit = False


def require_joinable(connection: Connection, tables: Tables) -> None:
    """Refuse what cannot be joined; see ``EngineDialect``.

    To look for temporary tables would be a round trip more for each call; the doctor finds them.
    """
    if SEEN not in connection.info:
        raise TransactionMisuse(
            "This connection was opened before the store, which has not looked at its settings. "
            "Open the store first, then connect."
        )
    own: Any = connection.connection.driver_connection
    if own.pgconn.transaction_status == _PQTRANS_INERROR:
        raise TransactionMisuse(
            "The transaction has failed, and PostgreSQL refuses everything in it. Roll it back; "
            "put begin_nested() around what may fail."
        )
    if own.pgconn.pipeline_status:
        raise TransactionMisuse(
            "The connection is in pipeline mode, in which errors come too late. Call the store "
            "outside of the pipeline."
        )


# What a connection to PostgreSQL is asked and told when it is new.
#
# Prepared statements belong to a server's connection. A pooler that lends one to many clients
# makes each of them meet the others' statements, and what is asked with one of those is answered
# with somebody else's rows. Such a pooler has no process for a client, so the number of the
# process that it names at the start is another one than the server says itself. Where they differ
# nothing is prepared. That is found out for each connection, because what is at the end of a URL
# may change.
#
# Statements have names that no other client has. So even who insists on preparing, or sits behind
# a pooler that names the server's process, gets an error and never another's answer.
#
# DISCARD ALL, or a pooler that changes the server behind a connection, drops what was prepared on
# it; and a plan is of no use once a column has another type. The driver would name the statement
# again, and every call on the connection would fail. So the driver is told to prepare it anew.
#
# Dates come as text, which the driver reads in the style ISO alone; and it writes what the
# client's encoding has. Without ``array_nulls`` a NULL in an array, as which rows travel, arrives
# as the text "NULL"; with a ``gin_fuzzy_search_limit`` a search finds some hits at random. All may
# be set for a role or a database, whichever program uses it.


_log = logging.getLogger("agentstore.connections")
SEEN = "agentstore_seen"
"""What says, in the ``info`` of a connection, that it was greeted."""

PREPARE_AFTER = 5
"""Executions before a statement is prepared, where nobody said otherwise: the driver's default."""


def threshold(settings: Settings) -> int | None:
    """Give what the driver is told when it connects."""
    return PREPARE_AFTER if settings.prepare_threshold == AUTO else settings.prepare_threshold


def greet(engine: Engine, settings: Settings, *, adopted: bool) -> None:
    """Look at each new connection of an engine; on an adopted one at those that are open too."""
    if not adopted:
        _Greeter(settings, adopted=False).listen(engine)
        return
    greeter = _adopted.get(engine)
    if greeter is None:
        greeter = _adopted[engine] = _Greeter(settings, adopted=True)
        greeter.listen(engine)
        event.listen(engine, "checkout", greeter.greet_open_one)
    greeter.asks = greeter.asks or settings.prepare_threshold == AUTO
    if not (settings.read_only or greeter.writes):
        greeter.begin_to_write()


def forget_prepared(context: Any) -> None:
    """Have the driver forget what it has prepared, if the server refuses to run it; a listener."""
    error = context.original_exception
    if _is_outdated(error) or getattr(error, "sqlstate", None) == _NOT_PREPARED:
        names_of_prepared(context.connection.connection.driver_connection).clear()


def _is_outdated(error: Any) -> bool:
    """Say whether a prepared statement would give columns of other types than before.

    The server's words are translated, and its code is that of all that it does not support.
    """
    found = getattr(getattr(error, "diag", None), "source_function", None)
    return bool(found == "RevalidateCachedQuery")


_NOT_PREPARED = "26000"
"""A statement of this name is not there."""


class _Greeter:
    """Greets the connections of one engine.

    Attributes:
        asks: Whether to ask for the server's process, and to prepare nothing behind a pooler.
        writes: Whether connections that do without triggers and references are refused.
    """

    def __init__(self, settings: Settings, *, adopted: bool) -> None:
        self.asks = settings.prepare_threshold == AUTO
        self.writes = not settings.read_only
        self._adopted = adopted
        self._warned = False
        self._unsaid = True  # whether settings that a server does not say may be wrong

    @property
    def _asked(self) -> tuple[bool, bool]:
        """What a connection is asked because of the stores that use it."""
        return self.asks, self.writes

    def begin_to_write(self) -> None:
        """Look again, also at connections on which stores have only read so far."""
        self.writes = self._unsaid = True

    def listen(self, engine: Engine) -> None:
        """Look at new connections, the first time before SQLAlchemy reads anything from one."""
        event.listen(engine, "connect", self.require_unicode, insert=True)
        event.listen(engine, "connect", self.greet)

    def require_unicode(self, driver_s: Any, _record: Any) -> None:
        """Refuse a database that cannot hold every text.

        Raises:
            DatabaseUnreachable: It is one.
        """
        own = getattr(driver_s, "driver_connection", driver_s)
        encoding = (own.pgconn.parameter_status(b"server_encoding") or b"UTF8").decode()
        if encoding != "UTF8":
            driver_s.close()
            raise errors.DatabaseUnreachable(
                f"The database has the encoding {encoding}, which cannot hold every text. Make one "
                "that can: createdb --encoding=UTF8 --template=template0 NAME."
            )

    def greet(self, driver_s: Any, record: Any) -> None:
        """Ask and tell what there is, in one round trip, or none; the first one is always asked."""
        record.info[SEEN] = self._asked
        own = getattr(driver_s, "driver_connection", driver_s)
        if not self._adopted:
            note(own)
            own.adapters.register_loader("uuid", TextLoader)  # an object of each would cost 2 us
            # Behind a pooler a worker's LISTEN stays on the server's connection, which other
            # clients get later. The driver keeps notifications that nobody handles for ever.
            own.add_notify_handler(_ignore)

        def note_cancelled_wait(diagnostic: Any) -> None:
            # The server's words are translated, and have no code of their own.
            if diagnostic.source_function == "SyncRepWaitForLSN":
                record.info[WAIT_CANCELLED] = True

        own.add_notice_handler(note_cancelled_wait)
        wrong = _wrong_settings(own, adopted=self._adopted)
        prepares = own.prepare_threshold is not None
        if any(wrong.values()) or (self.asks and prepares) or self._unsaid:
            known = {"own": not self._adopted, "process": own.info.backend_pid}
            process, *_, nulls, limit, rows, replica = _ask(driver_s, wrong | known)
            if replica and self.writes:
                driver_s.close()
                raise errors.DatabaseReadOnly(_REPLICA)
            lent = process != own.info.backend_pid
            if lent and (nulls or limit):
                driver_s.close()
                raise errors.DatabaseUnreachable(_LENT)
            self._unsaid = bool(replica or nulls or limit or rows)
            if self.asks and prepares and lent:
                own.prepare_threshold = None
                self._warn(own)
        if prepares:
            # Processes that were forked have the same random numbers, but not the same of these.
            number_statements_from(own, int.from_bytes(os.urandom(6), "big"))

    def greet_open_one(self, driver_s: Any, record: Any, _proxy: Any) -> None:
        """Greet a connection that the application opened before its engine was adopted."""
        if record.info.get(SEEN) != self._asked:
            self.require_unicode(driver_s, record)
            self.greet(driver_s, record)

    def _warn(self, own: Any) -> None:
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "There is a pooler in front of the server at %s: nothing is prepared on it. Say "
            "prepare_threshold=None to have this unsaid; say a number if the pooler keeps "
            "prepared statements apart (pgbouncer from 1.21 on with max_prepared_statements, or "
            "in session mode).",
            own.info.host,
        )


def _ignore(_notification: Any) -> None:
    pass


_adopted: WeakKeyDictionary[Engine, _Greeter] = WeakKeyDictionary()


def _wrong_settings(own: Any, *, adopted: bool) -> dict[str, bool]:
    """Say which settings are not as they have to be.

    The server says these when it is connected to, so looking costs nothing. A pooler knows them
    too, and keeps them for each client. An application may want its own time zone; the times are
    the same in any.
    """
    zone = own.pgconn.parameter_status(b"TimeZone")
    style = own.pgconn.parameter_status(b"DateStyle") or b"ISO"
    return {
        "style": not style.startswith(b"ISO"),
        "encoding": own.pgconn.parameter_status(b"client_encoding") not in (None, b"UTF8"),
        "zone": not adopted and zone not in (None, b"UTC", b"Etc/UTC", b"GMT", b"Etc/GMT"),
    }


_QUESTION = """
    SELECT
        pg_backend_pid(),
        CASE WHEN %(style)s::boolean THEN set_config('DateStyle', 'ISO', false) END,
        CASE WHEN %(encoding)s::boolean THEN set_config('client_encoding', 'UTF8', false) END,
        CASE WHEN %(zone)s::boolean THEN set_config('TimeZone', 'UTC', false) END,
        CASE WHEN pg_backend_pid() <> %(process)s
                THEN (SELECT nullif(reset_val, 'on') FROM pg_settings WHERE name = 'array_nulls')
            WHEN current_setting('array_nulls') = 'off'
                THEN set_config('array_nulls', 'on', false) END,
        CASE WHEN pg_backend_pid() <> %(process)s
                THEN (SELECT nullif(reset_val, '0') FROM pg_settings
                    WHERE name = 'gin_fuzzy_search_limit')
            WHEN current_setting('gin_fuzzy_search_limit') <> '0'
                THEN set_config('gin_fuzzy_search_limit', '0', false) END,
        CASE WHEN %(own)s::boolean AND current_setting('row_security') = 'off'
            THEN set_config('row_security', 'on', false) END,
        current_setting('session_replication_role') = 'replica'
"""
"""ISO alone keeps the order of day and month. The server does not say the last four by itself.

Behind a pooler others may have set the first two on this connection: what counts there is how the
connection began, which is ``reset_val``."""

_LENT = (
    "array_nulls is off, so NULLs would be stored as texts, or gin_fuzzy_search_limit is not 0, so "
    "searches would miss hits. Behind a pooler a store cannot correct this for itself alone. Run "
    "ALTER ROLE ... SET array_nulls = on, and ALTER ROLE ... SET gin_fuzzy_search_limit = 0; then "
    "have the pooler open new connections (pgbouncer: RECONNECT)."
)

_REPLICA = (
    "session_replication_role is replica on this connection: the server would check no references "
    "and run no triggers, and searches would miss what is written. Run ALTER ROLE ... RESET "
    "session_replication_role as a superuser, or take it out of the URL; agentstore doctor says "
    "where it is set. Stores that are opened with read_only=True may read."
)


def _ask(driver_s: Any, wrong: dict[str, bool]) -> Any:
    """Ask for the process, and set what is wrong, outside of a transaction."""
    before = driver_s.autocommit
    if not before:
        driver_s.autocommit = True
    cursor = driver_s.cursor()
    try:
        cursor.execute(_QUESTION, wrong)
        return cursor.fetchone()
    finally:
        cursor.close()
        if not before and not driver_s.closed:
            driver_s.autocommit = before


# Servers that say nothing any more: frozen, or behind a firewall that drops what is sent.
#
# With keepalives and ``tcp_user_timeout`` the system reports that the other machine is gone. A
# machine whose server is frozen still acknowledges. So a connection that lay idle is tested with an
# empty query before it is used, and given up if there is no answer within ``connect_timeout``.


_PROBES = 3
"""Keepalives without an answer after which a connection is given up."""


def timeouts(url: URL, settings: Settings) -> dict[str, int]:
    """Give the driver's arguments that limit how long nothing may be heard; the URL's own win."""
    wanted = {"connect_timeout": max(1, round(settings.connect_timeout))}
    if settings.network_timeout:
        seconds = settings.network_timeout
        wanted |= {
            "keepalives": 1,
            "keepalives_idle": max(1, round(seconds / 2)),
            "keepalives_interval": max(1, round(seconds / 2 / _PROBES)),
            "keepalives_count": _PROBES,
            "tcp_user_timeout": max(1, round(seconds * 1000)),
        }
    return {name: value for name, value in wanted.items() if name not in url.query}


def test_those_idle(engine: Engine, settings: Settings) -> None:
    """Have an engine's pool test a connection that lay idle before it is used again."""
    given = engine.url.query.get("connect_timeout")
    chosen = isinstance(given, str) and given.isdecimal() and int(given) > 0
    patience = float(str(given)) if chosen else max(1.0, settings.connect_timeout)

    @event.listens_for(engine, "checkout")
    def test_if_idle(driver_s: Any, record: Any, _proxy: Any) -> None:
        last_used = record.info.get(LAST_USED)
        if last_used is None or time.monotonic() - last_used <= settings.ping_after:
            return
        try:
            if hasattr(driver_s, "run_async"):
                alive = driver_s.run_async(lambda own: _answers_soon(own.pgconn, patience))
            else:
                alive = _answers(driver_s.pgconn, patience)
        except OperationalError as error:
            raise DisconnectionError("the connection died while it lay idle") from error
        if not alive:
            raise DisconnectionError("the server did not answer on a connection that lay idle")


def _answers(pgconn: pq.abc.PGconn, seconds: float) -> bool:
    """Say whether the server answers within so many seconds."""
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        for _ in _asking(pgconn):
            if not selector.select(max(0.0, end - time.monotonic())):
                return False
    return True


async def _answers_soon(pgconn: pq.abc.PGconn, seconds: float) -> bool:
    """Say the same, while other tasks go on."""
    loop, socket = asyncio.get_running_loop(), pgconn.socket
    heard = asyncio.Event()
    loop.add_reader(socket, heard.set)
    try:
        async with asyncio.timeout(seconds):
            for _ in _asking(pgconn):
                await heard.wait()
                heard.clear()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(socket)
    return True


def _asking(pgconn: pq.abc.PGconn) -> Generator[None]:
    """Send an empty query and read the answer; yields whenever there is something to wait for."""
    pgconn.send_query(b"")
    pgconn.flush()
    while True:
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                return
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise OperationalError("the server ended the connection")
        yield
        pgconn.consume_input()


_MIGRATION_LOCK = 0x61676E7473746F72 >> 1
"""Any number that no other program locks: the letters "agntstor"."""

_NO_TIMEOUTS = """
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
"""For the open transaction; PostgreSQL has the second one from 17 on."""

_AUTOCOMMIT = "AUTOCOMMIT"

_POOLER = (
    "If a pooler that shares connections, such as pgbouncer in transaction mode, is in front of "
    "the server, open the store with prepare_threshold=None."
)

_ADVICE: dict[str, tuple[type[errors.DatabaseError], str]] = {
    "40": (
        errors.TransactionConflict,
        "The server rolled the transaction back to resolve a conflict. Repeat the transaction.",
    ),
    "53100": (
        errors.DatabaseFull,
        "The server's disk is full; nothing was written. Free some space and repeat the call.",
    ),
    "53300": (
        errors.DatabaseUnreachable,
        "The server takes no more connections. Lower pool_size and max_overflow, or put "
        "pgbouncer in front.",
    ),
    "55P03": (errors.DatabaseBusy, "Timed out waiting for a lock. Retry."),
    "57014": (
        errors.DatabaseBusy,
        "The server cancelled the statement, most likely because of statement_timeout. Raise it.",
    ),
    _NOT_PREPARED: (errors.DatabaseError, f"Nothing was written. {_POOLER}"),
    "42P05": (errors.DatabaseError, f"Nothing was written. {_POOLER}"),
    "57P": (
        errors.ConnectionLost,
        "The server is shutting down or starting up. Retry when it is back.",
    ),
    "08P01": (
        errors.ConnectionLost,
        f"The connection broke. {_POOLER} Its pool_mode must be transaction or session.",
    ),
    "08": (errors.ConnectionLost, "The connection broke."),
    "25006": (
        errors.DatabaseReadOnly,
        "The server or the transaction is read-only; the server may be a standby. Connect to the "
        "primary.",
    ),
    "42501": (
        errors.DatabaseReadOnly,
        "The role lacks a permission. GRANT it on the schema and its tables.",
    ),
    "42501 check_enable_rls": (
        errors.DatabaseReadOnly,
        "row_security is off on this connection, so policies refuse what they would filter. Set it "
        "to on: ALTER ROLE ... RESET row_security.",
    ),
    "42501 ExecWithCheckOptions": (
        errors.DatabaseReadOnly,
        "A role that does not own the tables writes in scopes only: call store.scoped(user_id), or "
        "connect as the owner.",
    ),
    "42P01": (
        errors.SchemaDamaged,
        "A table is missing, or the role lacks USAGE on the schema that it is in. Run agentstore "
        "upgrade, and check schema and table_prefix; agentstore doctor compares the whole schema.",
    ),
    "42703": (
        errors.SchemaDamaged,
        "A column is missing, or a temporary table of that name hides the table. Run agentstore "
        "doctor, which compares the whole schema.",
    ),
    "XX001": (errors.DatabaseCorrupt, "The data is damaged. Restore a backup."),
    "XX002": (errors.DatabaseCorrupt, "An index is damaged. Run REINDEX."),
}
"""By SQLSTATE, or its beginning, or with the server's function that said it. Source: PostgreSQL
documentation, appendix A."""

_FAILURES = {
    errors.TransactionConflict: Failure.ROLLED_BACK,
    errors.ConnectionLost: Failure.DISCONNECTED,
}
"""Of these errors; all others are final."""

_RACES = ("23503", "23505")
"""A foreign key, or a unique one, is violated."""


_WRITTEN = select(cast(func.pg_current_wal_insert_lsn(), Text))
_OUT_OF_REACH = text("""
SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = :name AND NOT has_schema_privilege(n.oid, 'USAGE') AND n.nspname IN (
    SELECT replace(trim(path, '" '), '$user', current_user)
    FROM regexp_split_to_table(current_setting('search_path'), ',') AS path
)""")
_REPLAYED = select(case((func.pg_is_in_recovery(), cast(func.pg_last_wal_replay_lsn(), Text))))


class PostgreSQL(NotifyingTasks, SecuredRows, EngineDialect):
    """The dialect of PostgreSQL; see ``EngineDialect`` for what each method promises."""

    package = "agentstore.engines.postgresql"
    schemas = True
    file_based = False
    single_writer = False
    threads_async_work = False
    most_bytes = 536_870_000  # they come back in hexadecimal, in a message of up to 1 GiB
    search = PostgreSQLSearch
    space: Space = ServerSpace()
    append_messages = staticmethod(append_messages)
    require_joinable = staticmethod(require_joinable)
    storing_writes = staticmethod(storing_writes)
    putting = staticmethod(putting)

    def url(self, url: URL, *, asynchronous: bool) -> URL:
        """Name psycopg, which is both sync and async."""
        if "+" in url.drivername and url.get_driver_name() not in ("psycopg", "psycopg_async"):
            raise errors.UnsupportedUrl(
                f"The PostgreSQL driver {url.get_driver_name()!r} is not supported. Leave it out"
            )
        return url.set(drivername="postgresql+psycopg")

    def engine_options(self, url: URL, settings: Settings) -> dict[str, Any]:
        """Pool the connections; those that died are found at checkout, not by a ping each time.

        Raises:
            UnsupportedUrl: The URL has a parameter that libpq does not know.
        """
        known = {each.keyword.decode() for each in pq.Conninfo.get_defaults()}
        if unknown := sorted({*url.query} - known):
            raise errors.UnsupportedUrl(
                f"libpq does not know {', '.join(unknown)} in the URL. Check the spelling, such as "
                "sslmode; settings of the store, such as prepare_threshold, are its arguments"
            )
        if not str(url.query.get("connect_timeout", 0)).lstrip("-").isdecimal():
            raise errors.UnsupportedUrl("connect_timeout in the URL must be whole seconds")
        return {
            "pool_size": settings.pool_size,
            "max_overflow": settings.max_overflow,
            "pool_timeout": settings.pool_timeout,
            "pool_use_lifo": True,  # few callers warm few connections' statements
            "pool_reset_on_return": None,  # see end_what_is_open
            "isolation_level": _AUTOCOMMIT,
            "use_native_hstore": False,  # no column has it: nobody need ask what it is here
            "connect_args": timeouts(url, settings) | {"prepare_threshold": threshold(settings)},
        }

    def install(self, engine: Engine, settings: Settings, *, adopted: bool) -> None:
        """Greet new connections, and test one that lay idle before it is used again."""
        greet(engine, settings, adopted=adopted)
        listen_once(engine, "handle_error", forget_prepared)
        if adopted:
            listen_once(engine, "checkin", give_back)
            return  # the application's pool has its own ways of telling, its connections stay
        if settings.read_only:
            # Said at each BEGIN. A SET would stay on a server's connection that a pooler lends to
            # others, and many a pooler refuses options of the connection.
            engine.update_execution_options(**{READ_ONLY: True})

        listen_once(engine, "begin", begin)
        listen_once(engine, "reset", end_what_is_open)

        test_those_idle(engine, settings)

    def log_position(self, connection: Connection, *, replayed: bool = False) -> str | None:
        """Ask the server."""
        found = connection.execute(_REPLAYED if replayed else _WRITTEN).scalar_one()
        return None if found is None else str(found)

    def take_over(self, connection: Connection) -> None:
        """Set autocommit on a connection of the application's own engine, until it is back.

        Not by SQLAlchemy's option, which has the driver forget the level.
        """
        driver_s: Any = connection.connection.dbapi_connection
        if not driver_s.autocommit:
            connection.info[_TAKEN_OVER] = True
            driver_s.autocommit = True

    def abandon(self, connection: Connection) -> None:
        """Replace its socket."""
        sever(connection.connection.driver_connection)

    def modes(self, engine: Engine, synchronous_commit: str | None = None) -> dict[Mode, Engine]:
        """Tag the engine with the mode, for the begin event."""
        return {
            mode: beginning(
                engine.execution_options(**tags(engine, mode, synchronous_commit)), engine
            )
            for mode in Mode
        }

    def diagnose(self, error: DBAPIError) -> Diagnosis:
        """Read the SQLSTATE; a connection that was never made, or broke, has none."""
        state = getattr(error.orig, "sqlstate", None)
        if state is not None and state.startswith("23"):
            constraint = (
                getattr(getattr(error.orig, "diag", None), "constraint_name", None) or state
            )
            if state in _RACES:
                # The writer had looked before. The next look finds what is there, or not, now.
                conflict = errors.TransactionConflict(
                    f"The constraint {constraint} is violated: another caller wrote the same key, "
                    "or deleted the row that this one refers to, meanwhile. Repeat the transaction."
                )
                return Diagnosis(Failure.ROLLED_BACK, conflict)
            violation = errors.ConstraintViolation(
                f"The row violates the constraint {constraint}. Nothing was written."
            )
            return Diagnosis(Failure.FINAL, violation)
        if state is None:
            return _without_sqlstate(error)
        if _is_outdated(error.orig):
            changed = errors.TransactionConflict(
                "The types of a table's columns were changed meanwhile. Nothing was written. "
                "Repeat the transaction."
            )
            return Diagnosis(Failure.ROLLED_BACK, changed)
        function = getattr(getattr(error.orig, "diag", None), "source_function", None)
        for known_by in (f"{state} {function}", state, state[:3], state[:2]):
            if (known := _ADVICE.get(known_by)) is not None:
                kind, advice = known
                words = _words(error)
                said = f"{words}. {advice}"
                lost = kind is errors.ConnectionLost
                found = errors.ConnectionLost(said, in_doubt=False) if lost else kind(said)
                return Diagnosis(_FAILURES.get(kind, Failure.FINAL), found, f"{words}.")
        words = f"{_words(error)} ({state})."
        return Diagnosis(Failure.FINAL, errors.DatabaseError(f"{words} {UNKNOWN}"), words)

    def lock_name(self, connection: Connection, name: str) -> None:
        """Lock a number that is made of it."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        connection.execute(select(func.pg_advisory_xact_lock(number)))

    def require_reach(self, connection: Connection, names: Names) -> None:
        """Look whether the tables are in a schema that the role may not use.

        The server finds nothing in such a schema of the search path, and does not say why.
        """
        sessions = f"{names.prefix}sessions"  # other programs have an alembic_version, too
        if schema := connection.execute(_OUT_OF_REACH, {"name": sessions}).scalar():
            raise errors.DatabaseReadOnly(
                f"The role may not use the schema {schema}, in which there is a table {sessions}. "
                f"Run GRANT USAGE ON SCHEMA {schema} TO the role; it needs rights on the tables "
                "too."
            )

    def lock_for_migration(self, connection: Connection, names: Names) -> None:
        """Wait for a lock that ends with the transaction; make the schema if there is none.

        The commit waits for the disk, whatever was set.
        """
        connection.execute(
            select(func.set_config(_COMMIT, "on", True)).where(
                func.current_setting(_COMMIT) == "off"
            )
        )
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        if names.schema is not None:
            schemas = connection.dialect.get_schema_names(connection)
            if names.schema not in schemas:
                connection.execute(CreateSchema(names.schema))

    def finish_migration(self, connection: Connection, tables: Tables) -> None:
        """Have constraints checked for the rows that were there, while others read and write.

        That may take longer than any other statement, so statement_timeout and transaction_timeout
        are off for it; lock_timeout holds.
        """
        ours = {
            str(constraint.name)
            for table in tables.metadata.sorted_tables
            for constraint in table.constraints
            if isinstance(constraint, CheckConstraint)
        }
        for constraint, _, checking, allowed in unchecked(connection, tables):
            if allowed and constraint in ours:
                connection.exec_driver_sql(_NO_TIMEOUTS)
                connection.exec_driver_sql(checking)
                connection.commit()
        connection.rollback()

    def take_activity(self, connection: Connection, tables: Tables) -> int:
        """Take the next of the sequence."""
        return int(connection.execute(select(next_activity(tables))).scalar_one())

    def by_bytes(self, column: ColumnElement[str]) -> ColumnElement[str]:
        """Say it, whatever the database's own order is."""
        return collate(column, "C")

    def octets(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Ask for them."""
        return func.octet_length(text)

    def holds(self, text: ColumnElement[str], part: str, *, ascii: bool) -> ColumnElement[bool]:
        """Look for it with strpos, which may skip signs, where LIKE looks at each."""
        return func.strpos(func.lower(text) if ascii else text, bindparam(part, type_=Text)) > 0

    def next_put(self, tables: Tables) -> Any:
        """Take the next of the sequence, which both tables share."""
        return next_activity(tables)

    def each_line(
        self, lines: ColumnElement[Any]
    ) -> tuple[FromClause, ColumnElement[int], ColumnElement[int]]:
        """Say json_each, whose values are texts."""
        held = func.json_each_text(cast(type_coerce(lines, Text), JSON)).table_valued(
            "key", "value", name="held"
        )
        return held, cast(held.c.key, BigInteger), cast(held.c.value, BigInteger)

    def together(self, *changes: Change) -> Sequence[Change]:
        """Say all but the last in common table expressions."""
        *others, last = changes
        return [last.add_cte(*(change.cte() for change in others))]

    def insert_missing(self, table: Table) -> Insert:
        """Say ON CONFLICT DO NOTHING."""
        return postgresql_insert(table).on_conflict_do_nothing()

    def for_each(
        self, outer: FromClause, table: Table, found: Select[Any], *, all_outer: bool = False
    ) -> tuple[FromClause, ReadOnlyColumnCollection[str, Any]]:
        """Say LATERAL; the planner then knows that only a few rows come."""
        rows = found.correlate(outer).lateral()
        return outer.join(rows, true(), isouter=all_outer), rows.c

    def ranges(self, line: ColumnElement[Any]) -> tuple[FromClause, list[ColumnElement[int]]]:
        """Read JSON."""
        elements = func.json_array_elements(line)
        each = elements.table_valued("value", with_ordinality="key", joins_implicitly=True)
        each = each.render_derived(name="ranges")
        parts = [
            func.json_array_element_text(each.c.value, literal_column(str(place), Integer))
            for place in range(3)
        ]
        return each, [
            type_coerce(each.c.key, BigInteger) - literal_column("1", Integer),
            *(cast(part, BigInteger) for part in parts),
        ]

    def lapse_reservations(
        self, connection: Connection, tables: Tables, user_id: str, now: datetime
    ) -> int:
        """Mark and subtract in one statement, which is whole in autocommit too.

        The user's row is locked before the reservations are, as everybody does.
        """
        reservations, users = tables.quota_reservations, tables.users
        owner = select(users.c.id).where(users.c.id == user_id).with_for_update().cte("owner")
        expired = (
            select(reservations.c.pk)
            .join(owner, owner.c.id == reservations.c.user_id)
            .where(reservations.c.expires_at <= now, reservations.c.lapsed.is_(False))
            .with_for_update(of=reservations)
            .cte("expired")
        )
        marked = (
            update(reservations)
            .where(reservations.c.pk.in_(select(expired.c.pk)))
            .values(lapsed=True)
            .returning(reservations.c.tokens)
            .cte("marked")
        )
        tokens = select(func.coalesce(func.sum(marked.c.tokens), 0)).scalar_subquery()
        count = select(func.count()).select_from(marked).scalar_subquery()
        query = (
            update(users)
            .where(users.c.id == user_id)
            .values(quota_reserved=users.c.quota_reserved - tokens)
            .returning(count)
        )
        return int(connection.execute(query).scalar() or 0)

    def arriving(
        self, tables: Tables, kinds: Mapping[str, TypeEngine[Any]]
    ) -> tuple[dict[str, ColumnElement[Any]], ColumnElement[bool]]:
        """Give arrays side by side; who deletes a session, or branches it, has it locked."""
        new, source = arrays(kinds, "new")
        sessions = tables.sessions.c
        free = (
            select(sessions.id)
            .where(sessions.id.in_(select(new["session_id"]).select_from(source)))
            .with_for_update(key_share=True, read=True, skip_locked=True)
            .cte("free")
        )
        return new, new["session_id"].in_(select(free.c.id))


def _words(error: DBAPIError) -> str:
    """Give the server's first line, without a value; the others may quote whole rows."""
    diagnostics = getattr(error.orig, "diag", None)
    if _is_of_a_function(diagnostics):
        return OF_A_TRIGGER
    primary = getattr(diagnostics, "message_primary", None)
    words = str(primary or type(error.orig).__name__)
    return words.partition(': "')[0] if isinstance(error, DataError) else words


def _is_of_a_function(diagnostics: Any) -> bool:
    """Say whether somebody's own words, which may quote a row, are where the server's would be."""
    state = getattr(diagnostics, "sqlstate", None) or ""
    raised = getattr(diagnostics, "source_function", None) == "exec_stmt_raise"
    return raised or state.startswith(("P0", "38", "39"))


def _without_sqlstate(error: DBAPIError) -> Diagnosis:
    lines = [" ".join(line.split()) for line in str(error.orig).split("\n") if line.strip()]
    words = " ".join(line if line[-1] in ".?:" else f"{line}." for line in lines)
    # A new connection that the server closes is nothing that SQLAlchemy could invalidate.
    if error.connection_invalidated or words.startswith("consuming input failed"):
        lost = errors.ConnectionLost("The connection to the server broke.", in_doubt=False)
        return Diagnosis(Failure.DISCONNECTED, lost)
    if isinstance(error, DataError):  # of psycopg, which could not read what came
        if words.startswith(("timestamp too ", "date too ")):
            invalid = errors.InvalidRow("", "", "a time outside the years 1 to 9999")
            return Diagnosis(Failure.FINAL, invalid)
        failed = errors.DatabaseError("psycopg could not convert a value. Check the arguments.")
        return Diagnosis(Failure.FINAL, failed)
    if not isinstance(error.orig, OperationalError):  # psycopg's own words, which may quote a value
        kind = type(error.orig).__name__
        return Diagnosis(Failure.FINAL, errors.DatabaseError(f"{kind} in psycopg. {UNKNOWN}"))
    unreachable = errors.DatabaseUnreachable(
        f"{words} Check the host, the port, the role, its password and the "
        "database in the URL, that the server is running, and that it has this database: createdb "
        "makes one."
    )
    return Diagnosis(Failure.FINAL, unreachable)
