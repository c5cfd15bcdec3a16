"""Many processes, one empty database, one moment: nobody fails, and it is migrated once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from agentstore import migrations
from agentstore.database import open_engine, parse_url
from agentstore.settings import Settings
from tests.migrations.support import CHECKOUT, as_stored, together

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
