"""A SQLite file that is deleted or replaced while it is open: nothing acknowledged is lost."""

import os
import shutil
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine

from agentstore import AsyncStore, Store
from agentstore.engines.sqlite import files
from agentstore.errors import (
    DatabaseReplaced,
    DatabaseUnreachable,
    ForeignLog,
    InvalidInput,
    NotABackup,
)
from agentstore.moving.backup import backup, restore
from agentstore.moving.copying import copy
from agentstore.moving.frameworks import import_database
from agentstore.moving.transcripts import import_file
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


def test_who_asked_for_less_durability_looks_now_and_then(tmp_path, monkeypatch):
    path = tmp_path / "agent.db"
    monkeypatch.setattr(files, "_SELDOM", 0.0)
    with Store(f"sqlite:///{path}", synchronous="NORMAL") as store:
        session = store.sessions.create().id
        store.messages.save(session, "user", "one")
        copied(path, None)
        with pytest.raises(DatabaseReplaced):
            store.messages.save(session, "user", "two")


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


def test_a_log_that_is_lost_is_noticed_by_whatever_name_the_file_was_opened(tmp_path):
    """SQLite keeps the log beside the file that a link leads to."""
    file, folder = tmp_path / "there" / "agent 1.db", tmp_path / "there"
    folder.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(file)
    uri = f"{file.as_uri()}?mode=rwc&uri=true"
    for url in (f"sqlite:///{file}", f"sqlite:///{link}", f"sqlite:///{uri}"):
        with Store(url) as store:
            session = store.sessions.create()
            Path(f"{file}-wal").unlink()
            with pytest.raises(DatabaseReplaced):
                store.messages.save(session.id, "user", "lost")
        for left in folder.glob("*-shm"):
            left.unlink()


def test_a_file_that_its_own_uri_names_is_read_saved_and_watched(tmp_path):
    file = tmp_path / "agent 1.db"
    plain = f"sqlite:///{file}"
    with Store(plain) as store:
        session = store.sessions.create()
    # SQLAlchemy decodes a URL once, and SQLite its URI once more.
    uri = f"sqlite:///file://localhost{quote(quote(str(file)))}?mode=rw&uri=true"
    with Store(uri, read_only=True) as store:
        assert store.sessions.get(session.id) == session
    backup(uri, tmp_path / "saved.db")
    with pytest.raises(InvalidInput, match="same database"):
        copy(plain, uri)
    with Store(uri) as store:
        file.unlink()
        with pytest.raises(DatabaseReplaced):
            store.sessions.create()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_told_as_such_and_never_waited_for(make, read_only, tmp_path):
    path = tmp_path / "agent.db"
    make(path)
    with pytest.raises(DatabaseUnreachable, match="a folder, a device or a pipe"):
        Store(f"sqlite:///{path}", read_only=read_only).close()
    with pytest.raises(NotABackup, match="a folder, a device or a pipe"):
        restore(path, f"sqlite:///{tmp_path}/restored.db")


@pytest.mark.parametrize("name", ["nul\0", "lone\ud800", ""])
def test_a_name_that_no_file_can_have_is_bad_input(name, tmp_path):
    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url) as store:
        uses = (
            lambda: backup(url, name),
            lambda: restore(name, f"sqlite:///{tmp_path}/restored.db"),
            lambda: import_file(store, name),
        )
        for use in uses:
            with pytest.raises(InvalidInput):
                use()


def test_names_that_are_too_long_or_lead_nowhere_are_errors_of_ours(tmp_path):
    Store(f"sqlite:///{tmp_path}/agent.db").close()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("n" * 300, "loop"):
        for use in (
            lambda name: Store(f"sqlite:///{tmp_path}/{name}", read_only=True),
            lambda name: copy(f"sqlite:///{tmp_path}/agent.db", f"sqlite:///{tmp_path}/{name}"),
            lambda name: copy(f"sqlite:///{tmp_path}/{name}", f"sqlite:///{tmp_path}/new.db"),
        ):
            with pytest.raises(DatabaseUnreachable):
                use(name)


def test_a_name_in_bytes_that_are_no_text_is_a_name_like_others(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.db")
    with Store(f"sqlite:///{path}") as store:
        session = store.sessions.create()
        backup(f"sqlite:///{path}", f"{path}.saved")
    with Store(f"sqlite:///{path}.saved", read_only=True) as store:
        assert store.sessions.get(session.id) == session


def test_a_second_name_of_a_file_is_no_other_database(tmp_path):
    file, other = tmp_path / "agent.db", tmp_path / "other.db"
    with Store(f"sqlite:///{file}") as store:
        store.users.create("Ada", id="ada")
    os.link(file, other)
    for options in ({}, {"users": ["ada"]}, {"users": ["ada"], "move": True}):
        with pytest.raises(InvalidInput, match="same database"):
            copy(f"sqlite:///{file}", f"sqlite:///{other}", **options)
    with pytest.raises(InvalidInput, match="Import it into another"):
        import_database("tutorial", f"sqlite:///{file}", f"sqlite:///{other}")
