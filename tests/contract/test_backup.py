"""Backups: whole, of one state, never in another file's place, and what is made of them again."""

import errno
import itertools
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from agentstore import Store, doctor, errors, migrations
from agentstore.database import parse_url
from agentstore.moving import copying, new_files
from agentstore.moving.backup import SavedTable, backup, restore
from agentstore.moving.copy_ends import End
from agentstore.moving.copying import change_log
from agentstore.records.upkeep import Severity
from agentstore.schema import PLAIN, Names
from tests.conftest import FULL, INSTALLATIONS
from tests.migrations.support import behind

ROOT = Path(__file__).parents[2]
ODD = "tab\tline\nback\\slash \\N \x01 北京 😀 ' \" é"


@pytest.fixture
def fresh(servers, engine_url, tmp_path):
    """Give the URLs of databases without rows, of the same engine and version.

    Those on a server may have the schema.
    """
    made = []
    numbers = itertools.count()
    version = _version(engine_url, servers)

    def make(*, head=False):
        if version is None:
            return f"sqlite:///{tmp_path / f'fresh{next(numbers)}.db'}"
        made.append(servers.new_database(version, empty=not head))
        return made[-1]

    yield make
    for url in made:
        servers.drop(version, url)


def _version(url, servers):
    if make_url(url).get_backend_name() == "sqlite":
        return None
    for version, (_, base) in list(servers._started.items()):
        if ":" not in version and make_url(base).query == make_url(url).query:
            return version
    raise AssertionError("no server has this database")


def on_server(url):
    return make_url(url).get_backend_name() == "postgresql"


def fill(url, **options):
    """Write something into every kind of column."""
    with Store(url, **options) as store:
        user = store.users.create(ODD[:3], id="alice")
        store.users.issue_api_key(user.id, "laptop")
        session = store.sessions.create(user.id, title=ODD, metadata={"b": 1, "a": [ODD, None]})
        messages = [
            {
                "role": "user" if number % 2 == 0 else "assistant",
                "content": f"{ODD} hello {number}",
                "cost": "0.250000001",
                "marks": ("kept",),
            }
            for number in range(30)
        ]
        message = store.messages.save_many(session.id, messages)[-1]
        store.attachments.add(message.id, bytes(range(256)), media_type="image/png")
        store.tool_logs.log(session.id, "search", elapsed_ms=1.1, success=False, tool_call_id=ODD)
        store.tasks.create(session.id, "mail", {"to": ODD})
        store.usage.record(session.id, input_tokens=5, model="m1", cost="0.25")
        store.checkpoints.put("thread", {"messages": [ODD], "n": 1e22})
        store.search.refresh()
    return session.id


def contents(url, names=PLAIN):
    """What a database holds: rows and digests, by table."""
    report = copying.verify(url, url, source_names=names, target_names=names)
    return tuple(SavedTable(t.name, t.source_rows, t.source_digest) for t in report.tables)


def test_what_was_saved_comes_back_as_it_was(engine_url, fresh, tmp_path):
    session = fill(engine_url)
    file = tmp_path / "backup"
    saved = backup(engine_url, file)
    assert saved.tables == contents(engine_url)
    assert saved.revision == migrations.HEAD
    assert saved.bytes == file.stat().st_size
    assert (saved.dangling, saved.invalid) == (0, 0)
    target = fresh()
    restored = restore(file, target, expected=saved.tables)
    assert restored.tables == saved.tables == contents(target)
    assert restored.revision == migrations.HEAD
    with Store(target, create=False) as store:
        assert store.sessions.get(session).title == ODD
        assert len(store.messages.search("hello").items) > 0
        newest = store.messages.save(session, "user", "after")
        assert newest.seq == 31
        assert store.health().ok


def test_a_backup_is_a_file_that_a_store_opens(engine_url, tmp_path):
    session = fill(engine_url)
    file = tmp_path / "backup.db"
    backup(engine_url, file)
    assert list(tmp_path.glob("*backup*")) == [file]  # nothing lies beside it
    with Store(f"sqlite:///{file}", read_only=True) as store:
        assert store.messages.size(session) == 30
        assert store.messages.search("hello").items


def test_a_backup_is_for_its_maker_s_eyes_alone(engine_url, tmp_path):
    before = os.umask(0)
    try:
        backup(engine_url, tmp_path / "backup")
    finally:
        os.umask(before)
    found = (tmp_path / "backup").stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_nlink == 1


@pytest.mark.long(but=["sqlite"])
def test_names_of_one_s_own_are_saved_and_restored(engine_url, fresh, tmp_path):
    names = Names("ag" if on_server(engine_url) else None, "x_")
    migrations.upgrade(engine_url, names=names)
    fill(engine_url, schema=names.schema, table_prefix="x_")
    file, target = tmp_path / "backup", fresh()
    saved = backup(engine_url, file, names=names)
    assert restore(file, target, names=names).tables == saved.tables == contents(target, names)
    with pytest.raises(errors.NotABackup) as refused:
        restore(file, fresh(), names=Names(names.schema, "y_"))
    assert "prefix" in str(refused.value)


def test_a_backup_of_a_server_has_no_others_tables(engine_url, fresh, tmp_path):
    if not on_server(engine_url):
        return  # a file is saved whole
    engine = create_engine(engine_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE theirs AS SELECT 1 AS number"))
    backup(engine_url, tmp_path / "backup")
    target = fresh(head=True)
    restore(tmp_path / "backup", target)
    other = create_engine(target)
    with other.connect() as connection:
        assert connection.execute(text("SELECT to_regclass('theirs')")).scalar() is None
    engine.dispose()
    other.dispose()


def test_a_file_is_saved_whole_whatever_else_is_in_it(tmp_path, sqlite_template):
    source = tmp_path / "source.db"
    shutil.copy(sqlite_template, source)
    migrations.upgrade(f"sqlite:///{source}", names=Names(None, "x_"))
    with sqlite3.connect(source) as connection:
        connection.execute("CREATE TABLE theirs AS SELECT 7 AS number")
    connection.close()
    backup(f"sqlite:///{source}", tmp_path / "backup.db")
    with sqlite3.connect(tmp_path / "backup.db") as connection:
        assert connection.execute("SELECT number FROM theirs").fetchone() == (7,)
        assert connection.execute("SELECT count(*) FROM x_sessions").fetchone() == (0,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
FOREIGN = {
    "a trigger": (["CREATE TRIGGER spy AFTER INSERT ON messages BEGIN DELETE FROM users; END"],
        ("trigger spy",)),
    "one under another name of the table": (
        ['CREATE TRIGGER "S p\ny" BEFORE DELETE ON MESSAGES BEGIN SELECT RAISE(IGNORE); END'],
        ("trigger S p\\ny",),
    ),
    "one on a table of the search index": (
        ["CREATE TRIGGER spy AFTER INSERT ON search_queue BEGIN DELETE FROM users; END"],
        ("trigger spy",),
    ),
    "one in the place of a revision's": (["DROP TRIGGER activity_kept",
            "CREATE TRIGGER activity_kept AFTER DELETE ON messages BEGIN DELETE FROM users; END"],
        ("trigger activity_kept",)),
    "one that is named as if it were a log's, on a view": (
        [
            "CREATE VIEW agentstore_changes_v AS SELECT 1 AS x",
            "CREATE TRIGGER agentstore_changes_x INSTEAD OF INSERT ON agentstore_changes_v"
            " BEGIN DELETE FROM users; END",
        ],
        ("view agentstore_changes_v",),
    ),
    "a view in the place of a table": (["DROP TABLE memories",
            f"CREATE VIEW memories AS {ENDLESS}"], ("view memories",)),
    "an endless view in the place of the revision": (["DROP TABLE alembic_version",
            f"CREATE VIEW alembic_version(version_num) AS {ENDLESS}"], ("view alembic_version",)),
    "a virtual table": (["CREATE VIRTUAL TABLE v USING fts5(x)"], ("virtual table v",)),
}  # fmt: skip


@pytest.mark.parametrize("target", ["sqlite", "postgresql"])
@pytest.mark.parametrize("which", FOREIGN)
def test_code_that_no_revision_made_is_refused_by_name(tmp_path, sqlite_template, which, target):
    statements, words = FOREIGN[which]
    source, restored = tmp_path / "source.db", tmp_path / "restored.db"
    shutil.copy(sqlite_template, source)
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    url = {"sqlite": f"sqlite:///{restored}", "postgresql": "postgresql://nobody@nowhere/none"}
    with pytest.raises(errors.ForeignObjects) as caught:
        restore(source, url[target])
    assert set(words) <= set(caught.value.objects)
    assert all(word in str(caught.value) for word in words)
    assert not restored.exists()


@pytest.mark.parametrize("type_", ["table", "index", "view"])
def test_a_trigger_that_says_that_it_is_something_else_is_refused(tmp_path, sqlite_template, type_):
    source, restored = tmp_path / "source.db", tmp_path / "restored.db"
    shutil.copy(sqlite_template, source)
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER s AFTER INSERT ON users BEGIN DELETE FROM users; END")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET type = ? WHERE name = 's'", (type_,))
    with pytest.raises((errors.ForeignObjects, errors.DatabaseCorrupt)):
        restore(source, f"sqlite:///{restored}")
    assert not restored.exists()


def test_many_foreign_objects_are_counted(tmp_path, sqlite_template):
    source = tmp_path / "source.db"
    shutil.copy(sqlite_template, source)
    with closing(sqlite3.connect(source)) as connection:
        for number in range(30):
            connection.execute(f"CREATE VIEW v{number:02} AS SELECT 1")
    with pytest.raises(errors.ForeignObjects, match="view v09, and 20 more") as caught:
        restore(source, f"sqlite:///{tmp_path / 'restored.db'}")
    assert len(caught.value.objects) == 11


def test_what_is_one_s_own_may_be_allowed(tmp_path, sqlite_template):
    source, restored = tmp_path / "source.db", tmp_path / "restored.db"
    shutil.copy(sqlite_template, source)
    migrations.upgrade(f"sqlite:///{source}", names=Names(None, "x_"))
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("CREATE TABLE audit (id)")
        connection.execute("CREATE INDEX by_title ON sessions (title)")
        connection.execute("CREATE VIEW shown AS SELECT id FROM sessions")
        connection.execute(
            "CREATE TRIGGER audited AFTER INSERT ON users BEGIN"
            " INSERT INTO audit VALUES (new.id); END"
        )
    with pytest.raises(errors.ForeignObjects, match="view shown") as caught:
        restore(source, f"sqlite:///{restored}", allowed=["audited"])
    assert caught.value.objects == ("view shown",)
    restore(source, f"sqlite:///{restored}", allowed=["audited", "shown"])
    with Store(f"sqlite:///{restored}", create=False) as store:
        store.users.create("Ada", id="ada")
    with closing(sqlite3.connect(restored)) as connection:
        assert connection.execute("SELECT id FROM audit").fetchall() == [("ada",)]


@pytest.mark.parametrize("prefix", ["", "x_"])
def test_the_log_of_a_copy_that_follows_is_not_restored(tmp_path, prefix):
    """Nobody follows what was restored, and its log would grow for ever."""
    source, restored = tmp_path / "source.db", tmp_path / "restored.db"
    names = Names(None, prefix)
    migrations.upgrade(f"sqlite:///{source}", names=names)
    with (
        closing(End(f"sqlite:///{source}", names, read_only=False)) as end,
        end.working() as connection,
        connection.begin(),
    ):
        change_log(end).begin(connection, names, end.shapes)
    file = tmp_path / "backup.db"
    with Store(f"sqlite:///{source}", table_prefix=prefix) as store:
        store.users.create("Ada", id="ada")
    backup(f"sqlite:///{source}", file, names=names)
    restore(file, f"sqlite:///{restored}", names=names)
    with closing(sqlite3.connect(restored)) as connection:
        query = "SELECT count(*) FROM sqlite_master WHERE name LIKE '%agentstore_changes%'"
        assert connection.execute(query).fetchone() == (0,)
    with Store(f"sqlite:///{restored}", table_prefix=prefix, create=False) as store:
        assert store.users.get("ada").name == "Ada"
        store.users.create("Grace")


def test_the_owner_saves_all_though_the_policies_hold_for_them_too(engine_url, fresh, tmp_path):
    if not on_server(engine_url):
        return  # files have no roles
    target = fresh()
    owner = _owned_by_a_plain_role(engine_url)
    fill(owner)
    new_owner = _owned_by_a_plain_role(target, empty=True)
    saved = backup(owner, tmp_path / "backup")
    assert {t.name: t.rows for t in saved.tables}["messages"] == 30
    restore(tmp_path / "backup", new_owner)
    assert contents(new_owner) == saved.tables
    _execute(target, 'DROP OWNED BY "{role}"')


def test_who_does_not_see_all_rows_cannot_save_them(engine_url, tmp_path):
    if not on_server(engine_url):
        return  # files have no roles
    fill(engine_url)
    reader = make_url(engine_url).set(username="reader")
    scope = make_url(engine_url).update_query_dict({"options": "-cagentstore.user_id=bob"})
    owner = _owned_by_a_plain_role(engine_url)
    scope = scope.set(username=owner.username)
    _execute(engine_url, "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    _execute(engine_url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    _execute(engine_url, "GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO reader")
    for url in (reader, scope):
        with pytest.raises(errors.BackupIncomplete, match="as the owner"):
            backup(url, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
    _execute(engine_url, "DROP OWNED BY reader")


def _owned_by_a_plain_role(url, *, empty=False):
    """Give the tables, or the schema, to a role that is subject to policies."""
    _execute(url, 'CREATE ROLE "{role}" LOGIN; GRANT ALL ON SCHEMA public TO "{role}"')
    if not empty:
        _execute(
            url,
            "DO $$ DECLARE name text; BEGIN"
            " FOR name IN SELECT oid::regclass FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace LOOP"
            " EXECUTE 'ALTER TABLE ' || name || ' OWNER TO \"{role}\"'; END LOOP;"
            ' ALTER SEQUENCE activity OWNER TO "{role}"; END $$',
        )
    return make_url(url).set(username=f"role_{make_url(url).database}")


def _execute(url, statement):
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        role = f"role_{make_url(url).database}"
        for each in [statement] if "DO $$" in statement else statement.split(";"):
            connection.exec_driver_sql(each.format(role=role))
    engine.dispose()


def test_a_file_goes_into_a_server_and_back(servers, sqlite_template, tmp_path):
    source = f"sqlite:///{tmp_path / 'source.db'}"
    shutil.copy(sqlite_template, tmp_path / "source.db")
    fill(source)
    saved = backup(source, tmp_path / "one.db")
    version = INSTALLATIONS[0].version if INSTALLATIONS else "given"
    server = servers.new_database(version, empty=True)
    assert restore(tmp_path / "one.db", server).tables == saved.tables
    again = backup(server, tmp_path / "two.db")
    assert again.tables == saved.tables
    back = f"sqlite:///{tmp_path / 'back.db'}"
    assert restore(tmp_path / "two.db", back).tables == contents(source)
    servers.drop(version, server)


def test_what_pg_dump_saves_and_pg_restore_brings_is_the_same_database(servers, tmp_path):
    if not INSTALLATIONS:
        return  # the programs of whoever's server that is
    found = INSTALLATIONS[0]
    source = servers.new_database(found.version)
    target = servers.new_database(found.version, empty=True)
    session = fill(source)
    where = [make_url(url).query["host"] for url in (source, target)]
    for name, host, url, more in (
        ("pg_dump", where[0], source, ("--format=custom", "--enable-row-security", "--file")),
        ("pg_restore", where[1], target, ("--exit-on-error", "--single-transaction")),
    ):
        parsed = make_url(url)
        place = f"--dbname=host={host} user={parsed.username} dbname={parsed.database}"
        subprocess.run([found.bin / name, place, *more, tmp_path / "dump"], check=True)
    assert contents(target) == contents(source)
    bad = [each for each in doctor.examine(target, deep=True) if each.severity is Severity.ERROR]
    assert [each for each in bad if each.check != "settings"] == []  # ours do not wait for the disk
    with Store(target, create=False) as store:
        assert store.messages.search("hello").items
        assert store.messages.save(session, "user", "after").seq == 31
    for url in (source, target):
        servers.drop(found.version, url)


WRITER = """
import sys
import time
from agentstore import Store

with Store(sys.argv[1]) as store:
    one = store.sessions.create(id="one").id
    two = store.sessions.create(id="two").id
    print("ready", flush=True)
    number = 0
    while True:
        with store.transaction() as t:
            t.messages.save(one, "user", f"left {number}" + "x" * 500)
            t.messages.save(two, "user", f"right {number}")
        number += 1
        print(number, flush=True)
        time.sleep(0.005)
"""


@pytest.mark.long(but=["sqlite", "postgresql-*"])
def test_a_backup_is_one_state_though_another_process_writes_on(engine_url, fresh, tmp_path):
    with _python(WRITER, engine_url) as writer:
        assert writer.stdout.readline() == "ready\n"
        sizes = []
        for number in range(2):
            _wait_for_lines(writer, 20)
            file = tmp_path / f"backup{number}"
            saved = {t.name: t.rows for t in backup(engine_url, file).tables}
            target = fresh(head=True)
            restore(file, target)
            with Store(target, create=False) as store:
                pairs = store.messages.size("one"), store.messages.size("two")
                for session, words in (("one", "left"), ("two", "right")):
                    last = store.messages.history(session, 1)[0]
                    assert last.content.startswith(f"{words} {pairs[0] - 1}")
            assert pairs[0] == pairs[1] == saved["messages"] / 2
            sizes.append(pairs[0])
        assert sizes == sorted(set(sizes))
        assert sizes[-1] >= 40
        assert writer.poll() is None


def _wait_for_lines(process, count):
    for _ in range(count):
        assert process.stdout.readline()


class _python:
    """A Python process that ends with the test."""

    def __init__(self, code, *arguments, **more):
        self._command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
        self._more = {"stdout": subprocess.PIPE, "text": True, **more}

    def __enter__(self):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(self._command, env=env, **self._more)
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


# --- Killed ------------------------------------------------------------------------------------

KILLED_ON_ITS_WAY = """
import os, signal, sys
from threading import Timer
from agentstore.moving.backup import backup, restore

do, source, target, left, seconds = sys.argv[1:]
left = int(left)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def count(_):
    global left
    left -= 1
    if left == 0:
        Timer(float(seconds), kill).start() if float(seconds) else kill()

{"backup": backup, "restore": restore}[do](source, target, progress=count)
kill()
"""
TIMES = 6 if FULL else 2


def points(steps, seed):
    """Draw after how many steps to kill, and how many seconds later; the first time at once."""
    draw = random.Random(seed)  # noqa: S311
    delays = [0, *(draw.uniform(0, 0.05) for _ in range(TIMES - 1))]
    return [(draw.randrange(1, steps + 1), seconds) for seconds in delays]


def kill_on_its_way(do, source, target, point):
    with _python(KILLED_ON_ITS_WAY, do, source, target, *point) as killed:
        assert killed.wait() == -signal.SIGKILL


def big(url, count=1000):
    with Store(url) as store:
        session = store.sessions.create(id="big").id
        for start in range(0, count, 500):
            rows = [
                {"role": "user", "content": f"{n} " + "y" * 900} for n in range(start, start + 500)
            ]
            store.messages.save_many(session, rows)


@pytest.mark.long(but=["postgresql-*"])
@pytest.mark.crash
def test_a_backup_that_is_killed_leaves_no_file_and_is_cleared_away(engine_url, tmp_path):
    big(engine_url)
    target = tmp_path / "backup"
    steps = []
    backup(engine_url, tmp_path / "whole", progress=steps.append)
    left = 0
    for point in points(len(steps), seed=7):
        kill_on_its_way("backup", engine_url, target, point)
        if target.exists():  # it was done before
            assert contents_of(target, engine_url, tmp_path)
            target.unlink()
        left += bool(list(tmp_path.glob(".*partial")))
    assert left
    saved = backup(engine_url, target)
    assert saved.tables == contents(engine_url)
    assert list(tmp_path.glob(".*")) == []


KILLED_AT_THE_END = """
import os, signal, sys
from pathlib import Path
from agentstore.moving import new_files
from agentstore.moving.backup import backup

flush = new_files._flush

def die_at_the_folder(path):
    if Path(path).is_dir():
        os.kill(os.getpid(), signal.SIGKILL)
    flush(path)

new_files._flush = die_at_the_folder
backup(sys.argv[1], sys.argv[2])
"""


@pytest.mark.crash
def test_what_is_left_beside_a_backup_that_has_its_name_is_cleared_away(tmp_path, sqlite_template):
    source, target = f"sqlite:///{sqlite_template}", tmp_path / "backup"
    with _python(KILLED_AT_THE_END, source, target) as saver:
        assert saver.wait() == -signal.SIGKILL
    assert target.stat().st_nlink == 2
    before = target.read_bytes()
    with pytest.raises(errors.TargetExists):
        backup(source, target)
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]
    assert target.stat().st_nlink == 1
    assert target.read_bytes() == before


def test_what_somebody_works_on_is_not_cleared_away(tmp_path):
    target = tmp_path / "backup"
    with new_files.NewFile(target).in_the_making() as new:
        target.write_text("precious")
        with pytest.raises(errors.TargetExists), new_files.NewFile(target).in_the_making():
            pass
        assert new.path.exists()


def contents_of(file, url, folder):
    return file.stat().st_size == (folder / "whole").stat().st_size or on_server(url)


@pytest.mark.long(but=["sqlite"])
@pytest.mark.crash
def test_a_killed_restore_leaves_nothing_that_opens_and_is_done_again(engine_url, fresh, tmp_path):
    big(engine_url)
    file = tmp_path / "backup"
    saved = backup(engine_url, file)
    steps = []
    restore(file, fresh(head=True), progress=steps.append)
    target = fresh(head=True)
    for point in points(len(steps), seed=8):
        kill_on_its_way("restore", file, target, point)
        if _opens(target) and _holds_rows(target):
            assert contents(target) == saved.tables
            target = fresh(head=True)
    if not (_opens(target) and _holds_rows(target)):
        restore(file, target)
    assert contents(target) == saved.tables


def _opens(url):
    try:
        Store(url, create=False).close()
    except (errors.CopyUnfinished, errors.SchemaMissing, errors.DatabaseUnreachable):
        return False
    return True


def _holds_rows(url):
    with Store(url, create=False) as store:
        return store.sessions.count() > 0


def test_two_backups_into_one_file_do_not_meet(engine_url, tmp_path):
    target = tmp_path / "backup"
    with (
        new_files.NewFile(target).in_the_making(),
        pytest.raises(errors.BackupUnderWay, match="Wait"),
    ):
        backup(engine_url, target)
    backup(engine_url, target)


def test_of_many_backups_at_once_into_one_file_one_is_made(engine_url, tmp_path):
    target = tmp_path / "backup"

    def run(_):
        try:
            return backup(engine_url, target).bytes
        except (errors.BackupUnderWay, errors.TargetExists):
            return None

    with ThreadPoolExecutor(6) as pool:
        done = [size for size in pool.map(run, range(6)) if size]
    assert len(done) == 1
    assert target.stat().st_size == done[0]
    assert list(tmp_path.glob(".*")) == []


# --- What is there already ---------------------------------------------------------------------


def _file(path):
    path.write_text("precious")


def _folder(path):
    path.mkdir()


def _link(path):
    path.with_name("elsewhere").write_text("precious")
    path.symlink_to(path.with_name("elsewhere"))


def _link_to_nothing(path):
    path.symlink_to(path.with_name("nothing"))


def _old_wal(path):
    path.with_name(path.name + "-wal").write_text("precious")


@pytest.mark.parametrize("make", [_file, _folder, _link, _link_to_nothing, _old_wal])
def test_nothing_that_is_there_is_overwritten(engine_url, tmp_path, make):
    target = tmp_path / "backup"
    make(target)
    before = _tree(tmp_path)
    with pytest.raises(errors.TargetExists, match="another name"):
        backup(engine_url, target)
    assert _tree(tmp_path) == before
    backup(engine_url, tmp_path / "other")
    if not on_server(engine_url):
        before = _tree(tmp_path)
        with pytest.raises(errors.TargetExists, match="another name"):
            restore(tmp_path / "other", f"sqlite:///{target}")
        assert _tree(tmp_path) == before


def _tree(folder):
    return {
        str(path): path.read_bytes() if path.is_file() else path.is_symlink()
        for path in folder.rglob("*")
        if not path.name.startswith("test.db")
    }


@pytest.mark.parametrize("name", ["backup", "backup-wal"])
def test_what_comes_while_the_backup_is_made_is_not_overwritten(engine_url, tmp_path, name):
    target = tmp_path / name

    def write(_):
        target.write_text("precious")

    with pytest.raises(errors.TargetExists, match=name):
        backup(engine_url, tmp_path / "backup", progress=write)
    assert target.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == [name]


@pytest.mark.long(but=["sqlite"])
def test_without_links_nothing_is_overwritten_either(engine_url, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    backup(engine_url, tmp_path / "backup")
    target = tmp_path / "other"
    with pytest.raises(errors.TargetExists):
        backup(engine_url, target, progress=lambda _: target.write_text("precious"))
    assert target.read_text() == "precious"


def test_a_database_is_not_saved_over_itself(tmp_path, sqlite_template):
    source = tmp_path / "source.db"
    shutil.copy(sqlite_template, source)
    before = source.read_bytes()
    with pytest.raises(errors.TargetExists):
        backup(f"sqlite:///{source}", source)
    with pytest.raises(errors.TargetExists):
        restore(source, f"sqlite:///{source}")
    assert source.read_bytes() == before


def test_a_folder_of_somebody_else_is_not_worked_in(engine_url, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".backup.agentstore-partial").symlink_to(elsewhere)
    with pytest.raises(errors.TargetExists, match="partial"):
        backup(engine_url, tmp_path / "backup")
    assert list(elsewhere.iterdir()) == []


def test_a_database_with_rows_is_not_restored_into(engine_url, tmp_path):
    fill(engine_url)
    file = tmp_path / "backup"
    backup(engine_url, file)
    before = contents(engine_url)
    with pytest.raises((errors.TargetNotEmpty, errors.TargetExists)):
        restore(file, engine_url)
    assert contents(engine_url) == before


@pytest.mark.parametrize("make", [migrations.upgrade, behind])
def test_a_server_s_empty_schema_may_be_restored_into(empty_url, tmp_path, sqlite_template, make):
    if not on_server(empty_url):
        return  # a file that is there is never replaced
    source = f"sqlite:///{tmp_path / 'source.db'}"
    shutil.copy(sqlite_template, tmp_path / "source.db")
    fill(source)
    saved = backup(source, tmp_path / "backup")
    make(empty_url)
    restore(tmp_path / "backup", empty_url)
    assert contents(empty_url) == saved.tables


# --- What is no backup, or none for us ---------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"SQLite", b"%PDF-1.7", b"PGDMP and no more"])
def test_anything_else_than_a_backup_is_refused(empty_url, tmp_path, content):
    file = tmp_path / "no-backup"
    file.write_bytes(content)
    target = empty_url.replace("test.db", "new.db")
    with pytest.raises(errors.NotABackup):
        restore(file, target)
    assert not (tmp_path / "new.db").exists()
    if on_server(empty_url):
        assert migrations.revision_of(empty_url) is None


def test_another_program_s_database_is_refused(empty_url, tmp_path):
    file = tmp_path / "theirs.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE theirs (number)")
    connection.close()
    target = empty_url.replace("test.db", "new.db")
    with pytest.raises(errors.NotABackup, match="prefix"):
        restore(file, target)
    with pytest.raises(errors.SchemaMissing):
        backup(f"sqlite:///{file}", tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs.db"]


def test_a_backup_that_is_damaged_is_not_restored(engine_url, fresh, tmp_path):
    big(engine_url)
    file = tmp_path / "backup"
    backup(engine_url, file)
    content = bytearray(file.read_bytes())
    row = content.index(b"500 yyy")
    content[row : row + 3000] = bytes(3000)
    file.write_bytes(content)
    target = fresh()
    with pytest.raises(errors.DatabaseCorrupt):
        restore(file, target)
    if on_server(engine_url):
        assert migrations.revision_of(target) in (None, migrations.UNFINISHED)
    else:
        assert not Path(make_url(target).database).exists()


def test_a_backup_with_a_row_that_an_index_lacks_is_not_restored(engine_url, fresh, tmp_path):
    fill(engine_url)
    file = tmp_path / "backup"
    backup(engine_url, file)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        query = "SELECT sql FROM sqlite_master WHERE name = 'ix_sessions_status_listed_activity'"
        index = connection.execute(query).fetchone()[0]
        connection.execute("DROP INDEX ix_sessions_status_listed_activity")
        connection.execute(f"{index} WHERE id IS NULL")  # an index of nothing
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = ? WHERE sql GLOB ? || ' WHERE*'", (index, index)
        )
    target = fresh()
    with pytest.raises(errors.DatabaseCorrupt, match="index"):
        restore(file, target)


@pytest.mark.long(but=["sqlite"])
def test_a_backup_that_is_not_the_expected_one_is_not_restored(engine_url, fresh, tmp_path):
    first = backup(engine_url, tmp_path / "one")
    fill(engine_url)
    backup(engine_url, tmp_path / "two")
    target = fresh()
    with pytest.raises(errors.BackupDiffers) as refused:
        restore(tmp_path / "two", target, expected=first.tables)
    assert "users" in refused.value.tables
    if on_server(engine_url):
        assert migrations.revision_of(target) is None
    restore(tmp_path / "one", target, expected=first.tables)


@pytest.mark.parametrize("kept", [0, 1, -1])
def test_a_backup_that_has_more_than_was_expected_is_not_restored(tmp_path, sqlite_template, kept):
    saved = backup(f"sqlite:///{sqlite_template}", tmp_path / "backup")
    target = tmp_path / "new.db"
    with pytest.raises(errors.BackupDiffers) as refused:
        restore(tmp_path / "backup", f"sqlite:///{target}", expected=saved.tables[:kept])
    assert refused.value.tables == tuple(table.name for table in saved.tables[kept:])
    assert not target.exists()


def test_an_older_database_is_saved_and_upgraded_when_it_is_restored(fresh, tmp_path):
    source = f"sqlite:///{tmp_path / 'old.db'}"
    revision = behind(source)
    at = 1_767_225_600_000_000
    engine = create_engine(source)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO users (id, name, preferences, created_at, updated_at) VALUES"
                " ('u', 'U', '{}', :at, :at)"
            ),
            {"at": at},
        )
    engine.dispose()
    file = tmp_path / "backup"
    saved = backup(source, file)
    assert saved.revision == revision
    assert {table.digest for table in saved.tables} == {None}
    target = fresh()
    with pytest.raises(errors.BackupOutdated, match="--upgrade"):
        restore(file, target)
    restored = restore(file, target, upgrade=True)
    assert (restored.backup_revision, restored.revision) == (revision, migrations.HEAD)
    with Store(target, create=False) as store:
        assert store.users.get("u").name == "U"
        assert store.health().ok


def test_of_a_server_behind_head_no_backup_is_made_and_the_error_says_why(empty_url, tmp_path):
    if not on_server(empty_url):
        return  # a file is saved whole, as above
    revision = behind(empty_url)
    with pytest.raises(errors.SchemaError, match="pg_dump") as refused:
        backup(empty_url, tmp_path / "backup")
    assert (refused.value.current, refused.value.head) == (revision, migrations.HEAD)
    assert list(tmp_path.iterdir()) == []


def test_a_newer_version_s_database_is_neither_saved_nor_restored(engine_url, fresh, tmp_path):
    backup(engine_url, tmp_path / "now")
    with sqlite3.connect(tmp_path / "now") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(errors.SchemaFromFuture):
        restore(tmp_path / "now", fresh())
    engine = create_engine(engine_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(errors.SchemaFromFuture):
        backup(engine_url, tmp_path / "then")
    assert not (tmp_path / "then").exists()


def test_the_report_has_no_password(engine_url, tmp_path):
    url = parse_url(engine_url)
    if on_server(engine_url):
        url = url.set(password="hunter2")  # noqa: S106
    saved = backup(url, tmp_path / "backup")
    assert "hunter2" not in repr(saved)
    shown = make_url(saved.database)
    assert (shown.database, shown.query) == (url.database, url.query)


# --- The disk ----------------------------------------------------------------------------------

SMALL = """
import resource, sys
from agentstore.moving.backup import backup
from agentstore.errors import AgentStoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    backup(sys.argv[1], sys.argv[2])
except AgentStoreError as error:
    print(type(error).__name__, error)
"""


def test_where_a_file_cannot_grow_there_is_none(engine_url, tmp_path):
    big(engine_url)
    with _python(SMALL, engine_url, tmp_path / "backup", 8_000) as saver:
        said, _ = saver.communicate()
    assert said.startswith("Database"), said
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting is the administrator's")
def test_on_a_full_disk_there_is_no_file(engine_url, tmp_path):
    big(engine_url, 200)
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here; RLIMIT_FSIZE stands in for it above")
    try:
        with pytest.raises(errors.DatabaseFull, match=r"[Ff]ree"):
            backup(engine_url, small / "backup")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_folder_that_is_not_there_is_named(engine_url, tmp_path):
    with pytest.raises(errors.DatabaseUnreachable, match="folder exists"):
        backup(engine_url, tmp_path / "nowhere" / "backup")
    with pytest.raises(errors.DatabaseUnreachable, match="Check the path"):
        restore(tmp_path / "nothing", f"sqlite:///{tmp_path / 'new.db'}")


def test_a_folder_that_may_not_be_written_to_is_named(engine_url, tmp_path, monkeypatch):
    def refuse(self, mode=0o777):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(errors.DatabaseReadOnly, match="permissions"):
        backup(engine_url, tmp_path / "backup")


def test_where_there_are_no_locks_of_this_kind_that_is_said(tmp_path, sqlite_template, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(errors.BackupError, match="POSIX"):
        backup(f"sqlite:///{sqlite_template}", tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []
    code = "import sys; sys.modules['fcntl'] = None; import agentstore.cli"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ROOT})


def test_a_database_in_memory_is_neither_saved_nor_restored(tmp_path, sqlite_template):
    with pytest.raises(errors.InvalidInput, match="memory"):
        backup("sqlite://", tmp_path / "backup")
    with pytest.raises(errors.InvalidInput, match="memory"):
        restore(sqlite_template, "sqlite://")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_database_is_not_taken_for_a_good_backup(tmp_path, sqlite_template):
    source = tmp_path / "source.db"
    shutil.copy(sqlite_template, source)
    big(f"sqlite:///{source}")
    connection = sqlite3.connect(source, isolation_level=None)
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'messages'"
    (page,) = connection.execute(query).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(source.read_bytes())
    content[(page - 1) * size + 8 : (page - 1) * size + 40] = b"\x00" * 32
    source.write_bytes(content)
    with pytest.raises(errors.DatabaseCorrupt):
        backup(f"sqlite:///{source}", tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_rows_that_are_not_sound_are_saved_and_reported(tmp_path, sqlite_template):
    source = tmp_path / "source.db"
    shutil.copy(sqlite_template, source)
    fill(f"sqlite:///{source}")
    with sqlite3.connect(source) as connection:
        connection.execute("UPDATE messages SET token_count = 'many' WHERE seq = 1")
        connection.execute("UPDATE messages SET session = 1000 WHERE seq = 2")
    connection.close()
    saved = backup(f"sqlite:///{source}", tmp_path / "backup")
    assert saved.invalid > 1
    assert saved.dangling >= 1
    assert {t.name: t.rows for t in saved.tables}["messages"] == 30
    restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}", expected=saved.tables)


INVALID_ON_A_SERVER = [
    "UPDATE sessions SET created_at = 'infinity'",  # to which messages and others refer
    "UPDATE messages SET created_at = '20000-01-01' WHERE seq = 3",
    "UPDATE messages SET created_at = '0044-03-15 BC' WHERE seq > 20",
    "UPDATE tool_logs SET elapsed_ms = 'NaN'",
]


@pytest.mark.long(but=["*-UPDATE sessions*", "*-UPDATE tool_logs*"])
@pytest.mark.parametrize("statement", INVALID_ON_A_SERVER)
def test_no_backup_is_made_of_rows_that_only_a_server_can_hold(engine_url, tmp_path, statement):
    if not on_server(engine_url):
        return  # a file holds others, and is saved above
    fill(engine_url)
    messages = {t.name: t.rows for t in contents(engine_url)}["messages"]
    _execute(engine_url, statement)
    changed = statement.split()[1]
    with pytest.raises(errors.InvalidRows, match=rf"of {changed} .*pg_dump") as refused:
        backup(engine_url, tmp_path / "backup")
    assert refused.value.total > (messages if changed == "sessions" else 0)
    assert refused.value.rows[0][1] in str(refused.value)
    assert "--quarantine" not in str(refused.value)
    assert not (tmp_path / "backup").exists()


def test_a_server_takes_no_invalid_rows_and_copy_does_without_them(
    sqlite_template, empty_url, tmp_path
):
    if not on_server(empty_url):
        return  # a file takes them
    source = tmp_path / "source.db"
    shutil.copy(sqlite_template, source)
    fill(f"sqlite:///{source}")
    with sqlite3.connect(source) as connection:
        connection.execute("UPDATE messages SET token_count = 'many' WHERE seq = 1")
    connection.close()
    backup(f"sqlite:///{source}", tmp_path / "backup")
    with pytest.raises(errors.InvalidRows, match=r"nothing was restored.* agentstore copy"):
        restore(tmp_path / "backup", empty_url)
    assert migrations.revision_of(empty_url) is None
    aside = tmp_path / "aside.jsonl"
    copied = copying.copy(f"sqlite:///{tmp_path / 'backup'}", empty_url, quarantine=aside)
    assert copied.equal
    assert copied.set_aside == len(aside.read_text().splitlines()) > 0


def test_a_copy_that_lacks_a_row_is_noticed(engine_url, tmp_path, monkeypatch):
    fill(engine_url)
    from agentstore.engines.sqlite.dialect import SQLiteFiles

    whole = SQLiteFiles.finish

    def lossy(self, file):
        whole(self, file)
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE users SET name = 'Bob'")
        connection.close()

    if on_server(engine_url):
        return  # what became of its rows is compared while they are copied, below
    monkeypatch.setattr(SQLiteFiles, "finish", lossy)
    with pytest.raises(errors.BackupDiffers, match="users"):
        backup(engine_url, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_copy_of_a_server_that_lacks_a_row_is_noticed(engine_url, tmp_path):
    if not on_server(engine_url):
        return  # a file's pages are compared above
    fill(engine_url)

    def lose(step):
        if step.step == "verifying":
            (file,) = tmp_path.glob(".backup*/file")
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("DELETE FROM api_keys")
                connection.commit()

    with pytest.raises(errors.BackupDiffers, match="api_keys"):
        backup(engine_url, tmp_path / "backup", progress=lose)
    assert list(tmp_path.iterdir()) == []
