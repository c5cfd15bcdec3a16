"""PostgreSQL, through psycopg 3.

What takes one statement runs in autocommit, which is one round trip; a transaction takes three.
A hot write is one statement made of common table expressions: its first part locks and counts
on the session's row, so two sessions never wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    Text,
    bindparam,
    cast,
    event,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy import (
    Sequence as DatabaseSequence,
)
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateSchema

from agentstore import errors
from agentstore.dialects.base import Appended, Diagnosis, Failure, Mode
from agentstore.dialects.postgresql_search import PostgreSQLSearch
from agentstore.dialects.postgresql_tasks import NotifyingTasks
from agentstore.dialects.search import SearchIndex
from agentstore.schema import Names, Tables
from agentstore.settings import Settings
from agentstore.types import Json

_LAST_USED = "agentstore_last_used"
_MIGRATION_LOCK = 0x61676E7473746F72 >> 1
"""Any number that no other program locks: the letters "agntstor"."""

_ISOLATION = {
    Mode.READ: "AUTOCOMMIT",
    Mode.STATEMENT: "AUTOCOMMIT",
    Mode.SNAPSHOT: "REPEATABLE READ",
}

_ADVICE: dict[str, tuple[Failure, type[errors.DatabaseError], str]] = {
    "40": (
        Failure.ROLLED_BACK,
        errors.TransactionConflict,
        "The transaction was rolled back for another's sake. Repeat it as a whole.",
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
    "55P03": (Failure.FINAL, errors.DatabaseBusy, "A lock was not to be had in time. Retry."),
    "57014": (
        Failure.FINAL,
        errors.DatabaseBusy,
        "The server cancelled the statement, most likely by statement_timeout. Raise it.",
    ),
    "57P": (
        Failure.DISCONNECTED,
        errors.ConnectionLost,
        "The server is shutting down or starting up. Retry when it is back.",
    ),
    "08": (Failure.DISCONNECTED, errors.ConnectionLost, "The connection broke."),
    "25006": (
        Failure.FINAL,
        errors.DatabaseReadOnly,
        "The server is read-only, perhaps a standby. Connect to the primary.",
    ),
    "42501": (
        Failure.FINAL,
        errors.DatabaseReadOnly,
        "The role lacks the right. GRANT it on the schema and its tables.",
    ),
    "42P01": (
        Failure.FINAL,
        errors.DatabaseError,
        "A table is missing. Run agentstore upgrade, and check schema and table_prefix.",
    ),
    "XX001": (Failure.FINAL, errors.DatabaseCorrupt, "Data are damaged. Restore a backup."),
    "XX002": (Failure.FINAL, errors.DatabaseCorrupt, "An index is damaged. REINDEX it."),
}
"""By SQLSTATE, or its beginning. Source: PostgreSQL documentation, appendix A."""

_RACES = ("23503", "23505")
"""A foreign key, or a unique one, is violated."""


class PostgreSQL(NotifyingTasks):
    """The dialect of PostgreSQL; see ``EngineDialect`` for what each method promises."""

    schemas = True
    single_writer = False
    threads_async_work = False
    search: SearchIndex = PostgreSQLSearch()

    def url(self, url: URL, *, asynchronous: bool) -> URL:
        """Name psycopg, which is both sync and async."""
        if "+" in url.drivername and url.get_driver_name() not in ("psycopg", "psycopg_async"):
            raise errors.UnsupportedUrl(
                f"The PostgreSQL driver {url.get_driver_name()!r} is not supported; leave it out"
            )
        return url.set(drivername="postgresql+psycopg")

    def names_async_driver(self, url: URL) -> bool:
        """Say no: psycopg is both."""
        return False

    def require_existing(self, url: URL) -> None:
        """Nothing to look for: connecting never creates a database."""

    def engine_options(self, url: URL, settings: Settings) -> dict[str, Any]:
        """Pool the connections; those that died are found at checkout, not by a ping each time."""
        return {
            "pool_size": settings.pool_size,
            "max_overflow": settings.max_overflow,
            "pool_timeout": settings.pool_timeout,
            "connect_args": {
                "connect_timeout": max(1, round(settings.connect_timeout)),
                "prepare_threshold": settings.prepare_threshold,
            },
        }

    def install(self, engine: Engine, settings: Settings, *, adopted: bool) -> None:
        """Test a connection that lay idle before it is used again."""
        if adopted:
            return  # the application's pool has its own ways of telling

        @event.listens_for(engine, "checkin")
        def remember(dbapi_connection: Any, record: Any) -> None:
            record.info[_LAST_USED] = time.monotonic()

        @event.listens_for(engine, "checkout")
        def test_if_idle(dbapi_connection: Any, record: Any, _proxy: Any) -> None:
            last_used = record.info.get(_LAST_USED)
            if last_used is None or time.monotonic() - last_used <= settings.ping_after:
                return
            try:
                alive = engine.dialect.do_ping(dbapi_connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise DisconnectionError("the connection died while it lay idle") from error
            if not alive:
                raise DisconnectionError("the connection died while it lay idle")

    def modes(self, engine: Engine) -> dict[Mode, Engine]:
        """Choose autocommit or an isolation level; psycopg does that without a round trip."""
        return {
            mode: engine.execution_options(isolation_level=_ISOLATION[mode])
            if mode in _ISOLATION
            else engine
            for mode in Mode
        }

    def async_modes(self, engine: AsyncEngine) -> dict[Mode, AsyncEngine]:
        """Choose autocommit or an isolation level; psycopg does that without a round trip."""
        return {
            mode: engine.execution_options(isolation_level=_ISOLATION[mode])
            if mode in _ISOLATION
            else engine
            for mode in Mode
        }

    def diagnose(self, error: DBAPIError) -> Diagnosis:
        """Read the SQLSTATE; a connection that was never made, or broke, has none."""
        state = getattr(error.orig, "sqlstate", None)
        constraint = _constraint(error)
        if constraint is not None:
            if state in _RACES:
                # Whoever wrote looked before. The next look finds what is there, or not, now.
                conflict = errors.TransactionConflict(
                    f"The constraint {constraint} is violated: another caller wrote the same key, "
                    "or deleted what this belongs to, at the same moment. Repeat the transaction."
                )
                return Diagnosis(Failure.ROLLED_BACK, conflict)
            violation = errors.ConstraintViolation(
                f"The constraint {constraint} is violated. Nothing was written."
            )
            return Diagnosis(Failure.FINAL, violation)
        if state is None:
            return _without_sqlstate(error)
        for length in (5, 3, 2):
            if (known := _ADVICE.get(state[:length])) is not None:
                failure, kind, advice = known
                return Diagnosis(failure, _make(kind, f"{_words(error)}. {advice}"))
        return Diagnosis(
            Failure.FINAL, errors.DatabaseError(f"{_words(error)} ({state}). Nothing was written.")
        )

    def brings_itself_to_head(self, connection: Connection) -> bool:
        """Never: a server's schema changes only when somebody says so."""
        return False

    def lock_for_migration(self, connection: Connection, names: Names) -> None:
        """Wait for a lock that ends with the transaction; make the schema if there is none."""
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        if names.schema is not None:
            schemas = connection.dialect.get_schema_names(connection)
            if names.schema not in schemas:
                connection.execute(CreateSchema(names.schema))

    def check_after_migration(self, connection: Connection) -> None:
        """Nothing to check: foreign keys hold during a migration too."""

    def unlock_after_migration(self, connection: Connection) -> None:
        """Nothing to undo: the lock ended with the transaction."""

    def utc_day(self, instant: ColumnElement[Any]) -> ColumnElement[str]:
        """Let the server write the day, in UTC whatever the connection's time zone."""
        return func.to_char(func.timezone("UTC", instant), "YYYY-MM-DD")

    def next_activity(self, tables: Tables, of: str = "sessions") -> Any:
        """Take the next of a sequence, which all tables share and nobody waits for."""
        names = tables.names
        sequence = DatabaseSequence(f"{names.prefix}activity", schema=names.schema)
        return sequence.next_value()

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

    def append_messages(
        self,
        connection: Connection,
        tables: Tables,
        session: dict[str, Any],
        rows: Sequence[dict[str, Any]],
        calls: Sequence[dict[str, Any]],
    ) -> Appended | None:
        """Lock, count and insert in one statement."""
        many = len(rows) > 1
        statement = _append_statement(tables, self, many=many, calls=bool(calls))
        parameters = dict(session)
        for column in _message_columns(tables):
            values = [row[column] for row in rows]
            parameters[f"m_{column}"] = values if many else values[0]
        for column in _CALL_COLUMNS if calls else ():
            parameters[f"c_{column}"] = [call[column] for call in calls]
        landed = connection.execute(statement, parameters).first()
        if landed is None:
            return None
        last_seq, last_turn, branch = landed
        first_seq = last_seq - session["messages"]
        first_turn = last_turn - session["users"]
        for row in rows:
            row["seq"] += first_seq
            row["turn"] += first_turn
            row["branch"] = branch
        return Appended(branch, last_seq, last_turn)


_CALL_COLUMNS = ("message_id", "position", "seq", "name", "call_id")


@lru_cache(maxsize=64)
def _message_columns(tables: Tables) -> tuple[str, ...]:
    given_by_the_database = {"pk", "session_id", "branch", "created_at"}
    return tuple(c.name for c in tables.messages.columns if c.name not in given_by_the_database)


@lru_cache(maxsize=256)
def _append_statement(
    tables: Tables, dialect: PostgreSQL, *, many: bool, calls: bool
) -> Select[Any]:
    sessions, messages, tool_calls = tables.sessions, tables.messages, tables.message_tool_calls
    session_id = bindparam("session_id", type_=sessions.c.id.type)
    now = bindparam("now", type_=sessions.c.created_at.type)
    counted = (
        update(sessions)
        .where(sessions.c.id == session_id)
        .values(
            last_seq=sessions.c.last_seq + bindparam("messages"),
            turn=sessions.c.turn + bindparam("users"),
            message_count=sessions.c.message_count + bindparam("messages"),
            total_tokens=sessions.c.total_tokens + bindparam("tokens"),
            total_cost=sessions.c.total_cost + bindparam("cost"),
            activity=dialect.next_activity(tables),
            last_active_at=now,
        )
        .returning(sessions.c.last_seq, sessions.c.turn, sessions.c.active_branch)
        .cte("counted")
    )
    before_seq = counted.c.last_seq - bindparam("messages", type_=BigInteger)
    before_turn = counted.c.turn - bindparam("users", type_=BigInteger)
    columns = _message_columns(tables)
    new, source = _new_rows(
        {f"m_{c}": messages.c[c].type for c in columns}, "new", counted, many=many
    )
    values = {c: new[f"m_{c}"] for c in columns}
    values["seq"] += before_seq
    values["turn"] += before_turn
    values |= {"session_id": session_id, "branch": counted.c.active_branch, "created_at": now}
    added = (
        insert(messages)
        .from_select(list(values), select(*values.values()).select_from(source))
        .cte("added")
    )
    answer = select(counted.c.last_seq, counted.c.turn, counted.c.active_branch).add_cte(added)
    if calls:
        new, source = _new_rows(
            {f"c_{c}": tool_calls.c[c].type for c in _CALL_COLUMNS},
            "new_calls",
            counted,
            many=True,
        )
        values = {c: new[f"c_{c}"] for c in _CALL_COLUMNS}
        values["seq"] += before_seq
        values["session_id"] = session_id
        indexed = (
            insert(tool_calls)
            .from_select(list(values), select(*values.values()).select_from(source))
            .cte("indexed")
        )
        answer = answer.add_cte(indexed)
    return answer


def _new_rows(
    types: dict[str, Any], name: str, counted: CTE, *, many: bool
) -> tuple[dict[str, Any], FromClause]:
    """Give the columns of new rows and where they come from, beside the counted session:
    parameters for one row, arrays side by side for many.
    """
    if not many:
        single = {
            column: cast(bindparam(column, type_=kind), kind) for column, kind in types.items()
        }
        return single, counted
    # JSON travels as text and is cast on arrival, because an array of json has no operators.
    arrays = [
        bindparam(column, type_=ARRAY(Text() if isinstance(kind, Json) else kind))
        for column, kind in types.items()
    ]
    rows = func.unnest(*arrays).table_valued(*types, name=name).render_derived()
    row: dict[str, Any] = {
        column: cast(rows.c[column], kind) if isinstance(kind, Json) else rows.c[column]
        for column, kind in types.items()
    }
    return row, counted.join(rows, true())


def _constraint(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    if state is None or not state.startswith("23"):
        return None
    return str(getattr(getattr(error.orig, "diag", None), "constraint_name", None) or state)


def _words(error: DBAPIError) -> str:
    """Give the server's first line: the others may quote values."""
    diagnostics = getattr(error.orig, "diag", None)
    primary = getattr(diagnostics, "message_primary", None)
    return str(primary or type(error.orig).__name__)


def _make(kind: type[errors.DatabaseError], message: str) -> errors.DatabaseError:
    if kind is errors.ConnectionLost:
        return errors.ConnectionLost(message, in_doubt=False)
    return kind(message)


def _without_sqlstate(error: DBAPIError) -> Diagnosis:
    if error.connection_invalidated:
        lost = errors.ConnectionLost("The connection to the server broke.", in_doubt=False)
        return Diagnosis(Failure.DISCONNECTED, lost)
    words = " ".join(str(error.orig).split())
    unreachable = errors.DatabaseUnreachable(
        f"{words} Check the host, the port, the role and its password in the URL, and that the "
        "server runs."
    )
    return Diagnosis(Failure.FINAL, unreachable)
