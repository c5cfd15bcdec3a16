"""How transactions begin on PostgreSQL, and connections of an application's own engine.

Such a connection is in autocommit while a unit has it, and as the application left it afterwards.
Its isolation level, which the driver keeps, is not touched: the driver would name it in the BEGIN
that it sends by itself, and so does ours.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine

from agentstore.dialects.base import Mode
from agentstore.dialects.listening import listen_once

_TAKEN_OVER = "agentstore_taken_over"
_SNAPSHOTS = ("REPEATABLE READ", "SERIALIZABLE")
"""The levels at which several statements read one state of the database; the first will do."""


def opening(connection: Connection, mode: Mode) -> str | None:
    """Give what begins a transaction; None where there is to be none."""
    if mode in (Mode.READ, Mode.STATEMENT):
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
