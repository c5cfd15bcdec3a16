"""The revision that stores ids in 16 bytes, and times on SQLite as numbers: what it keeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import make_url

from agentstore import Store, migrations
from agentstore.engines.base.moving import shapes
from agentstore.errors import UnsoundRow
from agentstore.moving.copy_ends import End
from tests.migrations.support import alembic, as_stored, revision_of, rows_of, run_sql

BEFORE, AFTER = "0013", "0015"
TIMES = (
    datetime.min.replace(tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
)
NOW = "2026-01-02T03:04:05.678901+00:00"

SESSION = """
INSERT INTO {place}sessions
(id, activity, created_at, last_active_at, last_seq, message_count, turn) VALUES
('s', 1, '{now}', '{now}', {count}, {count}, 1);
INSERT INTO {place}session_data (session_id, metadata, config, updated_at)
VALUES ('s', '{{}}', '{{}}', '{now}');
INSERT INTO {place}branches (session_id, number, name, created_at)
VALUES ('s', 0, 'main', '{now}');
"""
STATEMENTS = (
    "UPDATE sessions SET last_active_at = '{now}'",
    "UPDATE tasks SET updated_at = '{now}'",
    "UPDATE messages SET id = 'm'",
    "UPDATE tool_logs SET message_id = 'm' WHERE message_id IS NULL",
)


def opened(url, names):
    return Store(url, schema=names.schema, table_prefix=names.prefix)


def place_of(url, names):
    """Give what is written in front of a table's name."""
    schema = names.schema if names.schema and not url.startswith("sqlite") else None
    return f"{schema}.{names.prefix}" if schema else names.prefix


def furnish(url, names):
    """Write something into each table that has ids or times to convert"""
    with opened(url, names) as store:
        user = store.users.create("Ann", id="ann", quota_total=10)
        store.users.issue_api_key(user.id, "key", expires_at=TIMES[-1])
        store.users.reserve_quota(user.id, 1)
        session = store.sessions.create("ann", ttl=timedelta(days=1))
        call = {"id": "c", "function": {"name": "search"}}
        message = store.messages.save(session.id, "assistant", tool_calls=[call], marks=["m"])
        store.messages.append(store.messages.begin(session.id).id, "half")
        store.attachments.add(message.id, b"x", "text/plain")
        store.tool_logs.log(session.id, "search", message_id=message.id)
        store.tool_logs.log(session.id, "search")
        store.usage.record(session.id, input_tokens=1)
        store.tasks.create(session.id, "mail")
        store.checkpoints.put("thread", {"a": [1]}, session_id=session.id)


def digests(url, names):
    """Digest all tables, as a copy does."""
    end = End(url, names, read_only=True)
    with end.reading() as connection:
        moving = end.dialect.moving
        found = {s.name: moving.examine(connection, s, {}) for s in shapes(end.tables)}
    end.close()
    assert not any(flaws for _, flaws in found.values())
    return {name: digest for name, (digest, _) in found.items()}


def with_old_rows(databases, *ids, times=(NOW,)):
    """Make a database before the revision; write messages into it as they were written then."""
    url, names = databases.make("old"), databases.names
    migrations.upgrade(url, BEFORE, names=names)
    place = place_of(url, names)
    columns = "(id, session_id, branch, seq, turn, role, created_at, content)"
    messages = [
        f"INSERT INTO {place}messages {columns} VALUES "  # noqa: S608
        f"('{id}', 's', 0, {seq}, 1, 'user', '{time}', 'hello');"
        for seq, (id, time) in enumerate(zip(ids, times, strict=True), start=1)
    ]
    session = SESSION.format(place=place, now=NOW, count=len(ids))
    run_sql(url, session + "".join(messages))
    return url


def test_ids_and_times_are_the_same_after_it_to_the_microsecond(databases):
    ids = [str(uuid4()) for _ in TIMES]
    times = [time.isoformat(timespec="microseconds") for time in TIMES]
    url, names = with_old_rows(databases, *ids, times=times), databases.names
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    with opened(url, names) as store:
        found = store.messages.history("s")
        assert [message.id for message in found] == ids
        assert [message.created_at for message in found] == list(TIMES)
        assert [store.messages.get(id).seq for id in ids] == [1, 2, 3, 4, 5]
        assert store.sessions.get("s").created_at == TIMES[3]
        assert store.messages.save("s", "user", "more").seq == 6


def test_going_back_and_forth_keeps_every_row_and_every_digest(databases):
    url, names = databases.upgraded(), databases.names
    furnish(url, names)
    rows, sums, schema = rows_of(url, names), digests(url, names), as_stored(url)
    assert migrations.downgrade(url, revision=BEFORE, names=names) == BEFORE
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    assert rows_of(url, names) == rows
    assert digests(url, names) == sums
    assert as_stored(url) == schema


@pytest.mark.parametrize(
    "id",
    ["nonsense", str(UUID(int=10**38)).upper(), f"{{{UUID(int=1)}}}", str(UUID(int=2**128 - 1))],
)
def test_an_id_that_is_no_uuid_stops_it_before_it_begins(databases, id):
    url, names = with_old_rows(databases, id), databases.names
    before = as_stored(url)
    with pytest.raises(RuntimeError, match="1 ids that are not UUIDs in lower case"):
        migrations.upgrade(url, names=names)
    assert as_stored(url) == before
    assert revision_of(url, names) == BEFORE


@pytest.mark.parametrize("damage", ["'2026'", "'yesterday'", "x'00ff'", "CAST(x'61ff' AS TEXT)"])
def test_a_damaged_time_of_a_file_stays_damaged(plain_databases, damage):
    if not plain_databases.make("any").startswith("sqlite"):
        return  # a server's column holds nothing else
    url = with_old_rows(plain_databases, str(uuid4()))
    run_sql(url, f"UPDATE messages SET created_at = {damage}")  # noqa: S608
    migrations.upgrade(url)
    with Store(url) as store, pytest.raises(UnsoundRow, match="created_at"):
        store.messages.history("s")
    migrations.downgrade(url, revision=BEFORE)
    with closing(sqlite3.connect(str(make_url(url).database))) as file:
        same = f"SELECT CAST(created_at AS BLOB) = CAST({damage} AS BLOB) FROM messages"  # noqa: S608
        assert file.execute(same).fetchall() == [(1,)]


def test_a_file_refuses_what_an_older_version_would_write(upgraded):
    furnish(upgraded, migrations.Names())
    with closing(sqlite3.connect(str(make_url(upgraded).database))) as file:
        for statement in STATEMENTS:
            with pytest.raises(sqlite3.IntegrityError, match="_stored"):
                file.execute(statement.format(now=NOW))


def test_a_script_converts_the_rows_of_a_server_and_is_refused_for_a_file(databases):
    ids = [str(uuid4()), str(uuid4())]
    url, names = with_old_rows(databases, *ids, times=(NOW, NOW)), databases.names
    steps = ("upgrade", f"{BEFORE}:{AFTER}", "--sql")
    if url.startswith("sqlite"):
        with pytest.raises(RuntimeError, match="SQL cannot convert the ids and times"):
            alembic(*steps, url=url, names=names)
        return
    run_sql(url, alembic(*steps, url=url, names=names).well().out)
    assert revision_of(url, names) == AFTER
    migrations.upgrade(url, names=names)
    with opened(url, names) as store:
        assert [message.id for message in store.messages.history("s")] == ids


def test_a_copy_that_follows_a_file_has_to_begin_anew(upgraded):
    migrations.downgrade(upgraded, revision=BEFORE)
    run_sql(
        upgraded,
        "CREATE TABLE agentstore_changes (number INTEGER PRIMARY KEY, name TEXT, key TEXT);"
        "CREATE TRIGGER agentstore_changes_message_marks_insert AFTER INSERT ON message_marks BEGIN"
        " INSERT INTO agentstore_changes (key) VALUES (json_array(new.message_id)); END",
    )
    migrations.upgrade(upgraded)
    furnish(upgraded, migrations.Names())
    assert not [row for row in as_stored(upgraded) if "agentstore_changes" in row[1]]
