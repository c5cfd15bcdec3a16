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

from sqlalchemy.orm import Mapped, column_property

from agentstore.models.base import Base
from agentstore.schema import checkpoints as tables


class CheckpointThread(Base):
    """A thread of checkpoints; ``activity`` orders the threads by what was put last.

    Whoever changes a thread changes this row first, and so waits for who is at it. ``last_line``
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


class Checkpoint(Base):
    """One checkpoint; its parent is in the same thread and namespace, or it is a root.

    In the root namespace, ``''``, an id belongs to one thread alone; other namespaces may hold
    the same id in several threads, as copies of a thread do.
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


class CheckpointValue(Base):
    """A node: one version of a value, or what it adds to the version before it on its line.

    ``length`` is how many items a list has at this version; it and the line are the node's name.
    A line begins with the first ``start`` items of another version, its base, which every node of
    the line repeats. ``digest`` is that of the whole version; ``position`` counts the nodes of
    the line, ``depth`` the lines below it.
    """

    __table__ = tables.checkpoint_values

    thread_id: Mapped[str]
    line: Mapped[int]
    length: Mapped[int]
    start: Mapped[int]
    base_line: Mapped[int | None]
    base_length: Mapped[int | None]
    depth: Mapped[int]
    position: Mapped[int]
    kind: Mapped[str]
    encoding: Mapped[str]
    digest: Mapped[bytes]
    data: Mapped[bytes]


class CheckpointEntry(Base):
    """Which version of a value a checkpoint holds under which name."""

    __table__ = tables.checkpoint_entries

    checkpoint_pk: Mapped[int]
    name: Mapped[str]
    thread_id: Mapped[str]
    line: Mapped[int]
    length: Mapped[int]


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
