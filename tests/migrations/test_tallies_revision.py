"""The revision by which segments and branches count what they show."""

from __future__ import annotations

import pytest

from agentstore import Store, migrations
from agentstore.repositories.upkeep.consistency import wrong_tallies
from agentstore.schema import tables
from tests.migrations.support import alembic, run_sql


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def counts(store):
    """Give what each branch of the seven sessions is said to show, and what it does show."""
    said, shown = {}, {}
    for session in map(str, range(7)):
        for branch in store.branches.list(session):
            key = session, branch.name
            messages = store.messages.history(session, None, branch=branch.name)
            said[key] = branch.messages, branch.turns
            shown[key] = len(messages), sum(message.role == "user" for message in messages)
    return said, shown


def live(store):
    """Make sessions in which branches were made, compacted, deleted, and lost some messages."""
    for number in range(7):
        session = store.sessions.create(id=f"{number}").id
        saved = store.messages.save_many(session, [{"role": "user"}, {"role": "tool"}] * 6)
        if number:
            store.branches.create(session, from_turn=number)
            store.messages.save(session, "user")
            store.branches.create(session, after_turn=1, branch="main", name="other")
            store.messages.save(session, "assistant")
        if number % 2:
            store.branches.switch(session, "main")
            store.messages.save(session, "user")
        if number % 3 == 1:
            store.branches.compact(session, "in short", from_turn=1, to_turn=1)
        if number > 3:
            store.branches.delete(session, "branch-1", force=True)
        store.messages.delete([saved[4].id, saved[7].id])


@pytest.fixture
def before(databases):
    """A database that is at the revision before, with sessions, more than are counted at once."""
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        live(store)
        store.users.create("Alice", id="alice")
        with store.transaction() as tx:
            for number in range(1_001):
                tx.sessions.create("alice", id=f"empty {number}")
    migrations.downgrade(url, revision="0010", names=names)
    return url, names


def require_counted(url, names):
    with opened(url, names) as store:
        said, shown = counts(store)
        assert said == shown
        with store._engine.connect() as connection:
            assert wrong_tallies(connection, tables(names), deep=True) == []
        for number in range(7):  # and what comes next is counted on
            store.messages.save(f"{number}", "user")
            store.branches.switch(f"{number}", "main")
        said, shown = counts(store)
        assert said == shown


def test_branches_show_as_many_messages_as_they_are_said_to(before):
    url, names = before
    migrations.upgrade(url, names=names)
    require_counted(url, names)


@pytest.mark.long(but=["sqlite"])
def test_a_script_counts_too(before):
    url, names = before
    script = alembic("upgrade", "0010:0011", "--sql", url=url, names=names).well().out
    run_sql(url, script)
    migrations.upgrade(url, names=names)
    require_counted(url, names)
