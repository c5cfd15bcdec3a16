"""The tables of checkpoints; see ``agentstore.models.checkpoints``."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    text,
)

from agentstore.schema.base import (
    ARRAY,
    BYTES,
    INSTANT,
    OBJECT,
    TEXT,
    WHOLE,
    PartialIndex,
    column,
    nullable,
    one_of,
    row_number,
    table,
)
from agentstore.values.types import RowNumber, Word

_ROOT_NAMESPACE = text("namespace = ''")

_IN_A_SESSION = text("session_id IS NOT NULL")

_OF_A_USER = text("user_id IS NOT NULL")

_OF_A_RUN = text("run_id IS NOT NULL")

_BASED = text("base_line IS NOT NULL")

_KINDS = ("json", "bytes", "list", "items")

_ENCODINGS = ("raw", "zlib")

checkpoint_threads = table(
    "checkpoint_threads",
    row_number(),
    column("id", TEXT, unique=True),
    nullable("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE")),
    nullable("session_id", TEXT, ForeignKey("sessions.id", ondelete="CASCADE")),
    column("activity", WHOLE),
    column("last_line", WHOLE, server_default=text("0")),
    column("created_at", INSTANT),
    Index(None, "activity"),
    PartialIndex(None, "user_id", "activity", where=_OF_A_USER),
    PartialIndex(None, "session_id", "activity", where=_IN_A_SESSION),
)

checkpoints = table(
    "checkpoints",
    row_number(),
    column("thread_id", TEXT, ForeignKey("checkpoint_threads.id", ondelete="CASCADE")),
    column("namespace", TEXT, server_default=text("''")),
    column("id", TEXT),
    nullable("parent_id", TEXT),
    column("step", WHOLE),
    nullable("run_id", TEXT),
    column("tags", ARRAY),
    column("summary", TEXT),
    column("next_node", TEXT),
    nullable("metadata", OBJECT),
    column("created_at", INSTANT),
    nullable("small_values", BYTES),
    UniqueConstraint("thread_id", "namespace", "id"),
    ForeignKeyConstraint(
        ["thread_id", "namespace", "parent_id"],
        ["checkpoints.thread_id", "checkpoints.namespace", "checkpoints.id"],
    ),
    CheckConstraint("step >= 0", name="step"),
    Index(None, "thread_id", "namespace", "step", "pk"),
    Index(None, "thread_id", "namespace", "parent_id"),
    PartialIndex("uq_checkpoints_id", "id", unique=True, where=_ROOT_NAMESPACE),
    PartialIndex(None, "run_id", "pk", where=_OF_A_RUN),
)

checkpoint_values = table(
    "checkpoint_values",
    column(
        "thread_id", TEXT, ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    ),
    column("line", WHOLE, primary_key=True, autoincrement=False),
    column("start", WHOLE, primary_key=True, autoincrement=False),
    nullable("base_line", WHOLE),
    nullable("base_start", WHOLE),
    nullable("base_length", WHOLE),
    nullable("prefix", WHOLE),
    column("suffix", WHOLE, server_default=text("0")),
    column("depth", WHOLE),
    column("data", BYTES),
    ForeignKeyConstraint(
        ["thread_id", "base_line", "base_start"],
        [
            "checkpoint_values.thread_id",
            "checkpoint_values.line",
            "checkpoint_values.start",
        ],
        name="fk_checkpoint_values_base",
    ),
    CheckConstraint("start >= 0 AND prefix >= 0 AND suffix >= 0", name="start"),
    PartialIndex(
        "ix_checkpoint_values_base",
        "thread_id",
        "base_line",
        "base_start",
        "base_length",
        where=_BASED,
    ),
)

checkpoint_entries = table(
    "checkpoint_entries",
    column(
        "checkpoint_pk",
        RowNumber,
        ForeignKey("checkpoints.pk", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    column("name", TEXT, primary_key=True),
    column("thread_id", TEXT),
    column("line", WHOLE),
    column("start", WHOLE, server_default=text("0")),
    column("length", WHOLE),
    column("kind", Word(_KINDS)),
    column("size", WHOLE),
    column("item_count", WHOLE),
    column("digest", BYTES),
    ForeignKeyConstraint(
        ["thread_id", "line", "start"],
        [
            "checkpoint_values.thread_id",
            "checkpoint_values.line",
            "checkpoint_values.start",
        ],
        name="fk_checkpoint_entries_value",
    ),
    CheckConstraint(one_of("kind", _KINDS), name="kind"),
    Index("ix_checkpoint_entries_value", "thread_id", "line", "start", "length"),
)

checkpoint_writes = table(
    "checkpoint_writes",
    column(
        "thread_id", TEXT, ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    ),
    column("namespace", TEXT, primary_key=True),
    column("checkpoint_id", TEXT, primary_key=True),
    column("task_id", TEXT, primary_key=True),
    column("position", WHOLE, primary_key=True, autoincrement=False),
    column("task_path", TEXT, server_default=text("''")),
    column("channel", TEXT),
    column("kind", Word(("json", "bytes"))),
    column("encoding", Word(_ENCODINGS)),
    column("data", BYTES),
    CheckConstraint(one_of("kind", ("json", "bytes")), name="kind"),
    CheckConstraint(one_of("encoding", _ENCODINGS), name="encoding"),
)
