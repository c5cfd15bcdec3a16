"""What the queue requires of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from agentstore.errors import InvalidInput, shown
from agentstore.records import TaskRecord
from agentstore.values import validation
from agentstore.values.paging import MAX_LIMIT

DEFAULT_LEASE = 60.0
MAX_LEASE = 86_400.0
"""Seconds. A task that needs longer sends heartbeats."""

MAX_QUEUES = 100
"""Queues, or kinds, in one claim."""


def names(name: str, value: str | Sequence[str]) -> list[str]:
    """Require a queue or a kind, or several; sorted, each once."""
    if isinstance(value, str):
        return [validation.key(name, value)]
    if not isinstance(value, list | tuple | set | frozenset) or not 1 <= len(value) <= MAX_QUEUES:
        raise InvalidInput(f"{name} must be a str, or a list of 1 to {MAX_QUEUES} of them.")
    return sorted({validation.key(name, each) for each in value})


def length(lease: object) -> timedelta:
    """Require the seconds of a lease: more than none, up to a day."""
    if isinstance(lease, bool) or not isinstance(lease, int | float):
        raise InvalidInput(f"lease must be a number of seconds, not {type(lease).__name__}.")
    if not 0 < lease <= MAX_LEASE:
        raise InvalidInput(
            f"lease must be more than 0 and up to {MAX_LEASE:.0f} seconds, not {shown(lease)}."
        )
    return timedelta(seconds=lease)


def records(name: str, tasks: object) -> list[TaskRecord]:
    """Require records of claimed tasks, each task once."""
    if not isinstance(tasks, list | tuple) or not all(isinstance(t, TaskRecord) for t in tasks):
        raise InvalidInput(f"{name} must be a list of the records that claim() returned.")
    if len(tasks) > MAX_LIMIT:
        raise InvalidInput(f"{name} must hold up to {MAX_LIMIT} tasks, not {len(tasks)}.")
    if len({task.id for task in tasks}) < len(tasks):
        raise InvalidInput(f"{name} must not hold a task twice.")
    return list(tasks)


def pairs(name: str, pairs: object) -> list[tuple[TaskRecord, Any]]:
    """Require pairs of a claimed task's record and something else."""
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in pairs
    ):
        raise InvalidInput(f"{name} must be a list of pairs: a record, and what came of it.")
    records(name, [task for task, _ in pairs])
    return list(pairs)
