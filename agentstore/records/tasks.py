"""Tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstore.records.base import briefly
from agentstore.records.words import TaskStatus


@briefly("id", "session_id", "queue", "kind", "status", "attempts")
@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task.

    Attributes:
        run_at: When it may be started at the earliest.
        attempts: How often it was started.
        failures: How many attempts failed, or were abandoned: their lease ran out.
        max_retries: How often a failed attempt may be repeated.
        alone_in_session: Whether it waits while another such task of its session runs.
        cancel_requested: Whether its worker is asked to stop.
        fence: The fencing token of the latest attempt; every attempt has a larger one.
        worker: Who holds it under a lease; None if nobody does.
        lease_expires_at: Until when, unless a heartbeat comes.
        started_at: When it was last started; the other times likewise are the last ones.
    """

    id: str
    session_id: str | None
    queue: str
    kind: str
    status: TaskStatus
    priority: int
    payload: Any
    result: Any
    error: str | None
    run_at: datetime
    attempts: int
    failures: int
    max_retries: int
    alone_in_session: bool
    cancel_requested: bool
    fence: int
    worker: str | None
    lease_expires_at: datetime | None
    idempotency_key: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    paused_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    cancelled_at: datetime | None
    dead_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """What became of a batch of tasks that a worker handed back.

    Attributes:
        settled: Those that it held, as they are now, in the order given.
        lost: The ids of those that it did not hold any more, in the order given; nothing of
            them was changed, and what was done for them is to be discarded.
    """

    settled: tuple[TaskRecord, ...]
    lost: tuple[str, ...]
