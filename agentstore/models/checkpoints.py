"""Checkpoints of an agent's state.

A checkpoint names values. A value that is a list grows along a *line*: each node in
``checkpoint_values`` holds the items that one version added, and all nodes of a line up to a
length, together with what the line began with on another one, are that version. So what is equal
to the parent's is stored once, and reading is a few ranges of an index (see
``agentstore.repositories.checkpoints.values``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from agentstore.models.base import Base, PartialIndex, Pk, one_of
from agentstore.values.types import Word

_ROOT_NAMESPACE = text("namespace = ''")
_IN_A_SESSION = text("session_id IS NOT NULL")
_OF_A_USER = text("user_id IS NOT NULL")
_OF_A_RUN = text("run_id IS NOT NULL")
_BASED = text("base_line IS NOT NULL")
_KINDS = ("json", "bytes", "list")
_ENCODINGS = ("raw", "zlib")


class CheckpointThread(Base):
    """A thread of checkpoints; ``activity`` orders the threads by what was put last.

    Whoever changes a thread changes this row first, and so waits for who is at it. ``last_line``
    is the largest number that was set aside for a line of values.
    """

    __tablename__ = "checkpoint_threads"
    __table_args__ = (
        Index(None, "activity"),
        PartialIndex(None, "user_id", "activity", where=_OF_A_USER),
        PartialIndex(None, "session_id", "activity", where=_IN_A_SESSION),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    activity: Mapped[int]
    last_line: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime]


class Checkpoint(Base):
    """One checkpoint; its parent is in the same thread and namespace, or it is a root.

    In the root namespace, ``''``, an id belongs to one thread alone; other namespaces may hold
    the same id in several threads, as copies of a thread do.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (
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

    pk: Mapped[Pk]
    thread_id: Mapped[str] = mapped_column(ForeignKey("checkpoint_threads.id", ondelete="CASCADE"))
    namespace: Mapped[str] = mapped_column(server_default=text("''"))
    id: Mapped[str]
    parent_id: Mapped[str | None]
    step: Mapped[int]
    run_id: Mapped[str | None]
    tags: Mapped[list[Any]]
    summary: Mapped[str]
    next_node: Mapped[str]
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    created_at: Mapped[datetime]


class CheckpointValue(Base):
    """A node: one version of a value, or what it adds to the version before it on its line.

    ``length`` is how many items a list has at this version; it and the line are the node's name.
    A line begins with the first ``start`` items of another version, its base, which every node of
    the line repeats. ``digest`` is that of the whole version; ``position`` counts the nodes of
    the line, ``depth`` the lines below it.
    """

    __tablename__ = "checkpoint_values"
    __table_args__ = (
        ForeignKeyConstraint(
            ["thread_id", "base_line", "base_length"],
            [
                "checkpoint_values.thread_id",
                "checkpoint_values.line",
                "checkpoint_values.length",
            ],
            name="fk_checkpoint_values_base",
        ),
        CheckConstraint(one_of("kind", _KINDS), name="kind"),
        CheckConstraint(one_of("encoding", _ENCODINGS), name="encoding"),
        CheckConstraint("start >= 0 AND start <= length", name="start"),
        PartialIndex(
            "ix_checkpoint_values_base", "thread_id", "base_line", "base_length", where=_BASED
        ),
    )

    thread_id: Mapped[str] = mapped_column(
        ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    )
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    length: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    start: Mapped[int]
    base_line: Mapped[int | None]
    base_length: Mapped[int | None]
    depth: Mapped[int]
    position: Mapped[int]
    kind: Mapped[str] = mapped_column(Word(_KINDS))
    encoding: Mapped[str] = mapped_column(Word(_ENCODINGS))
    digest: Mapped[bytes]
    data: Mapped[bytes]


class CheckpointEntry(Base):
    """Which version of a value a checkpoint holds under which name."""

    __tablename__ = "checkpoint_entries"
    __table_args__ = (
        ForeignKeyConstraint(
            ["thread_id", "line", "length"],
            [
                "checkpoint_values.thread_id",
                "checkpoint_values.line",
                "checkpoint_values.length",
            ],
            name="fk_checkpoint_entries_value",
        ),
        Index("ix_checkpoint_entries_value", "thread_id", "line", "length"),
    )

    checkpoint_pk: Mapped[int] = mapped_column(
        ForeignKey("checkpoints.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    name: Mapped[str] = mapped_column(primary_key=True)
    thread_id: Mapped[str]
    line: Mapped[int]
    length: Mapped[int]


class CheckpointWrite(Base):
    """A pending write of a task. It may arrive before its checkpoint, hence no foreign key."""

    __tablename__ = "checkpoint_writes"
    __table_args__ = (
        CheckConstraint(one_of("kind", ("json", "bytes")), name="kind"),
        CheckConstraint(one_of("encoding", _ENCODINGS), name="encoding"),
    )

    thread_id: Mapped[str] = mapped_column(
        ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    )
    namespace: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    task_path: Mapped[str] = mapped_column(server_default=text("''"))
    channel: Mapped[str]
    kind: Mapped[str] = mapped_column(Word(("json", "bytes")))
    encoding: Mapped[str] = mapped_column(Word(_ENCODINGS))
    data: Mapped[bytes]
