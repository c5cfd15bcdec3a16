"""Many processes, one empty database, one moment: nobody fails, and it is migrated once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest
from sqlalchemy import Engine, event, make_url, text

from agentstore import AsyncStore, Store, doctor, errors, migrations
from agentstore.database import open_engine, parse_url
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.settings import Settings
from agentstore.testing import BlockingStore
from tests.chaos.arena import wait_for
from tests.migrations.support import CHECKOUT, as_stored, described, run_sql, together

PROCESSES = 8

MIGRATE = """
import sys
from argparse import Namespace
from alembic import command
from alembic.config import Config
from agentstore import migrations

url, schema, prefix, ini = sys.argv[1:]
names = migrations.Names(schema or None, prefix)

def go(number):
    if number % 2:
        assert migrations.upgrade(url, names=names) == migrations.HEAD
        return
    said = [f"url={url}", f"schema={schema}", f"table_prefix={prefix}"]
    command.upgrade(Config(ini, cmd_opts=Namespace(x=said)), "head")
"""

OPEN = """
import asyncio, sys
import agentstore.migrations, alembic.command
from agentstore import AsyncStore, Store

async def work(number):
    async with AsyncStore(sys.argv[1]) as store:
        session = await store.sessions.create(id=f"session {number}")
        await store.messages.save(session.id, "user", "hello")

def go(number):
    if number % 2:
        asyncio.run(work(number))
        return
    with Store(sys.argv[1]) as store:
        session = store.sessions.create(id=f"session {number}")
        store.messages.save(session.id, "user", "hello")
"""


@pytest.mark.long
def test_any_number_of_processes_may_upgrade_one_empty_database(named_databases):
    databases = named_databases
    url, names = databases.make("contended"), databases.names
    ini = str(CHECKOUT / "alembic.ini")
    arguments = (url, names.schema or "", names.prefix, ini)
    assert together(PROCESSES, MIGRATE, *arguments) == []
    assert as_stored(url) == as_stored(databases.upgraded())


@pytest.mark.long
def test_any_number_of_stores_may_open_one_new_file(tmp_path):
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert together(PROCESSES, OPEN, url) == []
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        assert migrations.current(connection) == migrations.HEAD
        sessions = connection.execute(text("SELECT id FROM sessions ORDER BY id")).scalars().all()
        messages = connection.execute(text("SELECT count(*) FROM messages")).scalar()
    engine.dispose()
    assert sessions == [f"session {number}" for number in range(PROCESSES)]
    assert messages == PROCESSES


@pytest.mark.long(but=["*-two"])
@pytest.mark.parametrize("engines", ["one", "two"])
def test_threads_of_one_process_may_upgrade_at_once(databases, engines):
    urls = [databases.make(f"{engines}-{n}") for n in range(1 if engines == "one" else 2)] * 4
    with ThreadPoolExecutor(len(urls)) as threads:
        done = list(threads.map(lambda url: migrations.upgrade(url, names=databases.names), urls))
    assert set(done) == {migrations.HEAD}
    head = as_stored(databases.upgraded())
    assert all(as_stored(url) == head for url in set(urls))


ADDS = """
op.create_table('second', sa.Column('id', TEXT))
op.add_column('messages', sa.Column('tone', TEXT))
op.add_column('sessions', sa.Column('mood', TEXT))
"""


def test_open_stores_go_on_beside_newer_ones_after_a_revision_that_adds(plain_databases, tree):
    url, over = plain_databases.upgraded(), Event()

    def write(store, written):
        session = store.sessions.create().id
        while not over.is_set():
            with suppress(errors.DatabaseBusy):  # while the revision has the file
                store.messages.save(session, "user", str(len(written)))
                written.append(session)
            last = store.messages.history(session, 1)
            assert [message.content for message in last] == [str(len(written) - 1)]

    by_old, by_other, by_new = [], [], []
    with (
        Store(url) as old,
        BlockingStore(lambda: AsyncStore(url)) as other,
        ThreadPoolExecutor(3) as threads,
    ):
        try:
            writing = [threads.submit(write, old, by_old), threads.submit(write, other, by_other)]
            assert wait_for(lambda: by_old and by_other)
            tree.add("9001", ADDS)
            assert migrations.upgrade(url) == "9001"
            with Store(url) as new:
                before = len(by_old), len(by_other)
                writing.append(threads.submit(write, new, by_new))
                assert wait_for(
                    lambda: by_new and len(by_old) > before[0] + 9 and len(by_other) > before[1] + 9
                )
                over.set()
                for each in writing:
                    each.result()
                for written in (by_old, by_other, by_new):
                    saved = new.messages.history(written[0], None)
                    assert [message.content for message in saved] == [
                        str(number) for number in range(len(written))
                    ]
        finally:
            over.set()


def unchecked(url):
    """Give the constraints of a server's database that were not checked for the rows there."""
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        query = text("SELECT conname FROM pg_constraint WHERE NOT convalidated")
        found = connection.execute(query).scalars().all()
    engine.dispose()
    return set(found)


def test_a_server_s_checks_are_replaced_while_messages_are_saved(server_databases):
    url, names = server_databases.upgraded(), server_databases.names
    over, written = Event(), {}

    def write(number):
        session = store.sessions.create(id=f"session {number}").id
        while not over.is_set():
            store.messages.save(session, "user", "hello")
            store.usage.record(session, model="a-model", input_tokens=1, output_tokens=1)
            written[session] = written.get(session, 0) + 1

    def all_go_on(before):
        return len(written) == 3 and all(written[s] > before.get(s, 0) for s in written)

    with (
        Store(url, schema=names.schema, table_prefix=names.prefix) as store,
        ThreadPoolExecutor(3) as threads,
    ):
        try:
            writing = [threads.submit(write, number) for number in range(3)]
            for _ in range(2):
                assert wait_for(lambda: all_go_on({}))
                migrations.downgrade(url, revision="0100", names=names)
                before = dict(written)
                assert wait_for(lambda before=before: all_go_on(before))
                assert unchecked(url) == set()
                migrations.upgrade(url, names=names)
                before = dict(written)
                assert wait_for(lambda before=before: all_go_on(before))
                assert unchecked(url) == set()
        finally:
            over.set()
        for each in writing:
            each.result()
        for session, saved in written.items():
            assert store.sessions.verify(session).agree
            assert store.sessions.get(session).message_count == saved


@pytest.mark.parametrize("is_finished", [True, False])
def test_an_index_that_was_made_before_an_upgrade_is_taken_if_it_is_whole(
    is_finished, server_databases
):
    url, names = server_databases.make("old"), server_databases.names
    migrations.upgrade(url, "0101", names=names)
    page = (CHECKOUT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    (made,) = re.findall(r"CREATE INDEX CONCURRENTLY [^;]*;", page)
    place = f'"{names.schema}".' if names.schema else ""
    index, table = (f"{names.prefix}turn_usage{end}" for end in ("_sums", ""))
    made = made.replace("ix_turn_usage_sums", f"ix_{index}")
    run_sql(url, made.replace("ON turn_usage", f"ON {place}{table}"))
    engine = open_engine(parse_url(url), Settings())
    number = text(f"SELECT '{place}ix_{index}'::regclass::oid::bigint")
    if not is_finished:  # as a command leaves it that fails; only a superuser can do it otherwise
        unfinished = text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = :number")
        with engine.begin() as connection:
            connection.execute(unfinished, {"number": connection.execute(number).scalar()})
    with engine.connect() as connection:
        before = connection.execute(number).scalar()
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    with engine.connect() as connection:
        assert (connection.execute(number).scalar() == before) == is_finished
    engine.dispose()
    assert described(url, names) == described(server_databases.upgraded(), names)


@pytest.fixture
def unfinished(server_databases, monkeypatch):
    """A database whose last upgrade was killed behind its commit."""
    url, names = server_databases.make("old"), server_databases.names
    migrations.upgrade(url, "0100", names=names)
    with monkeypatch.context() as killed:
        killed.setattr(PostgreSQL, "finish_migration", lambda *_: None)
        migrations.upgrade(url, names=names)
    return url, names


def test_an_upgrade_that_was_killed_behind_its_commit_is_ended_by_the_next(unfinished):
    url, names = unfinished
    assert {f"ck_{names.prefix}messages_role", f"ck_{names.prefix}tasks_status"} < unchecked(url)
    Store(url, schema=names.schema, table_prefix=names.prefix).close()
    found = doctor.examine(url, names=names)
    (first, *_) = [each for each in found if each.check == "constraints"]
    assert "VALIDATE CONSTRAINT" in first.fix
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    assert unchecked(url) == set()


def test_no_timeout_stops_the_check_of_the_rows_that_were_there(unfinished):
    url, names = unfinished
    timeouts = []

    def note(_connection, cursor, statement, *_):
        if statement.startswith("ALTER TABLE"):
            cursor.execute("SHOW statement_timeout")
            timeouts.extend(cursor.fetchone())

    run_sql(url, f"ALTER DATABASE {make_url(url).database} SET statement_timeout = '1min'")
    event.listen(Engine, "before_cursor_execute", note)
    try:
        migrations.upgrade(url, names=names)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert set(timeouts) == {"0"}
    assert unchecked(url) == set()


@pytest.mark.parametrize("owned", [False, True], ids=["not its tables", "only for reading"])
def test_an_upgrade_at_head_does_nothing_where_it_may_not(unfinished, owned):
    url, names = unfinished
    before, database = unchecked(url), make_url(url).database
    role = make_url(url).username
    if owned:
        run_sql(url, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    else:
        role = f"reader_{database}"
        schema = f'"{names.schema or "public"}"'
        run_sql(
            url,
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}; "
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
        )
    try:
        assert migrations.upgrade(make_url(url).set(username=role), names=names) == migrations.HEAD
        assert unchecked(url) == before
    finally:
        if not owned:
            run_sql(url, f"DROP OWNED BY {role}; DROP ROLE {role}")
