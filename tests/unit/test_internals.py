"""What other packages do not promise to keep, and agentstore uses: it is there, and does that.

When one of these fails after an upgrade, the release that the message names has changed a name.
Change ``agentstore.values.types``, or hold that package back.
"""

import asyncio
import os
import platform
import sqlite3
from importlib import metadata

import aiosqlite
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from agentstore.values import types
from tests.conftest import on


def release(package):
    return f"{package} {metadata.version(package)} has no such name any more, or another meaning"


@pytest.fixture
def connection():
    engine = sa.create_engine("sqlite://")
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def test_sqlalchemy_raises_its_own_error_for_one_of_the_driver(connection):
    assert hasattr(sa.Connection, "_handle_dbapi_exception"), release("sqlalchemy")
    cursor = connection.connection.cursor()
    heard = []
    sa.event.listen(connection.engine, "handle_error", heard.append)
    error = sqlite3.OperationalError("no such table: t")
    with pytest.raises(sa.exc.OperationalError, match="SELECT 1 FROM t") as raised:
        types.raise_as_sqlalchemy(connection, error, "SELECT 1 FROM t", cursor)
    assert raised.value.orig is error, release("sqlalchemy")
    assert [context.original_exception for context in heard] == [error], release("sqlalchemy")


def test_an_engine_with_options_has_the_listeners_of_the_one_behind_it(connection):
    engine = connection.engine
    tagged = engine.execution_options(one=1).execution_options(two=2)
    assert getattr(tagged, "_proxied", None) is not None, release("sqlalchemy")
    with tagged.connect() as through:
        assert not types.has_listeners(through)
        sa.event.listen(engine, "before_cursor_execute", lambda *_: None)
        assert types.has_listeners(through), release("sqlalchemy")
    assert types.has_listeners(connection), release("sqlalchemy")


def test_sqlalchemy_knows_who_chose_autocommit(connection):
    assert hasattr(sa.Connection, "_is_autocommit_isolation"), release("sqlalchemy")
    assert not types.is_in_autocommit(connection), release("sqlalchemy")
    connection.execution_options(isolation_level="AUTOCOMMIT")
    assert types.is_in_autocommit(connection), release("sqlalchemy")
    engine = sa.create_engine("sqlite://", isolation_level="AUTOCOMMIT")
    with engine.connect() as opened:
        assert types.is_in_autocommit(opened), release("sqlalchemy")
    engine.dispose()


def test_a_table_can_be_in_two_metadata():
    own, other = sa.MetaData(), sa.MetaData()
    parent = sa.Table("parent", own, sa.Column("id", sa.Text, primary_key=True), schema="s")
    assert hasattr(other, "_add_table"), release("sqlalchemy")
    types.add_table(other, parent)
    child = sa.Table("child", other, sa.Column("parent_id", sa.ForeignKey("s.parent.id")))
    assert other.tables["s.parent"] is parent, release("sqlalchemy")
    assert parent.metadata is own
    assert child.c.parent_id.references(parent.c.id), release("sqlalchemy")
    assert isinstance(child.c.parent_id.type, sa.Text), release("sqlalchemy")


def test_sqlalchemy_marks_what_it_writes_into_a_text(connection):
    limit = sa.bindparam("limit", type_=sa.Integer, literal_execute=True)
    compiled = sa.select(sa.literal_column("1")).limit(limit).compile(connection.engine)
    places = types.places_to_write(compiled)
    assert places.keys() == {"limit"}, release("sqlalchemy")
    assert places["limit"] in str(compiled), release("sqlalchemy")


@on(lambda driver: driver.name == "psycopg")
def test_psycopg_numbers_its_statements_from_where_it_is_told(place):
    url = sa.make_url(place.url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as own:
        types.number_statements_from(own, 4_711)
        own.execute("SELECT 1", prepare=True)
        names = own.execute("SELECT name FROM pg_prepared_statements").fetchall()
    assert any("4711" in name for (name,) in names), release("psycopg")


@on(lambda driver: driver.name == "psycopg")
def test_psycopg_shows_what_it_has_prepared_by_text_and_types(place):
    url = sa.make_url(place.url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as own:
        psycopg.RawCursor(own).execute(b"SELECT $1::text, $2::int", ["a", None], prepare=True)
        names = types.names_of_prepared(own)
        ((key, name),) = names.items()
        names.move_to_end(key)
        assert key == (b"SELECT $1::text, $2::int", (0, 0)), release("psycopg")
        found = own.execute("SELECT name FROM pg_prepared_statements").fetchall()
    assert (name.decode(),) in found, release("psycopg")


def test_another_psycopg_shows_nothing_that_it_has_prepared():
    assert not types.names_of_prepared(object())


def test_another_psycopg_numbers_them_as_it_likes():
    types.number_statements_from(object(), int.from_bytes(os.urandom(6), "big"))


def test_aiosqlite_shows_the_connection_that_it_wraps():
    async def look():
        engine = create_async_engine("sqlite+aiosqlite://")
        async with engine.connect() as opened:
            wrapped = (await opened.get_raw_connection()).dbapi_connection
            assert isinstance(wrapped.driver_connection, aiosqlite.Connection)
            found = types.innermost(wrapped)
        await engine.dispose()
        return found

    assert isinstance(asyncio.run(look()), sqlite3.Connection), release("aiosqlite")


def test_a_connection_of_sqlite3_is_its_own(connection):
    plain = connection.connection.dbapi_connection
    assert types.innermost(plain) is plain


def test_python_takes_a_task_off_its_list():
    async def look():
        task = asyncio.ensure_future(asyncio.sleep(0, "done"))
        assert task in asyncio.all_tasks()
        types.unlist(task)
        return task in asyncio.all_tasks(), await task

    listed, result = asyncio.run(look())
    assert result == "done"
    assert not listed, f"Python {platform.python_version()} lists it all the same"
