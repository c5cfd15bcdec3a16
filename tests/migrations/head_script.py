"""Writes the script that makes a new SQLite file: ``python -m tests.migrations.head_script``.

It is what the revisions make of an empty file, as SQLite tells it.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentstore import migrations
from agentstore.engines.sqlite.files import PREFIX, SCRIPT
from agentstore.schema import Names

_HEADER = """-- A new database at head, as the revisions make it. Names begin with a prefix
-- that stands for the user's. Written by python -m tests.migrations.head_script.

"""

_PARTS_OF_AN_INDEX = ("config", "content", "data", "docsize", "idx")
"""Tables that FTS5 makes by itself."""


def schema_of(path: Path) -> set[tuple[str, str, str]]:
    """Give kind, name and text of whatever a file holds, the text as any SQLite would write it."""
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT type, name, coalesce(sql, '') FROM sqlite_master WHERE name != 'sqlite_sequence'"
    ).fetchall()
    connection.close()
    return {(kind, name, plainly(sql)) for kind, name, sql in found}


def plainly(sql: str) -> str:
    """Leave out what versions of SQLite write differently when they rename a table."""
    return " ".join(sql.replace('"', "").split())


def rows_of(path: Path) -> dict[str, list[Any]]:
    """Give the rows that a file holds from the beginning, of each table that can be read."""
    connection = sqlite3.connect(path)
    names = [name for kind, name, _ in schema_of(path) if kind == "table"]
    found = {}
    for name in names:
        with suppress(sqlite3.OperationalError):  # an index without texts
            found[name] = connection.execute(f'SELECT * FROM "{name}"').fetchall()
    connection.close()
    return {name: rows for name, rows in found.items() if rows}


def script() -> str:
    """Write the script anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        migrations.upgrade(f"sqlite:///{path}", names=Names(None, PREFIX))
        connection = sqlite3.connect(path)
        query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
        made = [each for each in connection.execute(query) if each[0] != "sqlite_sequence"]
        virtual = [name for name, sql in made if sql.startswith("CREATE VIRTUAL")]
        theirs = {f"{name}_{part}" for name in virtual for part in _PARTS_OF_AN_INDEX}
        own = [(name, sql) for name, sql in made if name not in theirs]
        lines = [f"{sql};" for _, sql in own]
        for name, rows in sorted(rows_of(path).items()):
            if name in dict(own):
                lines += [_insert(connection, name, row) for row in rows]
        connection.close()
    return _HEADER + "\n".join(lines) + "\n"


def _insert(connection: sqlite3.Connection, table: str, row: tuple[Any, ...]) -> str:
    values = [connection.execute("SELECT quote(?)", (value,)).fetchone()[0] for value in row]
    return f"INSERT INTO {table} VALUES ({', '.join(values)});"


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
