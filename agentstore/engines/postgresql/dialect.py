"""PostgreSQL, through psycopg 3.

Connections are in autocommit, so that what takes one statement is one round trip, and switching
nothing back and forth. Other transactions begin with a BEGIN of ours, which the driver would send
as well (see ``postgresql_transactions``). Engines with an isolation level of their own would do
too, but cost more, and a task that is cancelled while it is set would lose the connection.

A hot write is one statement made of common table expressions: its first part locks and counts
on the session's row, so two sessions never wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    FromClause,
    Insert,
    Select,
    Table,
    collate,
    func,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.types import TypeEngine

from agentstore import errors
from agentstore.engines.base.dialect import READ_ONLY, Diagnosis, EngineDialect, Failure, Mode
from agentstore.engines.base.listening import listen_once
from agentstore.engines.base.search import SearchIndex
from agentstore.engines.base.space import Space
from agentstore.engines.postgresql.append import append_messages, arrays, next_activity
from agentstore.engines.postgresql.checkpoints import putting, storing_writes
from agentstore.engines.postgresql.forks import sever
from agentstore.engines.postgresql.greeting import greet, threshold
from agentstore.engines.postgresql.parts import ServerParts
from agentstore.engines.postgresql.scopes import SecuredRows
from agentstore.engines.postgresql.search import PostgreSQLSearch
from agentstore.engines.postgresql.silence import test_those_idle, timeouts
from agentstore.engines.postgresql.space import ServerSpace
from agentstore.engines.postgresql.tasks import NotifyingTasks
from agentstore.engines.postgresql.transactions import (
    begin,
    beginning,
    end_what_is_open,
    give_back_to,
    require_joinable,
    tags,
    take_over,
)
from agentstore.models.tables import Names, Tables
from agentstore.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agentstore.engines.base.dialect import Change


_MIGRATION_LOCK = 0x61676E7473746F72 >> 1
"""Any number that no other program locks: the letters "agntstor"."""

_AUTOCOMMIT = "AUTOCOMMIT"
_COMMIT = "synchronous_commit"

_POOLER = (
    "If a pooler that shares connections, such as pgbouncer in transaction mode, is in front of "
    "the server, open the store with prepare_threshold=None."
)

_ADVICE: dict[str, tuple[Failure, type[errors.DatabaseError], str]] = {
    "40": (
        Failure.ROLLED_BACK,
        errors.TransactionConflict,
        "The server rolled the transaction back to resolve a conflict. Repeat the transaction.",
    ),
    "53100": (
        Failure.FINAL,
        errors.DatabaseFull,
        "The server's disk is full; nothing was written. Free some space and repeat the call.",
    ),
    "53300": (
        Failure.FINAL,
        errors.DatabaseUnreachable,
        "The server takes no more connections. Lower pool_size and max_overflow, or put "
        "pgbouncer in front.",
    ),
    "55P03": (Failure.FINAL, errors.DatabaseBusy, "Timed out waiting for a lock. Retry."),
    "57014": (
        Failure.FINAL,
        errors.DatabaseBusy,
        "The server cancelled the statement, most likely because of statement_timeout. Raise it.",
    ),
    "26000": (Failure.FINAL, errors.DatabaseError, f"Nothing was written. {_POOLER}"),
    "42P05": (Failure.FINAL, errors.DatabaseError, f"Nothing was written. {_POOLER}"),
    "57P": (
        Failure.DISCONNECTED,
        errors.ConnectionLost,
        "The server is shutting down or starting up. Retry when it is back.",
    ),
    "08P01": (Failure.DISCONNECTED, errors.ConnectionLost, f"The connection broke. {_POOLER}"),
    "08": (Failure.DISCONNECTED, errors.ConnectionLost, "The connection broke."),
    "25006": (
        Failure.FINAL,
        errors.DatabaseReadOnly,
        "The server or the transaction is read-only; the server may be a standby. Connect to the "
        "primary.",
    ),
    "42501": (
        Failure.FINAL,
        errors.DatabaseReadOnly,
        "The role lacks a permission. GRANT it on the schema and its tables.",
    ),
    "42P01": (
        Failure.FINAL,
        errors.SchemaDamaged,
        "A table is missing. Run agentstore upgrade, and check schema and table_prefix; agentstore "
        "doctor compares the whole schema.",
    ),
    "42703": (
        Failure.FINAL,
        errors.SchemaDamaged,
        "A column is missing. Run agentstore doctor, which compares the whole schema.",
    ),
    "XX001": (Failure.FINAL, errors.DatabaseCorrupt, "The data is damaged. Restore a backup."),
    "XX002": (Failure.FINAL, errors.DatabaseCorrupt, "An index is damaged. Run REINDEX."),
}
"""By SQLSTATE, or its beginning. Source: PostgreSQL documentation, appendix A."""

_RACES = ("23503", "23505")
"""A foreign key, or a unique one, is violated."""


class PostgreSQL(NotifyingTasks, SecuredRows, ServerParts, EngineDialect):
    """The dialect of PostgreSQL; see ``EngineDialect`` for what each method promises."""

    schemas = True
    single_writer = False
    threads_async_work = False
    most_bytes = 536_870_000  # they come back in hexadecimal, in a message of up to 1 GiB
    search: SearchIndex = PostgreSQLSearch()
    space: Space = ServerSpace()
    append_messages = staticmethod(append_messages)
    require_joinable = staticmethod(require_joinable)

    def url(self, url: URL, *, asynchronous: bool) -> URL:
        """Name psycopg, which is both sync and async."""
        if "+" in url.drivername and url.get_driver_name() not in ("psycopg", "psycopg_async"):
            raise errors.UnsupportedUrl(
                f"The PostgreSQL driver {url.get_driver_name()!r} is not supported. Leave it out"
            )
        return url.set(drivername="postgresql+psycopg")

    def engine_options(self, url: URL, settings: Settings) -> dict[str, Any]:
        """Pool the connections; those that died are found at checkout, not by a ping each time."""
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
        if adopted:
            give_back_to(engine)
            return  # the application's pool has its own ways of telling, its connections stay
        if settings.read_only:
            # Said at each BEGIN. A SET would stay on a server's connection that a pooler lends to
            # others, and many a pooler refuses options of the connection.
            engine.update_execution_options(**{READ_ONLY: True})

        listen_once(engine, "begin", begin)
        listen_once(engine, "reset", end_what_is_open)

        test_those_idle(engine, settings)

    def take_over(self, connection: Connection) -> None:
        """Set autocommit on a connection of the application's own engine, until it is back."""
        take_over(connection)

    def abandon(self, connection: Connection) -> None:
        """Replace its socket."""
        sever(connection.connection.driver_connection)

    def modes(self, engine: Engine) -> dict[Mode, Engine]:
        """Tag the engine with the mode, for the begin event."""
        return {
            mode: beginning(engine.execution_options(**tags(engine, mode)), engine) for mode in Mode
        }

    def async_modes(self, engine: AsyncEngine) -> dict[Mode, AsyncEngine]:
        """Tag the engine with the mode, for the begin event."""
        sync_engine = engine.sync_engine
        modes = {mode: engine.execution_options(**tags(sync_engine, mode)) for mode in Mode}
        for tagged in modes.values():
            beginning(tagged.sync_engine, sync_engine)
        return modes

    def diagnose(self, error: DBAPIError) -> Diagnosis:
        """Read the SQLSTATE; a connection that was never made, or broke, has none."""
        state = getattr(error.orig, "sqlstate", None)
        constraint = _constraint(error)
        if constraint is not None:
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
        for length in (5, 3, 2):
            if (known := _ADVICE.get(state[:length])) is not None:
                failure, kind, advice = known
                words = _words(error)
                return Diagnosis(failure, _make(kind, f"{words}. {advice}"), f"{words}.")
        words = f"{_words(error)} ({state})."
        return Diagnosis(
            Failure.FINAL, errors.DatabaseError(f"{words} Nothing was written."), words
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

    def has_no_room(self, error: DBAPIError) -> bool:
        """Its sums of whole numbers are numeric, which has room for any."""
        return False

    def take_activity(self, connection: Connection, tables: Tables) -> int:
        """Take the next of the sequence."""
        return int(connection.execute(select(next_activity(tables))).scalar_one())

    def by_bytes(self, column: ColumnElement[str]) -> ColumnElement[str]:
        """Say it, whatever the database's own order is."""
        return collate(column, "C")

    def next_put(self, tables: Tables) -> Any:
        """Take the next of the sequence, which both tables share."""
        return next_activity(tables)

    def storing_writes(
        self, entered: ReturningUpdate[Any], tables: Tables, *, replace: bool
    ) -> Select[Any] | None:
        """Say it in common table expressions."""
        return storing_writes(entered, tables, replace=replace)

    def putting(
        self, tables: Tables, entered: ReturningUpdate[Any] | None, *, merges: bool
    ) -> Executable | None:
        """Say it in common table expressions: one round trip instead of three or four."""
        return putting(tables, entered, merges=merges)

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


def _constraint(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    if state is None or not state.startswith("23"):
        return None
    return str(getattr(getattr(error.orig, "diag", None), "constraint_name", None) or state)


def _words(error: DBAPIError) -> str:
    """Give the server's first line, without a value; the others may quote whole rows."""
    diagnostics = getattr(error.orig, "diag", None)
    primary = getattr(diagnostics, "message_primary", None)
    words = str(primary or type(error.orig).__name__)
    return words.partition(': "')[0] if isinstance(error, DataError) else words


def _make(kind: type[errors.DatabaseError], message: str) -> errors.DatabaseError:
    if kind is errors.ConnectionLost:
        return errors.ConnectionLost(message, in_doubt=False)
    return kind(message)


def _without_sqlstate(error: DBAPIError) -> Diagnosis:
    words = " ".join(str(error.orig).split())
    # A new connection that the server closes is nothing that SQLAlchemy could invalidate.
    if error.connection_invalidated or words.startswith("consuming input failed"):
        lost = errors.ConnectionLost("The connection to the server broke.", in_doubt=False)
        return Diagnosis(Failure.DISCONNECTED, lost)
    if isinstance(error, DataError):  # of psycopg, which could not read what came
        if words.startswith(("timestamp too ", "date too ")):
            unsound = errors.UnsoundRow("", "", "a time outside the years 1 to 9999")
            return Diagnosis(Failure.FINAL, unsound)
        failed = errors.DatabaseError("psycopg could not convert a value. Check the arguments.")
        return Diagnosis(Failure.FINAL, failed)
    unreachable = errors.DatabaseUnreachable(
        f"{words} Check the host, the port, the role, its password and the database's name in the "
        "URL, and that the server is running and has this database."
    )
    return Diagnosis(Failure.FINAL, unreachable)
