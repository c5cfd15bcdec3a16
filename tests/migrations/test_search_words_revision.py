"""The revision that indexes beginnings, and keeps words as text: the index is rebuilt, whole."""

from __future__ import annotations

import pytest

from agentstore import migrations
from agentstore.repositories import search
from tests.migrations.support import rows_of, run_sql
from tests.migrations.test_search_limit_revision import opened, prefix_of, scalar

MESSAGES = ("apple one", "苹果 two", "25℃ and 1️⃣", "25 C and 1", "apple three")


def filled(databases, *, to="0012"):
    """Make a database at a revision, with messages in its index and one that waits."""
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        session = store.sessions.create(id="s").id
        store.search.refresh()
    migrations.downgrade(url, revision=to, names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        for content in MESSAGES:
            store.messages.save(session, "user", content)
        store.search.refresh()
        store.messages.save(session, "user", "apple four")
    return url, names


def test_all_messages_are_found_after_it_and_after_going_back_and_forth(databases):
    url, names = filled(databases)
    before = rows_of(url, names)
    for _ in range(2):
        migrations.downgrade(url, revision="0012", names=names)
        made = scalar(url, f"SELECT segmentation FROM {prefix_of(names)}search_state")  # noqa: S608
        assert made == "1:250000"
        migrations.upgrade(url, names=names)
        assert rows_of(url, names) == before
        with opened(url, names) as store:
            assert store.search.status().pending == len(MESSAGES) + 1
            assert len(store.messages.search("apple")) == 3
            assert len(store.messages.search("果")) == 1
            assert [hit.message.content for hit in store.messages.search("℃")] == [MESSAGES[2]]
            assert store.search.status().pending == 0
            assert store.search.status().trouble is None


@pytest.mark.parametrize(("before", "after"), [("1", "2:250000"), ("1:50", "2:50"), ("x", "x")])
def test_how_many_characters_count_stays_and_what_is_unknown_stays_unknown(
    databases, before, after
):
    url, names = filled(databases)
    state = f"{prefix_of(names)}search_state"
    migrations.downgrade(url, revision="0012", names=names)
    run_sql(url, f"UPDATE {state} SET segmentation = '{before}'")  # noqa: S608
    migrations.upgrade(url, names=names)
    assert scalar(url, f"SELECT segmentation FROM {state}") == after  # noqa: S608


def test_a_large_database_is_searched_before_it_is_indexed_again(databases, monkeypatch):
    monkeypatch.setattr(search, "MOST_PENDING", 3)
    url, names = filled(databases)
    migrations.downgrade(url, revision="0012", names=names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert len(store.messages.search("apple")) == 3
        assert store.search.reindex() == len(MESSAGES) + 1
        assert len(store.messages.search("apple")) == 3
