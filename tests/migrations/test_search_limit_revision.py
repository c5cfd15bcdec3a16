"""The revision that limits how much of a message is searched, and sorts PostgreSQL's queue."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from agentstore import Store, migrations
from agentstore.database import open_engine, parse_url
from agentstore.settings import Settings
from agentstore.values.tokens import MOST_CHARACTERS
from tests.migrations.support import run_sql


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def prefix_of(names):
    return f"{names.schema}.{names.prefix}" if names.schema else names.prefix


def scalar(url, query):
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        found = connection.execute(text(query)).scalar()
    engine.dispose()
    return found


@pytest.mark.parametrize("longest", [100, MOST_CHARACTERS + 10])
def test_what_waits_is_found_afterwards_but_for_what_is_beyond_the_limit(databases, longest):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        session = store.sessions.create(id="s").id
        store.messages.save(session, "user", "apple " + "x" * longest + " beyond")
        if longest > MOST_CHARACTERS:
            assert store.search.refresh() == 1
    migrations.downgrade(url, revision="0006", names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert store.search.status().segmentation == "2:250000"
        store.messages.save(session, "user", "apple pie")
        assert len(store.messages.search("apple")) == 2
        assert len(store.messages.search("beyond")) == (1 if longest < MOST_CHARACTERS else 0)


@pytest.mark.parametrize("longest", [100, MOST_CHARACTERS + 10])
def test_an_index_is_said_to_be_limited_where_no_message_is_longer(databases, longest):
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        session = store.sessions.create(id="s").id
        store.messages.save(session, "user", "x" * longest)
        store.search.refresh()
    migrations.downgrade(url, revision="0006", names=names)
    state = f"{prefix_of(names)}search_state"
    run_sql(url, f"UPDATE {state} SET segmentation = '1'")  # noqa: S608 - as 0002 left it
    migrations.upgrade(url, revision="0007", names=names)
    made = scalar(url, f"SELECT segmentation FROM {state}")  # noqa: S608
    assert made == ("1:250000" if longest < MOST_CHARACTERS else "1")
