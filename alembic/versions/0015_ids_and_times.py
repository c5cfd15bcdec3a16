"""Ids that agentstore makes take 16 bytes, and times on SQLite are numbers.

On PostgreSQL these ids become uuid; times are timestamptz as before. On SQLite ids become BLOBs,
and times microseconds since 1970. No table gains or loses a column.

Revision ID: 0015
Revises: 0014
"""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from agentstore.database.revisions import BYTES, TEXT, Place

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

IDS = {
    "api_keys": ("id",),
    "quota_reservations": ("id",),
    "messages": ("id",),
    "message_tool_calls": ("message_id",),
    "message_marks": ("message_id",),
    "message_chunks": ("message_id",),
    "attachments": ("id", "message_id"),
    "tool_logs": ("id", "message_id"),
    "turn_usage": ("id",),
    "tasks": ("id",),
}
INSTANTS = {
    "users": ("created_at", "updated_at"),
    "api_keys": ("created_at", "last_used_at", "expires_at", "revoked_at"),
    "quota_reservations": ("created_at", "expires_at"),
    "sessions": ("expires_at", "created_at", "last_active_at", "newest_at"),
    "session_data": ("asked_at", "updated_at"),
    "branches": ("created_at",),
    "summaries": ("created_at", "updated_at"),
    "messages": ("created_at",),
    "message_chunks": ("created_at",),
    "blobs": ("created_at",),
    "attachments": ("created_at",),
    "tool_logs": ("created_at",),
    "turn_usage": ("created_at",),
    "tasks": (
        *("run_at", "lease_expires_at", "created_at", "updated_at", "started_at"),
        *("paused_at", "completed_at", "failed_at", "cancelled_at", "dead_at"),
    ),
    "checkpoint_threads": ("created_at",),
    "checkpoints": ("created_at",),
}
CHILDREN = {
    **dict.fromkeys(("message_tool_calls", "message_marks", "message_chunks"), "CASCADE"),
    "attachments": "CASCADE",
    "tool_logs": "SET NULL",
}
"""The tables that refer to messages, and what happens to their rows with one."""

NEVER = "'1970-01-01T00:00:00.000000+00:00'"
NOBODYS = "ffffffff-ffff-ffff-ffff-ffffffffffff"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ID_BYTES = 16
DECLARED = {"id": "BLOB", "instant": "BIGINT"}
STORED = {"id": "blob", "instant": "integer"}
BYTES_FOR_TEXT = """CASE typeof("{0}") WHEN 'text' THEN CAST("{0}" AS BLOB) ELSE "{0}" END"""
"""Python is handed no text, since a damaged one may be no UTF-8."""

HEX = "[0-9a-f]"
SHAPE = "-".join(HEX * count for count in (8, 4, 4, 4, 12))
"""Of an id: a GLOB, and a regular expression too."""


def upgrade() -> None:
    """Convert every such column; refuse before that where an id is no UUID."""
    place = Place()
    if not op.get_context().as_sql:
        _refuse_other_ids(place)
    if place.on_postgresql:
        _to_kind(place, "uuid")
        op.alter_column(place.table("sessions"), "newest_at", server_default=None, **_in(place))
    else:
        _refuse_a_script(op.get_context().as_sql and context.get_starting_revision_argument())
        _rebuild_all(place, {"id": _id_bytes, "instant": _micros}, back=False)


def downgrade() -> None:
    """Convert them back."""
    place = Place()
    if place.on_postgresql:
        _to_kind(place, "text")
        op.alter_column(
            place.table("sessions"), "newest_at", server_default=sa.text(NEVER), **_in(place)
        )
    else:
        _refuse_a_script(op.get_context().as_sql and context.get_revision_argument())
        _rebuild_all(place, {"id": _id_text, "instant": _iso}, back=True)


def _refuse_a_script(revision: object) -> None:
    if revision not in (False, None, "base", ()):
        raise RuntimeError(
            "SQL cannot convert the ids and times of SQLite, which Python has to read. Use a "
            "connection: agentstore upgrade, or alembic without --sql."
        )


def _refuse_other_ids(place: Place) -> None:
    for name, columns in IDS.items():
        for each in columns:
            stored = sa.table(place.table(name), sa.column(each, TEXT), schema=place.schema).c[each]
            if place.on_postgresql:
                known = stored.regexp_match(f"^{SHAPE}$")
            else:
                long = sa.func.length(sa.cast(stored, BYTES)) == len(NOBODYS)
                known = sa.and_(sa.func.typeof(stored) == "text", long, stored.op("GLOB")(SHAPE))
            others = sa.or_(sa.not_(known), stored == NOBODYS)
            query = sa.select(sa.func.count()).where(stored.is_not(None), others)
            count = op.get_bind().execute(query).scalar()
            if count:
                raise RuntimeError(
                    f"The column {each} of {place.table(name)} holds {count:,} ids that are not "
                    "UUIDs in lower case with hyphens. agentstore never makes such ids, and this "
                    "revision cannot store them. Give these rows other ids, or delete them, and "
                    "upgrade again. Nothing was changed."
                )


# --- PostgreSQL ----------------------------------------------------------------------------------


def _in(place: Place) -> dict[str, Any]:
    return {"schema": place.schema}


def _to_kind(place: Place, kind: str) -> None:
    """Rewrite each table once."""
    for name in CHILDREN:
        op.drop_constraint(
            f"fk_{place.table(name)}_message_id",
            place.table(name),
            type_="foreignkey",
            **_in(place),
        )
    for name, columns in IDS.items():
        changes = (f"ALTER COLUMN {each} TYPE {kind} USING {each}::{kind}" for each in columns)
        table = sa.table(place.table(name), schema=place.schema)
        named = op.get_context().dialect.identifier_preparer.format_table(table)
        op.execute(f"ALTER TABLE {named} {', '.join(changes)}")
        op.execute(f"ANALYZE {named} ({', '.join(columns)})")
    for name, gone in CHILDREN.items():
        op.create_foreign_key(
            op.f(f"fk_{place.table(name)}_message_id"),
            place.table(name),
            place.table("messages"),
            ["message_id"],
            ["id"],
            ondelete=gone,
            source_schema=place.schema,
            referent_schema=place.schema,
        )


# --- SQLite --------------------------------------------------------------------------------------


def _columns() -> dict[str, dict[str, str]]:
    """Give by tables and columns what is converted: an id, or an instant."""
    columns: dict[str, dict[str, str]] = {}
    for kind, found in (("id", IDS), ("instant", INSTANTS)):
        for name, those in found.items():
            columns.setdefault(name, {}).update(dict.fromkeys(those, kind))
    return columns


def _declarations(table: str, columns: dict[str, str], *, back: bool) -> list[tuple[str, str]]:
    """Give what is replaced in how a table is declared, and by what; at last what ends it.

    The CHECK refuses what a process would write that has an older version and an open store.
    """
    changes = []
    for each, kind in columns.items():
        old, new = f"{each} TEXT", f"{each} {DECLARED[kind]}"
        changes.append((f"{old} DEFAULT {NEVER}" if each == "newest_at" else old, new))
    held = (f"typeof({each}) IN ('{STORED[kind]}', 'null')" for each, kind in columns.items())
    changes.append((")", f", CONSTRAINT ck_{table}_stored CHECK ({' AND '.join(held)})\n)"))
    return [(new, old) for old, new in changes] if back else changes


def _rebuild_all(place: Place, functions: dict[str, Any], *, back: bool) -> None:
    if op.get_context().as_sql:
        _declare_otherwise(place, back=back)
        return
    driver: Any = op.get_bind().connection.dbapi_connection
    for kind, function in functions.items():
        driver.create_function(f"agentstore_{kind}", 1, function)
    op.execute("PRAGMA ignore_check_constraints=ON")  # what is damaged comes along as it is
    _end_following(place)
    for name, columns in _columns().items():
        _rebuild(place.table(name), columns, back=back)
    op.execute("PRAGMA ignore_check_constraints=OFF")
    for kind in functions:
        driver.create_function(f"agentstore_{kind}", 1, None)


def _declare_otherwise(place: Place, *, back: bool) -> None:
    """Do for a script what it can do: there are no rows, and no table that it could read."""
    op.execute("PRAGMA writable_schema=ON")
    for name, columns in _columns().items():
        table = place.table(name)
        *changes, (end, new_end) = _declarations(table, columns, back=back)
        declared = f"substr(sql, 1, length(sql) - {len(end)})"
        for old, new in changes:
            declared = f"replace({declared}, {_quoted(' ' + old)}, {_quoted(' ' + new)})"
        op.execute(
            f"UPDATE sqlite_master SET sql = {declared} || {_quoted(new_end)}"  # noqa: S608
            f" WHERE type = 'table' AND name = '{table}'"
        )
    op.execute("PRAGMA writable_schema=RESET")


def _rebuild(table: str, columns: dict[str, str], *, back: bool) -> None:
    """Copy a table. The old one makes room under its name first, so that what refers to it goes on
    doing so.
    """
    before = f"{table}_before"
    declared = dict(_parts(table, "type = 'table'"))[table]
    parts = _parts(table, "type IN ('index', 'trigger') ORDER BY type, rootpage")
    *changes, (end, new_end) = _declarations(table, columns, back=back)
    known = declared.endswith(end)
    declared = declared.removesuffix(end)
    for old, new in changes:
        declared, times = re.subn(rf"(?<!\w){re.escape(old)}(?!\w)", new, declared)
        known = known and times == 1
    if not known:
        raise RuntimeError(f"The table {table} was changed by hand, so it cannot be converted.")
    declared += new_end
    listed = op.get_bind().exec_driver_sql(f'PRAGMA table_info("{table}")').all()
    values = [
        f"agentstore_{columns[row.name]}({BYTES_FOR_TEXT.format(row.name)})"
        if row.name in columns
        else f'"{row.name}"'
        for row in listed
    ]
    op.execute("PRAGMA legacy_alter_table=ON")
    op.execute(f'ALTER TABLE "{table}" RENAME TO "{before}"')
    op.execute("PRAGMA legacy_alter_table=OFF")
    run = op.get_bind().exec_driver_sql
    run(declared)
    run(f'INSERT INTO "{table}" SELECT {", ".join(values)} FROM "{before}"')  # noqa: S608
    run(f'DROP TABLE "{before}"')
    for _, statement in parts:
        run(statement)


def _parts(table: str, wanted: str) -> list[tuple[str, str]]:
    query = f"SELECT name, sql FROM sqlite_master WHERE tbl_name = ? AND sql NOT NULL AND {wanted}"  # noqa: S608
    rows = op.get_bind().exec_driver_sql(query, (table,)).all()
    return [(row.name, row.sql) for row in rows]


def _end_following(place: Place) -> None:
    """Drop the log of a followed copy, whose triggers write text. The copy has to begin again."""
    log = f"{place.prefix}agentstore_changes"
    query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND instr(name, ?) = 1"
    for row in op.get_bind().exec_driver_sql(query, (f"{log}_",)).all():
        op.execute(f'DROP TRIGGER "{row.name}"')
    op.execute(f'DROP TABLE IF EXISTS "{log}"')


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _id_bytes(stored: Any) -> Any:
    return None if stored is None else bytes.fromhex(stored.decode().replace("-", ""))


def _id_text(stored: Any) -> Any:
    if not isinstance(stored, bytes) or len(stored) != ID_BYTES:
        return stored
    digits = stored.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _micros(stored: Any) -> Any:
    """Read a time. One that is damaged stays bytes, which are as damaged: text of digits would be
    read as a number.
    """
    if isinstance(stored, bytes):
        with suppress(ValueError):
            instant = datetime.fromisoformat(stored.decode())
            if instant.tzinfo is UTC:
                return (instant - EPOCH) // MICROSECOND
    return stored


def _iso(stored: Any) -> Any:
    if isinstance(stored, int):
        with suppress(OverflowError):
            instant = EPOCH + timedelta(microseconds=stored)
            return instant.isoformat(timespec="microseconds")
    if isinstance(stored, bytes):
        with suppress(UnicodeDecodeError):
            return stored.decode()
    return stored
