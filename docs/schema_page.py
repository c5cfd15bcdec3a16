"""Write ``docs/schema.md`` from the models: ``python -m docs.schema_page``.

The page says what the models say, in their own words, and nothing that they do not: a test
compares it with what this program prints. The diagrams show the keys and the references alone;
columns are in the tables. One diagram shows what leads from one aggregate to another, and one for
each aggregate what is inside.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapper

from agentstore import models
from agentstore.engines.base.search import INDEX, QUEUE, STATE
from agentstore.schema.base import PartialIndex

PAGE = Path(__file__).parent / "schema.md"
COMMAND = "python -m docs.schema_page"
ENGINES: dict[str, Dialect] = {
    "SQLite": sqlite.dialect(),
    "PostgreSQL": postgresql.dialect(),  # type: ignore[no-untyped-call]
}

AGGREGATES = {
    "Users": "User UserPreference QuotaReservation ApiKey",
    "Sessions": "Session SessionData Branch Summary",
    "Messages": "Message MessageToolCall MessageMark MessageChunk MessageVector Blob Attachment",
    "Tools, usage and tasks": "ToolLog TurnUsage Task",
    "Checkpoints": "CheckpointThread Checkpoint CheckpointValue CheckpointWrite",
    "Memories": "Memory MemoryVector VectorModel",
}
"""The sections, in the order of the page, and the models of each."""

ON_DELETE = {
    "CASCADE": ("the row goes with it", "whose rows go with it"),
    "SET NULL": ("the row stays, with NULL here", "whose rows stay, with NULL instead"),
    None: ("which the row keeps from being deleted", "whose rows keep it from being deleted"),
}
"""What happens when a row is deleted that another refers to; as each of the two sees it."""

INDEXES = {
    "users_email_pk": "`users.list` by e-mail",
    "users_deleting": "those who are being deleted, of whom nothing is shown",
    "user_preferences_user_id": "`users.update` and `users.delete`",
    "api_keys_user_id_pk": "`users.api_keys`",
    "api_keys_prefix": "`users.authenticate`",
    "quota_reservations_user_id_expires_at": "lapsing a user's reservations",
    "quota_reservations_expires_at": "the sum of what is reserved, in `usage.totals`",
    "quota_reservations_session_id": "what a session has reserved, for `sessions.interrupted`",
    "sessions_status_listed_activity": "`sessions.list`, the last written to first, status by "
    "status; `sessions.count`",
    "sessions_user_id_status_listed_activity": "the same for one user; `users.delete`",
    "sessions_failed": "`sessions.list(failed=True)`",
    "sessions_failed_user_id": "the same for one user",
    "sessions_expires_at": "`sessions.delete_expired`",
    "branches_session_name": "branches by their names, each there once",
    "branches_session_parent": "what grew from a branch that is to go",
    "messages_session_branch_seq": "histories and pages; no two messages in one place",
    "messages_session_branch_turn": "where the turns of a branch begin",
    "messages_session_external_id": "`messages.find_by_external_id`, and that it is there once",
    "messages_session_idempotency_key": "that a repeated call saves once",
    "messages_status_pk": "`messages.abort_stale`",
    "message_tool_calls_session_name_seq": "`messages.find_by_tool`",
    "message_tool_calls_session_call_id": "which message made a call, for `messages.history`",
    "message_marks_session_mark_seq": "`messages.history(mark=)`, `marks.count`",
    "message_vectors_session_message_pk": "`messages.search(by=)`; deleting a session",
    "message_chunks_session": "deleting a session",
    "attachments_message_id_pk": "`attachments.list`",
    "attachments_session_pk": "`attachments.list_of_session`",
    "attachments_digest": "whether somebody else still attaches the same bytes",
    "tool_logs_failed_pk": "`tool_logs.list(success=False)`",
    "tool_logs_failed_tool_pk": "`tool_logs.list(success=False)` of a tool",
    "tool_logs_failed_tool_created_at_pk": "the same in a window of time",
    "tool_logs_failed_created_at_pk": "`tool_logs.list(success=False)` in a window of time",
    "tool_logs_session_id_pk": "`tool_logs.list` of a session",
    "tool_logs_session_id_tool_pk": "`tool_logs.list` of a tool in a session",
    "tool_logs_tool_pk": "`tool_logs.list` of a tool",
    "tool_logs_tool_created_at_pk": "the same in a window of time; `tool_logs.stats`",
    "tool_logs_created_at_pk": "`tool_logs.list` in a window of time",
    "tool_logs_session_id_created_at_pk": "the same in a session; `usage.stats`",
    "tool_logs_message_id": "deleting a message",
    "turn_usage_session_id_branch_turn": "what a turn used, in `usage.sum_by`",
    "turn_usage_sums": "what a session used, also in a window of time; it holds all that is summed",
    "turn_usage_model_created_at": "what a model used in a window of time",
    "turn_usage_created_at": "what all used in a window of time",
    "tasks_claim": "`tasks.claim`: what is pending in a queue, the most urgent first",
    "tasks_due": "`tasks.due`: when the next task of a queue can begin",
    "tasks_lease_expires_at": "leases that ran out",
    "tasks_running_alone": "that one task at a time runs alone in a session",
    "tasks_session_id_pk": "`tasks.list` of a session",
    "tasks_session_id_status_pk": "the same in one status; `tasks.count`",
    "tasks_status_pk": "`tasks.list` in one status",
    "tasks_queue_pk": "`tasks.list` of a queue",
    "tasks_queue_status_pk": "the same in one status; `tasks.requeue`",
    "tasks_queue_idempotency_key": "that a repeated `tasks.create` makes one task",
    "checkpoint_threads_activity": "`checkpoints.threads`, the last put first",
    "checkpoint_threads_user_id_activity": "the same for one user",
    "checkpoint_threads_session_id_activity": "the same for one session; deleting it",
    "checkpoints_id": "`checkpoints.get` by an id alone",
    "checkpoints_thread_id_namespace_id": "a checkpoint in its thread; what parents refer to",
    "checkpoints_thread_id_namespace_step_pk": "`checkpoints.latest` and `checkpoints.list`",
    "checkpoints_thread_id_namespace_parent_id": "the children of a checkpoint that is to go",
    "checkpoints_run_id_pk": "`checkpoints.delete_run`",
    "memories_place_key": "`memories.get`, and that a key is there once",
    "memories_place_updated_at_pk": "`memories.list` and `memories.namespaces`",
    "memories_user_id": "deleting a user",
    "memories_expires_at_pk": "`memories.delete_expired`",
    "memory_vectors_model_memory_pk": "`memories.embed_pending`",
    "vector_models_name_dims": "the number of an embedding model, and that it has one",
}
"""What each index is for, by its name without ``ix_`` or ``uq_``; a test wants all of them."""

_INTRODUCTION = f"""\
<!-- Written by `{COMMAND}` from agentstore/schema and agentstore/models.py.
Change these, then run that. -->
# Schema reference

The tables as they are at head, in the words of the models. The models are public
(`agentstore.models`), for [queries of your own](queries.md). Reading the tables from any program
is fine. Writing past agentstore is not: counters, digests and orders would not follow.

Both engines have the same tables and columns. With `table_prefix=` the names of tables, indexes
and constraints carry the prefix; with `schema=` they are in that schema of PostgreSQL, where some
checks say the same in fewer words.

| what | SQLite | PostgreSQL | how |
|---|---|---|---|
| text | `TEXT` | `text` | NUL and lone surrogates, which PostgreSQL refuses, are escaped |
| JSON | `TEXT` | `json` | as it was written: `jsonb` would forget the order of keys |
| own id | `BLOB` of 16 bytes | `uuid` | UUIDv7; ids that an application may make are text |
| instant | `BIGINT` | `timestamptz` | UTC, exact; on SQLite the microseconds since 1970 |
| money | `BIGINT` | `bigint` | whole billionths of the unit, so that sums are exact |
| `pk` | `INTEGER` | `bigint` | the order of creation; never shown by the API |
| `session` | `BIGINT` | `bigint` | the `pk` of a session; in models `session_id`, and an id |

`id` is what the API shows, and what other tables refer to, but for `session`. Every `id` is unique.
"""

_BY_HAND = """\
In a SQLite file ids and instants are written out, and looked for, like this:

```sql
SELECT lower(hex(id)) AS id,
    strftime('%Y-%m-%d %H:%M:%f', created_at / 1000000.0, 'unixepoch') AS created_at,
    content
FROM messages
WHERE id = x'01900000000070008000000000000001' -- the digits of an id, without hyphens
    OR created_at >= strftime('%s', '2026-01-01') * 1000000;
```
"""

_READING = """\
In the diagrams a solid line means that a row goes with the one that it refers to, a dotted line
that it does not. They show keys and references alone, and leave `pk` out, which most tables have.
Boxes without columns belong to another part.
"""

_BESIDES = f"""\
## Besides the models

- `alembic_version` has one row, the revision of the schema. It carries the prefix and lies in the
  schema, so an application's own stays apart. While a copy into the database is not finished the
  row says `copying`, and no store opens.
- `{INDEX}`, `{QUEUE}` and `{STATE}` are the search index; see [search](search.md). All of it is
  made of `messages`, and `agentstore reindex` makes it again. On SQLite it is two FTS5 tables
  without content, which bring tables of their own. On PostgreSQL it is a table of words, with a
  function that makes lexemes of them for a GIN index. Triggers on `messages` tell it of changes.
- On PostgreSQL every table that holds anything of anybody's has a policy of row-level security, and
  there are a few functions that the policies call; see [one user's data](isolation.md).
- `activity`, a sequence of PostgreSQL, numbers what was written last. SQLite counts on from the
  largest number that there is.
"""


def main() -> None:
    """Write the page, or with ``--check`` say whether it has to be written."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write docs/schema.md.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    page = written()
    if parser.parse_args().check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page and f"{PAGE} is old. Run: {COMMAND}")
    PAGE.write_text(page, encoding="utf-8")


def written() -> str:
    """Give the page."""
    parts = [
        _INTRODUCTION,
        _BY_HAND,
        "## Overview\n",
        "What leads from one part to another.\n",
        _READING,
    ]
    parts.append(_diagram(_across(), []))
    for title in AGGREGATES:
        members = tables_of(title)
        parts.append(f"## {title}\n")
        references = [each for table in members for each in _references(table)]
        parts.append(_diagram(references, members))
        parts += [_section(table) for table in members]
    parts.append(_BESIDES)
    return "\n".join(parts)


def tables_of(title: str) -> list[Table]:
    """Give the tables of a section."""
    return [_as_table(getattr(models, name).__table__) for name in AGGREGATES[title].split()]


# --- Diagrams ----------------------------------------------------------------------------------


def _across() -> list[ForeignKeyConstraint]:
    """Give the references from one aggregate to another, and those between their ends."""
    where = {table.name: title for title in AGGREGATES for table in tables_of(title)}
    ends = [
        (reference, _as_table(reference.table).name, reference.referred_table.name)
        for title in AGGREGATES
        for table in tables_of(title)
        for reference in _references(table)
    ]
    crossing = [(own, other) for _, own, other in ends if where[own] != where[other]]
    shown = {name for pair in crossing for name in pair}
    return [each for each, own, other in ends if own != other and {own, other} <= shown]


def _diagram(references: Iterable[ForeignKeyConstraint], members: Iterable[Table]) -> str:
    lines = ["```mermaid", "erDiagram"]
    for reference in references:
        lines.append(f"    {_relation(reference)}")
    for table in members:
        keys = [c for c in table.columns if _keys(c) and c.name != "pk"]  # a word of Mermaid's
        lines.append(f"    {table.name} {{")
        lines += [f"        {_type(c, 'PostgreSQL')} {c.name} {', '.join(_keys(c))}" for c in keys]
        lines.append("    }")
    return "\n".join([*lines, "```\n"])


def _relation(reference: ForeignKeyConstraint) -> str:
    table = _as_table(reference.table)
    own = [element.parent for element in reference.elements]
    one = "|o" if any(column.nullable for column in own) else "||"
    many = "o|" if set(own) == set(table.primary_key.columns) else "o{"
    line = "--" if reference.ondelete == "CASCADE" else ".."
    label = ", ".join(column.name for column in own)
    return f'{reference.referred_table.name} {one}{line}{many} {table.name} : "{label}"'


def _keys(column: Column[Any]) -> list[str]:
    kinds = {"PK": column.primary_key, "FK": bool(column.foreign_keys), "UK": column.unique}
    return [kind for kind, is_one in kinds.items() if is_one]


# --- Tables ------------------------------------------------------------------------------------


def _section(table: Table) -> str:
    (mapper,) = (m for m in models.Base.registry.mappers if m.local_table is table)
    parts = [
        f"### {table.name}\n",
        f"`models.{mapper.class_.__name__}`. {_prose(mapper.class_.__doc__)}",
        "| column | SQLite | PostgreSQL | NULL | default | |",
        "|---|---|---|---|---|---|",
        *(_column(column) for column in table.columns),
        "",
        _related(mapper),
        *_list("Refers to", (_reference(each) for each in _references(table))),
        *_list("Referred to by", _referring(table)),
        *_list("Indexes", (_index(each) for each in _indexes(table))),
        *_list("Checks", (_check(each) for each in _named(table, CheckConstraint))),
    ]
    return "\n".join(parts)


def _column(column: Column[Any]) -> str:
    notes = ["primary key"] if column.primary_key else []
    if column.unique:
        notes.append("unique")
    if (targets := [key.target_fullname for key in column.foreign_keys]) and not _composite(column):
        notes += [f"→ {target}" for target in targets]
    default = getattr(column.server_default, "arg", None)
    cells = (
        f"`{column.name}`",
        f"`{_type(column, 'SQLite')}`",
        f"`{_type(column, 'PostgreSQL')}`",
        "yes" if column.nullable else "",
        "" if default is None else f"`{default}`",
        ", ".join(notes),
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _composite(column: Column[Any]) -> bool:
    return any(len(key.constraint.elements) > 1 for key in column.foreign_keys if key.constraint)


def _type(column: Column[Any], engine: str) -> str:
    kind = column.type.compile(dialect=ENGINES[engine])
    if engine == "SQLite":
        return kind
    return {"TIMESTAMP WITH TIME ZONE": "timestamptz"}.get(kind, kind.lower()).replace(" ", "_")


def _reference(reference: ForeignKeyConstraint) -> str:
    own = ", ".join(element.parent.name for element in reference.elements)
    target = ", ".join(element.column.name for element in reference.elements)
    name = reference.referred_table.name
    return f"{own} → [{name}](#{name}) ({target}): {ON_DELETE[reference.ondelete][0]}"


def _related(mapper: Mapper[Any]) -> str:
    """Say to which models a model leads, those that are many after those that are one."""
    ways = sorted(mapper.relationships, key=lambda each: (bool(each.uselist), each.key))
    shown = [
        f"`{way.key}` ({'many ' if way.uselist else ''}`{way.mapper.class_.__name__}`)"
        for way in ways
    ]
    return f"Relationships: {', '.join(shown)}.\n"


def _referring(table: Table) -> Iterator[str]:
    for other in (each for title in AGGREGATES for each in tables_of(title)):
        for reference in _references(other):
            if reference.referred_table is table:
                yield f"[{other.name}](#{other.name}), {ON_DELETE[reference.ondelete][1]}"


def _index(index: Index | UniqueConstraint) -> str:
    if isinstance(index, UniqueConstraint):
        unique, columns, where = True, [column.name for column in index.columns], None
    else:
        unique = bool(index.unique)
        columns = [str(each).replace(f"{index.table}.", "") for each in index.expressions]
        where = index.where if isinstance(index, PartialIndex) else None
    name = str(index.name)
    parts = [f"`{name}`", "unique" if unique else "", f"on {', '.join(columns)}"]
    parts.append("" if where is None else f"where `{where}`")
    purpose = INDEXES.get(name[3:])
    return " ".join(part for part in parts if part) + (f": {purpose}" if purpose else "")


def _check(constraint: CheckConstraint) -> str:
    return f"`{constraint.name}`: `{constraint.sqltext}`"


def _references(table: Table) -> list[ForeignKeyConstraint]:
    return _named(table, ForeignKeyConstraint)


def _indexes(table: Table) -> list[Index | UniqueConstraint]:
    found = [*table.indexes, *_named(table, UniqueConstraint)]
    return sorted(found, key=lambda each: str(each.name))


def _named(table: Table, kind: type[Any]) -> list[Any]:
    found = [each for each in table.constraints if type(each) is kind]
    return sorted(found, key=lambda each: str(each.name))


def _as_table(table: Any) -> Table:
    assert isinstance(table, Table)
    return table


# --- Text --------------------------------------------------------------------------------------


def _list(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {item}" for item in items]
    return [f"{title}:\n", *lines, ""] if lines else []


def _prose(docstring: str | None) -> str:
    text = inspect.cleandoc(docstring or "")
    return re.sub(r"``([^`]+)``", r"`\1`", text) + "\n"


if __name__ == "__main__":
    main()
