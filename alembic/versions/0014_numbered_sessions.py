"""Messages, branches and what hangs on them say their session by its row number.

An id is text of 36 characters, and stood in each of their rows and indexes. The search index says
its sessions by number too, so it is emptied: ``agentstore reindex`` or, where there are few
messages, the first search fills it.

Sessions of nobody leave the index of users' sessions.

SQLite copies the tables, one after the other; PostgreSQL rewrites them in place. Either needs room
for the largest of them once more, and no more memory for more rows.

Revision ID: 0014
Revises: 0013
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from alembic import op

from agentstore.database.revisions import (
    FLAG,
    INSTANT,
    JSON,
    NANOS,
    TEXT,
    WHOLE,
    Place,
    check,
    column,
    postgresql_search,
    primary_key,
    references,
    row_number,
    row_security,
    sqlite_activity,
    sqlite_search,
    unique,
)

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


@dataclass(frozen=True)
class SessionKey:
    """How tables say their session: the column, its type, and which column of sessions it names."""

    column: str
    kind: Any
    key: str


BY_ID, BY_NUMBER = SessionKey("session_id", TEXT, "id"), SessionKey("session", WHOLE, "pk")

TABLES = ("branches", "branch_segments", "summaries", "messages", "message_tool_calls")
TABLES += ("message_marks", "message_chunks", "attachments")

REFERENCES = (
    ("branches", "", "sessions", "", "CASCADE"),
    ("branches", "parent", "branches", "number", None),
    ("branch_segments", "", "sessions", "", "CASCADE"),
    ("branch_segments", "previous", "branch_segments", "number", None),
    ("summaries", "", "sessions", "", "CASCADE"),
    ("messages", "branch", "branches", "number", "CASCADE"),
)
"""The references with the session in them: what else is in them, and where that leads."""

INDEXES: tuple[tuple[str, tuple[str, ...], bool, str | None], ...] = (
    ("branches", ("name",), True, None),
    ("branches", ("parent",), False, None),
    ("branches", ("tip",), False, None),
    ("branch_segments", ("branch",), False, None),
    ("branch_segments", ("previous",), False, None),
    ("messages", ("branch", "seq"), True, None),
    ("messages", ("branch", "turn"), False, "role = 'user'"),
    ("messages", ("external_id",), True, "external_id IS NOT NULL"),
    ("messages", ("idempotency_key",), True, "idempotency_key IS NOT NULL"),
    ("message_tool_calls", ("name", "seq"), False, None),
    ("message_tool_calls", ("call_id",), False, None),
    ("message_marks", ("mark", "seq"), False, None),
    ("message_chunks", (), False, None),
    ("attachments", ("pk",), False, None),
)
"""The indexes that begin with the session: what follows, and whether that is unique, and of which
rows."""

SQLITE_INDEXES = (
    ("messages", ("status", "pk"), "status <> 'complete'"),
    ("attachments", ("digest",), None),
    ("attachments", ("message_id", "pk"), None),
)
"""The others, which go with a table that is copied."""


def upgrade() -> None:
    """Look the numbers up."""
    _change(Place(), BY_ID, BY_NUMBER)


def downgrade() -> None:
    """Look the ids up."""
    _change(Place(), BY_NUMBER, BY_ID)


def _change(place: Place, old: SessionKey, new: SessionKey) -> None:
    if not op.get_context().as_sql:
        _refuse_rows_of_no_session(place, old)
    lists = ("user_id", "status", "listed_activity")
    place.drop_index("_".join(lists), "sessions")
    where = None if new is BY_ID else "user_id IS NOT NULL"
    place.index("_".join(lists), "sessions", *lists, where=where)
    if place.on_postgresql:
        _rewrite(place, old, new)
    else:
        _copy(place, old, new)
    state = _table(place, "search_state", "indexed_through", "walk_through").c
    values: dict[Any, Any] = {state.indexed_through: 0}
    if place.on_postgresql:  # on SQLite all that is newer is walked
        newest = sa.func.coalesce(sa.func.max(_table(place, "messages", "pk").c.pk), 0)
        values[state.walk_through] = sa.select(newest).scalar_subquery()
    op.execute(sa.update(state.indexed_through.table).values(values))


def _table(place: Place, name: str, *columns: str) -> sa.TableClause:
    described = (sa.column(each, TEXT if each.endswith("id") else WHOLE) for each in columns)
    return sa.table(place.table(name), *described, schema=place.schema)


def _refuse_rows_of_no_session(place: Place, old: SessionKey) -> None:
    """Refuse before anything changes: such a row could name no session afterwards."""
    for name in TABLES:
        table, sessions = _table(place, name, old.column), _table(place, "sessions", old.key)
        # NOT IN would compare each with each, once the ids are more than work_mem holds.
        known = sa.exists().where(sessions.c[old.key] == table.c[old.column])
        lost = sa.select(table.c[old.column]).where(~known).limit(1)
        if op.get_bind().execute(lost).first() is not None:
            raise RuntimeError(
                f"Rows of {place.table(name)} name a session that is not there, so another "
                f"program wrote them. Delete those whose {old.column} is no {old.key} of "
                f"{place.table('sessions')}, or restore a backup; then try again."
            )


# --- PostgreSQL ----------------------------------------------------------------------------------


def _rewrite(place: Place, old: SessionKey, new: SessionKey) -> None:
    """Rewrite the columns in place; PostgreSQL rebuilds their indexes with them."""
    back = new is BY_ID
    before, after = row_security.by_number(place.names, back=back)
    names = {name: _quoted(place, name) for name in (*TABLES, "sessions")}
    for name, other, *_ in REFERENCES:
        op.drop_constraint(
            _named("fk", place, name, old, *_rest(other)), place.table(name), schema=place.schema
        )
    for statement in before:
        op.execute(statement)
    op.execute(f"DROP TRIGGER {place.table('search_updated')} ON {names['messages']}")
    kinds = {"text": "bigint", "bigint": "text"}
    given = "bigint" if back else "text"
    function = f"pg_temp.session_{new.key}"
    op.execute(
        f"CREATE FUNCTION {function}(wanted {given}) RETURNS {kinds[given]}"  # noqa: S608
        f" LANGUAGE plpgsql STABLE STRICT AS $body$ BEGIN RETURN"
        f" (SELECT {new.key} FROM {names['sessions']} WHERE {old.key} = wanted); END $body$"
    )
    for name in TABLES:
        op.execute(
            f"ALTER TABLE {names[name]} ALTER COLUMN {old.column} TYPE {kinds[given]}"
            f" USING {function}({old.column})"
        )
        op.execute(f"ALTER TABLE {names[name]} RENAME COLUMN {old.column} TO {new.column}")
    op.execute(f"DROP FUNCTION {function}({given})")
    schema = f'"{place.schema}".' if place.schema else ""
    for name, columns, *_ in INDEXES:
        was, is_ = (_named("ix", place, name, way, *columns) for way in (old, new))
        op.execute(f'ALTER INDEX {schema}"{was}" RENAME TO "{is_}"')
    for name, other, target, others, ondelete in REFERENCES:
        op.create_foreign_key(
            _named("fk", place, name, new, *_rest(other)),
            place.table(name),
            place.table(target),
            [new.column, *_rest(other)],
            [new.column if others else new.key, *_rest(others)],
            ondelete=ondelete,
            source_schema=place.schema,
            referent_schema=place.schema,
        )
    for statement in (
        *after,
        *postgresql_search.numbered_sessions(place.schema, place.prefix, back=back),
    ):
        op.execute(statement)


def _quoted(place: Place, name: str) -> str:
    return op.get_context().dialect.identifier_preparer.format_table(_table(place, name))


def _named(kind: str, place: Place, table: str, way: SessionKey, *columns: str) -> str:
    return op.f("_".join((kind, place.table(table), way.column, *columns)))


def _rest(other: str) -> tuple[str, ...]:
    return (other,) if other else ()


# --- SQLite --------------------------------------------------------------------------------------


def _copy(place: Place, old: SessionKey, new: SessionKey) -> None:
    """Copy each table, which is the only way to change a column that a key has.

    The old one makes room under its name first, so that what refers to it goes on doing so.
    """
    names, sessions = _columns(), _quoted(place, "sessions")
    known = f"FROM {sessions} AS known WHERE known.{old.key} = {old.column}"
    looked_up = f"(SELECT {new.key} {known})"
    for name in TABLES:
        table, before = place.table(name), place.table(f"{name}_before")
        op.execute("PRAGMA legacy_alter_table=ON")
        op.execute(f'ALTER TABLE "{table}" RENAME TO "{before}"')
        op.execute("PRAGMA legacy_alter_table=OFF")
        place.create(name, *_parts(name, new))
        rest = [f'"{each}"' for each in names[name]]
        op.execute(
            f'INSERT INTO "{table}" ({new.column}, {", ".join(rest)})'  # noqa: S608
            f' SELECT {looked_up}, {", ".join(rest)} FROM "{before}" ORDER BY rowid'
        )
        op.execute(f'DROP TABLE "{before}"')
    for name, columns, is_unique, where in INDEXES:
        label = "_".join((new.column, *columns))
        place.index(label, name, new.column, *columns, unique=is_unique, where=where)
    for name, columns, where in SQLITE_INDEXES:
        place.index("_".join(columns), name, *columns, where=where)
    for statement in sqlite_search.numbered_sessions(place.prefix, back=new is BY_ID):
        op.execute(statement)
    op.execute(sqlite_activity.objects(place.prefix)[place.table("activity_kept")])


SESSION = "session"
"""Stands among columns in the place of the column that changes."""

COLUMNS: dict[str, dict[str, Any]] = {
    "branches": {
        **{SESSION: None, "number": WHOLE, "name": TEXT, "parent": WHOLE, "fork_seq": WHOLE},
        **{"fork_turn": WHOLE, "created_at": INSTANT, "tip": WHOLE, "gone": FLAG},
        **{"own_messages": WHOLE, "own_turns": WHOLE},
    },
    "branch_segments": {
        **{SESSION: None, "number": WHOLE, "branch": WHOLE, "first_seq": WHOLE},
        **{"last_seq": WHOLE, "previous": WHOLE, "messages": WHOLE, "turns": WHOLE},
    },
    "summaries": {
        **{SESSION: None, "branch": WHOLE, "content": TEXT, "metadata": JSON},
        **{"through_seq": WHOLE, "created_at": INSTANT, "updated_at": INSTANT},
    },
    "messages": {
        **{"pk": None, "id": TEXT, SESSION: None, "branch": WHOLE, "seq": WHOLE, "turn": WHOLE},
        **{"role": TEXT, "status": TEXT, "token_count": WHOLE, "cost": NANOS},
        **{"created_at": INSTANT, "name": TEXT, "tool_call_id": TEXT, "external_id": TEXT},
        **{"idempotency_key": TEXT, "content": TEXT, "blocks": JSON, "tool_calls": JSON},
        **{"metadata": JSON, "payload": JSON, "chat_keys": JSON},
    },
    "message_tool_calls": {
        **{"message_id": TEXT, "position": WHOLE, SESSION: None, "seq": WHOLE},
        **{"name": TEXT, "call_id": TEXT},
    },
    "message_marks": {"message_id": TEXT, "mark": TEXT, SESSION: None, "seq": WHOLE},
    "message_chunks": {
        **{"message_id": TEXT, "position": WHOLE, SESSION: None, "content": TEXT},
        "created_at": INSTANT,
    },
    "attachments": {
        **{"pk": None, "id": TEXT, "message_id": TEXT, SESSION: None, "digest": TEXT},
        **{"media_type": TEXT, "name": TEXT, "created_at": INSTANT},
    },
}
NULLABLE = {
    "branches": {"parent", "tip"},
    "branch_segments": {"previous"},
    "summaries": {"through_seq"},
    "messages": {
        *("name", "tool_call_id", "external_id", "idempotency_key", "content", "blocks"),
        *("tool_calls", "metadata", "payload", "chat_keys"),
    },
    "message_tool_calls": {"call_id"},
    "message_chunks": {"created_at"},
    "attachments": {"name"},
}
DEFAULTS = {
    **{("branches", name): "0" for name in ("fork_seq", "fork_turn", "own_messages", "own_turns")},
    ("branches", "gone"): "false",
    **{("branch_segments", name): "0" for name in ("messages", "turns")},
    **{("messages", name): "0" for name in ("token_count", "cost")},
    ("messages", "status"): "'complete'",
}
KEYS = {
    **dict.fromkeys(("branches", "branch_segments"), (SESSION, "number")),
    "summaries": (SESSION, "branch"),
    **dict.fromkeys(("message_tool_calls", "message_chunks"), ("message_id", "position")),
    "message_marks": ("message_id", "mark"),
    **dict.fromkeys(("messages", "attachments"), ("pk",)),
}
OF_A_MESSAGE = references("message_id", "messages", "id", ondelete="CASCADE")
CONSTRAINTS: dict[str, list[Callable[[Place, str], sa.Constraint]]] = {
    "branches": [check("parent", "number >= 0 AND (parent < number OR parent IS NULL)")],
    "messages": [
        check("amounts", "token_count >= 0 AND cost >= 0"),
        check("content", "content IS NULL OR blocks IS NULL"),
        check("role", "role IN ('system', 'developer', 'user', 'assistant', 'tool')"),
        check("status", "status IN ('complete', 'streaming', 'incomplete')"),
        unique("id"),
    ],
    **{name: [OF_A_MESSAGE] for name in ("message_tool_calls", "message_marks", "message_chunks")},
    "attachments": [references("digest", "blobs", "digest"), OF_A_MESSAGE, unique("id")],
}


def _columns() -> dict[str, list[str]]:
    """Give the columns that stay, by table."""
    return {name: [each for each in COLUMNS[name] if each != SESSION] for name in TABLES}


def _parts(name: str, way: SessionKey) -> list[Callable[[Place, str], Any]]:
    """Describe a table's columns and constraints."""
    parts: list[Callable[[Place, str], Any]] = []
    for each, kind in COLUMNS[name].items():
        if each == "pk":
            parts.append(row_number())
        elif each == SESSION:
            parts.append(column(way.column, way.kind))
        else:
            null = each in NULLABLE.get(name, ())
            parts.append(column(each, kind, default=DEFAULTS.get((name, each)), null=null))
    parts.append(primary_key(*(way.column if each == SESSION else each for each in KEYS[name])))
    parts += CONSTRAINTS.get(name, [])
    for own, other, target, others, ondelete in REFERENCES:
        if own == name:
            columns = " ".join((way.column, *_rest(other)))
            targets = " ".join((way.column if others else way.key, *_rest(others)))
            parts.append(references(columns, target, targets, ondelete=ondelete))
    return parts
