"""What a connection to PostgreSQL is asked and told when it is new.

Prepared statements belong to a server's connection. A pooler that lends one to many clients makes
each of them meet the others' statements, and what is asked with one of those is answered with
somebody else's rows. Such a pooler has no process for a client, so the number of the process that
it names at the start is another one than the server says itself. Where they differ nothing is
prepared. That is found out for each connection, because what is at the end of a URL may change.

Statements have names that no other client has. So even who insists on preparing, or sits behind a
pooler that names the server's process, gets an error and never another's answer.

Dates come as text, which the driver reads in the style ISO alone; and it writes what the client's
encoding has. Both may be set for a role or a database, whichever program uses it.
"""

from __future__ import annotations

import logging
import os
from typing import Any
from weakref import WeakKeyDictionary

from psycopg.types.string import TextLoader
from sqlalchemy import Engine, event

from agentstore.engines.postgresql.forks import note
from agentstore.settings import AUTO, Settings
from agentstore.values.internals import number_statements_from

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
        event.listen(engine, "connect", _Greeter(settings, adopted=False).greet)
        return
    greeter = _adopted.get(engine)
    if greeter is None:
        greeter = _adopted[engine] = _Greeter(settings, adopted=True)
        event.listen(engine, "connect", greeter.greet)
        event.listen(engine, "checkout", greeter.greet_open_one)
    greeter.asks = greeter.asks or settings.prepare_threshold == AUTO


class _Greeter:
    """Greets the connections of one engine.

    Attributes:
        asks: Whether to ask for the server's process, and to prepare nothing behind a pooler.
    """

    def __init__(self, settings: Settings, *, adopted: bool) -> None:
        self.asks = settings.prepare_threshold == AUTO
        self._adopted = adopted
        self._warned = False

    def greet(self, driver_s: Any, record: Any) -> None:
        """Ask and tell what there is, in one round trip, or none."""
        record.info[SEEN] = self.asks
        own = getattr(driver_s, "driver_connection", driver_s)
        if not self._adopted:
            note(own)
            own.adapters.register_loader("uuid", TextLoader)  # an object of each would cost 2 us
        wrong = _wrong_settings(own, adopted=self._adopted)
        prepares = own.prepare_threshold is not None
        if any(wrong.values()) or (self.asks and prepares):
            (process, *_) = _ask(driver_s, wrong)
            if self.asks and prepares and process != own.info.backend_pid:
                own.prepare_threshold = None
                self._warn(own)
        if prepares:
            # Processes that were forked have the same random numbers, but not the same of these.
            number_statements_from(own, int.from_bytes(os.urandom(6), "big"))

    def greet_open_one(self, driver_s: Any, record: Any, _proxy: Any) -> None:
        """Greet a connection that the application opened before its engine was adopted."""
        if record.info.get(SEEN) != self.asks:
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
        CASE WHEN %(zone)s::boolean THEN set_config('TimeZone', 'UTC', false) END
"""
"""ISO alone keeps the order of day and month."""


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
