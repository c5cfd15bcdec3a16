"""A store that only reads: it reads all there is, writes nothing, and says so."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, event, make_url

from agentstore import AsyncStore, Store, errors, migrations
from agentstore.engines.base.dialect import Mode
from agentstore.moving.backup import backup
from agentstore.repositories import search
from agentstore.testing import BlockingStore
from tests.migrations.support import behind

WRITES = {
    "a message": lambda s, x: s.messages.save(x, "user", "hello"),
    "several": lambda s, x: s.messages.save_many(x, [{"role": "user"}]),
    "a session": lambda s, x: s.sessions.create(),
    "a step in its life": lambda s, x: s.sessions.pause(x),
    "a deletion": lambda s, x: s.sessions.delete(x),
    "a task": lambda s, x: s.tasks.create(None, "mail"),
    "a claim": lambda s, x: s.tasks.claim("me"),
    "usage": lambda s, x: s.usage.record(x, input_tokens=1),
    "the index": lambda s, x: s.search.refresh(),
    "a new index": lambda s, x: s.search.reindex(),
    "a function": lambda s, x: s.run(lambda tx: tx.sessions.list()),
    "a transaction": lambda s, x: s.transaction().__enter__(),
}


def test_whatever_would_write_is_refused_and_nothing_is_written(place, store, session, subtests):
    before = store.usage.totals()
    with place.open(read_only=True) as reader:
        for what, write in WRITES.items():
            with (
                subtests.test(what),
                pytest.raises(errors.DatabaseReadOnly, match=r"open a store without read_only"),
            ):
                write(reader, session.id)
        assert reader.usage.totals() == before
    assert store.usage.totals() == before


def test_it_sees_what_others_write_while_it_is_open(place, store, session):
    with place.open(read_only=True) as reader:
        for n in range(3):
            saved = store.messages.save(session.id, "user", str(n))
            assert reader.messages.get(saved.id) == saved
            assert reader.sessions.get(session.id).message_count == n + 1


def test_the_database_itself_refuses_to_write(engine_url):
    """So that a mistake in this library could not write either."""
    with Store(engine_url) as writer:
        session = writer.sessions.create().id
    with Store(engine_url, read_only=True) as reader:
        for mode in Mode:
            with pytest.raises(errors.DatabaseReadOnly, match="read"):
                reader._runner.run(
                    mode,
                    lambda unit: unit.connection.execute(unit.tables.sessions.delete()),
                    repeatable=False,
                )
        assert reader.sessions.get(session)


def test_on_a_server_each_call_says_so_and_the_connection_is_left_as_it_was(servers):
    """A pooler lends a server's connection to one client after the other."""
    from tests.conftest import VERSIONS

    url = servers.new_database(VERSIONS[0])
    with Store(url, read_only=True, pool_size=1, max_overflow=0) as reader:
        reader.sessions.list()
        with reader._engine.connect() as connection:
            driver = connection.connection.dbapi_connection
            shown = driver.execute("SHOW default_transaction_read_only").fetchone()
            assert shown == ("off",)
        sent = []
        event.listen(
            reader._engine, "before_cursor_execute", lambda _c, _k, sql, *_: sent.append(sql)
        )
        reader.sessions.list()
        reader.usage.totals()
    assert [sql for sql in sent if sql.startswith("BEGIN")] == [
        "BEGIN READ ONLY",
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    ]
    servers.drop(VERSIONS[0], url)


def test_a_search_finds_what_is_not_indexed_yet_and_leaves_the_index_as_it_was(place, store):
    session, other = store.sessions.create(), store.sessions.create()
    old = [store.messages.save(session.id, "user", f"an old apple, number {n}") for n in range(5)]
    store.search.refresh()
    new = [store.messages.save(session.id, "assistant", f"a new apple {n}") for n in range(5)]
    store.messages.save(other.id, "user", "apple pie")
    store.messages.save(other.id, "user", "pears")
    store.messages.delete([old[1].id, new[1].id])
    pending = store.search.status().pending
    asked = [
        {},
        {"order": "recent"},
        {"session_id": session.id},
        {"role": "user", "order": "recent"},
        {"since": new[0].created_at},
    ]
    with place.open(read_only=True) as reader:
        found = [walk(reader, limit, options) for options in asked for limit in (1, 3, 50)]
        assert reader.search.status().pending == pending
        assert reader.messages.search("pears").items[0].snippet == "⟦pears⟧"
    assert store.search.status().pending == pending
    assert found == [walk(store, limit, options) for options in asked for limit in (1, 3, 50)]
    assert store.search.status().pending == 0
    assert [len(hits) for hits in found[::3]] == [9, 9, 8, 5, 5]


def walk(store, limit, options):
    hits, cursor = [], None
    while True:
        page = store.messages.search("apple", limit=limit, cursor=cursor, **options)
        hits += [(hit.message.id, hit.score) for hit in page]
        if (cursor := page.next_cursor) is None:
            return hits


def test_what_waits_is_looked_at_in_pieces_and_each_hit_comes_once(place, store, monkeypatch):
    monkeypatch.setattr(search, "BLOCK", 3)
    session = store.sessions.create()
    for n in range(20):
        store.messages.save(session.id, "user", "apple" if n % 3 else "pear")
        if n == 9:
            store.search.refresh()
    with place.open(read_only=True) as reader:
        for order in ("recent", "relevance"):
            for limit in (1, 2, 5, 100):
                hits = walk(reader, limit, {"order": order})
                assert len(set(hits)) == len(hits) == 13


def test_a_database_behind_head_is_refused_and_stays_where_it_is(empty_url):
    revision = behind(empty_url)
    with pytest.raises(errors.SchemaOutdated, match="agentstore upgrade"):
        Store(empty_url, read_only=True)
    assert migrations.revision_of(empty_url) == revision


def test_an_empty_database_stays_empty(empty_url, tmp_path):
    if empty_url.startswith("sqlite"):
        path = tmp_path / "empty.db"
        empty_url = f"sqlite:///{path}"
        with pytest.raises(errors.DatabaseUnreachable, match="no file"):
            Store(empty_url, read_only=True)
        assert not path.exists()
        path.touch()
    with pytest.raises(errors.SchemaMissing):
        Store(empty_url, read_only=True)
    assert migrations.revision_of(empty_url) is None


def test_memory_has_nothing_to_read():
    with pytest.raises(errors.SchemaMissing):
        Store("sqlite://", read_only=True)


def test_an_engine_of_the_application_s_own_can_go_on_writing(engine_url):
    url = make_url(engine_url)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    with Store(engine=engine) as writer, Store(engine=engine, read_only=True) as reader:
        session = writer.sessions.create()
        assert reader.sessions.get(session.id) == session
        with pytest.raises(errors.DatabaseReadOnly):
            reader.messages.save(session.id, "user", "hello")
        writer.messages.save(session.id, "user", "hello")
        assert reader.sessions.get(session.id).message_count == 1
    engine.dispose()


def test_it_is_said_with_true_or_false():
    with pytest.raises(errors.InvalidInput, match="read_only"):
        Store("sqlite://", read_only="yes")


# --- Files that may not be written -------------------------------------------------------------

READ = """
import json
import os
import sys
from sqlalchemy import URL
from agentstore import Store
from agentstore.errors import AgentStoreError
with Store("sqlite://") as store:
    store.messages.search("hello")  # imports what there is to import
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
def read(path):
    try:
        with Store(URL.create("sqlite", database=path), read_only=True) as store:
            newest = store.messages.history("s")[-1].content
            return f"{newest} {store.messages.search('hello').items != ()}"
    except AgentStoreError as error:
        return f"{type(error).__name__} {error}"
for line in sys.stdin:
    print(json.dumps(read(json.loads(line))), flush=True)
"""


@pytest.fixture
def folder():
    """A folder that another user can reach, too: the administrator may write everywhere."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    made.chmod(0o755)
    shutil.rmtree(made)


def make(path: Path, messages: int = 3) -> None:
    with Store(URL.create("sqlite", database=str(path))) as store:
        store.sessions.create(id="s")
        for n in range(messages):
            store.messages.save("s", "user", f"hello {n}")


@pytest.fixture(scope="module")
def read_as_nobody() -> Iterator[Callable[[Path], str]]:
    """Reads a file in a process of another user's."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", READ],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nobody:
        asked, answers = nobody.stdin, nobody.stdout
        assert asked is not None
        assert answers is not None

        def read(path: Path) -> str:
            asked.write(f"{json.dumps(str(path))}\n")
            asked.flush()
            said: str = json.loads(answers.readline())
            return said

        yield read
    assert nobody.returncode == 0


def closed(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)


def test_a_file_that_cannot_be_written_is_an_error_that_says_copy(folder, tmp_path, read_as_nobody):
    path = folder / "an odd name?#%41.db"
    make(path)
    closed(folder)
    said = read_as_nobody(path)
    assert said.startswith(f"DatabaseUnreachable {path} cannot be read")
    assert "Copy the file, and its -wal if there is one, to a writable folder" in said
    assert [found.name for found in folder.iterdir()] == [path.name]
    shutil.copy(path, tmp_path / "copy.db")
    with Store(f"sqlite:///{tmp_path / 'copy.db'}", read_only=True) as store:
        assert len(store.messages.history("s")) == 3


def test_a_backup_is_read_where_nothing_may_be_written(folder, tmp_path, read_as_nobody):
    make(tmp_path / "agent.db")
    path = folder / "an odd name?#%41.db"
    backup(f"sqlite:///{tmp_path / 'agent.db'}", path)
    closed(folder)
    assert read_as_nobody(path) == "hello 2 True"
    assert [found.name for found in folder.iterdir()] == [path.name]


def test_a_file_that_somebody_has_open_is_read_with_what_is_in_its_wal(folder, read_as_nobody):
    path = folder / "open.db"
    with Store(f"sqlite:///{path}") as writer:
        writer.sessions.create(id="s")
        writer.messages.save("s", "user", "hello 0")
        assert (folder / "open.db-wal").stat().st_size
        closed(folder)
        assert read_as_nobody(path) == "hello 0 True"


def test_a_wal_that_cannot_be_read_alone_is_an_error_that_says_so(folder, tmp_path, read_as_nobody):
    path = folder / "crashed.db"
    with Store(f"sqlite:///{tmp_path / 'live.db'}") as writer:
        writer.sessions.create(id="s")
        writer.messages.save("s", "user", "hello 0")
        shutil.copy(tmp_path / "live.db", path)
        shutil.copy(tmp_path / "live.db-wal", f"{path}-wal")
    closed(folder)
    said = read_as_nobody(path)
    assert said.startswith("DatabaseUnreachable")
    assert "Copy the file, and its -wal if there is one, to a writable folder" in said


def test_a_file_that_may_not_be_read_is_an_error_that_says_so(folder, read_as_nobody):
    path = folder / "secret.db"
    make(path)
    path.chmod(0)
    folder.chmod(0o555)
    said = read_as_nobody(path)
    assert said.startswith("DatabaseUnreachable")
    assert "permissions" in said


def test_both_kinds_of_store_read_such_a_file(folder):
    make(folder / "both.db")
    url = f"sqlite:///{folder / 'both.db'}"
    aio = url.replace("sqlite:", "sqlite+aiosqlite:")
    for opened in (
        Store(url, read_only=True),
        BlockingStore(lambda: AsyncStore(url, read_only=True)),
        BlockingStore(lambda: AsyncStore(aio, read_only=True)),
    ):
        with opened as reader:
            assert len(reader.messages.history("s")) == 3
