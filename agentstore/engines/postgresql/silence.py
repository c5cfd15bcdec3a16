"""Servers that say nothing any more: frozen, or behind a firewall that drops what is sent.

The system tells who waits for an answer that the other machine is gone, if it is asked to look:
that is what keepalives and ``tcp_user_timeout`` are for. A machine whose server is frozen still
acknowledges. So a connection that lay idle is asked, before it is used, whether anybody is there,
and who does not answer within the time in which one could have connected is not waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Generator
from typing import Any

from psycopg import OperationalError, pq
from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import DisconnectionError

from agentstore.settings import Settings

_LAST_USED = "agentstore_last_used"
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
    patience = _patience(engine.url, settings)

    @event.listens_for(engine, "checkin")
    def remember(_driver_s: Any, record: Any) -> None:
        record.info[_LAST_USED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def test_if_idle(driver_s: Any, record: Any, _proxy: Any) -> None:
        last_used = record.info.get(_LAST_USED)
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


def _patience(url: URL, settings: Settings) -> float:
    given = url.query.get("connect_timeout")
    if isinstance(given, str) and given.isdecimal() and int(given) > 0:
        return float(given)
    return max(1.0, settings.connect_timeout)


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
