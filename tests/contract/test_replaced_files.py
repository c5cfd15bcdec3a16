"""A SQLite file that is deleted or replaced while it is open: nothing acknowledged is lost."""

import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from agentstore import AsyncStore, Store
from agentstore.errors import DatabaseReplaced, ForeignLog
from agentstore.moving.backup import backup, restore
from agentstore.testing import BlockingStore

COMPANIONS = ("-wal", "-shm")


def remove(path, *endings):
    for ending in endings:
        Path(f"{path}{ending}").unlink()


def moved_over(path, saved):
    saved.replace(path)


def moved_alone(path, saved):
    remove(path, *COMPANIONS)
    saved.replace(path)


def restored(path, saved):
    remove(path, "", *COMPANIONS)
    restore(saved, f"sqlite:///{path}")


def copied(path, _saved):
    shutil.copyfile(path, f"{path}.copy")
    Path(f"{path}.copy").replace(path)


WAYS = {
    "deleted": lambda path, _: remove(path, ""),
    "deleted with its log": lambda path, _: remove(path, "", *COMPANIONS),
    "log deleted": lambda path, _: remove(path, *COMPANIONS),
    "backup moved over it": moved_over,
    "backup moved over it, log removed": moved_alone,
    "backup restored": restored,
    "copy moved over it": copied,
}


def sync_store(url):
    return Store(url)


def async_store(url):
    return BlockingStore(lambda: AsyncStore(url))


def store_beside_another(url):
    """On an engine on which another one asked for less durability."""
    engine = create_engine(url)
    Store(engine=engine, synchronous="NORMAL").close()
    return Store(engine=engine)


@pytest.mark.parametrize("make", [sync_store, async_store, store_beside_another])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_acknowledged_once_the_file_is_not_the_one_that_was_opened(make, way, tmp_path):
    path = tmp_path / "agent.db"
    url = f"sqlite:///{path}"
    saved = tmp_path / "saved.db"
    with make(url) as store:
        session = store.sessions.create()
        store.messages.save(session.id, "user", "one")
        backup(url, saved)
        WAYS[way](path, saved)
        there = path.exists()
        with pytest.raises(DatabaseReplaced):
            store.messages.save(session.id, "user", "two")
        with pytest.raises(DatabaseReplaced), store.transaction() as tx:
            tx.messages.save(session.id, "user", "three")
        with pytest.raises(DatabaseReplaced):
            store.messages.history(session.id)
        found = store.health()
        assert not found.ok
        assert "while it was open" in found.reason
        assert path.exists() == there


def test_health_sees_it_before_anything_is_written(tmp_path):
    path = tmp_path / "agent.db"
    with Store(f"sqlite:///{path}") as store:
        store.sessions.create()
        assert store.health().ok
        path.unlink()
        assert not store.health().ok
        assert not path.exists()


@pytest.mark.parametrize("way", ["backup", "nothing"])
def test_a_log_that_was_left_is_refused_beside_a_file_that_it_does_not_belong_to(way, tmp_path):
    path = tmp_path / "agent.db"
    url = f"sqlite:///{path}"
    saved = tmp_path / "saved.db"
    with Store(url) as store:
        session = store.sessions.create()
        backup(url, saved)
        store.messages.save(session.id, "user", "later")
        shutil.copyfile(f"{path}-wal", tmp_path / "left")
    path.unlink()
    if way == "backup":
        shutil.copyfile(saved, path)
    shutil.copyfile(tmp_path / "left", f"{path}-wal")
    before = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(ForeignLog):
            Store(url).sessions.list()
    assert (path.read_bytes() if path.exists() else None) == before
    Path(f"{path}-wal").unlink()
    with Store(url) as store:
        assert store.health().ok


def test_looking_for_a_foreign_log_gives_up_no_lock_of_this_process(tmp_path):
    path = tmp_path / "agent.db"
    with Store(f"sqlite:///{path}") as store, store.transaction() as tx:
        tx.sessions.create()
        Store(f"sqlite:///{path}").close()
        with (
            sqlite3.connect(path, timeout=0) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
        other.close()


def test_only_its_owner_may_read_a_new_file(tmp_path):
    path = tmp_path / "agent.db"
    with Store(f"sqlite:///{path}") as store:
        store.sessions.create()
        for ending in ("", *COMPANIONS):
            assert stat.S_IMODE(Path(f"{path}{ending}").stat().st_mode) == 0o600
