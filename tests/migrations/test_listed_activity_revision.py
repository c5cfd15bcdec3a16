"""The revision that lists sessions by an activity that few writes change."""

from __future__ import annotations

from agentstore import Store, migrations
from tests.migrations.support import run_sql


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def test_sessions_keep_their_order_and_whatever_comes_next_comes_first(databases):
    url, names = databases.upgraded(), databases.names
    table = f"{names.prefix}sessions"
    with opened(url, names) as store:
        for title in "abc":
            store.sessions.create(id=title)
        store.messages.save("b", "user", "hello")
        store.sessions.pause("c")
    migrations.downgrade(url, revision="0007", names=names)
    if url.startswith("sqlite"):  # whose activity was larger than any row number of a message
        run_sql(url, f"UPDATE {table} SET activity = activity + 100 WHERE id <> 'a'")  # noqa: S608
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert [session.id for session in store.sessions.list()] == ["b", "c", "a"]
        store.messages.save("a", "user", "hello again")
        assert [session.id for session in store.sessions.list()] == ["a", "b", "c"]
