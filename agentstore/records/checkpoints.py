"""What the repository of checkpoints returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstore.records.base import briefly


class Items(tuple[bytes, ...]):
    """A value of a checkpoint that is a list of items, each of them bytes that its owner encoded.

    It is stored and read without a look into any item; of one that grew, only the new items are
    stored. ``Items([b"...", ...])`` makes one.
    """

    __slots__ = ()


@briefly("id", "thread_id", "namespace", "step")
@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint without its values.

    Attributes:
        namespace: ``""`` is the root namespace; a subgraph may have one of its own.
        parent_id: What it came from, in the same thread and namespace; None for a root.
        step: How far the thread had come; larger is later.
        tags: What marks it, as a milestone for example.
        next_node: Where the agent is to go on.
        run_id: The run that put it.
        created_at: As it was given, or when it was put.
    """

    id: str
    thread_id: str
    namespace: str
    parent_id: str | None
    step: int
    tags: tuple[str, ...]
    summary: str
    next_node: str
    metadata: dict[str, Any]
    run_id: str | None
    created_at: datetime


@briefly("id", "thread_id", "namespace", "step")
@dataclass(frozen=True, slots=True)
class CheckpointRecord(CheckpointInfo):
    """A checkpoint with its values.

    Attributes:
        values: JSON, bytes or ``Items``, by name.
        writes: The pending writes after it, by task path, task and position; None if they were
            not asked for.
    """

    values: dict[str, Any]
    writes: tuple[WriteRecord, ...] | None = None


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """A thread of checkpoints.

    Attributes:
        latest: The latest checkpoint of its root namespace; None where there is none, because
            only writes or other namespaces have come so far.
    """

    id: str
    user_id: str | None
    session_id: str | None
    created_at: datetime
    latest: CheckpointInfo | None


@dataclass(frozen=True, slots=True)
class CheckpointTree:
    """How the checkpoints of a thread came from each other.

    Flat, because a long thread is a deep tree.

    Attributes:
        checkpoints: All of them by id, the earliest step first.
        roots: The ids of those without a parent, in the same order.
        children: For each id those that came from it, in the same order.
    """

    checkpoints: Mapping[str, CheckpointInfo]
    roots: tuple[str, ...]
    children: Mapping[str, tuple[str, ...]]

    @property
    def leaves(self) -> tuple[str, ...]:
        """The ids of those that nothing came from yet: the ends of the thread's lines."""
        return tuple(id for id in self.checkpoints if not self.children[id])


@briefly("task_id", "position", "channel")
@dataclass(frozen=True, slots=True)
class WriteRecord:
    """A pending write of a task: a value for a channel, before the next checkpoint."""

    task_id: str
    position: int
    channel: str
    value: Any
    task_path: str
