"""The revision that limits how much of a message is searched, and sorts PostgreSQL's queue."""

from __future__ import annotations

import pytest

from agentstore import Store, migrations
from agentstore.segmentation import MOST_CHARACTERS
from tests.migrations.support import run_sql


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
