"""A server that is frozen, or behind something that drops what is sent: nobody waits for good."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from agentstore import AsyncStore, Store, migrations
from agentstore.errors import DatabaseUnreachable, InvalidInput
from tests.drivers import DRIVERS, Driver
from tests.programs.probes import checked_out, engine_of
from tests.servers import Server, installations

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

POSTGRESQL_DRIVERS = [driver for driver in DRIVERS if driver.engine == "postgresql"]
TEMPLATE = "at_head"
TOO_LONG = 40.0
"""Seconds; what is looked at here takes three, or for ever."""


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server(installations()[0]) as server:
        migrations.upgrade(server.create_database(TEMPLATE))
        yield server


def new_database(server: Server) -> str:
    """Make a database at head, and give its URL."""
    return server.create_database(f"frozen_{time.monotonic_ns()}", TEMPLATE)


def calls(driver: Driver, url: str, store: Any, session: Any) -> list[Callable[[], object]]:
    """Give calls of all kinds, none of which is ever answered."""

    def in_transaction() -> None:
        with store.transaction() as tx:
            tx.messages.save(session.id, "user", "lost")

    return [
        lambda: store.messages.history(session.id),
        lambda: store.messages.save(session.id, "user", "lost"),
        lambda: store.sessions.rename(session.id, "lost"),
        lambda: store.run(lambda tx: tx.sessions.list()),
        in_transaction,
        lambda: driver.open(url, connect_timeout=1),
        lambda: driver.open(f"{url}&connect_timeout=1", connect_timeout=3600),  # the URL wins
    ]


def test_a_call_to_a_frozen_server_ends_with_an_error_on_each_driver(own_server):
    """On connections that lay idle, and on first ones; of all drivers at once, to wait once."""
    with ExitStack() as stack:
        places = []
        for driver in POSTGRESQL_DRIVERS:
            url = new_database(own_server)
            store = stack.enter_context(driver.open(url, ping_after=0, connect_timeout=1))
            session = store.sessions.create()
            store.messages.save(session.id, "user", "before")
            places.append((driver, url, store, session))
        asked = [call for place in places for call in calls(*place)]
        with ThreadPoolExecutor(len(asked)) as threads, own_server.frozen():
            running = [threads.submit(call) for call in asked]
            for each in running:
                assert isinstance(each.exception(TOO_LONG), DatabaseUnreachable)
        for _, _, store, session in places:
            store.messages.save(session.id, "user", "after")
            contents = [message.content for message in store.messages.history(session.id)]
            assert contents == ["before", "after"]
            assert store.sessions.get(session.id).title == session.title
            assert checked_out(store) == 0


def test_other_tasks_go_on_while_a_frozen_server_is_asked(own_server):
    url = new_database(own_server)

    async def ask() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        async with AsyncStore(url, ping_after=0, connect_timeout=1) as store:
            await store.sessions.create()
            beside = asyncio.create_task(turn())
            with own_server.frozen():
                with pytest.raises(DatabaseUnreachable):
                    async with asyncio.timeout(TOO_LONG):
                        await store.sessions.list()
                cancelled = asyncio.create_task(store.sessions.list())
                await asyncio.sleep(0.1)
                cancelled.cancel()
                async with asyncio.timeout(TOO_LONG):
                    with contextlib.suppress(asyncio.CancelledError, DatabaseUnreachable):
                        await cancelled
            beside.cancel()
            assert (await store.sessions.list()).items
        return turns

    assert asyncio.run(ask()) > 20


@pytest.mark.long
def test_saves_of_many_tasks_on_idle_connections_to_a_frozen_server_end_with_errors(own_server):
    url = new_database(own_server)

    async def ask() -> None:
        async with AsyncStore(url, ping_after=0, connect_timeout=1) as store:
            session = await store.sessions.create()

            async def save() -> str | None:
                return (await store.messages.save(session.id, "user", "x")).content

            assert await asyncio.gather(*(save() for _ in range(16))) == ["x"] * 16
            with own_server.frozen():
                saves = [asyncio.create_task(save()) for _ in range(16)]
                done, left = await asyncio.wait(saves, timeout=TOO_LONG)
            assert not left
            assert {type(each.exception()) for each in done} == {DatabaseUnreachable}
            assert await save() == "x"

    asyncio.run(ask())


# --- What the system is told -------------------------------------------------------------------


@pytest.fixture
def over_tcp(own_server: Server) -> Iterator[str]:
    """The URL of a database through a port of this machine."""
    plain = make_url(new_database(own_server))
    directory = plain.query["host"]
    target = next(str(p) for p in Path(str(directory)).glob(".s.PGSQL.*") if p.suffix != ".lock")
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(target)
                ends.extend((client, server))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port = listener.getsockname()[1]
    url = plain.difference_update_query(["host"]).set(host="127.0.0.1", port=port)
    yield url.render_as_string(hide_password=False)
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def told(store: Any) -> tuple[bool, int, int, int, int]:
    """Give what the system knows of a store's connection: keepalives, and how long to wait."""
    with engine_of(store).connect() as connection:
        driver_s: Any = connection.connection.driver_connection
        with socket.socket(fileno=os.dup(driver_s.pgconn.socket)) as copy:
            return (
                bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
                copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
                copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            )


def test_a_machine_that_is_silent_is_given_up_after_half_a_minute_by_default(over_tcp):
    with Store(over_tcp) as store:
        assert told(store) == (True, 15, 5, 3, 30_000)


def test_the_limit_can_be_set_and_the_url_wins(over_tcp):
    with Store(over_tcp, network_timeout=12) as store:
        assert told(store) == (True, 6, 2, 3, 12_000)
    with Store(f"{over_tcp}?tcp_user_timeout=7000&keepalives_idle=3") as store:
        assert told(store) == (True, 3, 5, 3, 7_000)


def test_without_a_limit_the_system_s_own_stay(over_tcp):
    with Store(over_tcp, network_timeout=0) as store:
        assert told(store)[4] == 0


@pytest.mark.parametrize("driver", POSTGRESQL_DRIVERS, ids=lambda driver: driver.name)
def test_of_several_hosts_the_one_that_answers_and_takes_writes_is_used(over_tcp, driver):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = nobody.getsockname()[1]
    url = make_url(over_tcp)
    several = url.set(host=None, port=None).update_query_dict(
        {"host": [f"127.0.0.1:{dead}", f"127.0.0.1:{url.port}"]}
    )
    wanted = several.update_query_dict({"target_session_attrs": "read-write"})
    with driver.open(wanted.render_as_string(hide_password=False)) as store:
        session = store.sessions.create()
        assert store.sessions.get(session.id) == session
        assert store.health().writable


def test_a_limit_below_zero_is_refused():
    with pytest.raises(InvalidInput, match="network_timeout"):
        Store("sqlite://", network_timeout=-1)
