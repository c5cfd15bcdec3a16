"""A new SQLite file is made by a script, and is what all revisions would have made of it."""

from __future__ import annotations

import sqlite3

import pytest

from agentstore import Store, migrations
from agentstore.engines.sqlite.files import SCRIPT
from agentstore.errors import DatabaseError
from agentstore.schema import Names
from tests.migrations.head_script import plainly, rows_of, schema_of, script


def test_the_script_is_what_the_revisions_make_today():
    written = SCRIPT.read_text(encoding="utf-8")
    assert plainly(written) == plainly(script()), "Run: python -m tests.migrations.head_script"


@pytest.mark.parametrize("prefix", ["", "agents_", "a" * 15])
def test_a_new_file_is_as_the_revisions_make_it(tmp_path, prefix):
    made, upgraded = tmp_path / "made.db", tmp_path / "upgraded.db"
    Store(f"sqlite:///{made}", table_prefix=prefix).close()
    migrations.upgrade(f"sqlite:///{upgraded}", names=Names(None, prefix))
    assert schema_of(made) == schema_of(upgraded)
    assert rows_of(made) == rows_of(upgraded)


def test_a_new_file_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new.db"
    with monkeypatch.context() as patched:
        patched.setattr(
            "agentstore.engines.sqlite.dialect.statements_of_head",
            lambda prefix: ("CREATE TABLE users (pk INTEGER)", "CREATE TABLE broken"),
        )
        with pytest.raises(DatabaseError):
            Store(f"sqlite:///{path}")
    assert schema_of(path) == set()
    with Store(f"sqlite:///{path}") as store:
        store.sessions.create()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
