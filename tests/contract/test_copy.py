"""Everything arrives in another database, or nothing seems to: copies between all engines."""

import hashlib
import json
import os
import sqlite3
import stat
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text

from agentstore import Store, errors, migrations
from agentstore.engines.postgresql import row_security
from agentstore.engines.sqlite import dialect
from agentstore.engines.sqlite.dialect import SQLiteFiles
from agentstore.moving import copying
from agentstore.schema import PLAIN, tables
from tests.migrations.support import (
    as_stored,
    behind,
    fill,
    names_on,
    revision_of,
    rows_of,
    run,
    run_sql,
)
from tests.programs.copies import (
    ENGINES,
    NAMED,
    copy,
    digests,
    driver_url,
    dump,
    each_engine,
    each_pair,
    each_plain_pair,
    filled,
    schema_of,
    schema_of_new,
    stop_at,
)

# --- Whole copies ----------------------------------------------------------------------------


@pytest.mark.long(but=["sqlite-postgresql-named", "postgresql-sqlite", "sqlite-sqlite-named"])
@each_pair
def test_all_rows_arrive_in_a_schema_like_a_new_one(pair, new):
    source_engine, target_engine, names = pair
    source = filled(new, source_engine, names)
    target = new(target_engine)
    report = copy(source, target, names)
    assert report.equal
    assert report.rows == sum(map(len, dump(source, names).values()))
    assert all(table.source_rows for table in report.tables)  # every table has been tried
    assert dump(target, names) == dump(source, names)
    assert schema_of(target, names_on(target, names)) == schema_of_new(new, target_engine, names)
    verified = copying.verify(
        source,
        target,
        source_names=names_on(source, names),
        target_names=names_on(target, names),
    )
    assert verified.equal
    assert digests(verified) == digests(report)


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_rows_that_set_every_column_arrive(pair, new):
    source_engine, target_engine, names = pair
    source, target = new(source_engine, head=True), new(target_engine, head=True)
    fill(source, names_on(source, names))
    assert copy(source, target, names).equal
    assert dump(target, names) == dump(source, names)


def test_there_and_back_again_gives_what_there_was(new):
    source = filled(new, "sqlite")
    server, back = new("postgresql", head=True), new("sqlite", head=True)
    there, here = copy(source, server), copy(server, back)
    assert digests(there) == digests(here)
    assert dump(back) == dump(source)


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_a_copy_is_written_to_and_searched_like_the_first(pair, new):
    source_engine, target_engine, names = pair
    source, target = filled(new, source_engine, names), new(target_engine, head=True)
    copy(source, target, names)
    before = rows_of(source, names_on(source, names))
    options = names_on(target, names)
    prefix = options.prefix
    with Store(target, schema=options.schema, table_prefix=prefix) as store:
        newest = store.sessions.list(limit=1).items[0]
        assert [hit.message.content for hit in store.messages.search("weather").items]
        store.search.reindex()
        found = [hit.message.content for hit in store.messages.search("天气", limit=50).items]
        assert "What is the weather, 1? 天气" in found
        saved = store.messages.save("the \x00 session", "user", "a new 词语")
        assert [hit.message.id for hit in store.messages.search("词语").items] == [saved.id]
        created = store.sessions.create(title="above all others")
        assert store.sessions.list(limit=1).items[0].id == created.id != newest.id
        assert store.users.create("after").id
    after = rows_of(target, options)

    def largest(rows: dict[str, Any], table: str, column: str) -> int:
        own = f"{prefix}{table}"
        return max(row[column] for row in rows[own])

    for table, column in (("messages", "pk"), ("users", "pk"), ("sessions", "activity")):
        assert largest(after, table, column) > largest(before, table, column)
    earlier = (row for row in before[f"{prefix}messages"] if row["session"] == saved.session_id)
    assert saved.seq > max(row["seq"] for row in earlier)


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_a_row_number_never_comes_again_though_its_row_is_gone(pair, new):
    """Cursors of lists and the search index rely on it; the newest message was deleted."""
    source_engine, target_engine, names = pair
    source, target = filled(new, source_engine, names), new(target_engine, head=True)
    own = names_on(source, names)
    with Store(source, schema=own.schema, table_prefix=own.prefix) as store:
        session = store.sessions.create().id
        store.messages.save_many(session, [{"role": "user", "content": "x"}] * 100)
        table = tables(own).messages
        store.sessions.delete(session)
    used = max(row["pk"] for row in rows_of(source, own)[table.name]) + 100
    copy(source, target, names)
    theirs = names_on(target, names)
    with Store(target, schema=theirs.schema, table_prefix=theirs.prefix) as store:
        store.messages.save("the \x00 session", "user", "next")
    found = max(row["pk"] for row in rows_of(target, theirs)[tables(theirs).messages.name])
    assert found > used


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_an_empty_target_at_head_is_as_good_as_none(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    assert copy(source, target).equal
    assert dump(target) == dump(source)


def test_tables_go_to_other_names(new):
    source, target = filled(new, "postgresql"), new("postgresql")
    report = copying.copy(source, target, target_names=NAMED)
    assert report.equal
    assert dump(target, NAMED) == dump(source)


def test_a_database_without_rows_is_copied_too(new):
    source, target = new("sqlite", head=True), new("postgresql", head=True)
    report = copy(source, target)
    assert report.equal
    assert report.rows == 0
    with Store(target) as store:
        assert store.messages.save(store.sessions.create().id, "user", "first").seq == 1


def test_progress_tells_all_steps_of_all_tables(new, monkeypatch):
    monkeypatch.setattr(copying, "_TOGETHER_SECONDS", 60)  # however busy the machine is
    seen: list[copying.Progress] = []
    copy(filled(new, "sqlite"), new("sqlite", head=True), progress=seen.append)
    names = {table.name for table in tables(PLAIN).metadata.sorted_tables}
    for step in ("reading", "loading", "verifying"):
        subjects = {each.subject for each in seen if each.step == step}
        assert subjects == names
    assert {each.step for each in seen} == {"reading", "loading", "indexing", "verifying"}
    together = [each.done for each in seen if each.step == "indexing"]
    assert together == [0, 0]  # what is quick is brought back in one transaction, and the last


def test_statistics_are_fresh_after_a_copy_into_a_server(new):
    target = new("postgresql", head=True)
    copy(filled(new, "sqlite"), target)
    query = "SELECT reltuples FROM pg_class WHERE oid = 'messages'::regclass"
    with psycopg.connect(driver_url(target)) as server:
        assert server.execute(query).fetchall() == [(17,)]


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_what_a_copy_reads_is_one_state_though_others_write(pair, new):
    source_engine, target_engine, names = pair
    source, target = filled(new, source_engine, names), new(target_engine, head=True)
    before = dump(source, names)
    own = names_on(source, names)
    written: list[None] = []

    def write(progress: copying.Progress) -> None:
        if progress.step == "loading" and not written:
            written.append(None)
            with Store(source, schema=own.schema, table_prefix=own.prefix) as store:
                store.sessions.create(title="too late")
                store.messages.save("the \x00 session", "user", "too late")

    assert copy(source, target, names, progress=write).equal
    assert written
    assert dump(target, names) == before != dump(source, names)


# --- What is refused -------------------------------------------------------------------------


def state(path: Path) -> tuple[bytes, int]:
    return hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns


def path_of(url: str) -> Path:
    return Path(str(make_url(url).database))


@pytest.mark.long(but=["sqlite-*"])
@pytest.mark.parametrize("upgrade", [False, True])
@each_engine
def test_the_source_is_only_read(new, engine, upgrade, monkeypatch):
    source = filled(new, "sqlite")
    path = path_of(source)
    path.chmod(stat.S_IREAD)
    before = state(path)
    report = copy(source, new(engine, head=True), upgrade=upgrade)
    assert report.equal
    assert state(path) == before


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_a_target_with_rows_is_refused_and_stays_as_it_is(pair, new):
    source, target = filled(new, pair[0]), new(pair[1], head=True)
    with Store(target) as store:
        store.users.create("first here")
    before = dump(target), as_stored(target)
    for resume, says in ((False, "empty database: nothing"), (True, "nothing to resume.*--verify")):
        with pytest.raises(errors.TargetNotEmpty, match=f"users.*{says}") as caught:
            copy(source, target, resume=resume)
        assert caught.value.table == "users"
    assert (dump(target), as_stored(target)) == before


def aliases(path: Path, tmp_path: Path) -> list[str]:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    return [
        str(path),
        str(link),
        os.path.relpath(path),
        f"{path.parent}/../{path.parent.name}/{path.name}",
    ]


def test_a_copy_of_a_database_into_itself_is_refused(new, tmp_path):
    source = filled(new, "sqlite")
    for path in aliases(path_of(source), tmp_path):
        with pytest.raises(errors.InvalidInput, match="same database"):
            copy(source, f"sqlite:///{path}")
    server = filled(new, "postgresql")
    for url in (server, server.replace("+psycopg", "")):
        with pytest.raises(errors.InvalidInput, match="same database"):
            copy(server, url)


def test_an_empty_database_is_not_copied_into_itself_either(new, tmp_path):
    """Nothing would stop it but this: it holds no rows."""
    source = new("sqlite", head=True)
    for path in aliases(path_of(source), tmp_path):
        with pytest.raises(errors.InvalidInput, match="same database"):
            copy(source, f"sqlite:///{path}")
    assert revision_of(source) == migrations.HEAD


@pytest.mark.long(but=["sqlite-postgresql", "postgresql-sqlite"])
@each_plain_pair
def test_what_stopped_is_not_gone_on_with_unasked_or_from_elsewhere(pair, new):
    source, target = filled(new, pair[0]), new(pair[1], head=True)
    stop_at(source, target, "loading", "messages")
    with pytest.raises(errors.CopyUnfinished, match="--resume"):
        copy(source, target)
    with pytest.raises(errors.CopyUnfinished):
        Store(target)
    with pytest.raises(errors.CopyUnfinished):
        migrations.upgrade(target)
    with pytest.raises(errors.InvalidInput, match="another source"):
        copy(filled(new, pair[0]), target, resume=True)
    report = copy(source, target, resume=True)
    assert report.equal
    assert report.resumed
    assert dump(target) == dump(source)


def journal_of(url: str) -> str:
    engine = create_engine(url)
    with engine.connect() as connection:
        kept = repr(connection.execute(text("SELECT * FROM agentstore_copy")).all())
    engine.dispose()
    return kept


def test_no_secret_of_the_source_s_url_is_kept_in_the_target(new):
    source, target = filled(new, "postgresql"), new("sqlite", head=True)
    secret = f"{source}{'&' if '?' in source else '?'}password=hunter2hunter2"
    stop_at(secret, target, "verifying", "users")
    kept = journal_of(target)
    assert "statements" in kept
    assert "hunter2" not in kept
    assert str(make_url(source).database) not in kept
    assert copy(source, target, resume=True).equal  # it is the same database without it


@pytest.mark.long(but=["sqlite"])
@each_engine
def test_a_source_is_the_same_by_any_path_and_no_namesake_is(new, engine, tmp_path, monkeypatch):
    target = new(engine, head=True)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        path_of(filled(new, "sqlite")).rename(tmp_path / folder / "agent.db")
    monkeypatch.chdir(tmp_path / "one")
    stop_at("sqlite:///agent.db", target, "loading", "users")
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(errors.InvalidInput, match="another source"):
        copy("sqlite:///agent.db", target, resume=True)
    assert copy("sqlite:///../one/agent.db", target, resume=True).equal


def test_an_error_of_the_target_is_explained_by_the_target_s_engine(new):
    """Also where the source, of the other engine, is being read at the time."""
    source, target = filled(new, "sqlite"), new("postgresql", head=True)
    stop_at(source, target, "verifying", "users")
    database = make_url(target).database
    run_sql(target, f"ALTER DATABASE {database} SET lock_timeout = '100ms'")
    with psycopg.connect(driver_url(target)) as other:
        other.execute("LOCK TABLE messages")
        with pytest.raises(errors.CopyInterrupted) as caught:
            copy(source, target, resume=True)
    assert isinstance(caught.value.__cause__, errors.DatabaseBusy)
    assert copy(source, target, resume=True).equal


def test_a_source_that_is_none_is_refused_and_no_target_appears(new, tmp_path):
    target = new("sqlite")
    nothing = tmp_path / "nothing.db"
    text = tmp_path / "text.db"
    text.write_text("not a database at all" * 100)
    other = tmp_path / "other.db"
    run_sql(f"sqlite:///{other}", "CREATE TABLE customers (pk INTEGER)")
    namesake = tmp_path / "namesake.db"
    run_sql(f"sqlite:///{namesake}", "CREATE TABLE users (pk INTEGER)")
    for path, error in (
        (nothing, errors.DatabaseUnreachable),
        (text, errors.NotADatabase),
        (other, errors.SchemaMissing),
        (namesake, errors.TableNameConflict),
    ):
        for upgrade in (False, True):
            with pytest.raises(error):
                copy(f"sqlite:///{path}", target, upgrade=upgrade)
    assert not nothing.exists()
    assert not path_of(target).exists()
    with pytest.raises(errors.SchemaMissing):
        copy(new("postgresql"), target)


def test_a_source_behind_head_is_refused_or_upgraded_in_a_copy(new):
    source, target = new("sqlite"), new("postgresql")
    revision = behind(source)
    path = path_of(source)
    before = state(path)
    with pytest.raises(errors.SchemaOutdated, match="agentstore upgrade --url sqlite"):
        copy(source, target)
    assert revision_of(target) is None
    assert copy(source, target, upgrade=True).equal
    assert revision_of(source) == revision
    assert state(path) == before
    with pytest.raises(errors.InvalidInput, match="follow"):
        copy(source, new("sqlite"), upgrade=True, follow=lambda: True)
    assert revision_of(source) == revision


def test_a_copy_that_is_upgraded_is_made_though_another_writes_at_every_step(new, monkeypatch):
    source = new("sqlite")
    behind(source)
    run_sql(source, "CREATE TABLE theirs (number INTEGER)")
    steps = []
    made = SQLiteFiles.copy

    def copied(self, connection, file, progress):
        def write(_done, total):
            steps.append(total)
            assert len(steps) <= total, "it began again"
            with closing(sqlite3.connect(path_of(source))) as other, other:
                other.execute("INSERT INTO theirs VALUES (1)")

        made(self, connection, file, write)

    monkeypatch.setattr(dialect, "_PAGES", 1)
    monkeypatch.setattr(SQLiteFiles, "copy", copied)
    assert copy(source, new("sqlite"), upgrade=True).equal
    assert len(steps) > 10


def test_a_server_behind_head_is_refused_and_cannot_be_upgraded_in_a_copy(new):
    source = new("postgresql")
    behind(source)
    with pytest.raises(errors.SchemaOutdated, match="agentstore upgrade"):
        copy(source, new("sqlite"))
    with pytest.raises(errors.InvalidInput, match="Run agentstore upgrade on the source"):
        copy(source, new("sqlite"), upgrade=True)


@each_engine
def test_a_source_ahead_is_refused(new, engine):
    source = new(engine, head=True)
    run_sql(source, "UPDATE alembic_version SET version_num = '9999'")
    for upgrade in (False, True):
        with pytest.raises(errors.SchemaFromFuture):
            copy(source, new("sqlite"), upgrade=upgrade)


@each_engine
def test_a_copy_that_is_not_finished_is_no_source(new, engine):
    source, half = filled(new, "sqlite"), new(engine, head=True)
    stop_at(source, half, "loading", "messages")
    with pytest.raises(errors.CopyUnfinished):
        copy(half, new("sqlite"))


def test_a_target_behind_head_is_upgraded(new):
    for engine in ENGINES:
        target = new(engine)
        behind(target)
        assert copy(filled(new, "sqlite"), target).equal
        assert revision_of(target) == migrations.HEAD


def test_memory_is_no_target_and_no_source(new):
    source = filled(new, "sqlite")
    with pytest.raises(errors.InvalidInput, match="memory"):
        copy(source, "sqlite://")
    with pytest.raises(errors.AgentStoreError):
        copy("sqlite://", new("sqlite"))


def test_a_folder_that_is_not_there_is_said_to_be(new, tmp_path):
    with pytest.raises(errors.DatabaseUnreachable, match="folder"):
        copy(filled(new, "sqlite"), f"sqlite:///{tmp_path}/nowhere/target.db")


def test_no_password_is_shown_and_nothing_begun_where_it_is_wrong(new, servers):
    source = filled(new, "sqlite")
    secret = "hunter2" * 2
    wrong = make_url(new("postgresql")).set(username="nobody_at_all", password=secret)
    for one, other in ((source, wrong), (wrong, new("sqlite"))):
        with pytest.raises(errors.DatabaseError) as caught:
            copying.copy(one, other)
        assert "hunter2" not in f"{caught.value}{caught.value!r}{caught.value.__cause__}"


def test_a_role_that_may_not_create_is_told_so(new, request):
    source, target = filled(new, "sqlite"), new("postgresql")
    role = f"guest_{uuid.uuid4().hex}"
    with psycopg.connect(driver_url(target), autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
        server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        guest = make_url(target).set(username=role)
        with pytest.raises(errors.DatabaseError, match=r"permission|denied|rights"):
            copying.copy(source, guest)
        assert as_stored(target) == []
    finally:
        with psycopg.connect(driver_url(target), autocommit=True) as server:
            server.execute(f"DROP OWNED BY {role}".encode())
            server.execute(f"DROP ROLE {role}".encode())


def test_a_role_that_sees_a_part_is_no_reader_of_a_copy(new):
    """It would have copied nothing, found both sides equal, and said that all is well."""
    source = filled(new, "postgresql")
    role = f"scoped_{uuid.uuid4().hex}"
    with psycopg.connect(driver_url(source), autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
        for statement in row_security.grants(PLAIN, role):
            server.execute(statement.encode())
    try:
        scoped = make_url(source).set(username=role)
        target = new("sqlite")
        with pytest.raises(errors.DatabaseError, match="cannot see all rows"):
            copying.copy(scoped, target)
        with pytest.raises(errors.DatabaseError, match="cannot see all rows"):
            copying.verify(scoped, source)
        assert not path_of(target).exists()
    finally:
        with psycopg.connect(driver_url(source), autocommit=True) as server:
            server.execute(f"DROP OWNED BY {role}".encode())
            server.execute(f"DROP ROLE {role}".encode())


def test_an_owner_whose_policies_bind_himself_can_copy_and_go_on(new):
    """COPY is refused where row-level security is forced: it is set aside, and comes back."""
    source, target = filled(new, "sqlite"), new("postgresql")
    role = f"owner_{uuid.uuid4().hex}"
    with psycopg.connect(driver_url(target), autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN".encode())
        server.execute(f"GRANT CREATE ON SCHEMA public TO {role}".encode())
    own = make_url(target).set(username=role).render_as_string(hide_password=False)
    try:
        migrations.upgrade(own)
        with psycopg.connect(driver_url(target), autocommit=True) as server:
            server.execute("ALTER TABLE messages ENABLE ROW LEVEL SECURITY")
            server.execute("ALTER TABLE messages FORCE ROW LEVEL SECURITY")
            server.execute("CREATE POLICY all_rows ON messages USING (true)")
        before = schema_of(target, PLAIN)
        stop_at(source, own, "verifying", "users")
        with Store(source) as store:
            store.messages.save("the \x00 session", "user", "meanwhile")
        assert copy(source, own, resume=True).equal
        assert schema_of(target, PLAIN) == before
    finally:
        with psycopg.connect(driver_url(target), autocommit=True) as server:
            server.execute(f"DROP OWNED BY {role} CASCADE".encode())
            server.execute(f"DROP ROLE {role}".encode())


def test_two_sides_that_differ_are_found_to(new):
    source, target = filled(new, "sqlite"), new("sqlite", head=True)
    copy(source, target)
    run_sql(target, "UPDATE messages SET content = content || ' '")
    report = copying.verify(source, target)
    assert not report.equal
    assert [table.name for table in report.tables if not table.equal] == ["messages"]


@each_engine
def test_a_row_that_gets_lost_on_the_way_is_noticed(new, engine):
    source, target = filled(new, "sqlite"), new(engine, head=True)

    def lose(progress: copying.Progress) -> None:
        if (progress.step, progress.subject) == ("verifying", "blobs"):
            run_sql(target, "DELETE FROM message_marks")

    with pytest.raises(errors.CopyDiffers) as caught:
        copy(source, target, progress=lose)
    assert caught.value.tables == ("message_marks",)
    with pytest.raises(errors.CopyUnfinished):
        Store(target)
    assert copy(source, target, resume=True).equal  # which brings it again
    assert dump(target) == dump(source)


LARGE = """
PRAGMA foreign_keys = OFF;
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 150000)
INSERT INTO messages (id, session, branch, seq, turn, role, created_at, content)
SELECT randomblob(16), pk, 0, 1000 + n, 1, 'user', created_at, hex(randomblob(150))
FROM numbers, sessions WHERE sessions.pk = 2;
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20)
INSERT INTO messages (id, session, branch, seq, turn, role, created_at, content)
SELECT randomblob(16), pk, 0, 500000 + n, 1, 'user', created_at, hex(randomblob(1500000))
FROM numbers, sessions WHERE sessions.pk = 2;
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10)
INSERT INTO blobs (digest, size, data, created_at)
SELECT 'blob' || n, 5000000, randomblob(5000000), 1767225600000000 FROM numbers;
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_large_database_is_copied_in_little_memory_there_and_back(new):
    """175 MB, in many small rows and some of megabytes, each way in a process of its own."""
    source = filled(new, "sqlite")
    run_sql(source, LARGE)
    assert path_of(source).stat().st_size > 170_000_000
    server, back = new("postgresql"), new("sqlite")
    for here, there in ((source, server), (server, back), (source, new("sqlite"))):
        done = run_copy(here, there)
        assert done["equal"]
        print(f"{here.partition(':')[0]} to {there.partition(':')[0]}: {done['peak']:,} kB")
        assert done["peak"] <= 150 * 1024
        path = path_of(there)
        if there.startswith("sqlite") and there != back:
            path.unlink()
    assert copying.verify(source, back).equal


def run_copy(source: str, target: str) -> dict[str, Any]:
    """Copy in a process of its own; give the last that it said."""
    names = [None, ""]
    order = {
        "do": "copy",
        "source": source,
        "target": target,
        "source_names": names,
        "target_names": names,
    }
    done = run("-m", "tests.programs.copying", json.dumps(order)).well()
    answer: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return answer
