"""Saving PostgreSQL with ``pg_dump`` and ``pg_restore``, and reading what is in an archive.

An archive has the tables of agentstore alone, with their sequences, indexes, triggers and
policies, and is of the snapshot that the caller has open. Functions are not in it: ``pg_dump``
leaves them out where tables are named, and the revisions make them. So an archive goes into tables
that the revisions have made, which it replaces, all in one transaction.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
from sqlalchemy import URL, Connection

from agentstore.engines.base.moving import Shape
from agentstore.engines.base.saving import Holdings, OnSteps
from agentstore.engines.base.search_objects import INDEX, QUEUE, STATE
from agentstore.engines.postgresql.archives import LeftOut, read_rows
from agentstore.engines.postgresql.moving import driver_of
from agentstore.engines.postgresql.programs import (
    arguments,
    program,
    reader,
    running,
    written_out,
)
from agentstore.engines.postgresql.row_security import policy_name
from agentstore.engines.postgresql.visibility import hidden_rows
from agentstore.errors import (
    ArchiverMissing,
    BackupIncomplete,
    BackupUnderWay,
    NotABackup,
)
from agentstore.models.tables import Names, tables

_POLL_SECONDS = 0.1
_LOCK_WAIT = "60s"
_RESTORE_LOCK = 0x61676E7473746F73 >> 1
"""Any number that no other program locks, and no other part of this one."""

_LOCK = "SELECT pg_try_advisory_lock(%s # hashtext(%s))"
_UNLOCK = "SELECT pg_advisory_unlock(%s # hashtext(%s))"

_SCHEMA_OF = """
SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%s)"""
_ENTRY = re.compile(
    r"\d+; \d+ \d+ (TABLE DATA|SEQUENCE OWNED BY|SEQUENCE SET|FK CONSTRAINT|ROW SECURITY"
    r"|[A-Z]+) (\S+) (\S+)"
)
_ABOUT_TABLES = {
    *("TABLE", "TABLE DATA", "DEFAULT", "CONSTRAINT", "FK CONSTRAINT", "TRIGGER", "POLICY"),
    "ROW SECURITY",
}
_ABOUT_SEQUENCES = {"SEQUENCE", "SEQUENCE OWNED BY", "SEQUENCE SET"}
_OTHERS = {"INDEX", "ACL", "COMMENT"}
"""What comes with a table; these are listed under names of their own."""

_REVISIONS = "alembic_version"


class PostgreSQLArchives:
    """See ``Archives`` for what each method promises."""

    def obstacle(self, connection: Connection, url: URL) -> str | None:
        """Look for a ``pg_dump`` of the server's version or a newer one."""
        _, secrets = arguments(connection, url)
        if set(secrets) - {"password"}:
            return (
                "pg_dump takes secrets of the URL only on its command line, where other users "
                "could read them. Use --format portable."
            )
        try:
            program("pg_dump", _major(connection))
        except ArchiverMissing as error:
            return str(error)
        return None

    def require_all_visible(self, connection: Connection, names: Names) -> None:
        """Ask what the policies ask: whether a scope is set, and who may empty the tables."""
        schema = _schema(driver_of(connection), names)
        wanted = [_pattern(schema, name) for name in _ours(names)]
        hidden = hidden_rows(connection, wanted, policy_name(names))
        if hidden is not None:
            raise BackupIncomplete(hidden.reason)

    def save(
        self, connection: Connection, url: URL, names: Names, file: Path, progress: OnSteps
    ) -> None:
        """Run ``pg_dump`` on the snapshot of the connection."""
        driver = driver_of(connection)
        chosen = program("pg_dump", _major(connection))
        (snapshot,) = _one(driver, "SELECT pg_export_snapshot()")
        schema = _schema(driver, names)
        tables = [f"--table={_pattern(schema, name)}" for name in (*_ours(names), _activity(names))]
        command = [
            str(chosen.path),
            # The owner is subject to the policies, too, and they hide nothing outside of a scope.
            "--enable-row-security",
            *("--format=custom", f"--snapshot={snapshot}", f"--lock-wait-timeout={_LOCK_WAIT}"),
            *tables,
        ]
        with file.open("wb") as output, running(command, connection, url, output) as process:
            while True:
                try:
                    process.wait(_POLL_SECONDS)
                    return
                except subprocess.TimeoutExpired:
                    progress(file.stat().st_size, None)

    def holdings(
        self, file: Path, connection: Connection, names: Names, shapes: Sequence[Shape], head: str
    ) -> Holdings:
        """Let ``pg_restore`` write the rows out, and read them."""
        found, contents = reader(file, _major(connection))
        schema = _schema(driver_of(connection), names)
        _require_ours(file, contents, names, schema)
        command = [str(found.path), "--data-only", "--file=-", str(file)]
        revision = _revision(command, connection, names, schema)
        if revision is None:
            raise NotABackup(str(file), "it does not say its revision")
        left_out = LeftOut(shapes)
        while True:
            left_out.begin()
            with written_out(command, connection) as output:
                if revision == head:
                    rows, digests = _digested(file, output, schema, shapes, left_out)
                else:
                    rows, digests = _counted(output, schema, shapes), {}
            if left_out.is_settled():
                return Holdings(revision, rows, digests, left_out.rows)

    @contextmanager
    def place(self, connection: Connection, names: Names) -> Iterator[None]:
        """Hold a lock of this session's."""
        driver = driver_of(connection)
        key = f"{names.schema}.{names.prefix}"
        (free,) = _one(driver, _LOCK, [_RESTORE_LOCK, key])
        if not free:
            raise BackupUnderWay("this database")
        try:
            yield
        finally:
            _one(driver, _UNLOCK, [_RESTORE_LOCK, key])

    def load(self, file: Path, url: URL, names: Names, *, server: Connection) -> None:
        """Run ``pg_restore``, in one transaction."""
        found, contents = reader(file, _major(server))
        revisions = f"{names.prefix}{_REVISIONS}"
        listed = [
            line
            for line in contents.splitlines()
            if (entry := _ENTRY.match(line)) is not None and entry[3] != revisions
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".list") as chosen:
            chosen.write("\n".join(listed))
            chosen.flush()
            command = [
                str(found.path),
                *("--clean", "--if-exists", "--single-transaction", "--exit-on-error"),
                *("--no-owner", "--no-privileges", f"--use-list={chosen.name}", str(file)),
            ]
            with running(command, server, url, subprocess.DEVNULL) as process:
                process.wait()


def _revision(command: list[str], connection: Connection, names: Names, schema: str) -> str | None:
    only = [*command[:-1], f"--table={names.prefix}{_REVISIONS}", command[-1]]
    found = None
    with written_out(only, connection) as output:
        for _, _, lines in read_rows(output, schema):
            found = next((line.decode() for line in lines), None)
    return found


def _counted(output: IO[bytes], schema: str, shapes: Sequence[Shape]) -> dict[str, int]:
    """Count the rows of our tables, parents first."""
    found = {table: lines.count() for table, _, lines in read_rows(output, schema)}
    return {shape.name: found[shape.table.name] for shape in shapes if shape.table.name in found}


def _digested(
    file: Path, output: IO[bytes], schema: str, shapes: Sequence[Shape], left_out: LeftOut
) -> tuple[dict[str, int], dict[str, str]]:
    """Count the rows of our tables, and digest them, parents first."""
    by_name = {shape.table.name: shape for shape in shapes}
    found = {}
    for table, columns, lines in read_rows(output, schema):
        if (shape := by_name.get(table)) is None:
            continue
        try:
            found[shape.name] = lines.digest(shape, columns, left_out)
        except (ValueError, IndexError):
            # From None: the error quotes what it could not read.
            raise NotABackup(str(file), f"its rows of {shape.name} are damaged") from None
    ordered = [(shape.name, found[shape.name]) for shape in shapes if shape.name in found]
    rows = {name: count for name, (count, _) in ordered}
    return rows, {name: str(digest) for name, (_, digest) in ordered}


# --- What belongs to us ------------------------------------------------------------------------


def _ours(names: Names) -> list[str]:
    known = [table.name for table in tables(names).metadata.sorted_tables]
    return [*known, *(f"{names.prefix}{each}" for each in (INDEX, QUEUE, STATE, _REVISIONS))]


def _activity(names: Names) -> str:
    return f"{names.prefix}activity"


def _require_ours(file: Path, contents: str, names: Names, schema: str) -> None:
    """Refuse an archive of other tables, or of others too: restoring would replace those."""
    entries = [entry for line in contents.splitlines() if (entry := _ENTRY.match(line))]
    places = [(each[2], each[3]) for each in entries if each[1] == "TABLE"]
    if (schema, f"{names.prefix}{_REVISIONS}") not in places:
        for where, name in places:
            if name.endswith(_REVISIONS):
                options = [f"--schema {where}"] if where != schema else []
                if prefix := name.removesuffix(_REVISIONS):
                    options.append(f"--table-prefix {prefix}")
                elif names.prefix:
                    options.append("no --table-prefix")
                raise NotABackup(
                    str(file), f"its tables have other names (use {' and '.join(options)})"
                )
        raise NotABackup(str(file), "it is an archive of another database")
    known = set(_ours(names))
    lines = [line for line in contents.splitlines() if line and not line.startswith(";")]
    for line in lines:
        entry = _ENTRY.match(line)
        kind = entry[1] if entry else ""
        known_name = entry is not None and entry[2] == schema and _is_ours(kind, entry[3], known)
        if not known_name and kind not in _OTHERS:
            raise NotABackup(str(file), "it holds more than agentstore's tables (use pg_restore)")
    if len(entries) != len(lines):
        raise NotABackup(str(file), "its table of contents cannot be read")


def _is_ours(kind: str, name: str, known: set[str]) -> bool:
    if kind in _ABOUT_TABLES:
        return name in known
    if kind in _ABOUT_SEQUENCES:
        return name.removesuffix("_pk_seq") in known or name.endswith("activity")
    return False


def _schema(driver: psycopg.Connection[Any], names: Names) -> str:
    """Find the schema that the tables are in, or that they would be in."""
    if names.schema is not None:
        return names.schema
    found = driver.execute(_SCHEMA_OF, [f"{names.prefix}{_REVISIONS}"]).fetchone()
    return str((found or _one(driver, "SELECT coalesce(current_schema(), 'public')"))[0])


def _pattern(schema: str, name: str) -> str:
    """Write a name so that nothing in it is taken for a pattern."""
    return f'"{schema}"."{name}"'


def _major(connection: Connection) -> int:
    return driver_of(connection).info.server_version // 10_000


def _one(driver: psycopg.Connection[Any], query: Any, values: Sequence[Any] = ()) -> Any:
    found = driver.execute(query, values or None).fetchone()
    assert found is not None
    return found
