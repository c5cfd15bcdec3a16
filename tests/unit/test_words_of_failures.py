"""What errors of the database say: what was waited for, and one thing about what was written."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from agentstore import Store
from agentstore.engines.base.dialect import Mode
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.errors import ConnectionLost, DatabaseBusy
from agentstore.execution.gathering import interrupted
from agentstore.execution.unit import trouble


def test_a_file_locked_by_another_process_says_so_and_how_long_was_waited(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'a.db'}", busy_timeout=0.3) as store:
        session = store.sessions.create().id
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy, match="another process") as caught:
            store.messages.save(session, "user", "hello")
        assert "0.3 s" in str(caught.value) or "0.4 s" in str(caught.value)
        assert "Nothing was written" in str(caught.value)
        assert "busy_timeout" in str(caught.value)
        other.execute("ROLLBACK")
        other.close()
        assert store.messages.history(session) == []


@pytest.mark.parametrize(
    ("sqlstate", "words"),
    [("53100", "could not write to file"), ("XX000", "could not fsync file"), ("58030", "I/O")],
)
@pytest.mark.parametrize("committing", [True, False])
def test_a_server_that_panics_says_one_thing_about_what_was_written(sqlstate, words, committing):
    class Panic(Exception):
        diag = type("Diagnostics", (), {"message_primary": words, "constraint_name": None})

    panic = Panic(words)
    panic.sqlstate = sqlstate
    error = OperationalError("INSERT", {}, panic, connection_invalidated=True)
    found = trouble(PostgreSQL(), Mode.WRITE, error, committing=committing)
    assert isinstance(found.error, ConnectionLost)
    said = str(found.error).lower()
    assert ("nothing was written" in said) != committing
    assert ("may or may not have been committed" in said) == committing
    assert words.lower() in said


@pytest.mark.parametrize("in_doubt", [True, False])
def test_an_interrupted_thread_says_one_thing_about_what_was_written(in_doubt):
    said = str(interrupted(in_doubt=in_doubt).error)
    assert "Another thread" in said
    assert ("Nothing was written" in said) != in_doubt
    assert ("may or may not have been committed" in said) == in_doubt
