"""The revision that brings full-text search: what it makes, what it keeps, what it takes away."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect

from agentstore import Store, migrations
from agentstore.database import open_engine, parse_url
from agentstore.settings import Settings
from tests.migrations.support import alembic, as_stored, rows_of, run_sql


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def filled(databases):
    """Make a database at head with a session and three messages, not indexed yet."""
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        session = store.sessions.create(id="s")
        for content in ("apple one", "苹果 two", "apple three"):
            store.messages.save(session.id, "user", content)
    return url, names


def objects(url, names):
    return [row for row in as_stored(url) if f"{names.prefix}search_" in " ".join(row)]


def test_search_works_under_any_names_and_follows_what_sql_changes(databases):
    url, names = filled(databases)
    table = f"{names.schema}.{names.prefix}messages" if names.schema else f"{names.prefix}messages"
    with opened(url, names) as store:
        assert len(store.messages.search("apple")) == 2
        run_sql(url, f"UPDATE {table} SET content = 'pear' WHERE content = 'apple one'")  # noqa: S608
        run_sql(url, f"DELETE FROM {table} WHERE content = 'apple three'")  # noqa: S608
        assert len(store.messages.search("apple")) == 0
        assert len(store.messages.search("pear")) == 1
        assert store.search.reindex() == 2
        assert len(store.messages.search("苹果")) == 1


def test_messages_from_before_the_revision_are_found_after_it(databases):
    url, names = filled(databases)
    migrations.downgrade(url, revision="0001", names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert store.search.status().pending == 3
        store.messages.save("s", "user", "apple four")
        hits = store.messages.search("apple", order="recent")
        assert [hit.message.content for hit in hits] == ["apple four", "apple three", "apple one"]


def _rows(url, names):
    """Give all rows, but for what a later revision empties."""
    rows = rows_of(url, names)
    for session in rows[f"{names.prefix}sessions"]:
        del session["listed_activity"]
    return rows


def test_going_back_leaves_nothing_of_it_and_every_message(databases):
    url, names = filled(databases)
    before, made = _rows(url, names), objects(url, names)
    assert made
    with opened(url, names) as store:
        store.messages.search("apple")
    migrations.downgrade(url, revision="0001", names=names)
    assert objects(url, names) == []
    migrations.upgrade(url, names=names)
    assert objects(url, names) == made
    assert _rows(url, names) == before
    migrations.downgrade(url, revision="0001", names=names)
    assert objects(url, names) == []
    table = f"{names.schema}.{names.prefix}messages" if names.schema else f"{names.prefix}messages"
    run_sql(url, f"UPDATE {table} SET content = 'x'; DELETE FROM {table}")  # noqa: S608
    migrations.upgrade(url, names=names)
    assert objects(url, names) == made


def test_alembic_finds_nothing_to_change_in_a_database_that_was_searched(databases):
    url, names = filled(databases)
    with opened(url, names) as store:
        store.messages.search("apple")
    said = alembic("check", url=url, names=names).well()
    assert "No new upgrade operations" in said.out


def test_an_application_s_own_tables_of_such_names_stay_beside_a_prefix(named_databases):
    url, names = named_databases.make("shared"), named_databases.names
    run_sql(url, "CREATE TABLE search_index (id integer); INSERT INTO search_index VALUES (7)")
    migrations.upgrade(url, names=names)
    migrations.downgrade(url, revision="base", names=names)
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        assert inspect(connection).has_table("search_index")
    engine.dispose()


REBUILD = """
with place.alter('messages') as batch:
    batch.add_column(sa.Column('mood', TEXT, nullable=False, server_default="'calm'"))
    batch.create_check_constraint(op.f(f"ck_{place.table('messages')}_mood"), "mood <> ''")
"""
CARELESS = REBUILD.replace(
    "place.alter('messages')",
    "op.batch_alter_table(place.table('messages'), schema=place.schema, recreate='always')",
)


def test_a_revision_that_alters_messages_as_the_recipe_says_keeps_the_triggers(databases, tree):
    url, names = filled(databases)
    tree.add("9001", REBUILD)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert store.search.status().trouble is None
        store.messages.save("s", "user", "apple four")
        assert len(store.messages.search("apple")) == 3
        store.messages.pop("s")
        assert len(store.messages.search("apple")) == 2


def test_a_revision_that_loses_the_triggers_is_noticed_and_mended(upgraded, tree):
    url = upgraded
    tree.add("9001", CARELESS)
    migrations.upgrade(url)
    with Store(url) as store:
        store.sessions.create(id="s")
        store.messages.save("s", "user", "apple")
        with pytest.raises(Exception, match=r"search_inserted.*agentstore reindex"):
            store.messages.search("apple")
        store.search.reindex()
        assert len(store.messages.search("apple")) == 1
