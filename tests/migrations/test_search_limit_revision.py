"""The revision that limits how much of a message is searched, and sorts PostgreSQL's queue."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from agentstore import Store, migrations
from agentstore.values.text.segmentation import MOST_CHARACTERS
from tests.migrations.support import run_sql
from tests.programs.probes import engine_of


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


@pytest.mark.parametrize("longest", [100, MOST_CHARACTERS + 10])
def test_what_is_indexed_and_what_waits_is_found_before_and_after(databases, longest):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        session = store.sessions.create(id="s").id
        store.messages.save(session, "user", "apple " + "x" * longest + " beyond")
        if longest > MOST_CHARACTERS:
            assert store.search.refresh() == 1
    migrations.downgrade(url, revision="0006", names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert store.search.status().segmentation == "1:250000"
        store.messages.save(session, "user", "apple pie")
        assert len(store.messages.search("apple")) == 2
        assert len(store.messages.search("beyond")) == (1 if longest < MOST_CHARACTERS else 0)


def test_an_index_that_holds_a_longer_message_goes_on_holding_all_of_it(databases):
    url, names = databases.upgraded(), databases.names
    state = f"{names.schema}.{names.prefix}" if names.schema else names.prefix
    run_sql(url, f"UPDATE {state}search_state SET segmentation = '1'")  # noqa: S608 - as 0002 left it
    with opened(url, names) as store:
        session = store.sessions.create(id="s").id
        store.messages.save(session, "user", "x" * MOST_CHARACTERS + " beyond")
        assert len(store.messages.search("beyond")) == 1
    migrations.downgrade(url, revision="0006", names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert store.search.status().segmentation == "1"
        assert len(store.messages.search("beyond")) == 1
        store.search.reindex()
        assert store.search.status().segmentation == "1:250000"
        assert len(store.messages.search("beyond")) == 0


def test_of_a_longer_message_that_was_deleted_nothing_stays_in_the_index(databases):
    url, names = databases.upgraded(), databases.names
    prefix = f"{names.schema}.{names.prefix}" if names.schema else names.prefix
    run_sql(url, f"UPDATE {prefix}search_state SET segmentation = '1'")  # noqa: S608 - as 0002 left it
    with opened(url, names) as store:
        session = store.sessions.create(id="s").id
        store.messages.save(session, "user", "x" * MOST_CHARACTERS + " beyond")
        assert store.search.refresh() == 1
    run_sql(url, f"DELETE FROM {prefix}messages")  # noqa: S608 - which SQLite's queue keeps
    migrations.downgrade(url, revision="0006", names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        store.search.refresh()
        sqlite = engine_of(store).dialect.name == "sqlite"
        found = f"{prefix}search_index MATCH 'beyond'" if sqlite else "words @@ 'beyond'"
        with engine_of(store).connect() as connection:
            query = f"SELECT count(*) FROM {prefix}search_index WHERE {found}"  # noqa: S608
            assert connection.execute(text(query)).scalar_one() == 0
