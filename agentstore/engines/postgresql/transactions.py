"""How transactions begin and end on PostgreSQL, and connections of an application's own engine.

Connections are in autocommit: what is one statement needs nothing around it, and other units say
their BEGIN themselves. One of the application's own engine is so while a unit has it, and as the
application left it afterwards. Its isolation level, which the driver keeps, is not touched: the
driver would name it in the BEGIN that it sends by itself, and so does ours.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import PoolResetState

from agentstore.engines.base.dialect import MODE, READ_ONLY, Mode
from agentstore.engines.base.listening import is_heard_by, listen_once
from agentstore.engines.base.prepared import NO_TRANSACTION, run_sql
from agentstore.engines.postgresql.greeting import SEEN
from agentstore.errors import TransactionMisuse

_TAKEN_OVER = "agentstore_taken_over"
_IN_AUTOCOMMIT = (Mode.READ, Mode.STATEMENT)
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


def tags(engine: Engine, mode: Mode) -> dict[str, Any]:
    """Give the execution options of a mode."""
    options: dict[str, Any] = {MODE: mode}
    if mode in _IN_AUTOCOMMIT and not engine.get_execution_options().get(READ_ONLY):
        options[NO_TRANSACTION] = True
    return options


def end_what_is_open(driver_s: Any, _record: Any, state: PoolResetState) -> None:
    """Roll back before a connection goes back to the pool, if there is something; a listener.

    Most come in autocommit, and psycopg takes its time to find out that it has nothing to do.
    """
    if state.terminate_only or not state.asyncio_safe:
        return
    own = getattr(driver_s, "driver_connection", driver_s)
    if own.pgconn.transaction_status != _PQTRANS_IDLE:
        driver_s.rollback()


def begin(connection: Connection) -> None:
    """Begin a transaction as the mode needs it; a listener."""
    options = connection.get_execution_options()
    if MODE not in options and "isolation_level" in options:
        return  # not a unit, and its user has chosen
    statement = _opening(connection, options.get(MODE, Mode.WRITE))
    if options.get(READ_ONLY):
        statement = f"{statement or 'BEGIN'} READ ONLY"
    if statement is not None:
        run_sql(connection, statement, begin=False)


def _opening(connection: Connection, mode: Mode) -> str | None:
    """Give what begins a transaction; None where there is to be none."""
    if mode in _IN_AUTOCOMMIT:
        return None
    driver_s: Any = connection.connection.driver_connection
    level = driver_s.isolation_level
    chosen = "" if level is None else str(level.name).replace("_", " ")
    if mode is Mode.SNAPSHOT and chosen not in _SNAPSHOTS:
        chosen = _SNAPSHOTS[0]
    return f"BEGIN ISOLATION LEVEL {chosen}" if chosen else "BEGIN"


def take_over(connection: Connection) -> None:
    """Set autocommit until the connection is back in its pool, if it is not set.

    Not by SQLAlchemy's option, which has the driver forget the level.
    """
    driver_s: Any = connection.connection.dbapi_connection
    if not driver_s.autocommit:
        connection.info[_TAKEN_OVER] = True
        driver_s.autocommit = True


def give_back_to(engine: Engine) -> None:
    """Have the engine's pool take such connections back as they were."""
    listen_once(engine, "checkin", _give_back)


def _give_back(driver_s: Any, record: Any) -> None:
    if driver_s is None or not record.info.pop(_TAKEN_OVER, False) or driver_s.closed:
        return
    driver_s.rollback()  # an engine may be told not to do so in autocommit
    driver_s.autocommit = False


def require_joinable(connection: Connection) -> None:
    """Refuse what cannot be joined; see ``EngineDialect``."""
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
