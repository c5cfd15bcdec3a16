"""A schema is on the disk whatever durability was set, and the log of a file shrinks again."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, make_url

from agentstore import Store, migrations
from agentstore.engines.sqlite import files
from tests.conftest import in_the_process

LEVELS = {"OFF": 0, "NORMAL": 1, "FULL": 2, "EXTRA": 3}


@pytest.fixture
def commits():
    """What was set, whenever SQLAlchemy committed a database that had a schema then."""
    seen = []

    def at_commit(connection):
        cursor = connection.connection.cursor()
        server = connection.dialect.name == "postgresql"
        cursor.execute("SELECT 1" if server else "PRAGMA schema_version")
        has_schema = cursor.fetchone()[0]
        cursor.execute("SHOW synchronous_commit" if server else "PRAGMA synchronous")
        if has_schema:
            seen.append(cursor.fetchone()[0])
        cursor.close()

    event.listen(Engine, "commit", at_commit)
    yield seen
    event.remove(Engine, "commit", at_commit)


@in_the_process
@pytest.mark.parametrize("level", LEVELS)
def test_a_new_files_schema_is_committed_durably_whatever_was_set(place, tmp_path, commits, level):
    url = f"sqlite:///{tmp_path}/new.db"
    with place.driver.open(url, synchronous=level) as store:
        store.sessions.list()
        assert commits[0] >= LEVELS["FULL"]
        # What the log holds may be lost at a power cut; the file itself has it all.
        shutil.copy(tmp_path / "new.db", tmp_path / "alone.db")
        assert migrations.revision_of(f"sqlite:///{tmp_path}/alone.db") == migrations.HEAD
        with Store(f"sqlite:///{tmp_path}/alone.db") as found:
            assert found.sessions.list().items == ()


@pytest.mark.parametrize("level", LEVELS)
def test_only_the_migration_is_committed_otherwise_than_was_set(tmp_path, level):
    with Store(f"sqlite:///{tmp_path}/new.db", synchronous=level) as store:
        found = []

        def remember(connection, *_):
            found.append(connection.execute("PRAGMA synchronous").fetchone()[0])

        event.listen(store._engine, "checkout", remember)
        store.sessions.create()
        store.sessions.list()
        assert set(found) == {LEVELS[level]}


def test_a_servers_schema_is_committed_durably_whatever_was_set(new, commits):
    url = new("postgresql", head=False)
    lazy = make_url(url).update_query_dict({"options": "-c synchronous_commit=off"})
    assert migrations.upgrade(lazy) == migrations.HEAD
    assert "on" in commits
    commits.clear()
    migrations.downgrade(lazy, revision="base")
    assert "on" in commits


def test_more_than_durable_stays_so_during_a_migration(new, commits):
    url = new("postgresql", head=False)
    keen = make_url(url).update_query_dict({"options": "-c synchronous_commit=remote_apply"})
    migrations.upgrade(keen)
    assert "on" not in commits
    assert "remote_apply" in commits


@in_the_process
def test_a_log_that_grew_beside_a_long_reader_shrinks_when_the_reader_ends(place, monkeypatch):
    limit = 512 * 1024
    monkeypatch.setattr(files, "LONGEST_LOG", limit)
    log = Path(f"{make_url(place.url).database}-wal")
    with place.open() as store:
        session = store.sessions.create().id
        reader = sqlite3.connect(str(make_url(place.url).database), isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sessions").fetchall()
        for _ in range(12):
            store.messages.save(session, "user", "long " * 100_000)
        assert log.stat().st_size > 10 * limit
        reader.execute("COMMIT")
        reader.close()
        for _ in range(3):
            store.messages.save(session, "user", "short")
        assert log.stat().st_size <= limit
        assert len(store.messages.history(session, None)) == 15


def test_each_connection_cuts_the_log_at_64_mib(tmp_path):
    with Store(f"sqlite:///{tmp_path}/new.db") as store, store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_size_limit").scalar_one() == 64 * 1024**2
