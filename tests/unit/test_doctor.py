"""What the doctor finds, what it leaves alone, and what it repairs."""

import os
import re
import shlex
import shutil
import sqlite3
import stat
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from agentstore import Store, doctor, migrations
from agentstore.database import dialect_for, parse_url
from agentstore.doctor import examine, repair
from agentstore.engines.postgresql.checks import findings_about
from agentstore.engines.sqlite.checks import has_wal_reset_bug
from agentstore.errors import DatabaseUnreachable, SchemaError
from agentstore.moving.backup import backup
from agentstore.records.upkeep import Severity, exit_code
from tests.conftest import FULL, VERSIONS

ROOT = Path(__file__).parents[2]
OF_THE_MACHINE = {"engine", "permissions", "disk", "settings", "connections"}
"""Checks whose findings depend on where the tests run."""


def run_sql(url, *statements):
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def found_in(url, **options):
    """Give what is wrong, without what belongs to the machine and not to the database."""
    return [
        finding
        for finding in examine(url, **options)
        if finding.check not in OF_THE_MACHINE and finding.severity is not Severity.INFO
    ]


def checks(findings):
    return {(finding.severity, finding.check) for finding in findings}


def live_in(url):
    """Do nearly everything that agentstore can do."""
    with Store(url) as store:
        user = store.users.create("Alice", quota_total=1000)
        session = store.sessions.create(user.id)
        for turn in range(4):
            store.messages.save(session.id, "user", f"question {turn}", token_count=3, cost="0.1")
            store.messages.save(
                session.id,
                "assistant",
                "answer",
                token_count=5,
                marks=["m"],
                tool_calls=[{"id": "c", "function": {"name": "t", "arguments": "{}"}}, {"x": 1}],
            )
        store.branches.create(session.id, from_turn=3, name="other")
        store.messages.save(session.id, "user", "elsewhere", token_count=7)
        store.messages.pop(session.id)
        store.branches.switch(session.id, "main")
        store.messages.pop(session.id)
        draft = store.messages.begin(session.id, "assistant")
        store.messages.append(draft.id, "half")
        message = store.messages.save(session.id, "user", "with a file")
        store.attachments.add(message.id, b"bytes", "text/plain")
        store.users.reserve_quota(user.id, 50)
        store.checkpoints.put("thread", {"a": [1, 2]}, "one")
        store.checkpoints.put("thread", {"a": [1, 2, 3]}, "two", "one")
        cleared = store.sessions.create(user.id)
        store.messages.save(cleared.id, "user", "x", token_count=1)
        store.messages.clear(cleared.id)
        store.search.refresh()


@pytest.fixture(scope="module")
def pattern(servers, tmp_path_factory, sqlite_template):
    """Give the database of an engine that was lived in, to make copies of."""
    made = {}

    def of(version):
        if version not in made:
            path = tmp_path_factory.mktemp("lived_in") / "test.db"
            shutil.copy(sqlite_template, path)
            made[version] = servers.new_database(version) if version else f"sqlite:///{path}"
            live_in(made[version])
        return make_url(made[version]).database

    yield of
    for version, url in made.items():
        if version:
            servers.drop(version, url)


ENGINES = [("sqlite", ""), *(("postgresql", version) for version in VERSIONS)]


@pytest.fixture(params=ENGINES, ids=["-".join(filter(None, engine)) for engine in ENGINES])
def lived_in(request, pattern, servers, tmp_path):
    """A database in which nearly everything was done that agentstore can do."""
    _, version = request.param
    if not version:
        path = shutil.copy(pattern(""), tmp_path / "test.db")
        yield f"sqlite:///{path}"
        return
    server, base = servers.server(version)
    name = f"{pattern(version)}_{next(COPIES)}"
    url = servers._create(server, base, name, pattern(version))
    yield url
    servers.drop(version, url)


COPIES = count()


def test_nothing_is_wrong_with_a_database_that_was_only_used(lived_in):
    assert found_in(lived_in) == []
    assert found_in(lived_in, deep=True) == []


def test_every_report_tells_the_engine_s_version(lived_in):
    assert any(finding.check == "engine" for finding in examine(lived_in))


WRONGS = {
    "a counter of messages": ("UPDATE sessions SET message_count = message_count + 1", "counters"),
    "tokens": ("UPDATE sessions SET total_tokens = total_tokens + 1", "counters"),
    "cost": ("UPDATE sessions SET total_cost = total_cost + 1", "counters"),
    "the last number": ("UPDATE sessions SET last_seq = 0", "counters"),
    "what a branch counts": ("UPDATE branches SET messages = messages + 1", "counters"),
    "the turns of a branch": ("UPDATE branches SET turns = turns + 1", "counters"),
    "what the active branch counts": ("UPDATE sessions SET branch_messages = branch_messages + 1",
        "counters"),
    "the turns of the active branch": ("UPDATE sessions SET branch_turns = branch_turns + 1",
        "counters"),
    "a user's reservations": ("UPDATE users SET quota_reserved = 7", "counters"),
    "an index": ("DROP INDEX ix_tool_logs_session_id_created_at_pk", "indexes"),
    "a unique index": ("DROP INDEX uq_checkpoints_id", "indexes"),
    "the state of the search index": ("DELETE FROM search_state", "search"),
    "a version of the segmentation": ("UPDATE search_state SET segmentation = 'x'", "search"),
}  # fmt: skip


@pytest.mark.long(
    but=[
        "sqlite-*", "postgresql-*-a counter of messages", "postgresql-*-what a branch counts",
        "postgresql-*-the turns of the active branch", "postgresql-*-a user's reservations",
        "postgresql-*-a unique index", "postgresql-*-the state of the search index",
    ]
)  # fmt: skip
@pytest.mark.parametrize(("wrong", "check"), WRONGS.values(), ids=WRONGS.keys())
def test_what_is_safe_to_mend_is_found_and_mended(lived_in, wrong, check):
    run_sql(lived_in, wrong)
    found = found_in(lived_in)
    assert {finding.check for finding in found} == {check}
    assert all(finding.fix for finding in found)
    assert repair(lived_in)
    assert found_in(lived_in, deep=True) == []
    assert repair(lived_in) == []


def test_many_wrong_counters_are_mended_some_at_a_time(engine_url, monkeypatch):
    monkeypatch.setattr("agentstore.repositories.upkeep.consistency._MOST", 2)
    with Store(engine_url) as store:
        for _ in range(5):
            store.sessions.create()
    run_sql(engine_url, "UPDATE sessions SET message_count = 9")
    (finding,) = found_in(engine_url, deep=True)
    assert "2 or more" in finding.what
    assert len(repair(engine_url, deep=True)) == 3
    assert found_in(engine_url, deep=True) == []


def test_reservations_that_lapsed_do_not_count(engine_url):
    now = [datetime(2026, 3, 29, 12, tzinfo=UTC)]
    with Store(engine_url, clock=lambda: now[0]) as store:
        user = store.users.create("Alice", quota_total=41)
        store.users.reserve_quota(user.id, 40)
        now[0] += timedelta(hours=1)
        store.users.reserve_quota(user.id, 2)
    assert found_in(engine_url) == []


def test_a_missing_trigger_of_the_search_index_is_found_and_mended(lived_in):
    on = " ON messages" if lived_in.startswith("postgresql") else ""
    run_sql(lived_in, f"DROP TRIGGER search_updated{on}")
    (finding,) = found_in(lived_in)
    assert (finding.check, finding.severity) == ("search", Severity.ERROR)
    assert "search_updated" in finding.what
    assert "agentstore reindex" in finding.fix
    repair(lived_in)
    assert found_in(lived_in) == []


def test_a_trigger_that_was_disabled_is_as_good_as_missing(lived_in):
    if not lived_in.startswith("postgresql"):
        return  # no trigger of SQLite's can be
    run_sql(lived_in, "ALTER TABLE messages DISABLE TRIGGER search_inserted")
    (finding,) = found_in(lived_in)
    assert "search_inserted is missing" in finding.what
    repair(lived_in)
    assert found_in(lived_in) == []


def test_a_trigger_or_a_rule_that_no_revision_made_is_named(lived_in):
    on_a_server = lived_in.startswith("postgresql")
    run_sql(
        lived_in,
        "CREATE TABLE own (n INTEGER)",
        "CREATE RULE own_one AS ON INSERT TO own DO INSTEAD NOTHING"
        if on_a_server
        else "CREATE TRIGGER own_one AFTER INSERT ON own BEGIN SELECT 1; END",
        """CREATE RULE "that's odd" AS ON INSERT TO messages DO INSTEAD NOTHING"""
        if on_a_server
        else """CREATE TRIGGER "that's odd" BEFORE INSERT ON messages
            BEGIN SELECT RAISE(IGNORE); END""",
    )
    (found,) = found_in(lived_in)
    assert (found.check, found.where, found.severity) == ("triggers", "messages", Severity.WARNING)
    assert re.match("agentstore did not create the (rule|trigger) \"?that's odd", found.what)
    (*_, dropping) = shlex.split(str(found.fix).partition(": ")[2])
    run_sql(lived_in, dropping)
    assert found_in(lived_in) == []


def test_a_missing_unique_index_is_worse_than_a_missing_one(lived_in):
    run_sql(lived_in, "DROP INDEX uq_checkpoints_id", "DROP INDEX ix_tasks_claim")
    found = found_in(lived_in)
    assert [finding.severity for finding in found] == [Severity.ERROR, Severity.WARNING]
    assert exit_code(found) == 4
    assert exit_code(found[1:]) == 3


DEEP = {
    "a copy that says another session": (
        "UPDATE message_marks SET session = session + 1",
        "orphans",
    ),
    "a blob of nobody": ("DELETE FROM attachments", "orphans"),
    "an index of tool calls": ("UPDATE message_tool_calls SET name = 'other'", "tool_calls"),
    "a tool call that is not indexed": ("DELETE FROM message_tool_calls", "tool_calls"),
}


@pytest.mark.long(but=["sqlite-*", "postgresql-*-a copy *", "postgresql-*-a tool call *"])
@pytest.mark.parametrize(("wrong", "check"), DEEP.values(), ids=DEEP.keys())
def test_what_takes_whole_tables_is_found_when_asked_for(lived_in, wrong, check):
    run_sql(lived_in, wrong)
    assert found_in(lived_in) == []
    assert {finding.check for finding in found_in(lived_in, deep=True)} == {check}


def test_no_more_wrong_tool_calls_are_gathered_than_a_check_tells_of(lived_in, monkeypatch):
    monkeypatch.setattr("agentstore.repositories.upkeep.consistency._MOST", 2)
    monkeypatch.setattr("agentstore.repositories.upkeep.consistency._READ", 1)
    monkeypatch.setattr("agentstore.repositories.upkeep.consistency.listed", ", ".join)
    run_sql(lived_in, "DELETE FROM message_tool_calls")
    (finding,) = found_in(lived_in, deep=True)
    assert "2 or more" in finding.what
    assert finding.where.count(",") == 1


def test_only_a_deep_look_reads_the_counters_of_all_sessions(engine_url, monkeypatch):
    monkeypatch.setattr("agentstore.repositories.upkeep.consistency.RECENT", 2)
    with Store(engine_url) as store:
        old = store.sessions.create(id="old")
        for _ in range(2):
            store.sessions.create()
    run_sql(engine_url, "UPDATE sessions SET message_count = 9 WHERE id = 'old'")
    assert found_in(engine_url) == []
    (finding,) = found_in(engine_url, deep=True)
    assert old.id in finding.where


def test_a_schema_that_is_not_of_this_version_is_one_finding_with_the_command(empty_url):
    def revision(url):
        return [finding for finding in found_in(url) if finding.check != "pragmas"]

    if empty_url.startswith("sqlite"):
        run_sql(empty_url, "CREATE TABLE invoices (id integer)")
    (finding,) = revision(empty_url)
    assert (finding.check, finding.severity) == ("revision", Severity.ERROR)
    assert "agentstore upgrade" in finding.fix
    migrations.upgrade(empty_url, "0100")
    run_sql(empty_url, "UPDATE alembic_version SET version_num = '0020'")
    (finding,) = revision(empty_url)
    assert "0020" in finding.what
    with pytest.raises(SchemaError):
        repair(empty_url)
    migrations.upgrade(empty_url)
    assert revision(empty_url) == []
    run_sql(empty_url, "UPDATE alembic_version SET version_num = '9999'")
    (finding,) = revision(empty_url)
    assert "9999" in finding.what
    assert "pip install" in finding.fix


def test_a_missing_table_and_a_missing_column_are_findings_and_no_traceback(lived_in):
    run_sql(lived_in, "DROP TABLE tool_logs", "ALTER TABLE messages DROP COLUMN name")
    found = found_in(lived_in, deep=True)
    said = {(finding.check, finding.where) for finding in found}
    assert {("schema", "tool_logs"), ("schema", "messages")} <= said
    assert all(finding.severity is Severity.ERROR for finding in found)


def test_looking_writes_nothing(lived_in):
    if lived_in.startswith("postgresql"):
        return  # the server itself refuses: the connection is read-only
    path = Path(lived_in.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert found_in(lived_in, deep=True) == []
    (told,) = [finding for finding in examine(lived_in) if finding.check == "pragmas"]
    assert (told.severity, told.where) == (Severity.INFO, "journal_mode")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_backup_is_no_warning_and_a_file_in_use_without_a_wal_is_one(lived_in, tmp_path):
    file = tmp_path / "backup.db"
    backup(lived_in, file)
    assert found_in(f"sqlite:///{file}", deep=True) == []
    assert "journal_mode" in {each.where for each in examine(f"sqlite:///{file}")}
    restored = tmp_path / "restored.db"
    shutil.copy(file, restored)
    with Store(f"sqlite:///{restored}") as store:
        store.sessions.create()
    assert "journal_mode" not in {each.where for each in examine(f"sqlite:///{restored}")}
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = version_num")
        found = examine(f"sqlite:///{file}")
        connection.rollback()
    connection.close()
    assert (Severity.WARNING, "pragmas") in checks(found)


# --- Files --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(sqlite_template, tmp_path_factory):
    path = tmp_path_factory.mktemp("filled") / "test.db"
    shutil.copy(sqlite_template, path)
    with Store(f"sqlite:///{path}") as store:
        session = store.sessions.create()
        store.messages.save_many(session.id, [{"role": "user", "content": "x" * 900}] * 200)
        store.search.refresh()
    return path


@pytest.fixture
def file(filled, tmp_path):
    return Path(shutil.copy(filled, tmp_path / "test.db"))


def everything(path, *, deep=True):
    return examine(f"sqlite:///{path}", deep=deep)


def test_a_file_that_is_cut_off_gives_findings(file):
    whole = file.read_bytes()
    for size in (len(whole) // 2, len(whole) - 4096, 4096, 1000, 100):
        file.write_bytes(whole[:size])
        found = everything(file)
        assert exit_code(found) == 4, size
        assert all(finding.what and finding.check for finding in found)


def test_garbage_in_any_page_gives_findings_or_is_in_none_that_is_used(file):
    whole = file.read_bytes()
    for page in range(0, len(whole) // 4096, 7 if FULL else 29):
        damaged = bytearray(whole)
        damaged[page * 4096 : (page + 1) * 4096] = os.urandom(4096)
        file.write_bytes(damaged)
        assert exit_code(everything(file)) == 4, page


def test_a_file_that_is_no_database_gives_findings(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"This is not a database. " * 400)
    found = everything(path)
    assert (Severity.ERROR, "open") in checks(found)
    path.write_bytes(b"")
    assert (Severity.ERROR, "revision") in checks(everything(path))


def test_a_file_that_is_not_there_is_an_error_of_the_command(tmp_path):
    with pytest.raises(DatabaseUnreachable):
        examine(f"sqlite:///{tmp_path / 'none.db'}")


def test_rows_that_refer_to_nothing_are_found(file):
    connection = sqlite3.connect(file)
    connection.execute("DELETE FROM sessions")  # without foreign keys
    connection.commit()
    connection.close()
    found = everything(file)
    assert (Severity.ERROR, "orphans") in checks(found)
    assert any(finding.where == "branches" for finding in found)


def test_much_free_space_in_the_file_is_told(file, monkeypatch):
    monkeypatch.setattr("agentstore.engines.sqlite.checks._MUCH_FREE", 1000)
    assert not any(finding.check == "bloat" for finding in everything(file))
    with Store(f"sqlite:///{file}") as store:
        store.sessions.delete(store.sessions.list().items[0].id)
    (finding,) = [finding for finding in everything(file) if finding.check == "bloat"]
    assert "VACUUM" in finding.fix


def test_a_large_log_is_told(file, monkeypatch):
    monkeypatch.setattr("agentstore.engines.sqlite.checks._LARGE_LOG", 1000)
    with Store(f"sqlite:///{file}") as store:
        store.sessions.create()
        assert any(finding.check == "log" for finding in everything(file))


@pytest.mark.parametrize(
    ("mode", "severity"),
    [(0o600, None), (0o640, None), (0o644, Severity.WARNING), (0o666, Severity.ERROR)],
)
def test_files_that_everybody_may_read_or_write_are_told(file, monkeypatch, mode, severity):
    for each in (file, companion := file.with_name(f"{file.name}-wal")):
        each.touch()
        each.chmod(mode)
    real = os.stat

    def open_folders(self, **options):
        found = real(self, **options)
        if stat.S_ISDIR(found.st_mode):
            return os.stat_result((found.st_mode | stat.S_IXOTH, *found[1:]))
        return found

    monkeypatch.setattr("pathlib.Path.stat", open_folders)
    found = [f for f in everything(file, deep=False) if f.check == "permissions"]
    assert [f.severity for f in found] == ([] if severity is None else [severity])
    assert all(str(companion) in f.fix for f in found)


def test_a_file_in_a_folder_that_nobody_else_may_enter_is_private(file):
    file.chmod(0o644)
    file.parent.chmod(0o700)
    found = everything(file, deep=False)
    assert not any(finding.check == "permissions" for finding in found)


@pytest.mark.parametrize(
    ("free", "severity"),
    [(10**12, None), (10**9, Severity.WARNING), (10**7, Severity.ERROR)],
)
def test_a_disk_that_is_nearly_full_is_told(file, monkeypatch, free, severity):
    usage = type(shutil.disk_usage("/"))(2 * 10**12, 0, free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    found = [f.severity for f in everything(file, deep=False) if f.check == "disk"]
    assert found == ([] if severity is None else [severity])


# --- Versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "has_it"),
    [
        ((3, 6, 23), False), ((3, 7, 0), True), ((3, 40, 1), True), ((3, 44, 5), True),
        ((3, 44, 6), False), ((3, 45, 0), True), ((3, 50, 6), True), ((3, 50, 7), False),
        ((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False),
    ],
)  # fmt: skip
def test_versions_with_the_bug_of_the_wal_are_known(version, has_it):
    assert has_wal_reset_bug(version) is has_it


@pytest.mark.parametrize(
    ("version", "day", "worst", "word"),
    [
        ((18, 4), date(2026, 11, 22), Severity.INFO, "18.4"),
        ((18, 3), date(2026, 11, 22), Severity.WARNING, "CVE-2026-6473"),
        ((15, 17), date(2026, 11, 22), Severity.WARNING, "CVE-2026-6473"),
        ((14, 3), date(2022, 6, 1), Severity.ERROR, "CONCURRENTLY"),
        ((14, 23), date(2026, 11, 12), Severity.INFO, "14.23"),
        ((14, 23), date(2026, 11, 13), Severity.WARNING, "no more corrections"),
        ((12, 22), date(2026, 1, 1), Severity.WARNING, "no more corrections"),
        ((19, 0), date(2026, 11, 22), Severity.INFO, "19.0"),
    ],
)
def test_versions_of_the_server_are_judged_by_minor_release_and_day(version, day, worst, word):
    found = findings_about(*version, day)
    assert worst in {finding.severity for finding in found}
    assert any(word in finding.what for finding in found)
    if worst is Severity.INFO:
        assert len(found) == 1


def test_settings_that_risk_the_data_are_told_by_the_server(servers):
    url = servers.new_database(VERSIONS[0])
    found = {finding.where: finding for finding in examine(url) if finding.check == "settings"}
    assert found["fsync"].severity is Severity.ERROR  # the tests' servers are run without it
    assert "ALTER SYSTEM" in found["fsync"].fix
    servers.drop(VERSIONS[0], url)


def test_an_index_that_is_invalid_is_told(servers):
    url = servers.new_database(VERSIONS[0])
    run_sql(
        url,
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'ix_tool_logs_session_id_created_at_pk'::regclass",
    )
    (finding,) = [f for f in found_in(url) if "invalid" in f.what]
    assert "REINDEX INDEX CONCURRENTLY ix_tool_logs_session_id_created_at_pk" in finding.fix
    servers.drop(VERSIONS[0], url)


def test_the_page_about_the_doctor_lists_its_checks():
    engines = [dialect_for(parse_url(url)) for url in ("sqlite:///a.db", "postgresql://h/d")]
    named = {one.name for engine in engines for one in engine.checks.examinations}
    named |= {one.name for one in doctor._EXAMINATIONS} | {"revision", "visibility"}
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page[page.index("| check | looks at | when |") :].split("\n\n")[0]
    cells = (row.split("|")[1] for row in table.splitlines()[2:])
    told = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert told - {"indexes", "constraints"} == named  # these are what `schema` finds, too
