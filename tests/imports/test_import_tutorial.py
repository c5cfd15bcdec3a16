"""A database of the tutorial's ``AgentStorage`` that was imported goes on where it was."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentstore.errors import QuotaExceeded
from agentstore.moving.frameworks import ImportReport
from examples.tutorial_storage import AgentStorage, as_text

ASIDE = {
    ("users", "u3", "its preferences: not JSON; the user was made without"),
    ("sessions", "s4", "its user is not there"),
    ("messages", "id=9", "its token_count must be from 0 to 1000000000, not -1"),
    ("messages", "id=8", "its calls: not JSON"),
    ("messages", "id=10", "its session is not there"),
    ("tasks", "t7", "it is cancelled and has a result"),
}


@pytest.fixture
def old(source: Callable[[str], Path]) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(source("tutorial"))) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


@pytest.fixture
def report(old: sqlite3.Connection, take: Any) -> ImportReport:
    path = old.execute("PRAGMA database_list").fetchone()["file"]
    done: ImportReport = take("tutorial", path)
    return done


@pytest.fixture
def new(report: ImportReport, engine_url: str) -> Iterator[AgentStorage]:
    storage = AgentStorage(engine_url)
    yield storage
    storage.close()


def test_users_have_what_they_had(old, new):
    for row in old.execute("SELECT * FROM users"):
        theirs = dict(row)
        if theirs["id"] == "u3":
            theirs["preferences_json"] = "{}"
        ours: dict[str, Any] = new.get_user(row["id"]) or {}
        theirs.pop("updated_at"), ours.pop("updated_at")
        assert ours == theirs
    assert new.check_quota("u1", 99_680)
    assert not new.check_quota("u1", 99_681)
    with pytest.raises(QuotaExceeded):  # 160 of 100, as the tutorial lets them
        new.consume_quota("u2", 1)


def test_sessions_have_what_they_had(old, new):
    for row in old.execute("SELECT * FROM sessions WHERE id <> 's4'"):
        theirs, ours = dict(row), new.get_session(row["id"]) or {}
        if row["id"] == "s1":  # of which two messages are broken
            assert (ours["message_count"], ours["total_tokens"]) == (5, 283)
        ours.pop("updated_at"), theirs.pop("updated_at")
        assert ours == theirs
    assert [each["id"] for each in new.list_user_sessions("u1")] == ["s1", "s2"]
    new.resume_session("s1")
    assert (new.get_session("s1") or {})["status"] == "active"


def test_a_history_is_told_as_it_was(old, new):
    query = (
        "SELECT role, content, tool_calls_json, tool_call_id, token_count, created_at "
        "FROM messages WHERE session_id = ? AND id NOT IN (8, 9) ORDER BY id"
    )
    for session in ("s1", "s2", "s3"):
        theirs = [dict(row) for row in old.execute(query, (session,))]
        assert new.get_conversation_history(session) == theirs
    assert "\x00" in new.get_conversation_history("s1")[1]["content"]
    new.save_message("s1", "user", "and on", token_count=7)
    assert new.get_conversation_history("s1")[-1]["content"] == "and on"


def test_logs_and_tasks_are_there(old, new, report):
    found = {row[:2] for row in report.invalid}
    assert {*ASIDE} <= {*report.invalid}
    assert found - {row[:2] for row in ASIDE} == {("tool_logs", "id=4")}
    logs = [*new.store.tool_logs.iter(session_id="s1")]
    told = sorted((log.tool, log.elapsed_ms or 0, log.success, log.error) for log in logs)
    assert told == [
        ("search", 0, False, "timed out"),
        ("search", 2, True, None),
        ("search", 350.5, True, None),
    ]
    (first,) = (log for log in logs if log.elapsed_ms == 350.5)
    assert first.input == {"query": "x", "api_key": "[redacted]"}
    (message,) = (m for m in new.store.messages.history("s1") if m.tool_calls)
    assert first.message_id == message.id
    assert as_text(first.created_at) == "2026-03-01 12:00:50"
    tasks = {str(task.idempotency_key): task for task in new.store.tasks.iter(session_id="s1")}
    statuses = {key.removeprefix("tutorial:"): task.status for key, task in tasks.items()}
    rows = old.execute("SELECT id, status FROM tasks WHERE id <> 't7'")
    assert statuses == dict(rows.fetchall())
    assert tasks["tutorial:t1"].result == {"summary": "ok"}
    assert json.loads(tasks["tutorial:t4"].error or "") == {"error": "no"}
    done = tasks["tutorial:t1"]
    assert as_text(done.completed_at or done.created_at) == "2026-03-01 12:05:50"
    new.update_task_status(tasks["tutorial:t3"].id, "completed", {"n": 1})
    stats = new.store.usage.stats("u1", 3650)
    assert (stats.sessions, stats.messages, stats.tokens) == (2, 7, 286)
    assert new.get_usage_stats("u1", 1)["total_messages"] == 0  # all of it is long ago


def test_odd_values_set_their_own_rows_aside_and_all_else_is_imported(old, take, engine_url):
    path = old.execute("PRAGMA database_list").fetchone()["file"]
    with old:
        old.execute("UPDATE users SET quota_used = 2500000000 WHERE id = 'u1'")
        old.execute("UPDATE tasks SET priority = 'high' WHERE id = 't2'")
        old.execute("UPDATE tasks SET id = NULL WHERE id = 't1'")
        old.execute("UPDATE tool_logs SET message_id = 'x' WHERE message_id IS NOT NULL")
    report: ImportReport = take("tutorial", path)
    assert report.kinds == {"user": 3, "session": 3}
    reasons = {row[2] for row in report.invalid} - {row[2] for row in ASIDE}
    assert {"it has no id", "its priority must be an int, not str"} <= reasons
    storage = AgentStorage(engine_url)
    assert storage.store.users.get("u1").quota_used == 2_500_000_000
    assert len(storage.store.messages.history("s1")) == 5
    storage.close()


def test_a_log_with_an_error_failed_whatever_its_flag_says(old, take, engine_url):
    path = old.execute("PRAGMA database_list").fetchone()["file"]
    with old:
        old.execute("UPDATE tool_logs SET success = 1, error_message = 'no' WHERE id = 1")
        old.execute("UPDATE tool_logs SET success = 1, error_message = '' WHERE id = 2")
    take("tutorial", path)
    storage = AgentStorage(engine_url)
    logs = storage.store.tool_logs.list(session_id="s1").items
    told = {(log.success, log.error) for log in logs if log.elapsed_ms != 2}
    assert told == {(False, "no"), (True, None)}
    storage.close()


def test_a_second_run_changes_nothing_though_the_program_went_on(report, new, old, take):
    assert report.kinds == {"user": 3, "session": 3}
    new.save_message("s2", "user", "on", token_count=7)
    new.consume_quota("u1", 5)
    new.resume_session("s1")
    path = old.execute("PRAGMA database_list").fetchone()["file"]
    again: ImportReport = take("tutorial", path)
    assert (again.written, again.there, again.set_aside) == (0, 6, report.set_aside)
    assert len([*new.store.tasks.iter(session_id="s1")]) == 6


def test_an_import_in_small_steps_is_the_same(old, take, monkeypatch):
    monkeypatch.setattr("agentstore.moving.frameworks.sources.MOST_ROWS", 2)
    path = old.execute("PRAGMA database_list").fetchone()["file"]
    runs = 0

    def stop(_: object) -> None:
        nonlocal runs
        runs += 1
        raise KeyboardInterrupt

    while runs < 30:
        try:
            take("tutorial", path, progress=stop if runs % 4 != 3 else None)
            break
        except KeyboardInterrupt:
            runs += 0
    report: ImportReport = take("tutorial", path)
    assert runs >= 3
    rows = {each.name: each.target_rows for each in report.tables}
    assert rows["messages"] == 7
    assert report.there == 6
