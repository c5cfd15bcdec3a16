"""Behind a pooler that lends connections: nobody gets another's answer, and it is said once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from agentstore import AsyncStore, Store, cli
from agentstore.engines.base.dialect import Mode
from agentstore.errors import DatabaseError, InvalidInput
from agentstore.moving.copying import copy
from agentstore.transactions import runner_of
from tests.conftest import VERSIONS, Place, Servers, on_a_server
from tests.poolers import OURS, POOLERS, pgbouncer_version, pooled
from tests.programs.copies import driver_url
from tests.programs.probes import engine_of

PREPARED = 5
"""Executions after which psycopg prepares."""


@pytest.fixture(params=POOLERS)
def pooler(request: pytest.FixtureRequest, place: Place) -> Iterator[str]:
    """The URL of each pooler, in front of a database at head."""
    with pooled(request.param, place.url) as url:
        yield url


@pytest.fixture
def direct_url(servers: Servers) -> Iterator[str]:
    url = servers.new_database(VERSIONS[0])
    yield url
    servers.drop(VERSIONS[0], url)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "agentstore.connections"]


def talk(stores: list[Any], calls: int = 20) -> None:
    """Have stores read, in turn, what each has written; all of it is there, and its own."""
    mine: list[dict[str, Any]] = []
    for number, store in enumerate(stores):
        user = store.users.create(f"name {number}")
        session = store.sessions.create(user.id, title=f"title {number}")
        store.messages.save(session.id, "user", f"content {number}")
        log = store.tool_logs.log(session.id, f"tool {number}")
        mine.append({"user": user.id, "session": session.id, "log": log.id})
    for call in range(calls):
        for number, (store, ids) in enumerate(zip(stores, mine, strict=True)):
            # One begins with another statement than its neighbour, so equal names mean other ones.
            reads = [
                lambda s=store, i=ids: s.users.get(i["user"]).name,
                lambda s=store, i=ids: s.sessions.get(i["session"]).title,
                lambda s=store, i=ids: s.tool_logs.get(i["log"]).tool,
                lambda s=store, i=ids: s.messages.history(i["session"])[0].content,
            ]
            expected = [f"{what} {number}" for what in ("name", "title", "tool", "content")]
            for place in range(4):
                at = (place + number) % 4
                assert reads[at]() == expected[at]
            store.messages.save(ids["session"], "assistant", f"answer {call}")
    for store, ids in zip(stores, mine, strict=True):
        said = [m.content for m in store.messages.history(ids["session"], None)]
        assert said[1:] == [f"answer {call}" for call in range(calls)]
        assert store.sessions.verify(ids["session"]).agree


@on_a_server
def test_clients_of_a_pooler_that_lends_connections_read_what_is_theirs(place, pooler):
    with ExitStack() as opened:
        talk([opened.enter_context(place.driver.open(pooler)) for _ in range(3)])


@on_a_server
def test_transactions_behind_a_pooler_are_whole(place, pooler):
    with place.driver.open(pooler) as one, place.driver.open(pooler) as other:
        session = one.sessions.create()
        for number in range(3 * PREPARED):
            with one.transaction() as tx:
                tx.messages.save(session.id, "user", f"{number}")
                other.sessions.create(title=f"{number}")
                tx.sessions.rename(session.id, f"{number}")
        with pytest.raises(LookupError), one.transaction() as tx:
            tx.messages.save(session.id, "user", "gone")
            raise LookupError
        contents = [m.content for m in other.messages.history(session.id, None)]
        assert contents == [str(number) for number in range(3 * PREPARED)]
        assert other.sessions.verify(session.id).agree


@on_a_server
def test_a_pooler_is_said_once_and_names_the_setting(place, pooler, caplog):
    with caplog.at_level(logging.WARNING), place.driver.open(pooler) as store:
        session = store.sessions.create()
        together = threading.Barrier(2)

        def hold() -> None:
            with store.transaction() as tx:
                tx.messages.history(session.id)
                together.wait(30)

        threads = [threading.Thread(target=hold) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (said,) = warnings_in(caplog)
    assert "prepare_threshold=None" in said


@on_a_server
def test_without_a_pooler_statements_are_prepared_and_nothing_is_said(place, caplog):
    with caplog.at_level(logging.WARNING), place.open() as store:
        session = store.sessions.create()
        for _ in range(3 * PREPARED):
            store.sessions.get(session.id)
        with engine_of(store).connect() as connection:
            driver_s: Any = connection.connection.driver_connection
            assert driver_s.prepare_threshold == PREPARED
            assert driver_s._prepared._names
    assert warnings_in(caplog) == []


@on_a_server
def test_who_says_none_is_not_warned(place, pooler, caplog):
    with (
        caplog.at_level(logging.WARNING),
        place.driver.open(pooler, prepare_threshold=None) as one,
        place.driver.open(pooler, prepare_threshold=None) as other,
    ):
        talk([one, other], 2 * PREPARED)
    assert warnings_in(caplog) == []


@on_a_server
def test_who_prepares_behind_a_pooler_gets_an_error_that_names_the_setting(
    place,
):
    with (
        pooled(OURS, place.url) as url,
        place.driver.open(url, prepare_threshold=PREPARED) as one,
        place.driver.open(url, prepare_threshold=PREPARED) as other,
        pytest.raises(DatabaseError, match="prepare_threshold=None"),
    ):
        talk([one, other])


@pytest.mark.parametrize("kind", POOLERS)
def test_an_application_s_own_engine_prepares_nothing_behind_a_pooler(direct_url, kind, caplog):
    with pooled(kind, direct_url) as url, ExitStack() as opened:
        engines = [create_engine(url) for _ in range(2)]
        for engine in engines:
            with engine.connect() as connection:  # one is open already when the store comes
                connection.exec_driver_sql("SELECT 1")
        with caplog.at_level(logging.WARNING):
            stores = [opened.enter_context(Store(engine=engine)) for engine in engines]
            talk([*stores, opened.enter_context(Store(engine=engines[0]))])
        for engine in engines:
            with engine.connect() as connection:
                driver_s: Any = connection.connection.driver_connection
                assert (driver_s.prepare_threshold, driver_s.autocommit) == (None, False)
            engine.dispose()
    assert len(warnings_in(caplog)) == 2  # one for each engine


@pytest.mark.parametrize("kind", POOLERS)
def test_an_application_s_own_asynchronous_engine_prepares_nothing_either(direct_url, kind):
    async def use(url: str) -> None:
        engines = [create_async_engine(url) for _ in range(2)]
        stores = [AsyncStore(engine=engine) for engine in engines]
        ids = [(await store.sessions.create(title=f"{n}")).id for n, store in enumerate(stores)]
        for _ in range(4 * PREPARED):
            for number, store in enumerate(stores):
                await store.messages.save(ids[number], "user", f"{number}")
                assert (await store.sessions.get(ids[number])).title == f"{number}"
                (last,) = await store.messages.history(ids[number], 1)
                assert last.content == f"{number}"
        for store, engine in zip(stores, engines, strict=True):
            await store.close()
            await engine.dispose()

    with pooled(kind, direct_url) as url:
        asyncio.run(use(url))


def test_an_application_that_insists_on_preparing_keeps_its_connections(direct_url):
    with pooled(OURS, direct_url) as url:
        engine = create_engine(url)
        with Store(engine=engine, prepare_threshold=PREPARED), engine.connect() as connection:
            driver_s: Any = connection.connection.driver_connection
            assert driver_s.prepare_threshold == PREPARED
        engine.dispose()


@pytest.mark.parametrize("kind", POOLERS)
def test_the_command_line_works_behind_a_pooler(direct_url, kind, capsys):
    with Store(direct_url) as store:
        session = store.sessions.create(title="Weather")
        for number in range(20):
            store.messages.save(session.id, "user", f"message {number}")
    with pooled(kind, direct_url) as url:
        for arguments, expected in (
            (["search", "message"], "⟦message⟧ 19"),
            (["ls"], "Weather"),
            (["show", session.id], "message 19"),
        ):
            with pytest.raises(SystemExit) as ended:
                cli.main([*arguments, "--url", url])
            printed = capsys.readouterr()
            assert ended.value.code == 0, printed
            assert expected in printed.out


@on_a_server
def test_what_a_server_s_connection_tells_another_client_s_worker_is_not_kept(place: Place) -> None:
    with place.open(pool_size=1, max_overflow=0) as store:
        channel = store.tasks.watch()._channel

        def execute(statement: str) -> Any:
            def work(unit: Any) -> Any:
                return unit.connection.execute(text(statement))

            return store.run(lambda tx: runner_of(tx).run(Mode.WRITE, work, repeatable=False))

        execute(f'LISTEN "{channel}"')  # as a worker leaves one that is lent to the store next
        for _ in range(3):
            store.tasks.create(None, "greet")
        assert execute("SELECT pg_listening_channels()").scalars().all() == [channel]
        with engine_of(store).connect() as connection:
            driver_s: Any = connection.connection.driver_connection
            assert not driver_s._notifies_backlog


SETTINGS = {
    "synchronous_commit": "local",
    "maintenance_work_mem": "32MB",
    "statement_timeout": "10min",
    "idle_in_transaction_session_timeout": "20min",
    "agentstore.user_id": "",
}


@pytest.mark.parametrize("follow", [None, lambda: True])
@pytest.mark.parametrize("kind", POOLERS)
def test_what_a_copy_or_a_scope_sets_stays_on_no_connection_that_others_are_lent(
    empty_server: str, kind: str, follow: Any, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path / 'source.db'}"
    with Store(source) as store:
        user = store.users.create("Ada", id="ada")
        store.messages.save(store.sessions.create(user.id).id, "user", "hello " * 10_000)
    with psycopg.connect(driver_url(empty_server), autocommit=True) as server:
        for name, value in SETTINGS.items():
            database = sql.Identifier(str(make_url(empty_server).database))
            change = sql.SQL("ALTER DATABASE {} SET {} = {}")
            server.execute(change.format(database, sql.Identifier(*name.split(".")), value))
    with pooled(kind, empty_server) as url:
        copy(source, url, follow=follow)
        with Store(url) as store:
            for _ in range(4):
                assert store.scoped("ada").sessions.count() == 1
        for _ in range(4):
            with psycopg.connect(driver_url(url), autocommit=True) as client:
                asked = "SELECT current_setting(name) FROM unnest(%s::text[]) AS name"
                found = client.execute(asked, [list(SETTINGS)]).fetchall()
                assert dict(zip(SETTINGS, (value for (value,) in found), strict=True)) == SETTINGS


@pytest.mark.skipif("pgbouncer" not in POOLERS, reason="ours keeps transactions together")
def test_a_pooler_that_keeps_no_transaction_together_is_told_which_mode_it_needs(direct_url):
    with (
        pooled("pgbouncer", direct_url, mode="statement") as url,
        Store(url) as store,
        pytest.raises(DatabaseError, match="pool_mode must be transaction or session"),
    ):
        store.users.create("Ada")


@pytest.mark.skipif(
    "pgbouncer" not in POOLERS or pgbouncer_version() < (1, 21),
    reason="needs a pgbouncer from 1.21 on, which keeps prepared statements apart",
)
@on_a_server
def test_a_pooler_that_keeps_statements_apart_lets_them_be_prepared(place):
    with (
        pooled("pgbouncer", place.url, prepared=200) as url,
        place.driver.open(url, prepare_threshold=PREPARED) as one,
        place.driver.open(url, prepare_threshold=PREPARED) as other,
    ):
        talk([one, other], 4 * PREPARED)


@pytest.mark.parametrize("wrong", ["always", -1, True, 1.5])
def test_a_threshold_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidInput, match="prepare_threshold"):
        Store("sqlite://", prepare_threshold=wrong)
