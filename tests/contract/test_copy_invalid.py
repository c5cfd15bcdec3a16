"""Rows that no other database would take: refused by default, or set aside and counted."""

import gc
import json
import sqlite3
import sys
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import make_url

from agentstore import Store
from agentstore.engines.base.moving import Flaw
from agentstore.errors import DatabaseCorrupt, InvalidInput, InvalidRows
from agentstore.moving import copy_ends, copying
from agentstore.moving.copy_ends import Quarantine, SetAside
from tests.migrations.support import revision_of, run_sql
from tests.programs.copies import copy, dump, each_engine, filled, stop_at

SET = "UPDATE {} SET {} = {} WHERE rowid = (SELECT max(rowid) FROM {})"

FAULTS = {
    "text for a whole number": ("tool_logs", "pk", None, None),
    "text in a column of whole numbers": ("messages", "token_count", "'many'", "token_count: text"),
    "bytes in a column of whole numbers": ("turn_usage", "requests", "x'01'", "requests: bytes"),
    "a fraction in a column of whole numbers": ("messages", "seq", "1.5", "seq: a number"),
    "empty text in a column of floats": ("tool_logs", "elapsed_ms", "''", "elapsed_ms: text"),
    "infinity": ("tool_logs", "elapsed_ms", "9e999", "elapsed_ms: a number"),
    "bytes in a column of text": ("messages", "content", "x'6162'", "content: bytes"),
    "text that is no UTF-8": ("messages", "name", "CAST(x'61ff62' AS TEXT)", "name: no UTF-8"),
    "a surrogate as UTF-8": ("users", "name", "CAST(x'eda080' AS TEXT)", "name: no UTF-8"),
    "an instant with text behind it": ("tasks", "paused_at", "'1 x'", "paused_at: text"),
    "an id as text": ("turn_usage", "id", f"'{UUID(int=1)}'", "id: text that is not an id"),
    "an id of too few bytes": ("attachments", "id", "zeroblob(15)", "id: bytes that is not an id"),
    "an id of too many bytes": ("tasks", "id", "zeroblob(17)", "id: bytes that is not an id"),
    "a NUL in text": ("tasks", "error", "'a' || char(0) || 'b'", "error: text with a NUL"),
    "no JSON": ("tool_logs", "input", "'{\"a\":'", "input: text that is not JSON"),
    "empty JSON": ("tasks", "payload", "''", "payload: text that is not JSON"),
    "JSON that goes on behind a NUL": ("tasks", "payload", "'1' || char(0)", "payload: text"),
    "JSON that is no UTF-8": ("tasks", "payload", "CAST(x'22ff22' AS TEXT)", "payload: no UTF-8"),
    "JSON as bytes": ("tasks", "payload", "CAST('1' AS BLOB)", "payload: bytes"),
    "text in a column of bytes": ("checkpoint_writes", "data", "'text'", "data: text"),
    "a number in a column of bytes": ("checkpoint_writes", "data", "7", "data: a whole number"),
    "a flag of two": ("tool_logs", "success", "2", "success: a whole number that is not a flag"),
    "a flag of text": ("tasks", "cancel_requested", "'no'", "cancel_requested: text"),
    "against a CHECK": ("tasks", "status", "'lost'", "against ck_tasks_status"),
    "a negative cost": ("messages", "cost", "-1", "against ck_messages_amounts"),
    "a reference to nobody": ("sessions", "user_id", "'nobody'", "user_id: no such row of users"),
    "a reference to no message": ("tool_logs", "message_id", "zeroblob(16)",
        "message_id: no such row"),
} | {
    f"the instant {value}": ("tool_logs", "created_at", value, f"created_at: {what}")
    for value, what in {
        "''": "text",
        "'2026-01-01T00:00:00.000000+00:00'": "text",
        "x'01'": "bytes",
        "1.5": "a number",
        "-62135596800000001": "a whole number that is not an instant",  # before the year 1
        "253402300800000000": "a whole number that is not an instant",  # after the year 9999
    }.items()
}  # fmt: skip
del FAULTS["text for a whole number"]


NOT_UTF8 = "UPDATE messages SET name = x'ff' WHERE pk = (SELECT min(pk) FROM messages)"


def spoil(url: str, *statements: str) -> None:
    """Do to a file what no store does."""
    connection = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for statement in statements:
        assert connection.execute(statement).rowcount > 0, statement
    connection.close()


def rows(url: str) -> int:
    return sum(map(len, dump(url).values()))


def set_aside(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_stops_the_copy_before_anything_changes(new, fault):
    table, column, value, reason = FAULTS[fault]
    source, target = filled(new, "sqlite"), new("sqlite")
    spoil(source, SET.format(table, column, value, table))
    with pytest.raises(InvalidRows, match="--quarantine") as caught:
        copy(source, target)
    first = caught.value.rows[0]
    assert first[0] == table
    assert first[2].startswith(reason), first
    assert not Path(str(make_url(target).database)).exists()
    with pytest.raises(InvalidRows):
        copying.verify(source, source)


@each_engine
def test_all_faults_at_once_are_set_aside_and_the_rest_arrives(new, engine, tmp_path):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    before = rows(source)
    whole = dump(source)
    for table, column, value, _ in FAULTS.values():
        if column == "created_at" or table in ("sessions", "users"):
            continue
        clone = SET.format(table, column, value, table)
        spoil(source, clone)
    file = tmp_path / "aside.jsonl"
    with pytest.raises(InvalidRows) as caught:
        copy(source, target)
    report = copy(source, target, quarantine=file)
    assert report.equal
    assert report.set_aside == len(set_aside(file)) == caught.value.total
    assert report.rows == rows(target) == before - report.set_aside
    for table, found in dump(target).items():
        assert set(found) <= set(whole[table])
    assert copying.verify(target, target).equal


def test_each_fault_arrives_nowhere_but_in_the_file(new, tmp_path):
    """On a server each of these would have ended the copy in its middle."""
    source = filled(new, "sqlite")
    instants = [value for _, column, value, _ in FAULTS.values() if column == "created_at"]
    columns = "session_id, message_id, tool, success, created_at"
    for number, value in enumerate(instants):
        spoil(
            source,
            f"INSERT INTO tool_logs (id, {columns})"  # noqa: S608
            f" SELECT x'{number:032x}', session_id, message_id, tool, success, {value}"
            " FROM tool_logs WHERE pk = 1",
        )
    target, file = new("postgresql", head=True), tmp_path / "aside.jsonl"
    report = copy(source, target, quarantine=file)
    assert report.set_aside == len(instants)
    assert {each["row"]["id"] for each in set_aside(file)} == {
        str(UUID(int=number)) for number in range(len(instants))
    }


@each_engine
def test_what_refers_to_a_row_that_is_set_aside_is_set_aside_too(new, engine, tmp_path):
    """Whole families: a session with all that is in it, whose owner has a bad name."""
    source, target = filled(new, "sqlite"), new(engine, head=True)
    before = rows(source)
    spoil(source, "UPDATE users SET name = x'ff' WHERE pk = 1")
    file = tmp_path / "aside.jsonl"
    report = copy(source, target, quarantine=file)
    tables = {each["table"] for each in set_aside(file)}
    assert {"users", "sessions", "messages", "branches", "checkpoints", "tool_logs"} <= tables
    assert report.rows + report.set_aside == before
    assert len(dump(target)["sessions"]) == 1  # that of the other user
    run_sql(target, "UPDATE users SET name = name")  # nothing hangs in the air
    first = set_aside(file)[0]
    assert first["row"]["name"] == {"hex": "ff"}


@each_engine
def test_a_chain_within_a_table_is_set_aside_to_its_end(new, engine, tmp_path):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    columns = "session, number, name, parent, line, created_at"
    spoil(
        source,
        *(
            f"INSERT INTO branches ({columns})"  # noqa: S608
            f" SELECT pk, {number}, 'b{number}', {number - 1}, '[]', created_at"
            " FROM sessions WHERE pk = 1"
            for number in range(11, 20)
        ),
        "UPDATE branches SET gone = 2 WHERE name = 'b12'",
    )
    with pytest.raises(InvalidRows) as caught:
        copy(source, target)
    assert caught.value.total == 9  # b11 refers to a branch 10 that is not there
    file = tmp_path / "aside.jsonl"
    assert copy(source, target, quarantine=file).set_aside == 9


def test_what_is_set_aside_is_written_so_that_nothing_is_lost(new, tmp_path):
    source, file = filled(new, "sqlite"), tmp_path / "aside.jsonl"
    spoil(
        source,
        "UPDATE messages SET content = CAST(x'61ff' AS TEXT), name = x'6162'"
        " WHERE pk = (SELECT min(pk) FROM messages)",
        "UPDATE tool_logs SET elapsed_ms = 9e999, error = char(0) || 'é' WHERE pk = 2",
    )
    copy(source, new("sqlite", head=True), quarantine=file)
    found = {(each["table"], each["row"].get("pk")): each for each in set_aside(file)}
    (message,) = (each["row"] for (table, _), each in found.items() if table == "messages")
    assert (message["content"], message["name"]) == ({"text": "61ff"}, {"hex": "6162"})
    log = found["tool_logs", 2]
    assert (log["row"]["elapsed_ms"], log["row"]["error"]) == ({"number": "inf"}, "\x00é")
    assert "elapsed_ms" in log["reason"]
    assert "error" in log["reason"]


def test_a_file_for_them_that_cannot_be_written_stops_it_before_anything_changes(new, tmp_path):
    source, target = filled(new, "sqlite"), new("postgresql")
    with pytest.raises(InvalidInput, match="Choose another file"):
        copy(source, target, quarantine=tmp_path / "no folder" / "aside.jsonl")
    assert revision_of(target) is None


def test_rows_that_find_no_room_on_their_way_stop_it_and_name_the_file(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    rows = SetAside(Quarantine(folder / "rows.jsonl", resumed=False))
    folder.rmdir()  # what is in memory by then would have to go there
    row = Flaw("messages", "pk=1", "it is too long", 1, {"content": "x" * 2_000_000})
    with pytest.raises(InvalidInput, match=r"cannot be written to .*rows\.jsonl \(No such file"):
        rows.add([row])


def test_rows_that_could_not_be_written_are_let_go_of_quietly(tmp_path, monkeypatch):
    class Full(SpooledTemporaryFile):
        def close(self) -> None:
            super().close()
            raise OSError(28, "No space left on device")

    said = []
    monkeypatch.setattr(copy_ends, "SpooledTemporaryFile", Full)
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    rows = SetAside(Quarantine(tmp_path / "rows.jsonl", resumed=False))
    del rows
    gc.collect()
    assert said == []


def test_a_file_that_is_there_is_refused_before_anything_is_copied(new, tmp_path):
    """Were it written over, the only copy of such rows could be gone, or the source itself."""
    source, target = filled(new, "sqlite"), new("sqlite")
    own, link = Path(str(make_url(source).database)), tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for sound in (True, False):
        if not sound:
            spoil(source, NOT_UTF8)
        before = own.read_bytes()
        for file in (own, link, tmp_path):
            with pytest.raises(InvalidInput, match=r"exists.* Choose another file"):
                copy(source, target, quarantine=file)
        assert own.read_bytes() == before
        assert revision_of(target) is None


def test_without_rows_to_set_aside_no_file_is_made(new, tmp_path):
    report = copy(
        filled(new, "sqlite"), new("sqlite", head=True), quarantine=tmp_path / "aside.jsonl"
    )
    assert (report.set_aside, report.quarantine) == (0, None)
    assert list(tmp_path.glob("*aside*")) == []


def test_what_is_set_aside_is_for_its_owner_alone_and_nothing_else_is_touched(new, tmp_path):
    source, file = filled(new, "sqlite"), tmp_path / "aside.jsonl"
    another = tmp_path / "aside.jsonl.partial"
    another.write_text("somebody's")
    spoil(source, NOT_UTF8)
    report = copy(source, new("sqlite", head=True), quarantine=file)
    assert report.quarantine == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert another.read_text() == "somebody's"
    assert sorted(tmp_path.glob("*aside*")) == [file, another]


@each_engine
def test_each_run_has_a_list_of_its_own_and_none_is_written_over(new, engine, tmp_path):
    source, target = filled(new, "sqlite"), new(engine, head=True)
    file, second = tmp_path / "aside.jsonl", tmp_path / "aside.2.jsonl"
    spoil(source, NOT_UTF8)
    stop_at(source, target, "loading", "messages", quarantine=file)
    before = file.read_bytes()
    spoil(source, NOT_UTF8.replace("x'ff'", "NULL"), "UPDATE tasks SET error = x'01'")
    report = copy(source, target, resume=True, quarantine=file)
    assert report.quarantine == str(second)
    assert file.read_bytes() == before
    assert {each["table"] for each in set_aside(second)} == {"tasks"}


@each_engine
def test_the_rows_of_a_server_that_no_file_holds_are_found(new, engine, tmp_path):
    source, target = filled(new, "postgresql"), new(engine)
    before = rows(source)
    run_sql(source, "UPDATE tool_logs SET created_at = 'infinity' WHERE pk = 1")
    run_sql(source, "UPDATE tool_logs SET created_at = '0044-03-15 BC' WHERE pk = 2")
    run_sql(source, "UPDATE tool_logs SET created_at = '10000-01-01' WHERE pk = 3")
    run_sql(source, "UPDATE api_keys SET expires_at = '-infinity' WHERE pk = 1")
    with pytest.raises(InvalidRows) as caught:
        copy(source, target)
    assert caught.value.total == 4
    assert caught.value.rows[0] == (
        "api_keys",
        "pk=1",
        "expires_at: an instant outside of the years 1 to 9999",
    )
    assert revision_of(target) is None
    run_sql(source, "UPDATE sessions SET created_at = '-infinity' WHERE user_id IS NOT NULL")
    file = tmp_path / "aside.jsonl"
    report = copy(source, target, quarantine=file)
    assert report.equal
    assert report.set_aside == len(set_aside(file)) > 20
    assert report.rows == before - report.set_aside
    assert dump(target)["messages"] == []
    assert len(dump(target)["users"]) == 2


@each_engine
def test_a_file_in_which_a_row_is_not_where_its_number_says_is_damaged(new, engine):
    source, target = new("sqlite", head=True), new(engine)
    with Store(source) as store:
        rows = [{"role": "user", "content": f"{n} {'y' * 900}"} for n in range(500)]
        store.messages.save_many(store.sessions.create().id, rows)
    run_sql(source, "PRAGMA wal_checkpoint(TRUNCATE)")
    file = Path(str(make_url(source).database))
    content = bytearray(file.read_bytes())
    row = content.index(b"250 yyy")
    content[row : row + 1200] = bytes(1200)  # the number of the next row is now 0
    file.write_bytes(content)
    with pytest.raises(DatabaseCorrupt):
        copy(source, target)
    assert revision_of(target) is None
