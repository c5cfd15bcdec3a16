"""Checkpoints of an agent's state.

A checkpoint names values; a value is a node in ``checkpoint_values`` that may build on another
(``base_id``), so that what is equal to the parent's is stored once and a growing list costs
what was added to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from agentstore.models.base import Base, Pk, one_of

_ROOT_NAMESPACE = text("namespace = ''")
_IN_A_SESSION = text("session_id IS NOT NULL")
_OF_A_USER = text("user_id IS NOT NULL")


class CheckpointThread(Base):
    """A thread of checkpoints; ``activity`` orders the threads by their last checkpoint."""

    __tablename__ = "checkpoint_threads"
    __table_args__ = (
        Index(None, "activity"),
        Index(None, "user_id", sqlite_where=_OF_A_USER, postgresql_where=_OF_A_USER),
        Index(None, "session_id", sqlite_where=_IN_A_SESSION, postgresql_where=_IN_A_SESSION),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    activity: Mapped[int]
    created_at: Mapped[datetime]


class Checkpoint(Base):
    """One checkpoint. ``parent_id`` is no foreign key: a parent may be pruned.

    In the root namespace, ``''``, an id belongs to one thread alone; other namespaces may hold
    the same id in several threads, as copies of a thread do.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (
        Index(None, "thread_id", "namespace", "id", unique=True),
        Index(None, "thread_id", "namespace", "step", "pk"),
        Index(None, "thread_id", "namespace", "parent_id"),
        Index(None, "thread_id", "created_at"),
        Index(
            "uq_checkpoints_id",
            "id",
            unique=True,
            sqlite_where=_ROOT_NAMESPACE,
            postgresql_where=_ROOT_NAMESPACE,
        ),
        Index(None, "run_id"),
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
    """A value, or what it adds to the value that it builds on.

    ``digest`` is that of the whole value, so that equal values of a thread are found and shared;
    ``encoding`` says how ``data`` is written.
    """

    __tablename__ = "checkpoint_values"
    __table_args__ = (
        CheckConstraint(one_of("kind", ("json", "bytes", "list")), name="kind"),
        CheckConstraint(one_of("encoding", ("raw", "zlib")), name="encoding"),
        Index(None, "thread_id", "digest", unique=True),
        Index(None, "base_id"),
    )

    pk: Mapped[Pk]
    id: Mapped[str] = mapped_column(unique=True)
    thread_id: Mapped[str] = mapped_column(ForeignKey("checkpoint_threads.id", ondelete="CASCADE"))
    base_id: Mapped[str | None] = mapped_column(ForeignKey("checkpoint_values.id"))
    digest: Mapped[str]
    kind: Mapped[str]
    encoding: Mapped[str]
    length: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)


class CheckpointEntry(Base):
    """Which value a checkpoint holds under which name."""

    __tablename__ = "checkpoint_entries"
    __table_args__ = (
        ForeignKeyConstraint(
            ["thread_id", "namespace", "checkpoint_id"],
            ["checkpoints.thread_id", "checkpoints.namespace", "checkpoints.id"],
            ondelete="CASCADE",
            name="fk_checkpoint_entries_checkpoint_id",
        ),
        Index(None, "value_id"),
    )

    thread_id: Mapped[str] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value_id: Mapped[str] = mapped_column(ForeignKey("checkpoint_values.id"))


class CheckpointWrite(Base):
    """A pending write of a task. It may arrive before its checkpoint, hence no foreign key."""

    __tablename__ = "checkpoint_writes"

    thread_id: Mapped[str] = mapped_column(
        ForeignKey("checkpoint_threads.id", ondelete="CASCADE"), primary_key=True
    )
    namespace: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    task_path: Mapped[str] = mapped_column(server_default=text("''"))
    channel: Mapped[str]
    kind: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)
