"""Tasks and workers: what is dead, failed, running or waiting, and who holds what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from starlette.responses import Response

from agentstore.explorer.web.differences import state_tree
from agentstore.explorer.web.visits import Visit
from agentstore.records import TaskRecord
from agentstore.records.words import TaskStatus

_STATES: tuple[TaskStatus, ...] = (
    "dead",
    "failed",
    "running",
    "pending",
    "paused",
    "completed",
    "cancelled",
)
"""What has to be looked at first."""

_OF_A_STATE = 10
_ON_A_PAGE = 50
_MOST_RUNNING = 100


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """The tasks that a worker holds."""

    name: str
    tasks: tuple[TaskRecord, ...]

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the first of its leases runs out."""
        return min((t.lease_expires_at for t in self.tasks if t.lease_expires_at), default=None)


async def page(visit: Visit) -> Response:
    """List the newest tasks of each state, or all of one state."""
    status = cast("TaskStatus | None", visit.given("status"))
    listed = visit.store.tasks.list
    queue, session = visit.given("queue"), visit.given("session")
    of = await visit.narrowed_to()
    if status is not None:
        found = await visit.ask(
            listed,
            session_id=session,
            status=status,
            queue=queue,
            limit=_ON_A_PAGE,
            cursor=visit.given("cursor"),
        )
        groups = [(status, found)]
        return await visit.page(
            "tasks.html", states=_STATES, groups=groups, workers=None, session=of
        )
    groups = []
    for each in _STATES:
        most = _MOST_RUNNING if each == "running" else _OF_A_STATE
        groups.append(
            (
                each,
                await visit.ask(listed, session_id=session, status=each, queue=queue, limit=most),
            )
        )
    running = dict(groups)["running"]
    workers = _workers(running)
    return await visit.page(
        "tasks.html", states=_STATES, groups=groups, workers=workers, session=of
    )


async def counts(visit: Visit) -> Response:
    """Count the tasks of each queue and state; that reads an index of all of them."""
    counted = await visit.ask(visit.store.tasks.count, session_id=visit.given("session"))
    return await visit.page("task_counts.html", states=_STATES, counted=counted)


async def task(visit: Visit) -> Response:
    """Show a task: what it was given, what came of it, when what was done."""
    found = await visit.ask(visit.store.tasks.get, visit.needed("id"))
    return await visit.page(
        "task.html", task=found, payload=state_tree(found.payload), result=state_tree(found.result)
    )


def _workers(running: Iterable[TaskRecord]) -> list[HeldTasks]:
    held: dict[str, list[TaskRecord]] = {}
    for task in running:
        if task.worker is not None:
            held.setdefault(task.worker, []).append(task)
    return [HeldTasks(name, tuple(held[name])) for name in sorted(held)]
