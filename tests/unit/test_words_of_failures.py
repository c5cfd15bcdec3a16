"""What errors of the database say: what was waited for, and one thing about what was written."""

import sqlite3
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, InternalError, InvalidRequestError, OperationalError

from agentstore import Store
from agentstore.engines.base.dialect import EngineDialect, Mode
from agentstore.engines.postgresql.dialect import PostgreSQL
from agentstore.engines.sqlite.dialect import SQLite
from agentstore.errors import ConnectionLost, DatabaseBusy
from agentstore.execution.unit import unit_failure
from agentstore.execution.writer import interrupted


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
    found = unit_failure(PostgreSQL(), Mode.WRITE, error, committing=committing)
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


def driver_error(kind: type[Exception], words: str, **facts: object) -> Exception:
    return type(kind.__name__, (kind,), facts)(words)


UNKNOWN: dict[str, tuple[EngineDialect, Exception, str]] = {
    "of SQLite's module": (SQLite(),
        OperationalError(None, None,
            driver_error(sqlite3.OperationalError, "Error creating function")),
        "Error creating function"),
    "of SQLite's module, with a value": (SQLite(),
        OperationalError(None, None, driver_error(sqlite3.OperationalError, "strange: 's3cret'")),
        "OperationalError"),
    "of SQLite": (SQLite(),
        OperationalError(None, None,
            driver_error(sqlite3.OperationalError, "unheard of",
                sqlite_errorcode=sqlite3.SQLITE_PROTOCOL)), "unheard of"),
    "of the server": (PostgreSQL(),
        InternalError(None, None,
            driver_error(psycopg.InternalError, "s3cret", sqlstate="XX999",
                diag=SimpleNamespace(message_primary="unheard of", constraint_name=None))),
        "XX999"),
    "of psycopg": (PostgreSQL(),
        DBAPIError(None, None, driver_error(psycopg.InternalError, "strange: 's3cret'")),
        "InternalError in psycopg"),
    "of SQLAlchemy": (SQLite(), InvalidRequestError("strange: 's3cret'"), "InvalidRequestError"),
}  # fmt: skip


@pytest.mark.parametrize("mode", [Mode.WRITE, Mode.STATEMENT])
@pytest.mark.parametrize("committing", [True, False])
@pytest.mark.parametrize("which", UNKNOWN)
def test_an_unknown_error_does_not_claim_to_know_what_was_written(which, committing, mode):
    dialect, error, words = UNKNOWN[which]
    said = str(unit_failure(dialect, mode, error, committing=committing).error)
    assert words in said
    assert "agentstore does not know this error, nor whether anything was written" in said
    assert "check before" in said
    assert "Nothing was written" not in said
    assert "arguments" not in said
    assert "Check the host" not in said
    assert "s3cret" not in said


def test_an_argument_that_sqlite_cannot_take_is_known_not_to_have_run():
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.Error) as caught:
        connection.execute("SELECT ?", (object(),))
    connection.close()
    error = DBAPIError(None, None, caught.value)
    said = str(unit_failure(SQLite(), Mode.WRITE, error, committing=False).error)
    assert "the statement did not run" in said
    assert "Check the arguments" in said
