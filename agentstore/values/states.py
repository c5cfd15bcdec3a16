"""The lives of a session and of a task, and the roles of a message.

The one place that says which status may follow which. The models make CHECK constraints of the
names, the repositories make conditional updates of the arrows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar, get_args

from agentstore.records.words import Role, SessionStatus, TaskStatus

PROMPTS = ("system", "developer")
"""The roles of what a conversation may begin with, before the first user message."""

S = TypeVar("S", bound=str)

ROLES: tuple[Role, ...] = get_args(Role)

SESSION_STATUSES: tuple[SessionStatus, ...] = get_args(SessionStatus)

SESSION_TRANSITIONS: Mapping[SessionStatus, frozenset[SessionStatus]] = {
    "active": frozenset({"paused", "waiting_user", "completed", "cancelled", "failed"}),
    "paused": frozenset({"active", "completed", "cancelled", "failed"}),
    "waiting_user": frozenset({"active", "completed", "cancelled", "failed"}),
    "completed": frozenset(),
    "cancelled": frozenset(),
    "failed": frozenset(),
}
"""From each status of a session, the statuses that may follow."""

TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)

TASK_TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    "pending": frozenset({"running", "paused", "cancelled"}),
    "running": frozenset({"pending", "paused", "completed", "failed", "cancelled", "dead"}),
    "paused": frozenset({"pending", "cancelled"}),
    "failed": frozenset({"pending", "dead"}),
    "dead": frozenset({"pending"}),
    "completed": frozenset(),
    "cancelled": frozenset(),
}
"""From each status of a task, the statuses that may follow; pending again is a retry."""

MAIN = "main"
"""The name of the branch that every session has; its number is 0."""

COMPLETE: Final = "complete"
STREAMING: Final = "streaming"
INCOMPLETE: Final = "incomplete"
MESSAGE_STATUSES = (COMPLETE, STREAMING, INCOMPLETE)

NO_BRANCH = -1
"""The active branch of a session that has expired and is being deleted in pieces: it has none,
so nothing can be appended to it or changed in it any more."""


def sources(transitions: Mapping[S, frozenset[S]], wanted: S) -> tuple[S, ...]:
    """List the statuses from which ``wanted`` can be reached in one step, sorted."""
    return tuple(sorted(status for status, onward in transitions.items() if wanted in onward))
