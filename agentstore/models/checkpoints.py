"""Checkpoints of an agent's state.

A checkpoint names values. Small ones are in its own row. The bytes of the others are on *lines*, in
pieces that follow each other in ``checkpoint_values``; a version is the first so many bytes of a
line. So what a list grew by is stored once, and a line may begin with what a version of another one
begins and ends with (see ``agentstore.repositories.checkpoints.values``).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapped, column_property

from agentstore.models.base import Base, related
from agentstore.schema import checkpoints as tables

if TYPE_CHECKING:
    from agentstore.models.sessions import Session
    from agentstore.models.users import User


class CheckpointThread(Base):
    """A thread of checkpoints; ``activity`` orders the threads by what was put last.

    A call that changes a thread changes this row first, and so waits for others. ``last_line``
    is the largest number that was set aside for a line of values.
    """

    __table__ = tables.checkpoint_threads

    pk: Mapped[int]
    id: Mapped[str]
    user_id: Mapped[str | None]
    session_id: Mapped[str | None]
    activity: Mapped[int]
    last_line: Mapped[int]
    created_at: Mapped[datetime]

    user: Mapped[User | None] = related("User")
    session: Mapped[Session | None] = related("Session")
    checkpoints: Mapped[list[Checkpoint]] = related("Checkpoint", order_by="Checkpoint.pk")
    values: Mapped[list[CheckpointValue]] = related(
        "CheckpointValue", order_by="CheckpointValue.line, CheckpointValue.start"
    )
    writes: Mapped[list[CheckpointWrite]] = related(
        "CheckpointWrite",
        order_by="CheckpointWrite.checkpoint_id, CheckpointWrite.task_id, CheckpointWrite.position",
    )


class Checkpoint(Base):
    """One checkpoint; its parent is in the same thread and namespace, or it is a root.

    In the root namespace, ``''``, an id belongs to one thread alone; other namespaces may hold
    the same id in several threads, as copies of a thread do. ``small_values`` are those that no
    entry names, packed (see ``agentstore.repositories.checkpoints.small_values``).
    """

    __table__ = tables.checkpoints

    pk: Mapped[int]
    thread_id: Mapped[str]
    namespace: Mapped[str]
    id: Mapped[str]
    parent_id: Mapped[str | None]
    step: Mapped[int]
    run_id: Mapped[str | None]
    tags: Mapped[list[Any]]
    summary: Mapped[str]
    next_node: Mapped[str]
    metadata_: Mapped[dict[str, Any] | None] = column_property(tables.checkpoints.c.metadata)
    created_at: Mapped[datetime]
    small_values: Mapped[bytes | None]

    thread: Mapped[CheckpointThread] = related("CheckpointThread")
    parent: Mapped[Checkpoint | None] = related(
        "Checkpoint", remote_side="[Checkpoint.thread_id, Checkpoint.namespace, Checkpoint.id]"
    )
    children: Mapped[list[Checkpoint]] = related("Checkpoint", order_by="Checkpoint.pk")
    entries: Mapped[list[CheckpointEntry]] = related(
        "CheckpointEntry", order_by="CheckpointEntry.name"
    )


class CheckpointValue(Base):
    """A piece of a line: the bytes that begin at ``start``; those of a line follow each other.

    Without a ``prefix`` it goes on at the end of what the line is so far; else it takes the place
    of what is between the first ``prefix`` and the last ``suffix`` bytes of that. ``depth`` counts
    such pieces up to this one. The first piece, at 0, may have a base: what the first
    ``base_length`` bytes of another line are. ``base_start`` is 0 then, for the foreign key.
    """

    __table__ = tables.checkpoint_values

    thread_id: Mapped[str]
    line: Mapped[int]
    start: Mapped[int]
    base_line: Mapped[int | None]
    base_start: Mapped[int | None]
    base_length: Mapped[int | None]
    prefix: Mapped[int | None]
    suffix: Mapped[int]
    depth: Mapped[int]
    data: Mapped[bytes]

    thread: Mapped[CheckpointThread] = related("CheckpointThread")


class CheckpointEntry(Base):
    """Which version a checkpoint holds under which name: what the first ``length`` bytes of a line
    are.

    These make ``size`` bytes in all, whose ``digest`` this is; a list has ``item_count`` items.
    ``start`` is 0, for the foreign key: a line is there as long as an entry names it.
    """

    __table__ = tables.checkpoint_entries

    checkpoint_pk: Mapped[int]
    name: Mapped[str]
    thread_id: Mapped[str]
    line: Mapped[int]
    start: Mapped[int]
    length: Mapped[int]
    kind: Mapped[str]
    size: Mapped[int]
    item_count: Mapped[int]
    digest: Mapped[bytes]

    checkpoint: Mapped[Checkpoint] = related("Checkpoint")


class CheckpointWrite(Base):
    """A pending write of a task. It may arrive before its checkpoint, hence no foreign key."""

    __table__ = tables.checkpoint_writes

    thread_id: Mapped[str]
    namespace: Mapped[str]
    checkpoint_id: Mapped[str]
    task_id: Mapped[str]
    position: Mapped[int]
    task_path: Mapped[str]
    channel: Mapped[str]
    kind: Mapped[str]
    encoding: Mapped[str]
    data: Mapped[bytes]

    thread: Mapped[CheckpointThread] = related("CheckpointThread")
