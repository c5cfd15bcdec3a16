"""A row that cannot be read is named, by table, key and column, and nothing of it is shown."""

import asyncio
import logging
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import make_url

from agentstore import AsyncStore, Store, doctor
from agentstore.cli import main
from agentstore.engines.base.moving import Kind, shapes
from agentstore.errors import AgentStoreError, DatabaseCorrupt, InvalidRow, SchemaDamaged
from agentstore.schema import tables
from tests.conftest import in_the_process
from tests.contract.scoped_calls import CALLS, WHOLE, filled
from tests.contract.test_scoped import furnish
from tests.drivers import FULL
from tests.programs.probes import connect

SECRET = "my diagnosis is 42"  # noqa: S105 - nobody's
_UTF8 = f"CAST(CAST('{SECRET}' AS BLOB) || x'ff' AS TEXT)"
BAD = {
    "text": f"'{SECRET}'", "a fraction": "1.5", "bytes": f"CAST('{SECRET}' AS BLOB)",
    "text that is no UTF-8": _UTF8, "broken JSON": f"'{{\"{SECRET}\":'", "a number as JSON": "'7'",
    "NULL": "NULL",
}  # fmt: skip
SUITS = {
    Kind.TEXT: ("bytes", "text that is no UTF-8"),
    Kind.ID: ("text", "bytes", "text that is no UTF-8"),
    Kind.JSON: ("text", "bytes", "text that is no UTF-8", "broken JSON"),
    Kind.INSTANT: ("text", "a fraction", "bytes", "text that is no UTF-8"),
    Kind.WHOLE: ("text", "a fraction", "bytes", "text that is no UTF-8"),
    Kind.FLAG: ("text", "a fraction", "bytes", "text that is no UTF-8"),
    Kind.REAL: ("text", "bytes"),
    Kind.BYTES: ("text",),
}
COLUMNS = {
    shape.name: [(column, kind) for column, kind in shape.columns if column != "pk"]
    for shape in shapes(tables())
}
REQUIRED = {
    shape.name: {column.name for column in shape.table.c if not column.nullable}
    for shape in shapes(tables())
}
OF_VALUES = ("checkpoints", "checkpoint_values")
WORDS = ("role", "status", "kind", "encoding")


def spoil(url: str, *statements: str) -> None:
    """Do to a file what no store does."""
    file = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    file.execute("PRAGMA foreign_keys = OFF")
    file.execute("PRAGMA ignore_check_constraints = ON")
    try:
        for statement in statements:
            file.execute(statement)
    finally:
        file.close()


def allow_nulls(url: str) -> None:
    """Rewrite a file's schema by hand, so that every column may be NULL."""
    spoil(
        url,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL,', ',') WHERE type = 'table'",
    )


def suiting(table: str, column: str, kind: Kind) -> tuple[str, ...]:
    """Give what can be wrong with a column."""
    words = (
        ("text",)
        if kind is Kind.TEXT and column in WORDS and (table, column) != ("tasks", "kind")
        else ()
    )
    return SUITS[kind] + words + (("NULL",) if column in REQUIRED[table] else ())


def shown(error: BaseException) -> str:
    """Give all that a log would have of an error."""
    return "".join([*traceback.format_exception(error), repr(error), repr(vars(error))])


def readers(store: Any) -> list[tuple[str, Any, Any]]:
    ids = readers.ids
    found = []
    for method, calls in (CALLS | WHOLE).items():
        repository, _, name = method.partition(".")
        call = getattr(getattr(store, repository), name)
        operation = getattr(call, "operation", None)
        if operation is not None and operation.mode.name in ("READ", "SNAPSHOT"):
            found += [(method, call, filled(each, ids, ids)) for each in calls]
    return found


def outcomes(calls: list[tuple[str, Any, Any]]) -> Iterator[tuple[str, AgentStoreError]]:
    """Give what calls raise; whatever else than ours they raise is raised."""
    for method, call, arguments in calls:
        try:
            call(**arguments)
        except AgentStoreError as error:
            yield method, error


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('furnished') / 'a.db'}"
    with Store(url) as store:
        readers.ids = furnish(store, "ada")
    return url


@pytest.fixture
def file(furnished, tmp_path) -> str:
    with closing(sqlite3.connect(str(make_url(furnished).database))) as whole, whole:
        copy = sqlite3.connect(tmp_path / "b.db")
        whole.backup(copy)
        copy.close()
    return f"sqlite:///{tmp_path / 'b.db'}"


@pytest.mark.long(but=["messages", "users"])
@pytest.mark.parametrize("table", COLUMNS)
def test_whatever_is_wrong_with_a_value_readers_pass_it_or_name_the_row(file, furnished, table):
    named = 0
    allow_nulls(file)
    with Store(file) as store:
        calls = readers(store)
        for number, (column, kind) in enumerate(COLUMNS[table]):
            suits = suiting(table, column, kind)
            several = suits if FULL else [suits[number % len(suits)]]
            for bad in several:
                keep = f"CREATE TABLE kept AS SELECT rowid AS n, {column} AS v FROM {table}"  # noqa: S608
                change = f"UPDATE OR IGNORE {table} SET {column} = {BAD[bad]}"  # noqa: S608
                back = f"UPDATE {table} SET {column} = (SELECT v FROM kept WHERE n = {table}.rowid)"  # noqa: S608
                spoil(file, keep, change)
                for method, error in outcomes(calls):
                    assert SECRET not in shown(error), method
                    if isinstance(error, InvalidRow) and method == "attachments.read":
                        assert error.table in ("attachments", "blobs")  # one leads to the other
                    elif isinstance(error, InvalidRow) and table in OF_VALUES:
                        assert error.table in ("", *OF_VALUES)  # one leads to the other
                    elif isinstance(error, InvalidRow):
                        assert error.table in ("", table), method
                        assert error.column in ("", column), method
                        assert "agentstore doctor --deep" in str(error)
                        named += bool(error.key)
                spoil(file, back, "DROP TABLE kept")
    if table in ("messages", "sessions", "tasks", "users", "tool_logs"):
        assert named


def test_a_message_that_is_no_text_is_named_by_its_key_and_told_by_the_doctor(file, caplog, capsys):
    message = readers.ids.message
    spoil(file, f"UPDATE messages SET content = {_UTF8} WHERE id = x'{UUID(message).hex}'")  # noqa: S608
    session = readers.ids.session

    async def history():
        async with AsyncStore(file) as store:
            await store.messages.history(session)

    async def in_a_transaction():
        async with AsyncStore(file) as store, store.transaction() as tx:
            await tx.messages.history(session)

    with Store(file) as store:
        calls = [
            lambda: store.messages.history(session),
            lambda: store.messages.get(message),
            lambda: store.sessions.restore(session),
            lambda: store.run(lambda tx: tx.messages.history(session)),
            lambda: asyncio.run(history()),
            lambda: asyncio.run(in_a_transaction()),
        ]
        for call in calls:
            with caplog.at_level(logging.DEBUG), pytest.raises(InvalidRow) as caught:
                call()
            assert (caught.value.table, caught.value.column) == ("messages", "content")
            assert f"id='{message}'" in caught.value.key
            assert isinstance(caught.value, DatabaseCorrupt)
            assert SECRET not in shown(caught.value) + caplog.text
        with pytest.raises(InvalidRow) as caught:
            store.scoped("ada").messages.history(session)
        assert caught.value.key == "", "the first such row may be somebody else's"
    (finding,) = [each for each in doctor.examine(file, deep=True) if each.check == "rows"]
    assert finding.what == "1 row holds what agentstore never writes (content: no UTF-8 " + (
        f"(invalid start byte at byte {len(SECRET)}))."
    )
    assert finding.where.startswith("messages: ")
    for arguments in (["show", session], ["--debug", "show", session]):
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--url", file])
        assert left.value.code == 1
        said = capsys.readouterr()
        assert "cannot be read: content holds" in " ".join(said.err.split())
        assert "a bug" not in said.err
        assert SECRET not in said.out + said.err


@pytest.mark.parametrize(
    "change",  # these bytes read as "[]"
    ["UPDATE messages SET tool_calls = x'5b5d'", "UPDATE messages SET tool_call_id = x'5b5d'"],
)
def test_bytes_in_place_of_a_text_are_no_text_in_a_history_either(file, change):
    with Store(file) as store:
        session = store.sessions.create().id
        store.messages.save(session, "user", "hello")
        spoil(file, change)
        for read in (store.messages.history, store.messages.chat):
            with pytest.raises(InvalidRow):
                read(session)


def test_a_table_or_a_column_that_is_lost_is_told_as_such(place):
    with place.open() as store:
        session = store.sessions.create()
        changes = "ALTER TABLE summaries RENAME TO lost", "ALTER TABLE tasks DROP COLUMN error"
        if place.driver.engine == "sqlite":
            spoil(place.url, *changes)
        else:
            with connect(place.url) as admin:
                for change in changes:
                    admin.execute(change)
        with pytest.raises(SchemaDamaged, match=r"summaries.*agentstore doctor"):
            store.summaries.find(session.id)
        with pytest.raises(SchemaDamaged, match="agentstore doctor"):
            store.tasks.list()


def test_a_session_whose_documents_are_lost_is_told_as_such(place):
    with place.open() as store:
        session = store.sessions.create()
        change = "DELETE FROM session_data"
        if place.driver.engine == "sqlite":
            spoil(place.url, change)
        else:
            with connect(place.url) as admin:
                admin.execute(change)
        for version in (None, 1):
            with pytest.raises(InvalidRow, match=r"sessions.*agentstore doctor"):
                store.sessions.update(session.id, metadata={"a": 1}, expected_version=version)


@in_the_process
def test_a_file_whose_schema_is_no_text_any_more_is_told_as_damaged(place):
    path = make_url(place.url).database
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    whole = Path(path).read_bytes()
    broken = whole.replace(b"CREATE TABLE users", b"CREATE TABLE (((((", 1)
    broken = broken.replace(b"tableusersusers", b"table" + b"\xb4" * 5 + b"users", 1)
    assert broken.count(b"\xb4" * 5) == 1
    Path(path).write_bytes(broken)
    with pytest.raises(DatabaseCorrupt, match="damaged"), place.open():
        pytest.fail("it was opened")


# --- What a server's types let in too -------------------------------------------------------------

OTHER_SHAPES = {
    "an array for an object": ("session_data", "metadata", "'[\"%s\"]'"),
    "an object for an array": ("messages", "blocks", "'{\"%s\": 1}'"),
    "an instant that never comes": ("sessions", "created_at", "'infinity'"),
    "an instant before Christ": ("sessions", "last_active_at", "'0044-03-15 12:00:00+00 BC'"),
    "the year 10000": ("messages", "created_at", "'10000-01-01 00:00:00+00'"),
    "a role that nobody has": ("messages", "role", "'%s'"),
    "a status of a message": ("messages", "status", "'%s'"),
    "a status of a session": ("sessions", "status", "'%s'"),
    "no instant": ("messages", "created_at", "NULL"),
    "no role": ("messages", "role", "NULL"),
    "no content of metadata": ("session_data", "metadata", "NULL"),
    "no version": ("session_data", "version", "NULL"),
}
KEPT_BY = {
    "role": ("messages", "DROP CONSTRAINT IF EXISTS ck_messages_role"),
    "status": ("messages", "DROP CONSTRAINT IF EXISTS ck_messages_status"),
    "content": ("messages", "DROP CONSTRAINT IF EXISTS ck_messages_content"),
    "sessions": ("sessions", "DROP CONSTRAINT IF EXISTS ck_sessions_status"),
}


def change(place, table: str, column: str, value: str) -> None:
    """Write a value past every rule that would keep it out."""
    update = f"UPDATE {table} SET {column} = {value}"  # noqa: S608
    if place.driver.engine == "sqlite":
        allow_nulls(place.url)
        spoil(place.url, update)
        return
    with connect(place.url) as admin:
        for owner, rule in KEPT_BY.values():
            admin.execute(f"ALTER TABLE {owner} {rule}")
        admin.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL")
        admin.execute(update)


@pytest.mark.long(but=["*-an *", "*-the year 10000", "*-a role *", "*-no instant"])
@pytest.mark.parametrize("case", OTHER_SHAPES)
def test_what_the_columns_type_lets_in_is_named_and_told_by_the_doctor(place, case):
    table, column, value = OTHER_SHAPES[case]
    with place.open() as store:
        session = store.sessions.create().id
        message = store.messages.save(session, "user", "hello").id
    change(place, table, column, value.replace("%s", SECRET))
    with place.open() as store:
        calls = [lambda: store.sessions.list(documents=True)]
        if case == "a status of a session":  # by which lists look
            calls = [lambda: store.sessions.get(session)]
        if table == "messages":
            calls = [
                lambda: store.messages.history(session),
                lambda: store.run(lambda tx: tx.messages.history(session)),
                lambda: store.messages.page(session),
            ]
        elif column == "metadata":
            assert [each.id for each in store.sessions.list()] == [session]  # it reads none
        for call in calls:
            with pytest.raises(InvalidRow) as caught:
                call()
            found = caught.value
            assert (found.table, found.column) == (table, column)
            owner = message if table == "messages" else session
            if place.driver.name != "aiosqlite":  # its thread is not ours to look with
                assert f"id='{owner}'" in found.key
            assert SECRET not in shown(found)
        with pytest.raises(InvalidRow) as caught:
            calls[0]() if table != "messages" else store.messages.get(message)
        store.users.create("others still work")
    rows = [each for each in doctor.examine(place.url, deep=True) if each.check == "rows"]
    assert [(each.where.partition(":")[0]) for each in rows] == [table]
    assert column in rows[0].what
    assert SECRET not in repr(rows)


def test_bytes_that_are_others_than_were_stored_are_named_and_told_by_the_doctor(place):
    with place.open() as store:
        session = store.sessions.create().id
        message = store.messages.save(session, "user", "hello").id
        attached = store.attachments.add(message, b"picture", "image/png")
        thread = "thread"
        store.checkpoints.put(thread, {"bytes": b"state" * 200, "long": ["x" * 500]}, "one")
        store.checkpoints.put(thread, {"small": "state"}, "two")
        store.checkpoints.put_writes(thread, "one", "task", [("channel", {"a": "y" * 500})])
    literal = "CAST('%s' AS BLOB)" if place.driver.engine == "sqlite" else "'%s'::bytea"
    for table in ("blobs", "checkpoint_values", "checkpoint_writes"):
        change(place, table, "data", literal.replace("%s", SECRET))
    packed = literal.replace("%s", SECRET)
    change(place, "checkpoints", "entries", f"CASE WHEN id = 'two' THEN {packed} ELSE entries END")
    with place.open() as store:
        calls = {
            "blobs": lambda: store.attachments.read(attached.id),
            "checkpoint_values": lambda: store.checkpoints.get("one"),
            "checkpoints": lambda: store.checkpoints.get("two"),
            "checkpoint_writes": lambda: store.checkpoints.writes(thread, "one"),
        }
        for table, call in calls.items():
            with pytest.raises(InvalidRow) as caught:
                call()
            column = "entries" if table == "checkpoints" else "data"
            assert (caught.value.table, caught.value.column) == (table, column)
            assert caught.value.key
            assert SECRET not in shown(caught.value)
    found = [each for each in doctor.examine(place.url, deep=True) if each.check == "bytes"]
    assert [each.where.partition(":")[0] for each in found] == [*calls]
    assert SECRET not in repr(found)


def test_a_sum_by_days_of_a_damaged_day_is_an_invalid_row(place):
    with place.open() as store:
        session = store.sessions.create().id
        store.usage.record(session, input_tokens=1)
    days = {"sqlite": f"'{SECRET}'", "postgresql": "'infinity'"}
    change(place, "turn_usage", "created_at", days[place.driver.engine])
    with place.open() as store:
        with pytest.raises(InvalidRow) as caught:
            store.usage.sum_by("day")
        assert (caught.value.table, caught.value.column) == ("turn_usage", "created_at")
        assert caught.value.key or place.driver.name == "aiosqlite"
        assert SECRET not in shown(caught.value)


@in_the_process
def test_a_session_whose_place_in_the_lists_is_damaged_is_told_as_such_and_takes_messages(place):
    with place.open() as store:
        session, _ = store.sessions.create().id, store.sessions.create()
    spoil(place.url, "UPDATE sessions SET activity = 'x', listed_activity = 'x' WHERE pk = 1")
    with place.open() as store:
        with pytest.raises(InvalidRow, match="activity holds something"):
            store.sessions.list()
        store.messages.save(session, "user", "hello")
        assert store.sessions.list().items[0].id == session
