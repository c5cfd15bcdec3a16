"""What the tests of migrations share: ways to migrate, descriptions of a schema, rows for it."""

import contextlib
import io
import os
import re
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Self, TextIO
from unittest import mock
from uuid import UUID

import psycopg
from alembic.config import CommandLine, Config
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Table,
    insert,
    inspect,
    make_url,
    select,
    text,
)

from agentstore import cli, migrations
from agentstore.database import open_engine, parse_url
from agentstore.schema import PLAIN, Names, tables
from agentstore.schema.conversations import SessionId
from agentstore.settings import URL_VARIABLE, Settings
from agentstore.values.types import Json, Nanos, OwnId, SafeText, UtcDateTime

CHECKOUT = Path(__file__).resolve().parents[2]

LATER_COLUMNS: dict[str, dict[str, Any]] = {
    "users": {"deleting": None},
    "session_data": {"layout": None, "epoch": 0},
    "branches": {"messages": 0, "turns": 0, "reserved": False},
    "checkpoint_values": {
        **{"line": 1, "start": 0, "prefix": None, "suffix": 0, "data": b""},
    },
}
"""What a row has in the columns that came after 0004, once it has been back there. Those of
checkpoints' values are made again: that of ``fill``, whose version has no bytes, as one without.
"""

LATER_TABLES = ("memories",)
"""What is empty once a database has been back before the last revisions."""

WITH_PREFIX = Names(None, "ag_")
WITH_SCHEMA_AND_PREFIX = Names("order", "ag_")  # a word that has to be quoted


# --- Ways to migrate -------------------------------------------------------------------------


def names_on(url: str, names: Names) -> Names:
    """Give the names that are possible on this engine: SQLite has no schemas."""
    return Names(None, names.prefix) if url.startswith("sqlite") else names


def environment(**variables: str) -> dict[str, str]:
    """Give the environment of a subprocess: this one's, without a URL that it could fall to."""
    kept = {key: value for key, value in os.environ.items() if key != URL_VARIABLE}
    return {**kept, "PYTHONPATH": str(CHECKOUT), **variables}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def well(self) -> Self:
        """Require that it ended well."""
        assert self.code == 0, self.err or self.out
        return self


def run(*command: str, cwd: Path = CHECKOUT, **variables: str) -> Done:
    """Run this Python with these arguments, in a process."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def alembic(*arguments, url=None, names=PLAIN, cwd=CHECKOUT, tree=None, **env):
    """Run Alembic's command with the checkout's configuration, in this process."""
    words = ["-c", str(CHECKOUT / "alembic.ini")]
    for key, value in (("url", url), ("schema", names.schema), ("table_prefix", names.prefix)):
        words += ["-x", f"{key}={value}"] if value else []

    def command(out: TextIO) -> None:
        line = CommandLine()
        options = line.parser.parse_args([*words, *arguments])
        config = Config(options.config[0], cmd_opts=options, stdout=out, output_buffer=out)
        if tree is not None:
            config.set_main_option("script_location", str(tree))
        line.run_cmd(config, options)

    return _here(command, cwd, env)


def agentstore(*arguments: str, names: Names = PLAIN, cwd: Path = CHECKOUT, **env: str) -> Done:
    """Run agentstore's own command in this process."""
    words = ["agentstore", *arguments]
    for option, value in (("--schema", names.schema), ("--table-prefix", names.prefix)):
        words += [option, value] if value else []

    def command(_: TextIO) -> None:
        with mock.patch.object(sys, "argv", words):
            cli.main()

    return _here(command, cwd, env)


def _here(command: Callable[[TextIO], None], cwd: Path, env: dict[str, str]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.dict(os.environ, environment(**env), clear=True),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            command(out)
        except SystemExit as ended:
            code = 0 if ended.code is None else int(ended.code)
    return Done(code, out.getvalue(), err.getvalue())


def together(count: int, code: str, *arguments: str, cwd: Path = CHECKOUT) -> list[str]:
    """Run the code in so many processes at the same moment; give what each of them had to say
    that is not nothing.

    Args:
        count: How many.
        code: Defines ``go(number)``; what it imports is imported before the common start.
        arguments: Are in ``sys.argv[1:]``.
        cwd: Where they run.
    """
    gated = f"{code}\nimport sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", f"{gated}go({number})", *arguments],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "ready\n", line + process.stdout.read()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        f"{process.returncode}: {words}"
        for process, words in zip(processes, said, strict=True)
        if words or process.returncode
    ]


@dataclass(frozen=True)
class Databases:
    """Empty databases of one engine.

    Attributes:
        make: Gives the URL of another one by its name.
        names: What its tables are to be called.
        upgraded: Gives the URL of another one that ``migrations.upgrade`` has brought to head.
    """

    make: Callable[[str], str]
    names: Names
    upgraded: Callable[[], str]


def revision_of(url: str, names: Names = PLAIN) -> str | None:
    """Read the revision; unlike the library's own, not of a file that is not there."""
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        found = migrations.current(connection, names)
    engine.dispose()
    return found


def behind(url: str, names: Names = PLAIN) -> str:
    """Make an empty database one of the last revision before head; give that revision."""
    return migrations.upgrade(url, migrations.REVISIONS[-2], names=names)


def run_sql(url: str, script: str) -> None:
    """Run a script of SQL with the bare driver."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        connection = sqlite3.connect(str(parsed.database))
        connection.executescript(script)
        connection.close()
        return
    target = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(target, autocommit=True) as server:
        server.execute(script.encode())


# --- Descriptions of a schema ----------------------------------------------------------------


_CATALOGUE = """
SELECT 'column', c.oid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnotnull::text, coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
       (row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum))::text
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relkind = 'r' AND NOT a.attisdropped AND c.relnamespace = ANY (:spaces)
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', ''
  FROM pg_constraint WHERE conrelid <> 0 AND connamespace = ANY (:spaces) AND contype <> 'n'
UNION ALL
SELECT 'index', i.indrelid::regclass::text, i.indexrelid::regclass::text,
       pg_get_indexdef(i.indexrelid), '', '', ''
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = ANY (:spaces)
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid), '', '', ''
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE NOT tgisinternal AND c.relnamespace = ANY (:spaces)
UNION ALL
SELECT 'function', oid::regprocedure::text, '', pg_get_functiondef(oid), '', '', ''
  FROM pg_proc WHERE pronamespace = ANY (:spaces)
UNION ALL
SELECT 'sequence', oid::regclass::text, '', '', '', '', ''
  FROM pg_class WHERE relkind = 'S' AND relnamespace = ANY (:spaces)
"""


def as_stored(url: str) -> list[tuple[str, ...]]:
    """Give all that the database's own catalogue says of its schema, and the revisions in it."""
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        if url.startswith("sqlite"):
            # The table of AUTOINCREMENT stays where an earlier revision used it.
            query = (
                "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"
                " WHERE name <> 'sqlite_sequence'"
            )
            rows = connection.exec_driver_sql(query).all()
            versions = [row.name for row in rows if row.name.endswith("alembic_version")]
        else:
            spaces = connection.exec_driver_sql(
                "SELECT oid FROM pg_namespace"
                " WHERE nspname NOT LIKE 'pg\\_%%' AND nspname <> 'information_schema'"
            ).scalars()
            rows = connection.execute(text(_CATALOGUE), {"spaces": list(spaces)}).all()
            versions = sorted({row[1] for row in rows if row[1].endswith("alembic_version")})
        found = [tuple(row) for row in rows]
        for table in versions:
            statement = select(text("version_num")).select_from(text(table))
            found += [("revision", table, row.version_num) for row in connection.execute(statement)]
    engine.dispose()
    return sorted(found)


def described(url: str, names: Names = PLAIN) -> set[Any]:
    """Give what reflection finds of the models' tables: their schema without the order and the
    wording of its making.
    """
    engine = open_engine(parse_url(url), Settings())
    found: set[Any] = set()
    with engine.connect() as connection:
        reflected = inspect(connection)
        ours = {table.name for table in tables(names).metadata.sorted_tables}
        for table in ours.intersection(reflected.get_table_names(schema=names.schema)):
            for column in reflected.get_columns(table, schema=names.schema):
                properties = (column["type"], column["nullable"], column["default"])
                found.add((table, "column", column["name"], *map(str, properties)))
            key = reflected.get_pk_constraint(table, schema=names.schema)
            found.add((table, "primary key", key["name"], *key["constrained_columns"]))
            for foreign in reflected.get_foreign_keys(table, schema=names.schema):
                found.add((table, "foreign key", _plain(foreign)))
            for unique in reflected.get_unique_constraints(table, schema=names.schema):
                found.add((table, "unique", _plain(unique)))
            for check in reflected.get_check_constraints(table, schema=names.schema):
                found.add((table, "check", check["name"], " ".join(check["sqltext"].split())))
        found |= {("catalogue", *row) for row in _indexes(connection, url) if row[0] in ours}
    engine.dispose()
    return found


def _plain(reflected: Any) -> str:
    return repr(sorted(reflected.items()))


def _indexes(connection: Connection, url: str) -> list[Any]:
    if not url.startswith("sqlite"):
        query = "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname !~ '^pg_'"
        return list(connection.exec_driver_sql(query))
    query = "SELECT tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    indexes = [tuple(row) for row in connection.exec_driver_sql(query)]
    counted = "SELECT tbl_name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%'"
    return indexes + [(row[0], "autoincrement") for row in connection.exec_driver_sql(counted)]


# --- Rows for a schema -----------------------------------------------------------------------


INSTANT = datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)


def fill(url: str, names: Names = PLAIN, numbers: Sequence[int] = (0,)) -> None:
    """Insert a valid row for each number into every table that the models know, in one
    transaction, every column set that can be.
    """
    engine = open_engine(parse_url(url), Settings())
    rows: list[dict[str, dict[str, Any]]] = [{} for _ in numbers]
    with engine.begin() as connection:
        for table in tables(names).metadata.sorted_tables if numbers else ():
            usual = {column.key: value_for(table, column) for column in table.columns}
            for number, made in zip(numbers, rows, strict=True):
                made[table.name] = _row(table, made, _numbered(table, usual, number))
            connection.execute(insert(table), [made[table.name] for made in rows])
    engine.dispose()


def _numbered(table: Table, usual: dict[str, Any], number: int) -> dict[str, Any]:
    """Make the values of a row that are, or may be, in a key differ from those of other rows."""
    if not number:
        return dict(usual)
    found = dict(usual)
    for column in table.columns:
        value = usual[column.key]
        if isinstance(column.type, OwnId):
            found[column.key] = str(UUID(int=UUID(value).int + (number << 64)))
        elif isinstance(column.type, SafeText | SessionId) and not _allowed(table, column):
            found[column.key] = f"{value} {number}"
        elif column.primary_key and isinstance(value, int):
            found[column.key] = 10_000 + number
    return found


def rows_of(url: str, names: Names = PLAIN) -> dict[str, list[dict[str, Any]]]:
    """Read all rows of all tables that the models know, by their columns in the models."""
    engine = open_engine(parse_url(url), Settings())
    with engine.connect() as connection:
        found = {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in tables(names).metadata.sorted_tables
        }
    engine.dispose()
    return found


def _row(table: Table, rows: dict[str, dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    for constraint in table.foreign_key_constraints:
        referred = constraint.referred_table
        for element in constraint.elements:
            if isinstance(element.parent.type, SessionId):
                continue  # it is given the id
            # A row cannot refer to itself before it is there.
            value = None if referred is table else rows[referred.name][element.column.name]
            if referred is not table or element.parent.nullable:
                row[element.parent.name] = value
    row |= {
        name: None
        for check in _checks(table)
        for name in re.findall(r"\w+ IS NULL OR (\w+) IS NULL", check)
    }
    return row


def value_for(table: Table, column: Column[Any]) -> Any:
    """Give a value that the column and its CHECKs take."""
    if (allowed := _allowed(table, column)) is not None:
        return allowed
    kind = column.type
    if isinstance(kind, SessionId):
        return value_for(kind.sessions, kind.sessions.c.id)
    if isinstance(kind, SafeText):
        return f"{table.name}.{column.name} \x00 \ud83d 天气"
    if isinstance(kind, OwnId):
        return str(UUID(int=zlib.crc32(f"{table.name}.{column.name}".encode())))
    if isinstance(kind, UtcDateTime):
        return INSTANT
    if isinstance(kind, Nanos):
        return Decimal("0.000000007")
    if isinstance(kind, Json):
        document = {"b": 1, "a": [table.name, 1e22, -0.0]}
        return [document] if kind.document is list else document
    if isinstance(kind, Boolean):
        return True
    if isinstance(kind, LargeBinary):
        return None if column.nullable else b"\x00\xff"
    if isinstance(kind, Float):
        return 0.1
    if isinstance(kind, Integer | BigInteger):
        return 3
    raise AssertionError(f"Say what a value of {column.type!r} in {column} can be.")


@cache
def _allowed(table: Table, column: Column[Any]) -> str | None:
    """Give the first value that a CHECK lists; None if none does."""
    found = [re.match(rf"{column.name} = '(\w+)' OR ", check) for check in _checks(table)]
    return next((match[1] for match in found if match), None)


@cache
def _checks(table: Table) -> Sequence[str]:
    return [
        str(constraint.sqltext)
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    ]


# --- Revisions of tomorrow -------------------------------------------------------------------


class Tree:
    """A copy of the tree of revisions, to which a test adds some of its own."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        """Make this process take the copy for the tree."""
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(migrations, "script_location", lambda: folder)

    def add(self, number: str, upgrade: str, downgrade: str = "pass") -> None:
        """Add a revision after the last one; its bodies have ``op``, ``place``, and the helpers
        of ``agentstore.database.revisions``.
        """
        bodies = {"upgrade": upgrade, "downgrade": downgrade}
        functions = [
            f"def {name}():\n    place = Place()\n"
            + "".join(f"    {line}\n" for line in body.strip().splitlines())
            for name, body in bodies.items()
        ]
        source = "\n".join(
            [
                "import sqlalchemy as sa",
                "from alembic import op",
                "from agentstore.database.revisions import *",
                "from agentstore.database.revisions import JSON, TEXT, WHOLE, Place",
                f"revision = {number!r}",
                f"down_revision = {migrations.HEAD!r}",
                *functions,
            ]
        )
        (self.folder / "versions" / f"{number}_invented.py").write_text(source)
        self._monkeypatch.setattr(migrations, "REVISIONS", (*migrations.REVISIONS, number))
        self._monkeypatch.setattr(migrations, "HEAD", number)
