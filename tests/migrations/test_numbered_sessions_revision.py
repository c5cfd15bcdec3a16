"""The revision by which messages and branches say their session by its number."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from agentstore import migrations
from agentstore.database import open_engine, parse_url
from agentstore.settings import Settings
from tests.migrations.support import alembic, as_stored, rows_of, run_sql
from tests.migrations.test_search_limit_revision import opened, prefix_of, scalar
from tests.migrations.test_tallies_revision import live

TABLES = ("branches", "branch_segments", "summaries", "messages", "message_tool_calls")
TABLES += ("message_marks", "message_chunks", "attachments")
IDS = ["0", "1", "2", "3", "4", "5", "6", "a's \x00 \ud83d 会话"]


def fill(store):
    """Make sessions of which each has rows in every one of the tables, but for segments."""
    live(store)
    store.sessions.create(id=IDS[-1])
    for session in IDS:
        call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
        saved = store.messages.save(session, "assistant", "apple", tool_calls=[call], marks="seen")
        store.attachments.add(saved.id, session.encode("utf-8", "surrogatepass"), "text/plain")
        store.summaries.put(session, "so far")
        store.messages.append(store.messages.begin(session).id, "so far")


@pytest.fixture
def filled(databases):
    """A database at the revision before, and what its rows are at head."""
    url, names = databases.upgraded(), databases.names
    with opened(url, names) as store:
        fill(store)
    rows = rows_of(url, names)
    migrations.downgrade(url, revision="0013", names=names)
    return url, names, rows


def owners(url, names, table):
    """Read which session each row names, at the revision before."""
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        query = f"SELECT session_id FROM {prefix_of(names)}{table}"  # noqa: S608
        found = sorted(connection.execute(text(query)).scalars())
    engine.dispose()
    return found


def stored(id):
    return id.replace("\x00", "\ufdd00000").replace("\ud83d", "\ufdd0d83d")


def test_each_row_stays_with_its_session_there_and_back(filled):
    url, names, rows = filled
    stored_before = as_stored(url)
    for table in TABLES:
        theirs = [row["session"] for row in rows[f"{names.prefix}{table}"]]
        assert set(theirs) >= set(IDS[1:4]), table
        assert owners(url, names, table) == sorted(map(stored, theirs)), table
    for _ in range(2):
        migrations.upgrade(url, names=names)
        assert rows_of(url, names) == rows
        migrations.downgrade(url, revision="0013", names=names)
        assert as_stored(url) == stored_before


def test_what_was_searched_is_found_again(filled):
    url, names, _ = filled
    with pytest.raises(Exception, match="0013"):
        opened(url, names)
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert len(store.messages.search("apple")) == len(IDS)
        (hit,) = store.messages.search("apple", session_id=IDS[-1])
        assert hit.message.session_id == IDS[-1]
        assert store.search.status().pending == 0
        store.sessions.delete(IDS[-1])
        assert len(store.messages.search("apple")) == len(IDS) - 1


@pytest.mark.parametrize("table", ["message_marks", "message_chunks"])
def test_a_row_of_no_session_is_named_before_anything_changes(filled, table):
    url, names, _ = filled
    before = as_stored(url)
    where = f"{prefix_of(names)}{table} SET session_id = 'nowhere' WHERE session_id = '1'"
    run_sql(url, f"UPDATE {where}")
    with pytest.raises(RuntimeError, match=rf"{table}.* session_id .* {names.prefix}sessions"):
        migrations.upgrade(url, names=names)
    assert as_stored(url) == before
    run_sql(url, f"DELETE FROM {prefix_of(names)}{table} WHERE session_id = 'nowhere'")  # noqa: S608
    assert migrations.upgrade(url, names=names) == migrations.HEAD


@pytest.mark.long(but=["sqlite"])
def test_a_script_does_the_same(filled):
    url, names, rows = filled
    script = alembic("upgrade", "0013:0014", "--sql", url=url, names=names).well().out
    run_sql(url, script)
    migrations.upgrade(url, names=names)
    assert rows_of(url, names) == rows


def test_no_session_is_named_by_text_any_more(filled):
    url, names, _ = filled
    migrations.upgrade(url, names=names)
    described = "\n".join(map(str, as_stored(url)))
    for table in TABLES:
        assert not re.search(rf"_{names.prefix}{table}_session_id(_|\b)", described)
    query = f"SELECT count(*) FROM {prefix_of(names)}messages"  # noqa: S608
    joined = f"{query} AS m JOIN {prefix_of(names)}sessions AS s ON s.pk = m.session"
    assert scalar(url, joined) == scalar(url, query) > 0
